// Exact discrete Gaussian noise.
//
// P(x) is proportional to exp(-x^2 / (2 variance)) over the integers, sampled with integer arithmetic only (Canonne,
// Kamath, Steinke, "The Discrete Gaussian for Differential Privacy", NeurIPS 2020, algorithms 1-3). Floating point
// serves to decide early and is never trusted near a tie, so the law is exact given uniform words, up to 2^-256 a
// decision.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fedsim {

/// Samples of one stream: a counter of 2^64 blocks each, so that the result does not depend on the number of threads.
constexpr std::size_t kNoiseChunk = std::size_t{1} << 14;

/// Largest variance: products of the acceptance test must fit 128 bits.
constexpr std::uint64_t kMaxVariance = std::uint64_t{1} << 56;

/// Writes `count` independent samples to `out`. Chunk c of kNoiseChunk samples reads little-endian 64-bit words of the
/// AES-128-CTR stream of `key` from counter `c * 2^64` on (see aes.hpp).
///
/// Running time depends on the samples: an aggregator must not let others time single draws.
///
/// Throws std::invalid_argument: the variance is 0 or above kMaxVariance, or `isa` is unknown (see kernels()).
void discrete_gaussian(const std::uint8_t* key, std::uint64_t variance, std::int64_t* out, std::size_t count,
                       std::size_t threads, const char* isa);

}  // namespace fedsim
