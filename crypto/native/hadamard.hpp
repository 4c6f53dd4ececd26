// Walsh-Hadamard transform of the public rotation.
#pragma once

#include <cstddef>

namespace fedsim {

/// Replaces `size` values, a power of two, by their orthonormal Walsh-Hadamard transform in natural order; its own
/// inverse. The order of sums is fixed, so every machine gives the same bits.
void hadamard(float* values, std::size_t size);
void hadamard(double* values, std::size_t size);

}  // namespace fedsim
