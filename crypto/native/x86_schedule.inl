// AES-128 key expansion for both x86 engines. AESENCLAST on four equal columns is SubWord plus the round constant
// (ShiftRows moves nothing), with a shorter latency than AESKEYGENASSIST.

template <std::uint32_t kRcon>
inline __m128i next_round_key(__m128i k) {
  const __m128i rotated = _mm_shuffle_epi8(k, _mm_set1_epi32(0x0c0f0e0d));
  const __m128i substituted = _mm_aesenclast_si128(rotated, _mm_set1_epi32(kRcon));
  k = _mm_xor_si128(k, _mm_slli_si128(k, 4));
  k = _mm_xor_si128(k, _mm_slli_si128(k, 8));
  return _mm_xor_si128(k, substituted);
}

inline void round_keys(const std::uint8_t* key, __m128i* rk) {
  rk[0] = _mm_loadu_si128((const __m128i*)key);
  rk[1] = next_round_key<0x01>(rk[0]);
  rk[2] = next_round_key<0x02>(rk[1]);
  rk[3] = next_round_key<0x04>(rk[2]);
  rk[4] = next_round_key<0x08>(rk[3]);
  rk[5] = next_round_key<0x10>(rk[4]);
  rk[6] = next_round_key<0x20>(rk[5]);
  rk[7] = next_round_key<0x40>(rk[6]);
  rk[8] = next_round_key<0x80>(rk[7]);
  rk[9] = next_round_key<0x1b>(rk[8]);
  rk[10] = next_round_key<0x36>(rk[9]);
}

inline void expand_key(const std::uint8_t* key, Schedule* schedule) {
  __m128i rk[11];
  round_keys(key, rk);
  __builtin_memcpy(schedule->bytes, rk, sizeof rk);
}
