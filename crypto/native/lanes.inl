// What all instruction sets share, written once over a vector of AES blocks. Included inside the anonymous namespace
// of each translation unit, so that nothing here has external linkage.
//
// An Engine provides
//   Vec                      a GCC vector of 64-bit words holding kLanes blocks
//   Key                      round keys in the form that `encrypt` wants
//   load(schedule, key)      from FIPS-197 round keys
//   encrypt(key, x)          in place, kWidth vectors at a time
//   reverse(v)               the bytes of each block in reverse order
//   expand(key16, schedule)  FIPS-197 key expansion
//   prepare(seeds, keys)     four keys at once, so that their latencies overlap
//   Vec32                    the same bits as Vec, in 32-bit words

constexpr std::size_t kWidth = 8;

// Vector by vector: a copy of the whole array would be made in narrower pieces and stall the reload.
template <class V>
inline void load_vectors(V* x, const std::uint8_t* in) {
#pragma GCC unroll 8
  for (std::size_t v = 0; v < kWidth; ++v) __builtin_memcpy(&x[v], in + v * sizeof(V), sizeof(V));
}

template <class V>
inline void store_vectors(std::uint8_t* out, const V* x) {
#pragma GCC unroll 8
  for (std::size_t v = 0; v < kWidth; ++v) __builtin_memcpy(out + v * sizeof(V), &x[v], sizeof(V));
}

template <class E>
void encrypt_blocks(const Schedule* schedule, const std::uint8_t* in, std::uint8_t* out, std::size_t blocks) {
  typename E::Key key;
  E::load(schedule->bytes, key);
  typename E::Vec x[kWidth];
  constexpr std::size_t step = sizeof x / kBlockBytes;
  for (; blocks >= step; blocks -= step, in += sizeof x, out += sizeof x) {
    load_vectors(x, in);
    E::encrypt(key, x);
    store_vectors(out, x);
  }
  if (blocks != 0) {
    __builtin_memset(x, 0, sizeof x);
    __builtin_memcpy(x, in, blocks * kBlockBytes);
    E::encrypt(key, x);
    __builtin_memcpy(out, x, blocks * kBlockBytes);
  }
}

// Counters live as little-endian 128-bit numbers in each lane; only the low word is ever incremented.
template <class E>
typename E::Vec counter_from(std::uint64_t high, std::uint64_t low) {
  typename E::Vec c;
  for (std::size_t lane = 0; lane < E::kLanes; ++lane) {
    c[2 * lane] = low + lane;
    c[2 * lane + 1] = high;
  }
  return c;
}

template <class E>
inline void keystream(const typename E::Key& key, typename E::Vec& counter, typename E::Vec* x) {
  typename E::Vec step = {};
  for (std::size_t lane = 0; lane < E::kLanes; ++lane) step[2 * lane] = E::kLanes;
#pragma GCC unroll 8
  for (std::size_t v = 0; v < kWidth; ++v) {
    x[v] = E::reverse(counter);
    counter += step;
  }
  E::encrypt(key, x);
}

inline std::uint64_t load_big_endian(const std::uint8_t* p) {
  std::uint64_t word;
  __builtin_memcpy(&word, p, 8);
  return __builtin_bswap64(word);
}

template <class E>
void stream_blocks(const Schedule* schedule, const std::uint8_t* counter, std::uint8_t* out, std::size_t blocks) {
  typename E::Key key;
  E::load(schedule->bytes, key);
  std::uint64_t high = load_big_endian(counter), low = load_big_endian(counter + 8);
  typename E::Vec x[kWidth];
  constexpr std::size_t step = sizeof x / kBlockBytes;
  while (blocks != 0) {
    const std::uint64_t until_carry = std::uint64_t{0} - low;
    std::size_t run = until_carry != 0 && until_carry < blocks ? until_carry : blocks;
    blocks -= run;
    typename E::Vec c = counter_from<E>(high, low);
    low += run;
    high += low == 0;
    for (; run >= step; run -= step, out += sizeof x) {
      keystream<E>(key, c, x);
      store_vectors(out, x);
    }
    if (run != 0) {
      keystream<E>(key, c, x);
      __builtin_memcpy(out, x, run * kBlockBytes);
      out += run * kBlockBytes;
    }
  }
}

