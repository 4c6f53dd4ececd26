// Python face of hadamard.hpp; its contract in Python's words is crypto/_native.pyi.
#include <nanobind/ndarray.h>

#include <bit>
#include <stdexcept>
#include <string>

#include "bindings.hpp"
#include "hadamard.hpp"

namespace nb = nanobind;

namespace fedsim {
namespace {

template <class T>
using Values = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T>
void transform(const Values<T>& values) {
  if (!std::has_single_bit(values.size())) {
    throw std::invalid_argument("transform of " + std::to_string(values.size()) + " values: must be a power of two");
  }
  nb::gil_scoped_release release;
  hadamard(values.data(), values.size());
}

}  // namespace

void bind_hadamard(nb::module_& m) {
  m.def("hadamard", transform<float>, nb::arg("values").noconvert());
  m.def("hadamard", transform<double>, nb::arg("values").noconvert());
}

}  // namespace fedsim
