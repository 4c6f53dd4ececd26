// Ring arithmetic on 64-bit integers, for any processor.
#include "rlwe_kernels.hpp"

namespace fedsim {
namespace {

#include "rlwe_loops.inl"

}  // namespace

const RingKernels kRingGeneric = word_table("generic");

}  // namespace fedsim
