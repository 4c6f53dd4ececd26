// Transforms in doubles, written once over a vector; see rlwe_kernels.hpp for the arithmetic. Included inside the
// anonymous namespace of each translation unit with vector instructions, after rlwe_loops.inl.
//
// An Engine provides
//   Vec, Word             vectors of kLanes doubles and of as many 64-bit words
//   fma(a, b, c)          a b + c, rounded once
//   round(x)              to the nearest integer
//   gather(base, offsets) words at byte offsets from a base
//   interleave, separate  (a, b) <-> (a0 b0 a1 b1 .., .. of the upper halves)
//
// The geometry is constant: every stage reads i and i + n/2 and writes 2i and 2i + 1, so that no stage works inside a
// vector. In the stage with m groups the group of i is i mod m, whose root is loaded as it stands.
//
// Sizes in units of q, with q 2^-52 <= 1/16: a product is at most 1/2 + y/16 for an operand of y. Forward, from 1,
// y -> 17/16 y + 1/2 makes 10.6 after 12 stages. Inverse, sums are reduced in every other stage: 0.75 -> 1.5 -> 0.7.

template <class E>
inline typename E::Vec load_real(const double* from) {
  typename E::Vec v;
  __builtin_memcpy(&v, from, sizeof v);
  return v;
}

template <class E>
inline void store_real(double* to, typename E::Vec v) {
  __builtin_memcpy(to, &v, sizeof v);
}

template <class E>
inline typename E::Vec multiply_real(typename E::Vec y, typename E::Vec w, typename E::Vec quotient,
                                     typename E::Vec q) {
  const typename E::Vec high = y * w;
  const typename E::Vec low = E::fma(y, w, -high);
  const typename E::Vec times = E::round(y * quotient);
  return E::fma(-times, q, high) + low;
}

template <class E>
inline typename E::Vec reduce_real(typename E::Vec x, typename E::Vec q, typename E::Vec inverse) {
  return E::fma(-E::round(x * inverse), q, x);
}

/// Doubles from words below 2^52.
template <class E>
inline typename E::Vec real_from(const std::uint64_t* from) {
  typename E::Word word;
  __builtin_memcpy(&word, from, sizeof word);
  word |= 0x4330000000000000;
  return (typename E::Vec)word - 0x1p52;
}

/// The canonical residue of |x| <= 16 q.
template <class E>
inline void store_residue(std::uint64_t* to, typename E::Vec x, typename E::Vec q, typename E::Vec inverse) {
  x = reduce_real<E>(x, q, inverse);
  x += (typename E::Vec)((typename E::Word)(x < 0.0) & (typename E::Word)q);
  typename E::Word word = (typename E::Word)(x + 0x1p52) ^ 0x4330000000000000;
  __builtin_memcpy(to, &word, sizeof word);
}

template <class E>
void forward_reals(const Prime& p, std::uint64_t* x) {
  typedef typename E::Vec V;
  constexpr std::size_t L = E::kLanes;
  if (!p.floats) return forward_words(p, x);
  alignas(64) double buffers[2][kMostRing];
  const double q0 = static_cast<double>(p.q);
  const V q = V{} + q0, inverse = V{} + 1.0 / q0;
  const std::size_t half = p.n / 2;
  for (std::size_t i = 0; i < p.n; i += L) store_real<E>(buffers[0] + i, real_from<E>(x + i));
  double *in = buffers[0], *out = buffers[1];
  const double *w = p.roots.real, *quotient = p.roots.real_quotient;
  for (std::size_t m = 1; m < p.n; m *= 2) {
    const std::size_t period = m < 8 ? 8 : m;
    for (std::size_t i = 0; i < half; i += L) {
      const std::size_t g = i & (period - 1);
      const V a = load_real<E>(in + i);
      const V b = multiply_real<E>(load_real<E>(in + half + i), load_real<E>(w + g), load_real<E>(quotient + g), q);
      V low, high;
      E::interleave(a + b, a - b, low, high);
      store_real<E>(out + 2 * i, low);
      store_real<E>(out + 2 * i + L, high);
    }
    w += period;
    quotient += period;
    double* swap = in;
    in = out;
    out = swap;
  }
  for (std::size_t i = 0; i < p.n; i += L) store_residue<E>(x + i, load_real<E>(in + i), q, inverse);
}

template <class E>
void multiply_inverse_reals(const Prime& p, const std::uint64_t* x, const Factor& factor, std::uint64_t* result) {
  typedef typename E::Vec V;
  constexpr std::size_t L = E::kLanes;
  if (!p.floats) return multiply_inverse_words(p, x, factor, result);
  alignas(64) double buffers[2][kMostRing];
  const double q0 = static_cast<double>(p.q);
  const V q = V{} + q0, inverse = V{} + 1.0 / q0;
  const std::size_t half = p.n / 2;
  double *in = buffers[0], *out = buffers[1];
  for (std::size_t i = 0; i < p.n; i += L) {
    store_real<E>(in + i, multiply_real<E>(real_from<E>(x + i), load_real<E>(factor.real + i),
                                           load_real<E>(factor.real_quotient + i), q));
  }
  std::size_t at = p.n + 16;  // where the tables end: 3 * 8 + (n - 8) entries
  bool reduce = false;
  for (std::size_t m = half; m != 0; m /= 2, reduce = !reduce) {
    const std::size_t period = m < 8 ? 8 : m;
    at -= period;
    const double *w = p.inverse_roots.real + at, *quotient = p.inverse_roots.real_quotient + at;
    for (std::size_t i = 0; i < half; i += L) {
      const std::size_t g = i & (period - 1);
      V a, b;
      E::separate(load_real<E>(in + 2 * i), load_real<E>(in + 2 * i + L), a, b);
      V sum = a + b;
      if (reduce) sum = reduce_real<E>(sum, q, inverse);
      store_real<E>(out + i, sum);
      store_real<E>(out + half + i, multiply_real<E>(a - b, load_real<E>(w + g), load_real<E>(quotient + g), q));
    }
    double* swap = in;
    in = out;
    out = swap;
  }
  for (std::size_t i = 0; i < p.n; i += L) store_residue<E>(result + i, load_real<E>(in + i), q, inverse);
}

