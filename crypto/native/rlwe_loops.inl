// What all instruction sets share, in plain C++ that compilers turn into vector code under each file's flags. Included
// inside the anonymous namespace of each translation unit.

typedef std::uint64_t u64;
typedef std::int64_t i64;
__extension__ typedef unsigned __int128 u128;

/// x w modulo q in [0, 2q), for any x and w < q.
inline u64 multiply_lazy(u64 x, u64 w, u64 quotient, u64 q) {
  return x * w - static_cast<u64>((static_cast<u128>(x) * quotient) >> 64) * q;
}

/// x - q where that is not negative; x < 2q < 2^63.
inline u64 reduce_once(u64 x, u64 q) {
  const u64 less = x - q;
  return less + (q & (0 - (less >> 63)));
}

inline u64 multiply_word(u64 x, u64 w, u64 quotient, u64 q) { return reduce_once(multiply_lazy(x, w, quotient, q), q); }

void multiply_add_words(const Prime& p, const u64* x, const Factor& factor, u64* total) {
  for (std::size_t i = 0; i < p.n; ++i) {
    total[i] = reduce_once(total[i] + multiply_word(x[i], factor.word[i], factor.quotient[i], p.q), p.q);
  }
}

void forward_words(const Prime& p, u64* x) {
  const u64 q = p.q, twice = 2 * q;
  std::size_t t = p.n;
  for (std::size_t m = 1; m < p.n; m *= 2) {
    t /= 2;
    for (std::size_t g = 0; g < m; ++g) {
      const u64 w = p.roots.word[m + g], quotient = p.roots.quotient[m + g];
      u64* low = x + 2 * g * t;
      for (std::size_t j = 0; j < t; ++j) {
        const u64 a = reduce_once(low[j], twice), b = multiply_lazy(low[j + t], w, quotient, q);
        low[j] = a + b;
        low[j + t] = a - b + twice;
      }
    }
  }
  for (std::size_t i = 0; i < p.n; ++i) x[i] = reduce_once(reduce_once(x[i], twice), q);
}

void multiply_inverse_words(const Prime& p, const u64* x, const Factor& factor, u64* out) {
  const u64 q = p.q, twice = 2 * q;
  for (std::size_t i = 0; i < p.n; ++i) out[i] = multiply_lazy(x[i], factor.word[i], factor.quotient[i], q);
  std::size_t t = 1;
  for (std::size_t m = p.n / 2; m != 0; m /= 2, t *= 2) {
    for (std::size_t g = 0; g < m; ++g) {
      const u64 w = p.inverse_roots.word[m + g], quotient = p.inverse_roots.quotient[m + g];
      u64* low = out + 2 * g * t;
      for (std::size_t j = 0; j < t; ++j) {
        const u64 a = low[j], b = low[j + t];
        low[j] = reduce_once(a + b, twice);
        low[j + t] = multiply_lazy(a - b + twice, w, quotient, q);
      }
    }
  }
  for (std::size_t i = 0; i < p.n; ++i) out[i] = reduce_once(out[i], q);
}

void add_words(const Prime& p, const u64* x, u64* total) {
  const u64 q = p.q;
  for (std::size_t i = 0; i < p.n; ++i) total[i] = reduce_once(total[i] + x[i], q);
}

void subtract_words(const Prime& p, const u64* x, u64* total) {
  const u64 q = p.q;
  for (std::size_t i = 0; i < p.n; ++i) {
    const u64 less = total[i] - x[i];
    total[i] = less + (q & (0 - (less >> 63)));
  }
}

void combine_words(const Prime& p, const i64* message, const i64* error, const u64* x, int sign, u64* out) {
  const i64 q = static_cast<i64>(p.q);
  for (std::size_t i = 0; i < p.n; ++i) {
    // Within (-3q, 3q): three conditional additions and a subtraction would do; two steps of 2q and q are fewer.
    i64 v = message[i] + error[i] + sign * static_cast<i64>(x[i]);
    v += 2 * q & (v >> 63);
    v += q & (v >> 63);
    v -= 2 * q & ~((v - 2 * q) >> 63);
    v -= q & ~((v - q) >> 63);
    out[i] = static_cast<u64>(v);
  }
}

void residue_words(const Prime& p, const i64* x, u64* out) {
  const i64 q = static_cast<i64>(p.q);
  for (std::size_t i = 0; i < p.n; ++i) out[i] = static_cast<u64>(x[i] + (q & (x[i] >> 63)));
}

bool mask_words(const Prime& p, u64* x) {
  const u64 q = p.q, mask = (u64{1} << p.bits) - 1;
  u64 below = ~u64{0};
  for (std::size_t i = 0; i < p.n; ++i) {
    x[i] &= mask;
    below &= x[i] - q;
  }
  return below >> 63 == 0;
}

