// Ring arithmetic on NEON, part of every 64-bit ARM.
#include "rlwe_kernels.hpp"

#if defined(__aarch64__)
#include <arm_neon.h>

namespace fedsim {
namespace {

#include "rlwe_loops.inl"
#include "rlwe_lanes.inl"

struct Engine {
  typedef double Vec __attribute__((vector_size(16)));
  typedef std::uint64_t Word __attribute__((vector_size(16)));
  static constexpr std::size_t kLanes = 2;

  static inline Vec fma(Vec a, Vec b, Vec c) { return (Vec)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b); }
  static inline Vec round(Vec x) { return (Vec)vrndnq_f64((float64x2_t)x); }
  static inline Word gather(const std::uint8_t* base, Word offsets) {
    Word word;
    for (int lane = 0; lane < 2; ++lane) {
      std::uint64_t x;
      __builtin_memcpy(&x, base + offsets[lane], sizeof x);
      word[lane] = x;
    }
    return word;
  }
  static inline void interleave(Vec a, Vec b, Vec& low, Vec& high) {
    low = __builtin_shufflevector(a, b, 0, 2);
    high = __builtin_shufflevector(a, b, 1, 3);
  }
  static inline void separate(Vec low, Vec high, Vec& a, Vec& b) { interleave(low, high, a, b); }
};

}  // namespace

const RingKernels kRingNeon = real_table<Engine>("neon");

}  // namespace fedsim
#endif
