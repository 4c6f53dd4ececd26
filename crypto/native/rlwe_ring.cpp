// Tables of a ring and the choice of kernels; see rlwe.hpp.
#include <bit>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "rlwe.hpp"

namespace fedsim {
namespace {

using u64 = std::uint64_t;

u64 multiply(u64 a, u64 b, u64 q) { return static_cast<u64>(static_cast<Wide>(a) * b % q); }

u64 power(u64 base, u64 exponent, u64 q) {
  u64 result = 1;
  for (; exponent != 0; exponent >>= 1, base = multiply(base, base, q)) {
    if (exponent & 1) result = multiply(result, base, q);
  }
  return result;
}

u64 quotient_of(u64 w, u64 q) { return static_cast<u64>((static_cast<Wide>(w) << 64) / q); }

/// The (q - 1) / 2n-th power of the smallest number whose power is a primitive 2n-th root of one.
u64 primitive_root(u64 q, std::size_t n) {
  for (u64 c = 2; c < 1000; ++c) {
    const u64 psi = power(c, (q - 1) / (2 * n), q);
    if (power(psi, n, q) == q - 1) return psi;
  }
  throw std::invalid_argument("modulus " + std::to_string(q) + ": has no root of order " + std::to_string(2 * n) +
                              "; use a prime that is 1 modulo it");
}

std::vector<u64> powers(u64 root, u64 q, std::size_t n) {
  std::vector<u64> by_exponent(n), table(n);
  by_exponent[0] = 1;
  for (std::size_t i = 1; i < n; ++i) by_exponent[i] = multiply(by_exponent[i - 1], root, q);
  const int bits = std::countr_zero(n);
  for (std::size_t i = 0; i < n; ++i) {
    std::size_t reversed = 0;
    for (int b = 0; b < bits; ++b) reversed |= (i >> b & 1) << (bits - 1 - b);
    table[i] = by_exponent[reversed];
  }
  return table;
}

struct Choice {
  const RingKernels* tables[4] = {};
  const char* names[5] = {};
  std::size_t count = 0;

  void add(const RingKernels& table) {
    tables[count] = &table;
    names[count++] = table.name;
  }

  Choice() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl")) {
      add(kRingAvx512);
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) add(kRingAvx2);
#elif defined(__aarch64__)
    add(kRingNeon);
#endif
    add(kRingGeneric);
  }

  const RingKernels& find(const std::string& name) const {
    std::string here;
    for (std::size_t i = 0; i < count; ++i) {
      if (name == names[i]) return *tables[i];
      here += std::string(i != 0 ? ", " : "") + names[i];
    }
    throw std::invalid_argument("ring kernels '" + name + "': here one can use " + here);
  }
};

const Choice& choice() {
  static const Choice made;
  return made;
}

const RingKernels& preferred() {
  static const RingKernels& table = [&]() -> const RingKernels& {
    const char* forced = std::getenv("FEDSIM_ISA");
    return forced != nullptr && std::strcmp(forced, "generic") == 0 ? kRingGeneric : *choice().tables[0];
  }();
  return table;
}

}  // namespace

const RingKernels& ring_kernels(const char* name) {
  return name == nullptr || *name == '\0' ? preferred() : choice().find(name);
}

const char* const* ring_supported() { return choice().names; }

FactorTable::FactorTable(std::vector<u64> words, u64 q) : word_(std::move(words)) {
  for (const u64 w : word_) {
    quotient_.push_back(quotient_of(w, q));
    if (q < kFloatLimit) {
      real_.push_back(static_cast<double>(w));
      real_quotient_.push_back(static_cast<double>(w) / static_cast<double>(q));
    }
  }
}

Factor FactorTable::view() const {
  return {word_.data(), quotient_.data(), real_.data(), real_quotient_.data()};
}

void FactorTable::stage_reals() {
  if (real_.empty()) return;
  std::vector<double> staged, staged_quotient;
  for (std::size_t m = 1; m < word_.size(); m *= 2) {
    for (std::size_t i = 0; i < (m < 8 ? 8 : m); ++i) {
      staged.push_back(real_[m + i % m]);
      staged_quotient.push_back(real_quotient_[m + i % m]);
    }
  }
  real_ = std::move(staged);
  real_quotient_ = std::move(staged_quotient);
}

Ring::Ring(std::size_t n, std::vector<u64> moduli, unsigned plain_bits) : n_(n), plain_bits_(plain_bits) {
  if (n < kLeastRing || n > kMostRing || !std::has_single_bit(n)) {
    throw std::invalid_argument("ring " + std::to_string(n) + ": must be a power of two from 16 to 4096");
  }
  if (moduli.empty() || moduli.size() > kMostPrimes || (moduli.size() == 2 && moduli[0] == moduli[1])) {
    throw std::invalid_argument(std::to_string(moduli.size()) + " moduli: must be one, or two different ones");
  }
  tables_.reserve(2 * moduli.size());
  for (const u64 q : moduli) {
    const auto bits = static_cast<unsigned>(std::bit_width(q));
    if (q < 3 || bits > kMostPrimeBits || q % (2 * n) != 1) {
      throw std::invalid_argument("modulus " + std::to_string(q) + ": must be 1 modulo " + std::to_string(2 * n) +
                                  " and have at most 57 bits");
    }
    const u64 psi = primitive_root(q, n);
    for (const u64 root : {psi, power(psi, 2 * n - 1, q)}) {
      tables_.emplace_back(powers(root, q, n), q);
      tables_.back().stage_reals();
    }
    const u64 two64 = static_cast<u64>((static_cast<Wide>(1) << 64) % q);
    primes_.push_back({q, bits, n, quotient_of(1, q), two64, quotient_of(two64, q), tables_[tables_.size() - 2].view(),
                       tables_.back().view(), q < kFloatLimit});
    modulus_ *= q;
  }
  if (moduli.size() == 2) garner_ = power(moduli[0] % moduli[1], moduli[1] - 2, moduli[1]);
  if (plain_bits == 0 || plain_bits >= 63 || modulus_ >> plain_bits < 2) {
    throw std::invalid_argument(std::to_string(plain_bits) + " plain bits: must lie in [1, 62] and leave the modulus a factor of 2");
  }
  delta_ = modulus_ >> plain_bits;
}

std::size_t Ring::polynomial_bytes() const {
  std::size_t bytes = 0;
  for (std::size_t limb = 0; limb < limbs(); ++limb) bytes += limb_bytes(limb);
  return bytes;
}

Multiplier::Multiplier(const Ring& ring, const u64* words, bool divided) {
  for (std::size_t limb = 0; limb < ring.limbs(); ++limb) {
    const u64 q = ring.prime(limb).q;
    const u64 by = divided ? power(ring.n(), q - 2, q) : 1;
    std::vector<u64> scaled(ring.n());
    for (std::size_t i = 0; i < ring.n(); ++i) scaled[i] = multiply(words[limb * ring.n() + i] % q, by, q);
    tables_.emplace_back(std::move(scaled), q);
  }
}

}  // namespace fedsim