void error_words(const u64* words, std::size_t n, i64* out) {
  constexpr u64 coins = ((u64{1} << kCoinPairs) - 1) * 0x100000001;
  for (std::size_t i = 0; i < n; ++i) {
    u64 x = words[i] & coins;
    x -= (x >> 1) & 0x5555555555555555;
    x = (x & 0x3333333333333333) + ((x >> 2) & 0x3333333333333333);
    x = (x + (x >> 4)) & 0x0f0f0f0f0f0f0f0f;
    x += x >> 8;
    x += x >> 16;
    out[i] = static_cast<i64>(x & 0x3f) - static_cast<i64>((x >> 32) & 0x3f);
  }
}

void ternary_words(const u64* words, std::size_t n, i64* out) {
  for (std::size_t i = 0; i < n; ++i) {
    out[i] = static_cast<i64>(words[i] >= 0x5555555555555556) + static_cast<i64>(words[i] >= 0xaaaaaaaaaaaaaaab) - 1;
  }
}

template <class T>
std::size_t encode_values(const T* x, std::size_t n, double bound, double scale, const std::uint32_t* coins,
                          i64* out) {
  constexpr double magic = 0x1.8p52;  // adding it rounds to an integer and leaves that in the low bits
  u64 clipped = 0;
  for (std::size_t i = 0; i < n; ++i) {
    double v = static_cast<double>(x[i]);
    clipped += static_cast<u64>(v > bound) + static_cast<u64>(v < -bound);
    v = v > bound ? bound : v;
    v = v < -bound ? -bound : v;
    v *= scale;
    double whole = (v + magic) - magic;
    if (coins != nullptr) {
      whole -= whole > v ? 1.0 : 0.0;
      whole += (v - whole) > static_cast<double>(coins[i]) * 0x1p-32 ? 1.0 : 0.0;
    }
    const double shifted = whole + magic;
    i64 bits;
    __builtin_memcpy(&bits, &shifted, sizeof bits);
    out[i] = bits - 0x4338000000000000;
  }
  return clipped;
}

void round_words(const Prime& p, const Rounder& r, const u64* phases, double step, double* out, Decoded* decoded) {
  i64 largest = 0, noisiest = 0;
  for (std::size_t i = 0; i < p.n; ++i) {
    u64 y = phases[i] + r.shift - p.q;
    y += p.q & (0 - (y >> 63));
    u64 whole = static_cast<u64>((static_cast<u128>(y) * r.inverse) >> 64);
    u64 rest = y - whole * r.delta;
    const u64 more = static_cast<u64>(rest >= r.delta);
    whole += more;
    rest -= r.delta & (0 - more);
    const i64 value = static_cast<i64>(whole) - r.middle, noise = static_cast<i64>(rest) - static_cast<i64>(r.half);
    const i64 value_sign = value >> 63, noise_sign = noise >> 63;
    const i64 size = (value ^ value_sign) - value_sign, away = (noise ^ noise_sign) - noise_sign;
    largest = size > largest ? size : largest;
    noisiest = away > noisiest ? away : noisiest;
    out[i] = static_cast<double>(value) * step;
  }
  if (largest > decoded->largest_value) decoded->largest_value = largest;
  if (static_cast<double>(noisiest) > decoded->largest_noise) decoded->largest_noise = static_cast<double>(noisiest);
}

bool unpack_words(const Prime& p, const std::uint8_t* in, u64* out) {
  const u64 q = p.q, mask = (u64{1} << p.bits) - 1;
  const std::size_t bits = p.bits;
  u64 below = ~u64{0};
  for (std::size_t i = 0; i < p.n; i += 8) {
    // Eight residues are `bits` whole bytes.
    for (std::size_t j = 0; j < 8; ++j) {
      u64 word;
      __builtin_memcpy(&word, in + j * bits / 8, sizeof word);
      out[i + j] = word >> (j * bits % 8) & mask;
      below &= out[i + j] - q;
    }
    in += bits;
  }
  return below >> 63 != 0;
}

void pack_words(const Prime& p, const u64* x, std::uint8_t* out) {
  const unsigned bits = p.bits;
  for (std::size_t i = 0; i < p.n; i += 8) {
    u64 word = 0;
    unsigned filled = 0;
    std::uint8_t* to = out;
    for (std::size_t j = 0; j < 8; ++j) {
      word |= x[i + j] << filled;
      filled += bits;
      if (filled >= 64) {
        __builtin_memcpy(to, &word, 8);
        to += 8;
        filled -= 64;
        word = filled != 0 ? x[i + j] >> (bits - filled) : 0;
      }
    }
    __builtin_memcpy(to, &word, filled / 8);
    out += bits;
  }
}

constexpr RingKernels word_table(const char* name) {
  return RingKernels{name,           forward_words, multiply_inverse_words, multiply_add_words,   add_words,
                     subtract_words, combine_words, residue_words,          mask_words,           error_words,
                     ternary_words,  encode_values<float>, encode_values<double>, round_words,    unpack_words,
                     pack_words};
}
