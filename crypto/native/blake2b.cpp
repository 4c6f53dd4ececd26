#include "blake2b.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace fedsim {
namespace {

constexpr std::uint64_t kInitial[8] = {0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
                                       0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179};

constexpr std::uint8_t kOrder[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};

}  // namespace

Blake2b::Blake2b(std::size_t digest_bytes, const char* person) : digest_bytes_(digest_bytes) {
  std::uint64_t parameters[8] = {};
  parameters[0] = 0x01010000 | digest_bytes;  // depth 1, fanout 1, no key
  std::memcpy(&parameters[6], person, std::min<std::size_t>(std::strlen(person), 16));
  for (int i = 0; i < 8; ++i) state_[i] = kInitial[i] ^ parameters[i];
}

void Blake2b::compress(bool last) {
  std::uint64_t m[16], v[16];
  std::memcpy(m, buffer_, sizeof m);
  for (int i = 0; i < 8; ++i) v[i] = state_[i], v[i + 8] = kInitial[i];
  v[12] ^= total_;
  if (last) v[14] = ~v[14];
  const auto mix = [&v](int a, int b, int c, int d, std::uint64_t x, std::uint64_t y) __attribute__((always_inline)) {
    v[a] += v[b] + x, v[d] = std::rotr(v[d] ^ v[a], 32);
    v[c] += v[d], v[b] = std::rotr(v[b] ^ v[c], 24);
    v[a] += v[b] + y, v[d] = std::rotr(v[d] ^ v[a], 16);
    v[c] += v[d], v[b] = std::rotr(v[b] ^ v[c], 63);
  };
#pragma GCC unroll 12
  for (int round = 0; round < 12; ++round) {
    const std::uint8_t* s = kOrder[round % 10];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) mix(i, i + 4, i + 8, i + 12, m[s[2 * i]], m[s[2 * i + 1]]);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      mix(i, (i + 1) % 4 + 4, (i + 2) % 4 + 8, (i + 3) % 4 + 12, m[s[2 * i + 8]], m[s[2 * i + 9]]);
    }
  }
  for (int i = 0; i < 8; ++i) state_[i] ^= v[i] ^ v[i + 8];
}

void Blake2b::update(const std::uint8_t* data, std::size_t size) {
  while (size != 0) {
    if (used_ == sizeof buffer_) {
      total_ += used_;
      compress(false);
      used_ = 0;
    }
    const std::size_t part = std::min(size, sizeof buffer_ - used_);
    std::memcpy(buffer_ + used_, data, part);
    used_ += part, data += part, size -= part;
  }
}

void Blake2b::finish(std::uint8_t* digest) {
  total_ += used_;
  std::memset(buffer_ + used_, 0, sizeof buffer_ - used_);
  compress(true);
  std::memcpy(digest, state_, digest_bytes_);
}

}  // namespace fedsim
