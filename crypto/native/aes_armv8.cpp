// AES-128 on the aarch64 crypto extension, eight blocks in flight. Compiled with -march=armv8-a+crypto.
#include "aes.hpp"

#if defined(__aarch64__)
#include <arm_neon.h>

namespace fedsim {
namespace {

struct Engine {
  typedef std::uint64_t Vec __attribute__((vector_size(16)));
  typedef std::uint32_t Vec32 __attribute__((vector_size(16)));
  static constexpr std::size_t kLanes = 1;

  struct Key {
    uint8x16_t rk[11];
  };

  static void load(const std::uint8_t* schedule, Key& key) {
    for (int round = 0; round < 11; ++round) key.rk[round] = vld1q_u8(schedule + 16 * round);
  }

  // AESE adds the key before SubBytes and ShiftRows, so the schedule is used one step earlier than on x86.
  static inline void encrypt(const Key& key, Vec* x) {
#pragma GCC unroll 9
    for (int round = 0; round < 9; ++round) {
#pragma GCC unroll 8
      for (int v = 0; v < 8; ++v) x[v] = (Vec)vaesmcq_u8(vaeseq_u8((uint8x16_t)x[v], key.rk[round]));
    }
#pragma GCC unroll 8
    for (int v = 0; v < 8; ++v) x[v] = (Vec)veorq_u8(vaeseq_u8((uint8x16_t)x[v], key.rk[9]), key.rk[10]);
  }

  static inline Vec reverse(Vec v) {
    const uint8x16_t swapped = vrev64q_u8((uint8x16_t)v);
    return (Vec)vextq_u8(swapped, swapped, 8);
  }

  static std::uint32_t sub_word(std::uint32_t word) {
    const uint8x16_t columns = vreinterpretq_u8_u32(vdupq_n_u32(word));
    return vgetq_lane_u32(vreinterpretq_u32_u8(vaeseq_u8(columns, vdupq_n_u8(0))), 0);
  }

  static void expand(const std::uint8_t* key, Schedule* schedule) {
    std::uint32_t w[44];
    std::uint32_t rcon = 1;
    __builtin_memcpy(w, key, 16);
    for (int i = 4; i < 44; ++i) {
      std::uint32_t t = w[i - 1];
      if (i % 4 == 0) {
        t = sub_word((t >> 8) | (t << 24)) ^ rcon;
        rcon = (rcon << 1) ^ (rcon >> 7) * 0x11b;
      }
      w[i] = w[i - 4] ^ t;
    }
    __builtin_memcpy(schedule->bytes, w, sizeof w);
  }

  static void prepare(const std::uint8_t* const* seeds, Key* keys) {
    for (int i = 0; i < 4; ++i) {
      Schedule schedule;
      expand(seeds[i], &schedule);
      load(schedule.bytes, keys[i]);
    }
  }
};

#include "lanes.inl"

}  // namespace

const Kernels kArmv8 = table<Engine>("armv8");

}  // namespace fedsim
#endif
