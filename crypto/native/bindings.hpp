// One function per room; each room's bindings live in a file of their own.
#pragma once

#include <nanobind/nanobind.h>

namespace fedsim {

void bind_dpf(nanobind::module_& m);
void bind_hadamard(nanobind::module_& m);
void bind_noise(nanobind::module_& m);
void bind_prg(nanobind::module_& m);
void bind_rlwe(nanobind::module_& m);

}  // namespace fedsim
