// Bitsliced AES-128 for processors without AES instructions: no table, no branch and no address depends on a secret.
//
// Eight blocks are held as eight vectors; after the transposition, byte i of vector b holds bit b of byte i of the
// eight blocks. ShiftRows then permutes 32-bit columns and bytes, MixColumns rotates columns, and SubBytes is a circuit.
#include "aes.hpp"

namespace fedsim {
namespace {

struct Engine {
  typedef std::uint64_t Vec __attribute__((vector_size(16)));
  typedef std::uint32_t Vec32 __attribute__((vector_size(16)));
  typedef Vec32 Columns;
  typedef std::uint8_t Bytes __attribute__((vector_size(16)));
  static constexpr std::size_t kLanes = 1;

  struct Key {
    Vec planes[11][8];
  };

  static void swap_bits(Vec& a, Vec& b, int by, std::uint64_t mask) {
    const Vec t = ((a >> by) ^ b) & mask;
    b ^= t;
    a ^= t << by;
  }

  // 8 x 8 bit transposition in every byte position; its own inverse.
  static void transpose(Vec* x) {
    for (int i = 0; i < 8; i += 2) swap_bits(x[i], x[i + 1], 1, 0x5555555555555555);
    for (int i = 0; i < 8; i += 4) {
      swap_bits(x[i], x[i + 2], 2, 0x3333333333333333);
      swap_bits(x[i + 1], x[i + 3], 2, 0x3333333333333333);
    }
    for (int i = 0; i < 4; ++i) swap_bits(x[i], x[i + 4], 4, 0x0f0f0f0f0f0f0f0f);
  }

  // Boyar, Peralta: "A small depth-16 circuit for the AES S-box" (2011); names as there, x0 and s0 the highest bits.
  static void sub_bytes(Vec* q) {
    const Vec x0 = q[7], x1 = q[6], x2 = q[5], x3 = q[4], x4 = q[3], x5 = q[2], x6 = q[1], x7 = q[0];
    const Vec y14 = x3 ^ x5, y13 = x0 ^ x6, y9 = x0 ^ x3, y8 = x0 ^ x5, t0 = x1 ^ x2;
    const Vec y1 = t0 ^ x7, y4 = y1 ^ x3, y12 = y13 ^ y14, y2 = y1 ^ x0, y5 = y1 ^ x6, y3 = y5 ^ y8;
    const Vec t1 = x4 ^ y12, y15 = t1 ^ x5, y20 = t1 ^ x1, y6 = y15 ^ x7, y10 = y15 ^ t0, y11 = y20 ^ y9;
    const Vec y7 = x7 ^ y11, y17 = y10 ^ y11, y19 = y10 ^ y8, y16 = t0 ^ y11, y21 = y13 ^ y16, y18 = x0 ^ y16;

    const Vec t2 = y12 & y15, t3 = y3 & y6, t4 = t3 ^ t2, t5 = y4 & x7, t6 = t5 ^ t2, t7 = y13 & y16;
    const Vec t8 = y5 & y1, t9 = t8 ^ t7, t10 = y2 & y7, t11 = t10 ^ t7, t12 = y9 & y11, t13 = y14 & y17;
    const Vec t14 = t13 ^ t12, t15 = y8 & y10, t16 = t15 ^ t12, t17 = t4 ^ t14, t18 = t6 ^ t16, t19 = t9 ^ t14;
    const Vec t20 = t11 ^ t16, t21 = t17 ^ y20, t22 = t18 ^ y19, t23 = t19 ^ y21, t24 = t20 ^ y18;

    const Vec t25 = t21 ^ t22, t26 = t21 & t23, t27 = t24 ^ t26, t28 = t25 & t27, t29 = t28 ^ t22, t30 = t23 ^ t24;
    const Vec t31 = t22 ^ t26, t32 = t31 & t30, t33 = t32 ^ t24, t34 = t23 ^ t33, t35 = t27 ^ t33, t36 = t24 & t35;
    const Vec t37 = t36 ^ t34, t38 = t27 ^ t36, t39 = t29 & t38, t40 = t25 ^ t39;
    const Vec t41 = t40 ^ t37, t42 = t29 ^ t33, t43 = t29 ^ t40, t44 = t33 ^ t37, t45 = t42 ^ t41;

    const Vec z0 = t44 & y15, z1 = t37 & y6, z2 = t33 & x7, z3 = t43 & y16, z4 = t40 & y1, z5 = t29 & y7;
    const Vec z6 = t42 & y11, z7 = t45 & y17, z8 = t41 & y10, z9 = t44 & y12, z10 = t37 & y3, z11 = t33 & y4;
    const Vec z12 = t43 & y13, z13 = t40 & y5, z14 = t29 & y2, z15 = t42 & y9, z16 = t45 & y14, z17 = t41 & y8;

    const Vec t46 = z15 ^ z16, t47 = z10 ^ z11, t48 = z5 ^ z13, t49 = z9 ^ z10, t50 = z2 ^ z12, t51 = z2 ^ z5;
    const Vec t52 = z7 ^ z8, t53 = z0 ^ z3, t54 = z6 ^ z7, t55 = z16 ^ z17, t56 = z12 ^ t48, t57 = t50 ^ t53;
    const Vec t58 = z4 ^ t46, t59 = z3 ^ t54, t60 = t46 ^ t57, t61 = z14 ^ t57, t62 = t52 ^ t58, t63 = t49 ^ t58;
    const Vec t64 = z4 ^ t59, t65 = t61 ^ t62, t66 = z1 ^ t63, t67 = t64 ^ t65;
    const Vec s3 = t53 ^ t66;
    q[7] = t59 ^ t63;
    q[6] = t64 ^ ~s3;
    q[5] = t55 ^ ~t67;
    q[4] = s3;
    q[3] = t51 ^ t66;
    q[2] = t47 ^ t65;
    q[1] = t56 ^ ~t62;
    q[0] = t48 ^ ~t60;
  }