constexpr std::size_t kTogether = 4;

template <class E>
struct Z32 {
  static constexpr std::size_t kWord = 4;
  static inline typename E::Vec add(typename E::Vec acc, typename E::Vec x, typename E::Vec correction,
                                    typename E::Vec&) {
    typedef typename E::Vec32 V;
    return (typename E::Vec)((V)acc + (V)x + (V)correction);
  }
  static inline typename E::Vec difference(typename E::Vec beta, typename E::Vec x0, typename E::Vec x1,
                                           typename E::Vec&) {
    typedef typename E::Vec32 V;
    return (typename E::Vec)((V)beta - (V)x0 + (V)x1);
  }
  static inline typename E::Vec negate(typename E::Vec a) { return (typename E::Vec)(-(typename E::Vec32)a); }
};

template <class E>
struct Z64 {
  static constexpr std::size_t kWord = 8;
  static inline typename E::Vec add(typename E::Vec acc, typename E::Vec x, typename E::Vec correction,
                                    typename E::Vec&) {
    return acc + x + correction;
  }
  static inline typename E::Vec difference(typename E::Vec beta, typename E::Vec x0, typename E::Vec x1,
                                           typename E::Vec&) {
    return beta - x0 + x1;
  }
  static inline typename E::Vec negate(typename E::Vec a) { return -a; }
};

// 2^64 is 2^32 - 1 modulo p, so a sum that wraps is mended by adding that; it cannot wrap twice if one operand is below
// p. Words at or above p are noticed by their upper half of ones, which p - 1 shares: redoing a leaf is harmless.
template <class E>
struct Field64 {
  static constexpr std::size_t kWord = 8;
  typedef typename E::Vec V;
  static constexpr std::uint64_t kPrime = 0xffffffff00000001, kGap = 0xffffffff;

  static inline V add(V acc, V x, V correction, V& above) {
    above |= (V)((typename E::Vec32)x == kGap);
    V s = x + correction;
    s += (V)(s < x) & kGap;
    V total = acc + s;
    total += (V)(total < s) & kGap;
    return total + ((V)(total >= kPrime) & kGap);
  }

  static inline V difference(V beta, V x0, V x1, V& above) {
    above |= (V)((typename E::Vec32)x0 == kGap) | (V)((typename E::Vec32)x1 == kGap);
    V s = beta - x0;
    s -= (V)(beta < x0) & kGap;
    V total = s + x1;
    total += (V)(total < s) & kGap;
    return total + ((V)(total >= kPrime) & kGap);
  }
  static inline V negate(V a) { return (kPrime - a) & (V)(a != 0); }
};

// Adds what `x` holds to the tile's next kWidth vectors.
template <class E, class G>
inline void add_vectors(const typename E::Vec* x, const std::uint8_t* correction, typename E::Vec mask,
                        std::uint8_t* tile, typename E::Vec& above) {
  typedef typename E::Vec V;
#pragma GCC unroll 8
  for (std::size_t v = 0; v < kWidth; ++v) {
    V acc, w;
    __builtin_memcpy(&acc, tile + v * sizeof(V), sizeof(V));
    __builtin_memcpy(&w, correction + v * sizeof(V), sizeof(V));
    acc = G::add(acc, x[v], w & mask, above);
    __builtin_memcpy(tile + v * sizeof(V), &acc, sizeof(V));
  }
}

template <class V>
inline bool upper_half_set(const V& above, std::size_t words) {
  std::uint64_t any = 0;
  for (std::size_t word = 0; word < words; ++word) any |= above[word];
  return any >> 32 != 0;
}

