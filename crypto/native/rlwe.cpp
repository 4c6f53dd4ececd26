// Sealing, adding and opening; see rlwe.hpp.
#include "rlwe.hpp"

#include <algorithm>
#include <cstring>
#include <memory>

namespace fedsim {
namespace {

using u64 = std::uint64_t;
using i64 = std::int64_t;

/// Working memory that held secrets is overwritten before it goes back.
template <class T>
class Scratch {
 public:
  explicit Scratch(std::size_t count) : size_(count), data_(new T[count]()) {}
  ~Scratch() {
    volatile T* wiped = data_.get();
    for (std::size_t i = 0; i < size_; ++i) wiped[i] = 0;
  }
  T* get() { return data_.get(); }
  T* at(std::size_t index) { return data_.get() + index; }

 private:
  std::size_t size_;
  std::unique_ptr<T[]> data_;
};

/// One key's stream of 64-bit words.
class WordStream {
 public:
  WordStream(const RingKernels& kernels, const Key& key)
      : aes_(&fedsim::kernels(std::strcmp(kernels.name, "generic") == 0 ? "generic" : nullptr)) {
    aes_->expand(key.data(), &schedule_);
  }
  ~WordStream() {
    volatile std::uint8_t* wiped = schedule_.bytes;
    for (std::size_t i = 0; i < kScheduleBytes; ++i) wiped[i] = 0;
  }

  /// Fills `blocks` 16-byte blocks of polynomial `index` from block `first` on.
  void read(u64 index, u64 first, void* out, std::size_t blocks) const {
    std::uint8_t counter[kBlockBytes];
    for (int i = 0; i < 8; ++i) {
      counter[i] = static_cast<std::uint8_t>(index >> (56 - 8 * i));
      counter[8 + i] = static_cast<std::uint8_t>(first >> (56 - 8 * i));
    }
    aes_->stream(&schedule_, counter, static_cast<std::uint8_t*>(out), blocks);
  }

 private:
  const Kernels* aes_;
  Schedule schedule_;
};

/// Replaces what is not below q by the next words of the stream that are.
void reject(const Prime& p, const WordStream& stream, u64 index, u64* x) {
  const u64 mask = (u64{1} << p.bits) - 1;
  u64 block = p.n / 2, pair[2];
  unsigned used = 2;
  for (std::size_t i = 0; i < p.n; ++i) {
    while (x[i] >= p.q) {
      if (used == 2) {
        stream.read(index, block++, pair, 1);
        used = 0;
      }
      x[i] = pair[used++] & mask;
    }
  }
}

void uniform(const Ring& ring, const RingKernels& kernels, const WordStream& stream, u64 index, u64* out) {
  for (std::size_t limb = 0; limb < ring.limbs(); ++limb, out += ring.n()) {
    const Prime& p = ring.prime(limb);
    const u64 number = index * ring.limbs() + limb;
    stream.read(number, 0, out, p.n / 2);
    if (kernels.mask(p, out)) reject(p, stream, number, out);
  }
}

void smudging(const Ring& ring, const WordStream& stream, u64 index, unsigned bits, u64* out) {
  constexpr std::size_t together = 64;
  Scratch<u64> words(together * kSmudgeTerms * 2);
  const Wide mask = (static_cast<Wide>(1) << bits) - 1;
  const Wide mean = mask * (kSmudgeTerms / 2);
  for (std::size_t i = 0; i < ring.n(); ++i) {
    if (i % together == 0) stream.read(index, i * kSmudgeTerms, words.get(), std::min(together, ring.n()) * kSmudgeTerms);
    Wide sum = 0;
    const u64* word = words.at(i % together * kSmudgeTerms * 2);
    for (int term = 0; term < kSmudgeTerms; ++term) {
      sum += (static_cast<Wide>(word[2 * term + 1]) << 64 | word[2 * term]) & mask;
    }
    for (std::size_t limb = 0; limb < ring.limbs(); ++limb) {
      const Prime& p = ring.prime(limb);
      // In constant time: division by multiplication, as for any product modulo q.
      const auto times = [&p](u64 x, u64 w, u64 quotient) {
        const u64 r = x * w - static_cast<u64>((static_cast<Wide>(x) * quotient) >> 64) * p.q;
        return r - (p.q & (0 - static_cast<u64>(r >= p.q)));
      };
      const u64 high = times(static_cast<u64>(sum >> 64), p.two64, p.two64_quotient);
      const u64 low = times(static_cast<u64>(sum), 1, p.one_quotient);
      const u64 less = p.q - static_cast<u64>(mean % p.q);
      out[limb * ring.n() + i] = times(high + low + less, 1, p.one_quotient);
    }
  }
}

std::size_t encode(const RingKernels& k, const float* x, std::size_t n, const Encoding& e, const std::uint32_t* coins,
                   i64* out) {
  return k.encode32(x, n, e.bound, e.scale, coins, out);
}

std::size_t encode(const RingKernels& k, const double* x, std::size_t n, const Encoding& e, const std::uint32_t* coins,
                   i64* out) {
  return k.encode64(x, n, e.bound, e.scale, coins, out);
}

/// Cuts a vector into messages: delta m modulo each prime, within (-q, q).
template <class T>
class Messages {
 public:
  Messages(const Ring& ring, const RingKernels& kernels, const T* values, std::size_t length, const Encoding& encoding)
      : ring_(ring), kernels_(kernels), values_(values), length_(length), encoding_(encoding), plain_(ring.n()),
        coins_(ring.n()), scaled_(ring.n() * ring.limbs()) {
    if (encoding.coins != nullptr) stream_ = std::make_unique<WordStream>(kernels, *encoding.coins);
  }

