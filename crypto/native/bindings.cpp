// Python face of the native kernels; the only translation unit that knows Python.
#include <nanobind/nanobind.h>

NB_MODULE(_native, m) { m.doc() = "Native kernels of fedsim's crypto package."; }
