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

template <class E>
constexpr Kernels table(const char* name) {
  return Kernels{name, E::expand, encrypt_blocks<E>, stream_blocks<E>};
}