template <class E, class G>
inline bool add_leaf(const typename E::Key& key, const Leaf& leaf, std::uint64_t first_block, std::uint8_t* tile,
                     std::size_t size) {
  typedef typename E::Vec V;
  V x[kWidth];
  V counter = counter_from<E>(0, first_block), above = {};
  const V mask = V{} + leaf.mask;
  const std::uint8_t* correction = leaf.correction;
  for (; size >= sizeof x; size -= sizeof x, tile += sizeof x, correction += sizeof x) {
    keystream<E>(key, counter, x);
    add_vectors<E, G>(x, correction, mask, tile, above);
  }
  if (size != 0) {
    std::uint8_t words[sizeof x], tail[sizeof x] = {}, tail_correction[sizeof x] = {};
    keystream<E>(key, counter, x);
    __builtin_memset(words, 0, sizeof words);
    __builtin_memcpy(words, x, size);
    load_vectors(x, words);
    __builtin_memcpy(tail, tile, size);
    __builtin_memcpy(tail_correction, correction, size);
    add_vectors<E, G>(x, tail_correction, mask, tail, above);
    __builtin_memcpy(tile, tail, size);
  }
  return upper_half_set(above, 2 * E::kLanes);
}

template <class E, class G>
void add_leaves(const Leaf* leaves, std::size_t count, std::uint64_t first_block, std::uint8_t* tile,
                std::size_t words, std::uint8_t* above) {
  typename E::Key keys[kTogether];
  for (std::size_t at = 0; at < count; at += kTogether) {
    const std::uint8_t* seeds[kTogether];
    for (std::size_t i = 0; i < kTogether; ++i) seeds[i] = leaves[at + i < count ? at + i : at].seed;
    E::prepare(seeds, keys);
    for (std::size_t i = 0; i < kTogether && at + i < count; ++i) {
      if (add_leaf<E, G>(keys[i], leaves[at + i], first_block, tile, words * G::kWord)) above[at + i] = 1;
    }
  }
}

// One step of correct_leaf: kWidth vectors of payload under both keystreams.
template <class E, class G>
inline void correct_vectors(const typename E::Key* keys, typename E::Vec* counters, typename E::Vec minus,
                            const std::uint8_t* payload, std::uint8_t* out, typename E::Vec& above) {
  typedef typename E::Vec V;
  V x0[kWidth], x1[kWidth];
  keystream<E>(keys[0], counters[0], x0);
  keystream<E>(keys[1], counters[1], x1);
#pragma GCC unroll 8
  for (std::size_t v = 0; v < kWidth; ++v) {
    V beta;
    __builtin_memcpy(&beta, payload + v * sizeof(V), sizeof(V));
    const V difference = G::difference(beta, x0[v], x1[v], above);
    const V result = (G::negate(difference) & minus) | (difference & ~minus);
    __builtin_memcpy(out + v * sizeof(V), &result, sizeof(V));
  }
}

template <class E, class G>
bool correct_leaf(const std::uint8_t* const* seeds, const std::uint8_t* payload, std::uint64_t minus, std::size_t words,
                  std::uint8_t* out) {
  typedef typename E::Vec V;
  const std::uint8_t* four[kTogether] = {seeds[0], seeds[1], seeds[0], seeds[1]};
  typename E::Key keys[kTogether];
  E::prepare(four, keys);
  V counters[2] = {counter_from<E>(0, 0), counter_from<E>(0, 0)}, above = {};
  const V mask = V{} + minus;
  constexpr std::size_t step = kWidth * sizeof(V);
  std::size_t size = words * G::kWord;
  for (; size >= step; size -= step, payload += step, out += step) {
    correct_vectors<E, G>(keys, counters, mask, payload, out, above);
  }
  if (size != 0) {
    // What the keystream holds behind the last word may look like a word at or above p: redoing is harmless.
    std::uint8_t tail[step] = {};
    __builtin_memcpy(tail, payload, size);
    correct_vectors<E, G>(keys, counters, mask, tail, tail, above);
    __builtin_memcpy(out, tail, size);
  }
  return upper_half_set(above, 2 * E::kLanes);
}

template <class E>
constexpr Kernels table(const char* name) {
  return Kernels{name,
                 E::expand,
                 encrypt_blocks<E>,
                 stream_blocks<E>,
                 add_leaves<E, Z32<E>>,
                 add_leaves<E, Z64<E>>,
                 add_leaves<E, Field64<E>>,
                 correct_leaf<E, Z32<E>>,
                 correct_leaf<E, Z64<E>>,
                 correct_leaf<E, Field64<E>>};
}
