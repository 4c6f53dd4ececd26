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

/// A plane's residue polynomials one after another, unpacked.
class PlaneReader {
 public:
  PlaneReader(const Ring& ring, const RingKernels& kernels, const std::uint8_t* plane)
      : ring_(ring), kernels_(kernels), plane_(plane), padded_(ring.n() * kMostPrimeBits / 8 + 16) {}

  /// Writes the next one; returns whether it was canonical.
  bool next(std::size_t limb, u64* x) {
    std::memcpy(padded_.data(), plane_, ring_.limb_bytes(limb));
    plane_ += ring_.limb_bytes(limb);
    return kernels_.unpack(ring_.prime(limb), padded_.data(), x);
  }

 private:
  const Ring& ring_;
  const RingKernels& kernels_;
  const std::uint8_t* plane_;
  std::vector<std::uint8_t> padded_;
};

/// Rounds phases, ciphertext after ciphertext, and keeps the largest sizes of all N, padding included.
class Rounding {
 public:
  Rounding(const Ring& ring, const RingKernels& kernels)
      : ring_(ring), kernels_(kernels), middle_(i64{1} << (ring.plain_bits() - 1)), half_(ring.delta() / 2),
        shift_(ring.delta() * static_cast<Wide>(middle_) + half_), values_(ring.n()) {
    if (ring.limbs() == 1) {
      rounder_ = {static_cast<u64>(ring.delta()), static_cast<u64>(half_), static_cast<u64>(shift_),
                  static_cast<u64>((static_cast<Wide>(1) << 64) / ring.delta()), middle_};
    }
  }

  /// Writes the first `count` of a ciphertext's values, times `step`.
  void take(const u64* phases, double step, std::size_t count, double* out) {
    const bool whole = count == ring_.n();
    double* to = whole ? out : values_.data();
    if (ring_.limbs() == 1) {
      kernels_.round(ring_.prime(0), rounder_, phases, step, to, &decoded_);
    } else {
      wide(phases, step, to);
    }
    if (!whole) std::copy(to, to + count, out);
  }

  Decoded decoded() const { return decoded_; }

 private:
  void wide(const u64* phases, double step, double* out) {
    const u64 q = ring_.prime(1).q;
    const std::size_t n = ring_.n();
    for (std::size_t i = 0; i < n; ++i) {
      const u64 first = phases[i] % q, second = phases[n + i];
      const u64 apart = second >= first ? second - first : second + q - first;
      const u64 times = static_cast<u64>(static_cast<Wide>(apart) * ring_.garner() % q);
      Wide y = phases[i] + static_cast<Wide>(times) * ring_.prime(0).q + shift_;
      if (y >= ring_.modulus()) y -= ring_.modulus();
      const Wide rest = y % ring_.delta(), noise = rest > half_ ? rest - half_ : half_ - rest;
      const i64 value = static_cast<i64>(static_cast<u64>(y / ring_.delta())) - middle_;
      decoded_.largest_value = std::max(decoded_.largest_value, value < 0 ? -value : value);
      decoded_.largest_noise = std::max(decoded_.largest_noise, static_cast<double>(noise));
      out[i] = static_cast<double>(value) * step;
    }
  }

  const Ring& ring_;
  const RingKernels& kernels_;
  i64 middle_;
  Wide half_, shift_;
  std::vector<double> values_;
  Rounder rounder_{};
  Decoded decoded_{0, 0.0};
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
  PlaneReader reader(ring, kernels, plane);
  std::vector<u64> x(ring.n());
  bool fine = true;
  for (std::size_t at = 0; at < polynomials * ring.limbs(); ++at) fine &= reader.next(at % ring.limbs(), x.data());
  return fine;
}

bool add_plane(const Ring& ring, const RingKernels& kernels, const std::uint8_t* plane, std::size_t polynomials,
               u64* total) {
  PlaneReader reader(ring, kernels, plane);
  std::vector<u64> x(ring.n());
  for (std::size_t at = 0; at < polynomials * ring.limbs(); ++at) {
    if (!reader.next(at % ring.limbs(), x.data())) {
      PlaneReader again(ring, kernels, plane);
      for (std::size_t undone = 0; undone < at; ++undone) {
        again.next(undone % ring.limbs(), x.data());
        kernels.subtract(ring.prime(undone % ring.limbs()), x.data(), total + undone * ring.n());
      }
      return false;
    }
    kernels.add(ring.prime(at % ring.limbs()), x.data(), total + at * ring.n());
  }
  return true;
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
  PlaneReader reader(ring, kernels, plane);
  Scratch<u64> x(ring.n());
  for (std::size_t at = 0; at < polynomials * ring.limbs(); ++at, total += ring.n()) {
    const std::size_t limb = at % ring.limbs();
    reader.next(limb, x.get());
    kernels.multiply_inverse(ring.prime(limb), x.get(), secret.factor(limb), x.get());
    kernels.add(ring.prime(limb), x.get(), total);
  }
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

bool open(const Ring& ring, const RingKernels& kernels, const std::uint8_t* first, const std::uint8_t* second,
          const Multiplier& secret, double step, std::size_t length, double* out, Decoded* decoded) {
  const std::size_t n = ring.n();
  Rounding rounding(ring, kernels);
  PlaneReader first_reader(ring, kernels, first), second_reader(ring, kernels, second);
  Scratch<u64> phase(n * ring.limbs()), x(n);
  bool fine = true;
  for (std::size_t done = 0; done < length; done += n) {
    for (std::size_t limb = 0; limb < ring.limbs(); ++limb) {
      const Prime& p = ring.prime(limb);
      u64* sum = phase.at(limb * n);
      fine &= first_reader.next(limb, x.get());
      fine &= second_reader.next(limb, sum);
      if (!fine) return false;
      kernels.multiply_inverse(p, sum, secret.factor(limb), sum);
      kernels.add(p, x.get(), sum);
    }
    rounding.take(phase.get(), step, std::min(n, length - done), out + done);
  }
  *decoded = rounding.decoded();
  return true;
}

Decoded decode(const Ring& ring, const RingKernels& kernels, const u64* phases, double step, std::size_t length,
               double* out) {
  Rounding rounding(ring, kernels);
  for (std::size_t done = 0; done < length; done += ring.n(), phases += ring.limbs() * ring.n()) {
    rounding.take(phases, step, std::min(ring.n(), length - done), out + done);
  }
  return rounding.decoded();
}

}  // namespace fedsim
