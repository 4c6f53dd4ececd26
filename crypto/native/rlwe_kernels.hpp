// Arithmetic modulo one prime of R_q = Z_q[X] / (X^N + 1), on whatever the processor offers, behind one table of
// functions. Every table gives the same words.
//
// Transforms. The forward transform evaluates at the odd powers of psi, a primitive 2N-th root of one, and leaves
// x(psi^(2 bitreverse(i) + 1)) at position i. Tables of roots are indexed m + g: group g of the stage with m groups.
//
// The vector kernels compute in doubles: for |y| <= 16 q, 0 <= w < q < 2^48, h = y w rounded, c = y (w / q) rounded to
// an integer, (h - c q) + (y w - h) is exactly y w - c q, as both differences are integers below 2^53 that one fused
// multiply-add each computes without rounding; and |y w - c q| <= q / 2 + |y| 2^-52 q. Primes from 2^48 on take the
// integer kernels (van der Hoeven, Lecerf, Quintin, "Modular SIMD arithmetic in Mathemagix", section 3).
//
// Translation units with instruction-set flags include this header and the .inl files only; see aes.hpp for the reason.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fedsim {

constexpr std::size_t kLeastRing = 16;
constexpr std::size_t kMostRing = 4096;
constexpr std::uint64_t kFloatLimit = std::uint64_t{1} << 48;

/// Pairs of coins of one error coefficient: centred binomial, variance 21/2.
constexpr int kCoinPairs = 21;

/// Terms of one smudging coefficient: uniform words below 2^w each, so that the deviation is 2^w.
constexpr int kSmudgeTerms = 12;

/// A table of roots or a fixed polynomial: each entry w with its quotient by q, as integers and, where q < 2^48, as
/// doubles.
struct Factor {
  const std::uint64_t* word;
  const std::uint64_t* quotient;  // floor(w 2^64 / q)
  const double* real;
  const double* real_quotient;  // w / q
};

/// One prime with its roots. Real tables hold stage after stage; the stages with 1, 2 and 4 groups are repeated to 8
/// entries.
struct Prime {
  std::uint64_t q;
  unsigned bits;  // q < 2^bits, the width of a packed residue
  std::size_t n;
  std::uint64_t one_quotient;   // floor(2^64 / q)
  std::uint64_t two64;          // 2^64 mod q
  std::uint64_t two64_quotient; // floor(two64 2^64 / q)
  Factor roots;
  Factor inverse_roots;
  bool floats;  // the real tables are there
};

/// How phases x = delta m + e modulo one prime are rounded: m = floor(y / delta) - middle with y = x + shift modulo q and
/// shift = delta middle + floor(delta / 2), so that e = y mod delta - floor(delta / 2).
struct Rounder {
  std::uint64_t delta;
  std::uint64_t half;
  std::uint64_t shift;
  std::uint64_t inverse;  // floor(2^64 / delta)
  std::int64_t middle;    // t / 2
};

/// Largest sizes that were seen while rounding.
struct Decoded {
  std::int64_t largest_value;
  double largest_noise;
};

/// One implementation. Polynomials are n canonical residues (below q) unless said otherwise; all functions but
/// `uniform` are constant-time in the values.
struct RingKernels {
  const char* name;

  /// In place, natural to transformed order.
  void (*forward)(const Prime& p, std::uint64_t* x);

  /// out = inverse transform, without the division by n, of x * factor; out may be x.
  void (*multiply_inverse)(const Prime& p, const std::uint64_t* x, const Factor& factor, std::uint64_t* out);

  /// total += x * factor, value by value.
  void (*multiply_add)(const Prime& p, const std::uint64_t* x, const Factor& factor, std::uint64_t* total);

  /// total += x, or total -= x.
  void (*add)(const Prime& p, const std::uint64_t* x, std::uint64_t* total);
  void (*subtract)(const Prime& p, const std::uint64_t* x, std::uint64_t* total);

  /// out = message + error + sign * x: message within (-q, q), |error| < q, sign +1 or -1.
  void (*combine)(const Prime& p, const std::int64_t* message, const std::int64_t* error, const std::uint64_t* x,
                  int sign, std::uint64_t* out);

  /// out = residues of small integers, |x| < q.
  void (*residues)(const Prime& p, const std::int64_t* x, std::uint64_t* out);

  /// Masks n random words to `bits`; returns whether one is not below q.
  bool (*mask)(const Prime& p, std::uint64_t* x);

  /// One error coefficient from each random word: ones among bits 0-20 minus ones among bits 32-52.
  void (*errors)(const std::uint64_t* words, std::size_t n, std::int64_t* out);

  /// One of -1, 0, 1 from each random word: the number of thirds of 2^64 at or below it, minus 1.
  void (*ternary)(const std::uint64_t* words, std::size_t n, std::int64_t* out);

  /// Fixed point: clips to the bound, multiplies by `scale` and rounds; down, or up where the fraction is above
  /// coin 2^-32; to nearest, ties to even, without coins. Returns how many were clipped. |x scale| < 2^51.
  std::size_t (*encode32)(const float* x, std::size_t n, double bound, double scale, const std::uint32_t* coins,
                          std::int64_t* out);
  std::size_t (*encode64)(const double* x, std::size_t n, double bound, double scale, const std::uint32_t* coins,
                          std::int64_t* out);

  /// out = step m for all n phases; takes their sizes into `decoded`.
  void (*round)(const Prime& p, const Rounder& rounder, const std::uint64_t* phases, double step, double* out,
                Decoded* decoded);

  /// Reads n residues of `bits` bits, little-endian; 8 bytes beyond the last may be read. Returns whether all are
  /// below q.
  bool (*unpack)(const Prime& p, const std::uint8_t* in, std::uint64_t* out);

  /// Writes n residues in ceil(n bits / 8) bytes.
  void (*pack)(const Prime& p, const std::uint64_t* x, std::uint8_t* out);
};

/// Returns the table called `name`, or the default where it is null or empty: FEDSIM_ISA=generic gives `generic`, else
/// the fastest that this processor supports.
///
/// Throws std::invalid_argument: the name is unknown, or the processor lacks the instructions.
const RingKernels& ring_kernels(const char* name = nullptr);

/// Names of the tables that this processor supports, fastest first, null-terminated.
const char* const* ring_supported();

extern const RingKernels kRingGeneric;
#if defined(__x86_64__)
extern const RingKernels kRingAvx2;
extern const RingKernels kRingAvx512;
#elif defined(__aarch64__)
extern const RingKernels kRingNeon;
#endif

}  // namespace fedsim