  /// Prepares ciphertext `index`; all limbs.
  void take(std::size_t index) {
    const std::size_t n = ring_.n(), from = index * n, count = std::min(n, length_ - from);
    if (stream_) stream_->read(index, 0, coins_.get(), n / 4);
    clipped_ += encode(kernels_, values_ + from, count, encoding_, stream_ ? coins_.get() : nullptr, plain_.get());
    std::fill(plain_.get() + count, plain_.get() + n, 0);
    for (std::size_t limb = 0; limb < ring_.limbs(); ++limb) scale(limb);
  }

  const i64* scaled(std::size_t limb) { return scaled_.at(limb * ring_.n()); }
  std::size_t clipped() const { return clipped_; }

 private:
  void scale(std::size_t limb) {
    i64* out = scaled_.at(limb * ring_.n());
    const i64* m = plain_.get();
    if (ring_.limbs() == 1) {
      // Below q / 2 in size: the sum of all clients' messages is below t / 2.
      const i64 delta = static_cast<i64>(ring_.delta());
      for (std::size_t i = 0; i < ring_.n(); ++i) out[i] = m[i] * delta;
      return;
    }
    const Prime& p = ring_.prime(limb);
    const u64 delta = ring_.delta_word(limb);
    const u64 quotient = static_cast<u64>((static_cast<Wide>(delta) << 64) / p.q);
    for (std::size_t i = 0; i < ring_.n(); ++i) {
      const u64 size = static_cast<u64>(m[i] < 0 ? -m[i] : m[i]);
      u64 r = size * delta - static_cast<u64>((static_cast<Wide>(size) * quotient) >> 64) * p.q;
      r -= p.q & (0 - static_cast<u64>(r >= p.q));
      const i64 sign = m[i] >> 63;
      out[i] = (static_cast<i64>(r) ^ sign) - sign;
    }
  }

