// The compiled module: collects the bindings of all rooms.
#include "bindings.hpp"

NB_MODULE(_native, m) {
  m.doc() = "Native kernels of fedsim's crypto package.";
  fedsim::bind_dpf(m);
  fedsim::bind_hadamard(m);
  fedsim::bind_noise(m);
  fedsim::bind_prg(m);
  fedsim::bind_rlwe(m);
}
