// Ring arithmetic on AVX-512 (F, DQ, BW, VL). Compiled with these.
#include "rlwe_kernels.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

namespace fedsim {
namespace {

#include "rlwe_loops.inl"
#include "rlwe_lanes.inl"

struct Engine {
  typedef double Vec __attribute__((vector_size(64)));
  typedef std::uint64_t Word __attribute__((vector_size(64)));
  static constexpr std::size_t kLanes = 8;

  static inline Vec fma(Vec a, Vec b, Vec c) { return (Vec)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c); }
  static inline Vec round(Vec x) {
    return (Vec)_mm512_roundscale_pd((__m512d)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static inline Word gather(const std::uint8_t* base, Word offsets) {
    return (Word)_mm512_i64gather_epi64((__m512i)offsets, base, 1);
  }
  static inline void interleave(Vec a, Vec b, Vec& low, Vec& high) {
    low = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
    high = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
  }
  static inline void separate(Vec low, Vec high, Vec& a, Vec& b) {
    a = __builtin_shufflevector(low, high, 0, 2, 4, 6, 8, 10, 12, 14);
    b = __builtin_shufflevector(low, high, 1, 3, 5, 7, 9, 11, 13, 15);
  }
};

}  // namespace

const RingKernels kRingAvx512 = real_table<Engine>("avx512");

}  // namespace fedsim
#endif