  const Ring& ring_;
  const RingKernels& kernels_;
  const T* values_;
  std::size_t length_;
  Encoding encoding_;
  std::unique_ptr<WordStream> stream_;
  Scratch<i64> plain_;
  Scratch<std::uint32_t> coins_;
  Scratch<i64> scaled_;
  std::size_t clipped_ = 0;
};

/// Calls `use(limb, polynomial, residues)` for each residue polynomial of a plane, unpacked; returns whether all were
/// canonical.
template <class Use>
bool each(const Ring& ring, const RingKernels& kernels, const std::uint8_t* plane, std::size_t polynomials, Use use) {
  std::vector<std::uint8_t> padded(ring.n() * kMostPrimeBits / 8 + 16);
  std::vector<u64> x(ring.n());
  bool fine = true;
  for (std::size_t index = 0; index < polynomials; ++index) {
    for (std::size_t limb = 0; limb < ring.limbs(); ++limb) {
      std::memcpy(padded.data(), plane, ring.limb_bytes(limb));
      plane += ring.limb_bytes(limb);
      fine &= kernels.unpack(ring.prime(limb), padded.data(), x.data());
      use(limb, index, x.data());
    }
  }
  return fine;
}

/// delta m + e for one prime: floor((x + half) / delta) with both shifted to be positive.
class Rounding {
 public:
  explicit Rounding(const Ring& ring)
      : modulus_(ring.modulus()), delta_(ring.delta()), half_(delta_ / 2),
        middle_(std::int64_t{1} << (ring.plain_bits() - 1)), shift_(delta_ * static_cast<Wide>(middle_) + half_),
        narrow_(ring.limbs() == 1) {
    if (narrow_) inverse_ = static_cast<u64>((static_cast<Wide>(1) << 64) / delta_);
  }

  i64 round(Wide x, Wide* noise) const {
    if (narrow_) return narrow(static_cast<u64>(x), noise);
    Wide y = x + shift_;
    if (y >= modulus_) y -= modulus_;
    const Wide rest = y % delta_;
    *noise = rest > half_ ? rest - half_ : half_ - rest;
    return static_cast<i64>(static_cast<u64>(y / delta_)) - middle_;
  }

 private:
  // In constant time, as a client's secret is near: no division, no branch.
  i64 narrow(u64 x, Wide* noise) const {
    const u64 q = static_cast<u64>(modulus_), delta = static_cast<u64>(delta_), half = static_cast<u64>(half_);
    u64 y = x + static_cast<u64>(shift_) - q;
    y += q & (0 - (y >> 63));
    u64 whole = static_cast<u64>((static_cast<Wide>(y) * inverse_) >> 64);
    u64 rest = y - whole * delta;
    const u64 more = static_cast<u64>(rest >= delta);
    whole += more;
    rest -= delta & (0 - more);
    const i64 away = static_cast<i64>(rest) - static_cast<i64>(half), sign = away >> 63;
    *noise = static_cast<u64>((away ^ sign) - sign);
    return static_cast<i64>(whole) - middle_;
  }

