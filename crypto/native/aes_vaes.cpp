// AES-128 on 256-bit VAES, sixteen blocks in flight. Compiled with -maes -mavx2 -mvaes, or, to test everything but the
// instruction itself on a processor without it, with FEDSIM_EMULATE_VAES and -maes -mavx2 (QEMU 7.2 computes the upper
// half of vaesenc wrongly and is no judge).
#include "aes.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

namespace fedsim {
namespace {

#include "x86_schedule.inl"

#ifdef FEDSIM_EMULATE_VAES
inline __m256i join(__m128i low, __m128i high) { return _mm256_set_m128i(high, low); }

inline __m256i aesenc(__m256i x, __m256i k) {
  return join(_mm_aesenc_si128(_mm256_castsi256_si128(x), _mm256_castsi256_si128(k)),
              _mm_aesenc_si128(_mm256_extracti128_si256(x, 1), _mm256_extracti128_si256(k, 1)));
}

inline __m256i aesenclast(__m256i x, __m256i k) {
  return join(_mm_aesenclast_si128(_mm256_castsi256_si128(x), _mm256_castsi256_si128(k)),
              _mm_aesenclast_si128(_mm256_extracti128_si256(x, 1), _mm256_extracti128_si256(k, 1)));
}
#else
inline __m256i aesenc(__m256i x, __m256i k) { return _mm256_aesenc_epi128(x, k); }
inline __m256i aesenclast(__m256i x, __m256i k) { return _mm256_aesenclast_epi128(x, k); }
#endif

struct Engine {
  typedef std::uint64_t Vec __attribute__((vector_size(32)));
  typedef std::uint32_t Vec32 __attribute__((vector_size(32)));
  static constexpr std::size_t kLanes = 2;

  struct Key {
    __m256i rk[11];
  };

  static void load(const std::uint8_t* schedule, Key& key) {
    for (int round = 0; round < 11; ++round) {
      key.rk[round] = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)schedule + round));
    }
  }

  static void expand(const std::uint8_t* key, Schedule* schedule) { expand_key(key, schedule); }

  static void prepare(const std::uint8_t* const* seeds, Key* keys) {
    __m128i rk[4][11];
    round_keys<4>(seeds, rk);
    for (int i = 0; i < 4; ++i) {
      for (int round = 0; round < 11; ++round) keys[i].rk[round] = _mm256_broadcastsi128_si256(rk[i][round]);
    }
  }

  static inline void encrypt(const Key& key, Vec* x) {
#pragma GCC unroll 8
    for (int v = 0; v < 8; ++v) x[v] ^= (Vec)key.rk[0];
#pragma GCC unroll 9
    for (int round = 1; round < 10; ++round) {
#pragma GCC unroll 8
      for (int v = 0; v < 8; ++v) x[v] = (Vec)aesenc((__m256i)x[v], key.rk[round]);
    }
#pragma GCC unroll 8
    for (int v = 0; v < 8; ++v) x[v] = (Vec)aesenclast((__m256i)x[v], key.rk[10]);
  }

  static inline Vec reverse(Vec v) {
    const __m128i order = _mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return (Vec)_mm256_shuffle_epi8((__m256i)v, _mm256_broadcastsi128_si256(order));
  }
};

#include "lanes.inl"

}  // namespace

const Kernels kVaes = table<Engine>("vaes");

}  // namespace fedsim
#endif
