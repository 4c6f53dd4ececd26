// Python face of aes.hpp; its contract in Python's words is crypto/_native.pyi.
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "aes.hpp"
#include "bindings.hpp"

namespace nb = nanobind;

namespace fedsim {
namespace {

using Input = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Output = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

const std::uint8_t* exactly_16(const nb::bytes& value, const char* what) {
  if (value.size() != kBlockBytes) {
    throw std::invalid_argument(std::string(what) + " of " + std::to_string(value.size()) + " bytes: must be 16");
  }
  return reinterpret_cast<const std::uint8_t*>(value.data());
}

std::size_t whole_blocks(std::size_t size) {
  if (size % kBlockBytes != 0) {
    throw std::invalid_argument(std::to_string(size) + " bytes: must be a multiple of 16; pad to whole blocks");
  }
  return size / kBlockBytes;
}

std::vector<std::string> names() {
  std::vector<std::string> out;
  for (const char* const* name = supported(); *name != nullptr; ++name) out.emplace_back(*name);
  return out;
}

void encrypt(const nb::bytes& key, const Input& data, const Output& out, const std::string& isa) {
  const Kernels& table = kernels(isa.c_str());
  const std::size_t blocks = whole_blocks(data.size());
  if (out.size() != data.size()) {
    throw std::invalid_argument("output of " + std::to_string(out.size()) + " bytes: must be as long as the input, " +
                                std::to_string(data.size()));
  }
  Schedule schedule;
  table.expand(exactly_16(key, "key"), &schedule);
  nb::gil_scoped_release release;
  table.encrypt(&schedule, data.data(), out.data(), blocks);
}

void stream(const nb::bytes& key, const nb::bytes& counter, const Output& out, const std::string& isa) {
  const Kernels& table = kernels(isa.c_str());
  const std::size_t blocks = whole_blocks(out.size());
  const std::uint8_t* first = exactly_16(counter, "counter");
  Schedule schedule;
  table.expand(exactly_16(key, "key"), &schedule);
  nb::gil_scoped_release release;
  table.stream(&schedule, first, out.data(), blocks);
}

nb::bytes round_keys(const nb::bytes& key, const std::string& isa) {
  Schedule schedule;
  kernels(isa.c_str()).expand(exactly_16(key, "key"), &schedule);
  return nb::bytes(reinterpret_cast<const char*>(schedule.bytes), kScheduleBytes);
}

}  // namespace

void bind_prg(nb::module_& m) {
  m.def("isa", [] { return std::string(kernels().name); });
  m.def("isas", names);
  m.def("aes_encrypt", encrypt, nb::arg("key"), nb::arg("data").noconvert(), nb::arg("out").noconvert(),
        nb::arg("isa") = "");
  m.def("aes_stream", stream, nb::arg("key"), nb::arg("counter"), nb::arg("out").noconvert(), nb::arg("isa") = "");
  m.def("aes_round_keys", round_keys, nb::arg("key"), nb::arg("isa") = "");
}

}  // namespace fedsim
