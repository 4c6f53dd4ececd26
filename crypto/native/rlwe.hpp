// Additive RLWE encryption: R_q = Z_q[X] / (X^N + 1), q one prime or a product of two, each 1 mod 2N; plaintext modulus
// t a power of two, integers in the coefficients.
//
//   ciphertext of m:  c0 + c1 s = delta m + e,  delta = floor(q / t)
//
// c0 is kept by coefficients, c1 in transformed order, so that a uniform c1 is expanded from a seed without a transform
// and opening takes one. Nothing here is specific to a language; crypto/rlwe/reference.py is the same mathematics in
// numpy, line by line, and a test compares both word by word.
//
// A vector of values is cut into ciphertexts of N coefficients, the last one padded with zeros. A *plane* holds one
// polynomial of each ciphertext, prime after prime, each residue in the prime's number of bits, little-endian.
//
// Random polynomials come from AES-128-CTR streams, one key for each purpose: polynomial number i reads 64-bit words
// from counter i 2^64 on. A uniform residue is a word masked to the prime's bits; the positions whose residue is not
// below q take, in order, the next words of the stream that are.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "aes.hpp"
#include "rlwe_kernels.hpp"

namespace fedsim {

__extension__ typedef unsigned __int128 Wide;

constexpr std::size_t kMostPrimes = 2;
constexpr unsigned kMostPrimeBits = 57;  // a residue at any bit of a byte fits a 64-bit word

/// Words of a Factor with their owners.
class FactorTable {
 public:
  /// A table of `words` modulo q, and of doubles where q < 2^48.
  FactorTable(std::vector<std::uint64_t> words, std::uint64_t q);
  Factor view() const;
  /// Repeats the first eight entries in the order of rlwe_kernels.hpp's real tables.
  void stage_reals();

 private:
  std::vector<std::uint64_t> word_, quotient_;
  std::vector<double> real_, real_quotient_;
};

/// Parameters with their tables; immutable.
class Ring {
 public:
  /// Throws std::invalid_argument: n is not a power of two in [16, 4096], there are not 1 or 2 distinct moduli of at
  /// most 57 bits that are 1 mod 2n and have a primitive 2n-th root of one, or plain_bits leaves delta below 2.
  Ring(std::size_t n, std::vector<std::uint64_t> moduli, unsigned plain_bits);
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  std::size_t n() const { return n_; }
  std::size_t limbs() const { return primes_.size(); }
  const Prime& prime(std::size_t limb) const { return primes_[limb]; }
  Wide modulus() const { return modulus_; }
  Wide delta() const { return delta_; }
  unsigned plain_bits() const { return plain_bits_; }
  std::uint64_t delta_word(std::size_t limb) const { return static_cast<std::uint64_t>(delta_ % primes_[limb].q); }
  /// Inverse of the first prime modulo the second.
  std::uint64_t garner() const { return garner_; }
  std::size_t ciphertexts(std::size_t length) const { return (length + n_ - 1) / n_; }
  /// Bytes of one residue polynomial, and of all of one ciphertext.
  std::size_t limb_bytes(std::size_t limb) const { return n_ * primes_[limb].bits / 8; }
  std::size_t polynomial_bytes() const;
  std::size_t plane_bytes(std::size_t length) const { return ciphertexts(length) * polynomial_bytes(); }

 private:
  std::size_t n_;
  unsigned plain_bits_;
  Wide modulus_ = 1, delta_ = 0;
  std::uint64_t garner_ = 0;
  std::vector<Prime> primes_;
  std::vector<FactorTable> tables_;
};

/// A polynomial that many are multiplied with: a secret, or half a public key.
class Multiplier {
 public:
  /// `words`: limbs x n residues in transformed order; `divided` also multiplies by 1 / n, as multiply_inverse wants.
  Multiplier(const Ring& ring, const std::uint64_t* words, bool divided);
  Factor factor(std::size_t limb) const { return tables_[limb].view(); }
  std::size_t limbs() const { return tables_.size(); }

