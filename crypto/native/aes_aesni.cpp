// AES-128 on AES-NI, eight blocks in flight. Compiled with -maes -msse4.2.
#include "aes.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

namespace fedsim {
namespace {

#include "x86_schedule.inl"

struct Engine {
  typedef std::uint64_t Vec __attribute__((vector_size(16)));
  typedef std::uint32_t Vec32 __attribute__((vector_size(16)));
  static constexpr std::size_t kLanes = 1;

  struct Key {
    __m128i rk[11];
  };

  static void load(const std::uint8_t* schedule, Key& key) { __builtin_memcpy(key.rk, schedule, sizeof key.rk); }

  static void expand(const std::uint8_t* key, Schedule* schedule) { expand_key(key, schedule); }

  static void prepare(const std::uint8_t* const* seeds, Key* keys) {
    __m128i rk[4][11];
    round_keys<4>(seeds, rk);
    for (int i = 0; i < 4; ++i) __builtin_memcpy(keys[i].rk, rk[i], sizeof rk[i]);
  }

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