  static Vec shift_rows(Vec v) {
    const Columns c = (Columns)v;
    const Columns c1 = __builtin_shufflevector(c, c, 1, 2, 3, 0), c2 = __builtin_shufflevector(c, c, 2, 3, 0, 1);
    const Columns c3 = __builtin_shufflevector(c, c, 3, 0, 1, 2);
    return (Vec)((c & 0xffu) | (c1 & 0xff00u) | (c2 & 0xff0000u) | (c3 & 0xff000000u));
  }

  static Vec rotate(Vec v, int by) {
    const Columns c = (Columns)v;
    return (Vec)((c >> by) | (c << (32 - by)));
  }

  static void mix_columns(Vec* q) {
    Vec next[8], sum[8];
    for (int b = 0; b < 8; ++b) {
      next[b] = rotate(q[b], 8);
      sum[b] = q[b] ^ next[b];
    }
    for (int b = 0; b < 8; ++b) {
      Vec doubled = sum[(b + 7) % 8];
      if (b == 1 || b == 3 || b == 4) doubled ^= sum[7];
      q[b] = doubled ^ next[b] ^ rotate(sum[b], 16);
    }
  }

  static void add_key(const Vec* planes, Vec* q) {
    for (int b = 0; b < 8; ++b) q[b] ^= planes[b];
  }

  static void load(const std::uint8_t* schedule, Key& key) {
    for (int round = 0; round < 11; ++round) {
      Bytes k;
      __builtin_memcpy(&k, schedule + 16 * round, 16);
      for (int b = 0; b < 8; ++b) key.planes[round][b] = (Vec)(-((k >> b) & 1));
    }
  }

  static void encrypt(const Key& key, Vec* x) {
    transpose(x);
    add_key(key.planes[0], x);
    for (int round = 1; round <= 10; ++round) {
      sub_bytes(x);
      for (int b = 0; b < 8; ++b) x[b] = shift_rows(x[b]);
      if (round < 10) mix_columns(x);
      add_key(key.planes[round], x);
    }
    transpose(x);
  }

  static Vec reverse(Vec v) {
    const std::uint64_t low = v[0], high = v[1];
    return Vec{__builtin_bswap64(high), __builtin_bswap64(low)};
  }

  static std::uint32_t sub_word(std::uint32_t word) {
    Vec x[8] = {Vec{word, 0}};
    transpose(x);
    sub_bytes(x);
    transpose(x);
    return static_cast<std::uint32_t>(x[0][0]);
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

const Kernels kGeneric = table<Engine>("generic");

}  // namespace fedsim
