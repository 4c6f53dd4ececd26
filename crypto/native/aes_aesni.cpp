// AES-128 on AES-NI, eight blocks in flight. Compiled with -maes -mssse3.
#include "aes.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

namespace fedsim {
namespace {

#include "x86_schedule.inl"

struct Engine {
  typedef std::uint64_t Vec __attribute__((vector_size(16)));
  static constexpr std::size_t kLanes = 1;

  struct Key {
    __m128i rk[11];
  };

  static void load(const std::uint8_t* schedule, Key& key) { __builtin_memcpy(key.rk, schedule, sizeof key.rk); }

  static void expand(const std::uint8_t* key, Schedule* schedule) { expand_key(key, schedule); }

  static inline void encrypt(const Key& key, Vec* x) {
#pragma GCC unroll 8
    for (int v = 0; v < 8; ++v) x[v] ^= (Vec)key.rk[0];
#pragma GCC unroll 9
    for (int round = 1; round < 10; ++round) {
#pragma GCC unroll 8
      for (int v = 0; v < 8; ++v) x[v] = (Vec)_mm_aesenc_si128((__m128i)x[v], key.rk[round]);
    }
#pragma GCC unroll 8
    for (int v = 0; v < 8; ++v) x[v] = (Vec)_mm_aesenclast_si128((__m128i)x[v], key.rk[10]);
  }

  static inline Vec reverse(Vec v) {
    const __m128i order = _mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return (Vec)_mm_shuffle_epi8((__m128i)v, order);
  }
};

#include "lanes.inl"

}  // namespace

const Kernels kAesni = table<Engine>("aesni");

}  // namespace fedsim
#endif
