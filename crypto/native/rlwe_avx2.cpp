// Ring arithmetic on AVX2 and FMA. Compiled with -mavx2 -mfma.
#include "rlwe_kernels.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

namespace fedsim {
namespace {

#include "rlwe_loops.inl"
#include "rlwe_lanes.inl"

struct Engine {
  typedef double Vec __attribute__((vector_size(32)));
  typedef std::uint64_t Word __attribute__((vector_size(32)));
  static constexpr std::size_t kLanes = 4;

  static inline Vec fma(Vec a, Vec b, Vec c) { return (Vec)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c); }
  static inline Vec round(Vec x) { return (Vec)_mm256_round_pd((__m256d)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static inline Word gather(const std::uint8_t* base, Word offsets) {
    return (Word)_mm256_i64gather_epi64((const long long*)base, (__m256i)offsets, 1);
  }
  static inline void interleave(Vec a, Vec b, Vec& low, Vec& high) {
    low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
    high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
  }
  static inline void separate(Vec low, Vec high, Vec& a, Vec& b) {
    a = __builtin_shufflevector(low, high, 0, 2, 4, 6);
    b = __builtin_shufflevector(low, high, 1, 3, 5, 7);
  }
};

}  // namespace

const RingKernels kRingAvx2 = real_table<Engine>("avx2");

}  // namespace fedsim
#endif
