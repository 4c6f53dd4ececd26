// AES-128 key expansion for both x86 engines. AESENCLAST on four equal columns is SubWord plus the round constant
// (ShiftRows moves nothing), with a shorter latency than AESKEYGENASSIST.

inline __m128i next_round_key(__m128i k, std::uint32_t rcon) {
  const __m128i rotated = _mm_shuffle_epi8(k, _mm_set1_epi32(0x0c0f0e0d));
  const __m128i substituted = _mm_aesenclast_si128(rotated, _mm_set1_epi32(static_cast<int>(rcon)));
  k = _mm_xor_si128(k, _mm_slli_si128(k, 4));
  k = _mm_xor_si128(k, _mm_slli_si128(k, 8));
  return _mm_xor_si128(k, substituted);
}

template <int kKeys>
inline void round_keys(const std::uint8_t* const* seeds, __m128i (*rk)[11]) {
  constexpr std::uint32_t rcon[10] = {0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0x1b, 0x36};
#pragma GCC unroll 4
  for (int i = 0; i < kKeys; ++i) rk[i][0] = _mm_loadu_si128((const __m128i*)seeds[i]);
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
#pragma GCC unroll 4
    for (int i = 0; i < kKeys; ++i) rk[i][round + 1] = next_round_key(rk[i][round], rcon[round]);
  }
}

inline void expand_key(const std::uint8_t* key, Schedule* schedule) {
  __m128i rk[1][11];
  round_keys<1>(&key, rk);
  __builtin_memcpy(schedule->bytes, rk, sizeof rk);
}