template <class E>
void multiply_add_reals(const Prime& p, const std::uint64_t* x, const Factor& factor, std::uint64_t* total) {
  typedef typename E::Vec V;
  if (!p.floats) return multiply_add_words(p, x, factor, total);
  const double q0 = static_cast<double>(p.q);
  const V q = V{} + q0, inverse = V{} + 1.0 / q0;
  for (std::size_t i = 0; i < p.n; i += E::kLanes) {
    const V product = multiply_real<E>(real_from<E>(x + i), load_real<E>(factor.real + i),
                                       load_real<E>(factor.real_quotient + i), q);
    store_residue<E>(total + i, product + real_from<E>(total + i), q, inverse);
  }
}

/// The larger of both, lane by lane; neither is negative.
template <class E>
inline typename E::Vec larger(typename E::Vec a, typename E::Vec b) {
  const typename E::Word more = (typename E::Word)(b > a);
  return (typename E::Vec)(((typename E::Word)b & more) | ((typename E::Word)a & ~more));
}

template <class E>
inline typename E::Vec size_of(typename E::Vec x) {
  return (typename E::Vec)((typename E::Word)x & 0x7fffffffffffffff);
}

/// m = x / delta rounded, mended by one where the remainder says so: the same integers as round_words.
template <class E>
void round_reals(const Prime& p, const Rounder& r, const std::uint64_t* phases, double step, double* out,
                 Decoded* decoded) {
  typedef typename E::Vec V;
  typedef typename E::Word W;
  if (!p.floats) return round_words(p, r, phases, step, out, decoded);
  const double delta0 = static_cast<double>(r.delta), half = static_cast<double>(r.half);
  const V delta = V{} + delta0, inverse = V{} + 1.0 / delta0, q = V{} + static_cast<double>(p.q);
  const double last = static_cast<double>(p.q - r.shift), above = delta0 - 1.0 - half;
  V largest = {}, noisiest = {};
  for (std::size_t i = 0; i < p.n; i += E::kLanes) {
    V x = real_from<E>(phases + i);
    x -= (V)((W)(x >= last) & (W)q);
    V value = E::round(x * inverse);
    V noise = E::fma(-value, delta, x);
    const W low = (W)(noise < -half), high = (W)(noise > above);
    value += (V)(high & (W)(V{} + 1.0)) - (V)(low & (W)(V{} + 1.0));
    noise += (V)(low & (W)delta) - (V)(high & (W)delta);
    largest = larger<E>(largest, size_of<E>(value));
    noisiest = larger<E>(noisiest, size_of<E>(noise));
    store_real<E>(out + i, value * step);
  }
  for (std::size_t lane = 0; lane < E::kLanes; ++lane) {
    const i64 value = static_cast<i64>(largest[lane]);
    if (value > decoded->largest_value) decoded->largest_value = value;
    if (noisiest[lane] > decoded->largest_noise) decoded->largest_noise = noisiest[lane];
  }
}

template <class E>
bool unpack_lanes(const Prime& p, const std::uint8_t* in, std::uint64_t* out) {
  typedef typename E::Word W;
  constexpr std::size_t L = E::kLanes;
  // Eight residues are `bits` whole bytes, so that offsets and shifts repeat.
  const std::size_t bits = p.bits;
  W offsets[8 / L], shifts[8 / L];
  for (std::size_t j = 0; j < 8; ++j) {
    offsets[j / L][j % L] = j * bits / 8;
    shifts[j / L][j % L] = j * bits % 8;
  }
  const W q = W{} + p.q, mask = W{} + ((std::uint64_t{1} << bits) - 1);
  W below = ~W{};
  for (std::size_t i = 0; i < p.n; i += 8, in += bits) {
    for (std::size_t v = 0; v < 8 / L; ++v) {
      const W x = E::gather(in, offsets[v]) >> shifts[v] & mask;
      below &= x - q;
      __builtin_memcpy(out + i + v * L, &x, sizeof x);
    }
  }
  std::uint64_t all = ~std::uint64_t{0};
  for (std::size_t lane = 0; lane < L; ++lane) all &= below[lane];
  return all >> 63 != 0;
}

template <class E>
constexpr RingKernels real_table(const char* name) {
  RingKernels table = word_table(name);
  table.forward = forward_reals<E>;
  table.multiply_inverse = multiply_inverse_reals<E>;
  table.multiply_add = multiply_add_reals<E>;
  table.round = round_reals<E>;
  table.unpack = unpack_lanes<E>;
  return table;
}
