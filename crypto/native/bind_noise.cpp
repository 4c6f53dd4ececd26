// Python face of noise.hpp; its contract in Python's words is crypto/_native.pyi.
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <stdexcept>
#include <string>

#include "aes.hpp"
#include "bindings.hpp"
#include "noise.hpp"

namespace nb = nanobind;

namespace fedsim {
namespace {

using Samples = nb::ndarray<std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void fill(const nb::bytes& key, std::uint64_t variance, const Samples& out, std::size_t threads,
          const std::string& isa) {
  if (key.size() != kBlockBytes) {
    throw std::invalid_argument("key of " + std::to_string(key.size()) + " bytes: must be 16");
  }
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(key.data());
  nb::gil_scoped_release release;
  discrete_gaussian(bytes, variance, out.data(), out.size(), threads, isa.c_str());
}

}  // namespace

void bind_noise(nb::module_& m) {
  m.def("discrete_gaussian", fill, nb::arg("key"), nb::arg("variance"), nb::arg("out").noconvert(),
        nb::arg("threads") = 1, nb::arg("isa") = "");
}

}  // namespace fedsim