  Wide modulus_, delta_, half_;
  i64 middle_;
  Wide shift_;
  bool narrow_;
  u64 inverse_ = 0;
};

}  // namespace

void uniform(const Ring& ring, const RingKernels& kernels, const Key& key, u64 index, u64* out) {
  uniform(ring, kernels, WordStream(kernels, key), index, out);
}

void errors(const Ring& ring, const RingKernels& kernels, const Key& key, u64 index, i64* out) {
  Scratch<u64> words(ring.n());
  WordStream(kernels, key).read(index, 0, words.get(), ring.n() / 2);
  kernels.errors(words.get(), ring.n(), out);
}

void ternary(const Ring& ring, const RingKernels& kernels, const Key& key, u64 index, i64* out) {
  Scratch<u64> words(ring.n());
  WordStream(kernels, key).read(index, 0, words.get(), ring.n() / 2);
  kernels.ternary(words.get(), ring.n(), out);
}

void smudging(const Ring& ring, const RingKernels& kernels, const Key& key, u64 index, unsigned bits, u64* out) {
  smudging(ring, WordStream(kernels, key), index, bits, out);
}

template <class T>
std::size_t seal_symmetric(const Ring& ring, const RingKernels& kernels, const T* values, std::size_t length,
                           const Encoding& encoding, const Multiplier& secret, const Key& uniform_key,
                           const Key& error_key, std::uint8_t* out) {
  const std::size_t n = ring.n();
  const WordStream public_stream(kernels, uniform_key), error_stream(kernels, error_key);
  Messages<T> messages(ring, kernels, values, length, encoding);
  Scratch<u64> words(n), x(n * ring.limbs());
  Scratch<i64> error(n);
  for (std::size_t index = 0; index < ring.ciphertexts(length); ++index) {
    messages.take(index);
    error_stream.read(index, 0, words.get(), n / 2);
    kernels.errors(words.get(), n, error.get());
    uniform(ring, kernels, public_stream, index, x.get());
    for (std::size_t limb = 0; limb < ring.limbs(); ++limb) {
      const Prime& p = ring.prime(limb);
      u64* poly = x.at(limb * n);
      kernels.multiply_inverse(p, poly, secret.factor(limb), poly);
      kernels.combine(p, messages.scaled(limb), error.get(), poly, -1, poly);
      kernels.pack(p, poly, out);
      out += ring.limb_bytes(limb);
    }
  }
  return messages.clipped();
}

template <class T>
std::size_t seal_public(const Ring& ring, const RingKernels& kernels, const T* values, std::size_t length,
                        const Encoding& encoding, const Multiplier& b, const Multiplier& a, const Key& ternary_key,
                        const Key& error_key, std::uint8_t* out) {
  const std::size_t n = ring.n();
  const WordStream ternary_stream(kernels, ternary_key), error_stream(kernels, error_key);
  Messages<T> messages(ring, kernels, values, length, encoding);
  Scratch<u64> words(n), x(n), y(n);
  Scratch<i64> u(n), error0(n), error1(n);
  std::uint8_t* second = out + ring.plane_bytes(length);
  for (std::size_t index = 0; index < ring.ciphertexts(length); ++index) {
    messages.take(index);
    ternary_stream.read(index, 0, words.get(), n / 2);
    kernels.ternary(words.get(), n, u.get());
    error_stream.read(2 * index, 0, words.get(), n / 2);
    kernels.errors(words.get(), n, error0.get());
    error_stream.read(2 * index + 1, 0, words.get(), n / 2);
    kernels.errors(words.get(), n, error1.get());
    for (std::size_t limb = 0; limb < ring.limbs(); ++limb) {
      const Prime& p = ring.prime(limb);
      kernels.residues(p, u.get(), x.get());
      kernels.forward(p, x.get());
      kernels.residues(p, error1.get(), y.get());
      kernels.forward(p, y.get());
      kernels.multiply_add(p, x.get(), a.factor(limb), y.get());
      kernels.pack(p, y.get(), second);
      kernels.multiply_inverse(p, x.get(), b.factor(limb), x.get());
      kernels.combine(p, messages.scaled(limb), error0.get(), x.get(), 1, x.get());
      kernels.pack(p, x.get(), out);
      out += ring.limb_bytes(limb);
      second += ring.limb_bytes(limb);
    }
  }
  return messages.clipped();
}

template std::size_t seal_symmetric(const Ring&, const RingKernels&, const float*, std::size_t, const Encoding&,
                                    const Multiplier&, const Key&, const Key&, std::uint8_t*);
template std::size_t seal_symmetric(const Ring&, const RingKernels&, const double*, std::size_t, const Encoding&,
                                    const Multiplier&, const Key&, const Key&, std::uint8_t*);
template std::size_t seal_public(const Ring&, const RingKernels&, const float*, std::size_t, const Encoding&,
                                 const Multiplier&, const Multiplier&, const Key&, const Key&, std::uint8_t*);
template std::size_t seal_public(const Ring&, const RingKernels&, const double*, std::size_t, const Encoding&,
                                 const Multiplier&, const Multiplier&, const Key&, const Key&, std::uint8_t*);

bool canonical(const Ring& ring, const RingKernels& kernels, const std::uint8_t* plane, std::size_t polynomials) {
  return each(ring, kernels, plane, polynomials, [](std::size_t, std::size_t, u64*) {});
}

void add_plane(const Ring& ring, const RingKernels& kernels, const std::uint8_t* plane, std::size_t polynomials,
               u64* total) {
  each(ring, kernels, plane, polynomials, [&](std::size_t limb, std::size_t index, u64* x) {
    kernels.add(ring.prime(limb), x, total + (index * ring.limbs() + limb) * ring.n());
  });
}

void add_uniform(const Ring& ring, const RingKernels& kernels, const Key& key, std::size_t polynomials, u64* total) {
  const WordStream stream(kernels, key);
  std::vector<u64> x(ring.n() * ring.limbs());
  for (std::size_t index = 0; index < polynomials; ++index) {
    uniform(ring, kernels, stream, index, x.data());
    for (std::size_t limb = 0; limb < ring.limbs(); ++limb, total += ring.n()) {
      kernels.add(ring.prime(limb), x.data() + limb * ring.n(), total);
    }
  }
}

void pack_plane(const Ring& ring, const RingKernels& kernels, const u64* total, std::size_t polynomials,
                std::uint8_t* out) {
  for (std::size_t index = 0; index < polynomials; ++index) {
    for (std::size_t limb = 0; limb < ring.limbs(); ++limb, total += ring.n()) {
      kernels.pack(ring.prime(limb), total, out);
      out += ring.limb_bytes(limb);
    }
  }
}

void add_product(const Ring& ring, const RingKernels& kernels, const std::uint8_t* plane, std::size_t polynomials,
                 const Multiplier& secret, u64* total) {
  each(ring, kernels, plane, polynomials, [&](std::size_t limb, std::size_t index, u64* x) {
    kernels.multiply_inverse(ring.prime(limb), x, secret.factor(limb), x);
    kernels.add(ring.prime(limb), x, total + (index * ring.limbs() + limb) * ring.n());
  });
}

void add_smudging(const Ring& ring, const RingKernels& kernels, const Key& key, unsigned bits, std::size_t polynomials,
                  u64* total) {
  const WordStream stream(kernels, key);
  Scratch<u64> x(ring.n() * ring.limbs());
  for (std::size_t index = 0; index < polynomials; ++index) {
    smudging(ring, stream, index, bits, x.get());
    for (std::size_t limb = 0; limb < ring.limbs(); ++limb, total += ring.n()) {
      kernels.add(ring.prime(limb), x.at(limb * ring.n()), total);
    }
  }
}

Decoded decode(const Ring& ring, const u64* phases, std::size_t length, i64* out) {
  const Rounding rounding(ring);
  const std::size_t n = ring.n();
  i64 largest = 0;
  Wide noisiest = 0;
  for (std::size_t index = 0; index < ring.ciphertexts(length); ++index, phases += ring.limbs() * n) {
    for (std::size_t i = 0; i < n; ++i) {
      Wide x = phases[i];
      if (ring.limbs() == 2) {
        const u64 q = ring.prime(1).q, first = phases[i] % q;
        const u64 apart = phases[n + i] >= first ? phases[n + i] - first : phases[n + i] + q - first;
        x += static_cast<Wide>(static_cast<u64>(static_cast<Wide>(apart) * ring.garner() % q)) * ring.prime(0).q;
      }
      Wide noise;
      const i64 value = rounding.round(x, &noise);
      const i64 sign = value >> 63, size = (value ^ sign) - sign;
      largest = std::max(largest, size);
      noisiest = std::max(noisiest, noise);
      if (index * n + i < length) out[index * n + i] = value;
    }
  }
  return {largest, static_cast<double>(noisiest)};
}

}  // namespace fedsim
