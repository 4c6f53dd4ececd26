#include "noise.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "aes.hpp"

namespace fedsim {
namespace {

using u64 = std::uint64_t;
using u128 = unsigned __int128;

// The first 256 bits of exp(-1) after the point, most significant word first.
constexpr u64 kExpMinusOne[4] = {0x5e2d58d8b3bcdf1aULL, 0xbadec7829054f90dULL, 0xda9805aab56c7733ULL,
                                 0x3024b9d0a507daedULL};

/// Uniform 64-bit words of one chunk's stream.
class Words {
 public:
  Words(const Kernels& table, const Schedule& schedule, u64 chunk) : table_(table), schedule_(schedule), chunk_(chunk) {}

  u64 next() {
    if (at_ == kBuffer) refill();
    return buffer_[at_++];
  }

 private:
  static constexpr std::size_t kBuffer = 512;

  void refill() {
    std::uint8_t counter[kBlockBytes];
    for (int i = 0; i < 8; ++i) {
      counter[i] = static_cast<std::uint8_t>(chunk_ >> (56 - 8 * i));
      counter[8 + i] = static_cast<std::uint8_t>(block_ >> (56 - 8 * i));
    }
    std::uint8_t bytes[kBuffer * 8];
    table_.stream(&schedule_, counter, bytes, kBuffer / 2);
    for (std::size_t i = 0; i < kBuffer; ++i) {
      u64 word = 0;
      for (int b = 7; b >= 0; --b) word = word << 8 | bytes[8 * i + b];
      buffer_[i] = word;
    }
    block_ += kBuffer / 2;
    at_ = 0;
  }

  const Kernels& table_;
  const Schedule& schedule_;
  u64 chunk_;
  u64 block_ = 0;
  std::size_t at_ = kBuffer;
  u64 buffer_[kBuffer];
};

/// True with probability exp(-1).
bool exp_minus_one(Words& words) {
  for (const u64 digit : kExpMinusOne) {
    const u64 word = words.next();
    if (word != digit) return word < digit;
  }
  return false;
}

/// Finishes bernoulli() exactly: compares `word` and its successors with the binary digits of a / b.
bool compare_digits(Words& words, u64 word, u128 a, u128 b) {
  for (;;) {
    u64 digits = 0;
    for (int i = 0; i < 64; ++i) {
      a <<= 1;
      const bool bit = a >= b;
      if (bit) a -= b;
      digits = digits << 1 | static_cast<u64>(bit);
    }
    if (word != digits) return word < digits;
    word = words.next();
  }
}

/// True with probability a / b, for 0 <= a <= b < 2^127.
bool bernoulli(Words& words, u128 a, u128 b) {
  if (a >= b) return true;
  const u64 word = words.next();
  const double threshold = static_cast<double>(a) / static_cast<double>(b) * 0x1p64;
  const double value = static_cast<double>(word);
  // Four roundings of 2^-53 each: outside a band of 2^-40 and two units the comparison is certain.
  if (value < threshold * (1 - 0x1p-40) - 2) return true;
  if (value > threshold * (1 + 0x1p-40) + 2) return false;
  return compare_digits(words, word, a, b);
}

/// True with probability exp(-a / b), for 0 <= a <= b < 2^121 (algorithm 1 for gamma <= 1).
bool exp_minus_fraction(Words& words, u128 a, u128 b) {
  unsigned k = 1;
  while (bernoulli(words, a, b * k)) ++k;
  return k & 1;
}

/// Discrete Gaussian of one variance.
class Sampler {
 public:
  explicit Sampler(u64 variance) : variance_(variance) {
    u64 root = static_cast<u64>(std::sqrt(static_cast<double>(variance)));
    while (root * root > variance) --root;
    while ((root + 1) * (root + 1) <= variance) ++root;
    scale_ = root + 1;
    mask_ = ~u64{0} >> std::countl_zero(scale_ - 1);
    denominator_ = 2 * static_cast<u128>(variance) * (static_cast<u128>(scale_) * scale_);
  }

  /// Algorithm 3: a discrete Laplace of scale t, accepted with probability exp(-(|y| - variance/t)^2 / (2 variance)).
  std::int64_t draw(Words& words) const {
    for (;;) {
      u64 whole;
      const std::int64_t y = laplace(words, &whole);
      if (accept(words, static_cast<u64>(y < 0 ? -y : y), whole)) return y;
    }
  }

 private:
  /// Algorithm 2 with scale t: u + t v, u accepted with probability exp(-u / t), v geometric, and a sign.
  std::int64_t laplace(Words& words, u64* whole) const {
    for (;;) {
      u64 u;
      do u = words.next() & mask_;
      while (u >= scale_);
      if (!exp_minus_fraction(words, u, scale_)) continue;
      u64 v = 0;
      while (exp_minus_one(words)) ++v;
      const u64 magnitude = u + scale_ * v;
      const bool negative = words.next() & 1;
      if (negative && magnitude == 0) continue;
      *whole = v;
      return negative ? -static_cast<std::int64_t>(magnitude) : static_cast<std::int64_t>(magnitude);
    }
  }

  /// gamma = (|y| t - variance)^2 / (2 variance t^2), as a whole part and a fraction.
  bool accept(Words& words, u64 magnitude, u64 whole) const {
    // gamma is above 1900 there: acceptance has probability below 2^-2700, far under the promised 2^-256.
    if (whole >= 64) return false;
    const u128 product = static_cast<u128>(magnitude) * scale_;
    const u128 distance = product > variance_ ? product - variance_ : variance_ - product;
    const u128 numerator = distance * distance;
    u128 rest = numerator;
    if (numerator >= denominator_) {
      u128 times = numerator / denominator_;
      rest = numerator % denominator_;
      for (; times > 0; --times) {
        if (!exp_minus_one(words)) return false;
      }
    }
    return exp_minus_fraction(words, rest, denominator_);
  }

  u64 variance_;
  u64 scale_;
  u64 mask_;
  u128 denominator_;
};

}  // namespace

void discrete_gaussian(const std::uint8_t* key, std::uint64_t variance, std::int64_t* out, std::size_t count,
                       std::size_t threads, const char* isa) {
  if (variance == 0 || variance > kMaxVariance) {
    throw std::invalid_argument("variance " + std::to_string(variance) +
                                ": must lie in [1, 2^56]; use fewer fraction bits");
  }
  const Kernels& table = kernels(isa);
  Schedule schedule;
  table.expand(key, &schedule);
  const Sampler sampler(variance);
  const std::size_t chunks = (count + kNoiseChunk - 1) / kNoiseChunk;
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t chunk = next++; chunk < chunks; chunk = next++) {
      Words words(table, schedule, chunk);
      const std::size_t end = std::min(count, (chunk + 1) * kNoiseChunk);
      for (std::size_t i = chunk * kNoiseChunk; i < end; ++i) out[i] = sampler.draw(words);
    }
  };
  std::vector<std::thread> others;
  for (std::size_t i = 1; i < std::min(threads, chunks); ++i) others.emplace_back(work);
  work();
  for (std::thread& other : others) other.join();
}

}  // namespace fedsim