 private:
  std::vector<FactorTable> tables_;
};

using Key = std::array<std::uint8_t, kBlockBytes>;

/// Random polynomials; `out` has n entries, for uniform() limbs x n, whose number of the stream is index * limbs + limb.
void uniform(const Ring& ring, const RingKernels& kernels, const Key& key, std::uint64_t index, std::uint64_t* out);
void errors(const Ring& ring, const RingKernels& kernels, const Key& key, std::uint64_t index, std::int64_t* out);
void ternary(const Ring& ring, const RingKernels& kernels, const Key& key, std::uint64_t index, std::int64_t* out);
/// A sum of 12 uniform words of `bits` bits (at most 100), less its mean, modulo q; limbs x n. Coefficient i reads the
/// 128-bit words 12 i, 12 i + 1, ...
void smudging(const Ring& ring, const RingKernels& kernels, const Key& key, std::uint64_t index, unsigned bits,
              std::uint64_t* out);

/// What a vector is sealed with: fixed point and streams.
struct Encoding {
  double bound;
  double scale;
  const Key* coins;  // null for rounding to nearest
};

/// Seals a vector under the secret: writes the plane of c0 = delta m + e - a s, a from `uniform_key`. Returns how many
/// values were clipped.
template <class T>
std::size_t seal_symmetric(const Ring& ring, const RingKernels& kernels, const T* values, std::size_t length,
                           const Encoding& encoding, const Multiplier& secret, const Key& uniform_key,
                           const Key& error_key, std::uint8_t* out);

/// Seals a vector under the public key (b, a): writes the planes of c0 = delta m + e0 + b u and c1 = e1 + a u; errors
/// 2j and 2j + 1 belong to ciphertext j. `b` must be divided, `a` not.
template <class T>
std::size_t seal_public(const Ring& ring, const RingKernels& kernels, const T* values, std::size_t length,
                        const Encoding& encoding, const Multiplier& b, const Multiplier& a, const Key& ternary_key,
                        const Key& error_key, std::uint8_t* out);

/// Whether all residues of a plane of `polynomials` ciphertexts are canonical.
bool canonical(const Ring& ring, const RingKernels& kernels, const std::uint8_t* plane, std::size_t polynomials);

/// total += plane. Returns false, and leaves the total as it was, if a residue is not canonical.
bool add_plane(const Ring& ring, const RingKernels& kernels, const std::uint8_t* plane, std::size_t polynomials,
               std::uint64_t* total);

/// total += the uniform polynomials of a key.
void add_uniform(const Ring& ring, const RingKernels& kernels, const Key& key, std::size_t polynomials,
                 std::uint64_t* total);

/// Writes a plane.
void pack_plane(const Ring& ring, const RingKernels& kernels, const std::uint64_t* total, std::size_t polynomials,
                std::uint8_t* out);

/// total += c1 s by coefficients, for a plane of c1; the secret must be divided.
void add_product(const Ring& ring, const RingKernels& kernels, const std::uint8_t* plane, std::size_t polynomials,
                 const Multiplier& secret, std::uint64_t* total);

/// total += smudging of a key.
void add_smudging(const Ring& ring, const RingKernels& kernels, const Key& key, unsigned bits,
                  std::size_t polynomials, std::uint64_t* total);

/// Opens ciphertexts under a divided secret: writes `step` times the integers, `length` of them. Returns false if a
/// residue is not canonical; then `out` holds nothing of use.
bool open(const Ring& ring, const RingKernels& kernels, const std::uint8_t* first, const std::uint8_t* second,
          const Multiplier& secret, double step, std::size_t length, double* out, Decoded* decoded);

/// Rounds delta m + e to m, by coefficients, to the nearest multiple; writes `step` times m, `length` of them. The sizes
/// tell of the padding too. A phase in the gap of q - delta t is reported as the value t / 2.
Decoded decode(const Ring& ring, const RingKernels& kernels, const std::uint64_t* phases, double step,
               std::size_t length, double* out);

}  // namespace fedsim
