#include "dpf.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <exception>
#include <system_error>
#include <thread>
#include <vector>

#include "blake2b.hpp"

namespace fedsim {
namespace {

constexpr std::uint64_t kPrime = 0xffffffff00000001;
constexpr std::size_t kTileBytes = 16384;              // half of a usual first-level cache
constexpr std::size_t kTreeScratchBytes = 256 * 1024;  // expanded leaves of a batch, by thread: second-level cache
constexpr std::size_t kMaxBatch = 64;

struct Seed {
  std::uint64_t low, high;

  Seed operator^(const Seed& other) const { return {low ^ other.low, high ^ other.high}; }
  Seed operator&(std::uint64_t mask) const { return {low & mask, high & mask}; }
};
static_assert(sizeof(Seed) == kBlockBytes);

Seed load_seed(const std::uint8_t* p) {
  Seed s;
  std::memcpy(&s, p, sizeof s);
  return s;
}

std::uint64_t mask_of(std::uint64_t bit) { return std::uint64_t{0} - bit; }

Seed choose(std::uint64_t mask, const Seed& if_set, const Seed& if_clear) { return (if_set & mask) ^ (if_clear & ~mask); }

// Where the parts of a public share stand.
struct Layout {
  explicit Layout(const Shape& shape)
      : bits(shape.groups * shape.depth() * kBlockBytes),
        checks(bits + shape.groups * shape.bit_bytes()),
        blocks(checks + shape.groups * kCheckBytes) {}
  std::size_t bits, checks, blocks;
};

// The tree's generator: Expand(s) of both children under the report's two keys, y = AES_K(sigma(s)) ^ sigma(s) with
// sigma(high || low) = (high ^ low) || high (Guo, Katz, Wang, Yu 2020). The lowest bit of y is the control bit.
class Tree {
 public:
  Tree(const Kernels& table, const std::uint8_t* keys) : table_(table) {
    table.expand(keys, &schedules_[0]);
    table.expand(keys + kKeyBytes, &schedules_[1]);
  }

  // Writes the children of `count` seeds; `scratch` holds `count` seeds.
  void expand(const Seed* seeds, std::size_t count, Seed* left, Seed* right, Seed* scratch) const {
    for (std::size_t i = 0; i < count; ++i) scratch[i] = {seeds[i].high, seeds[i].high ^ seeds[i].low};
    hash(0, scratch, count, left);
    hash(1, scratch, count, right);
  }

 private:
  static constexpr std::size_t kKeyBytes = 16;

  void hash(int child, const Seed* sigma, std::size_t count, Seed* out) const {
    table_.encrypt(&schedules_[child], reinterpret_cast<const std::uint8_t*>(sigma),
                   reinterpret_cast<std::uint8_t*>(out), count);
    for (std::size_t i = 0; i < count; ++i) out[i] = out[i] ^ sigma[i];
  }

  const Kernels& table_;
  Schedule schedules_[2];
};

void leaf_hash(const std::uint8_t* binding, std::uint32_t group, std::uint32_t index, const Seed& seed, std::uint8_t bit,
               std::uint8_t* out) {
  Blake2b hash(kCheckBytes, "preamble-leaf/1");
  std::uint8_t input[kBindingBytes + 4 + 4 + 16 + 1];
  std::memcpy(input, binding, kBindingBytes);
  std::memcpy(input + 32, &group, 4);
  std::memcpy(input + 36, &index, 4);
  std::memcpy(input + 40, &seed, 16);
  input[56] = bit;
  hash.update(input, sizeof input);
  hash.finish(out);
}

// p - 0 must stay 0, without a branch.
std::uint64_t field_negate(std::uint64_t a) { return (kPrime - a) & mask_of(a != 0); }

std::uint64_t field_add(std::uint64_t a, std::uint64_t b) {
  const std::uint64_t s = a + b;
  return s - (kPrime & mask_of(static_cast<std::uint64_t>(s < a) | static_cast<std::uint64_t>(s >= kPrime)));
}

CorrectLeaf corrector(const Kernels& table, Group group) {
  return group == Group::kZ32   ? table.correct_z32
         : group == Group::kZ64 ? table.correct_z64
                                : table.correct_field64;
}

// The correction of a leaf where a keystream holds a word at or above p, which only stretch() knows to skip.
void correct_by_stretch(const Kernels& table, const std::uint8_t* const* seeds, const std::uint8_t* payload,
                        std::uint64_t minus, std::size_t words, std::uint8_t* out) {
  std::vector<std::uint64_t> x[2];
  for (int b = 0; b < 2; ++b) {
    x[b].resize(words);
    stretch(table, Group::kField64, seeds[b], words, reinterpret_cast<std::uint8_t*>(x[b].data()));
  }
  for (std::size_t i = 0; i < words; ++i) {
    std::uint64_t beta;
    std::memcpy(&beta, payload + 8 * i, 8);
    const std::uint64_t difference = field_add(field_add(beta, field_negate(x[0][i])), x[1][i]);
    const std::uint64_t result = (field_negate(difference) & minus) | (difference & ~minus);
    std::memcpy(out + 8 * i, &result, 8);
  }
}

// The paths of all groups of one report, grown together: the cipher is fastest on many blocks at once.
class Paths {
 public:
  Paths(const Tree& tree, const Shape& shape, const std::uint8_t* const roots[2])
      : tree_(tree), groups_(shape.groups), seeds_(2 * groups_), left_(2 * groups_), right_(2 * groups_),
        scratch_(2 * groups_), controls_(2 * groups_) {
    for (std::size_t g = 0; g < groups_; ++g) {
      for (std::size_t b = 0; b < 2; ++b) {
        Seed& seed = seeds_[2 * g + b];
        seed = load_seed(roots[b] + g * kBlockBytes);
        seed.low &= ~std::uint64_t{1};
        controls_[2 * g + b] = b;
      }
    }
  }

  void expand() { tree_.expand(seeds_.data(), seeds_.size(), left_.data(), right_.data(), scratch_.data()); }

  // Goes on to the right child of group g where `turn` is 1, to the left where it is 0; returns the level's correction
  // and sets its two bits.
  Seed descend(std::size_t g, std::uint64_t turn, std::uint8_t& bits) {
    const Seed *left = &left_[2 * g], *right = &right_[2 * g];
    Seed* seed = &seeds_[2 * g];
    std::uint64_t* control = &controls_[2 * g];
    const std::uint64_t to_right = mask_of(turn);
    const std::uint64_t bit_left = (left[0].low ^ left[1].low ^ turn ^ 1) & 1;
    const std::uint64_t bit_right = (right[0].low ^ right[1].low ^ turn) & 1;
    Seed correction = choose(to_right, left[0], right[0]) ^ choose(to_right, left[1], right[1]);
    correction.low &= ~std::uint64_t{1};
    const std::uint64_t bit_kept = (bit_right & to_right) | (bit_left & ~to_right);
    for (int b = 0; b < 2; ++b) {
      const std::uint64_t used = mask_of(control[b]);
      seed[b] = choose(to_right, right[b], left[b]);
      control[b] = (seed[b].low & 1) ^ (bit_kept & used);
      seed[b].low &= ~std::uint64_t{1};
      seed[b] = seed[b] ^ (correction & used);
    }
    bits = static_cast<std::uint8_t>(bit_left | bit_right << 1);
    return correction;
  }

  const Seed& seed(std::size_t g, int b) const { return seeds_[2 * g + b]; }
  std::uint64_t control(std::size_t g, int b) const { return controls_[2 * g + b]; }

 private:
  const Tree& tree_;
  std::size_t groups_;
  std::vector<Seed> seeds_, left_, right_, scratch_;
  std::vector<std::uint64_t> controls_;
};

// Runs work(first, last) on `threads` disjoint ranges of [0, count) and rethrows the first exception.
template <class Work>
void in_threads(std::size_t count, unsigned threads, const Work& work) {
  const std::size_t n = std::max<std::size_t>(1, std::min<std::size_t>(threads, count));
  std::vector<std::exception_ptr> failures(n);
  const auto part = [&](std::size_t i) {
    try {
      work(count * i / n, count * (i + 1) / n);
    } catch (...) {
      failures[i] = std::current_exception();
    }
  };
  std::vector<std::thread> others;
  others.reserve(n - 1);
  for (std::size_t i = 1; i < n; ++i) {
    try {
      others.emplace_back(part, i);
    } catch (const std::system_error&) {  // no more threads to be had: do it here
      part(i);
    }
  }
  part(0);
  for (std::thread& thread : others) thread.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

AddLeaves adder(const Kernels& table, Group group) {
  return group == Group::kZ32 ? table.add_z32 : group == Group::kZ64 ? table.add_z64 : table.add_field64;
}

// A Field64 leaf whose keystream held a word at or above p was added word by word modulo p; replaces that by stretch().
void redo(const Kernels& table, const Leaf& leaf, std::size_t words, std::uint8_t* tile) {
  const std::size_t blocks = (words + 1) / 2;
  std::vector<std::uint64_t> added(2 * blocks), right(words);
  Schedule schedule;
  const std::uint8_t zero[kBlockBytes] = {};
  table.expand(leaf.seed, &schedule);
  table.stream(&schedule, zero, reinterpret_cast<std::uint8_t*>(added.data()), blocks);
  stretch(table, Group::kField64, leaf.seed, words, reinterpret_cast<std::uint8_t*>(right.data()));
  for (std::size_t i = 0; i < words; ++i) {
    std::uint64_t word;
    std::memcpy(&word, tile + 8 * i, 8);
    const std::uint64_t reduced = added[i] >= kPrime ? added[i] - kPrime : added[i];
    word = field_add(word, field_add(right[i], field_negate(reduced)));
    std::memcpy(tile + 8 * i, &word, 8);
  }
}

// The expanded trees of one group for a batch of reports.
struct Expanded {
  Expanded(std::size_t batch, std::size_t blocks) : seeds(batch * blocks * kBlockBytes), bits(batch * blocks) {}
  std::vector<std::uint8_t> seeds, bits;
};

// Adds a batch to the pieces [first, last) of one group.
class GroupAdder {
 public:
  GroupAdder(const Kernels& table, const Shape& shape, std::size_t piece_bytes)
      : table_(table), shape_(shape), add_(adder(table, shape.group)), piece_bytes_(piece_bytes) {}

  void add(const Expanded& trees, const Report* reports, std::size_t count, std::uint32_t group, std::size_t first,
           std::size_t last, std::size_t pieces, std::uint8_t* total) const {
    const std::size_t corrections = Layout(shape_).blocks + group * shape_.block_bytes();
    Leaf leaves[kMaxBatch];
    std::uint8_t above[kMaxBatch];
    for (std::size_t at = first; at < last; ++at) {
      const std::size_t block = at / pieces, offset = at % pieces * piece_bytes_;
      const std::size_t size = std::min(piece_bytes_, shape_.block_bytes() - offset);
      std::uint8_t* tile = total + (std::size_t{group} * shape_.blocks + block) * shape_.block_bytes() + offset;
      for (std::size_t i = 0; i < count; ++i) {
        const std::size_t leaf = i * shape_.blocks + block;
        leaves[i] = {&trees.seeds[leaf * kBlockBytes], reports[i].public_share + corrections + offset,
                     mask_of(trees.bits[leaf])};
      }
      std::memset(above, 0, sizeof above);
      add_(leaves, count, offset / kBlockBytes, tile, size / shape_.word_bytes(), above);
      for (std::size_t i = 0; i < count; ++i) {
        if (above[i]) redo(table_, leaves[i], shape_.length, tile);
      }
    }
  }

 private:
  const Kernels& table_;
  const Shape& shape_;
  AddLeaves add_;
  std::size_t piece_bytes_;
};

}  // namespace

std::size_t Shape::depth() const { return std::bit_width(blocks - 1u); }

std::size_t Shape::public_bytes() const { return Layout(*this).blocks + groups * block_bytes(); }

void stretch(const Kernels& table, Group group, const std::uint8_t* seed, std::size_t words, std::uint8_t* out) {
  Schedule schedule;
  table.expand(seed, &schedule);
  std::uint8_t counter[kBlockBytes] = {};
  const std::size_t size = words * (group == Group::kZ32 ? 4 : 8);
  table.stream(&schedule, counter, out, size / kBlockBytes);
  std::uint64_t next = size / kBlockBytes;
  const auto take = [&](std::uint8_t* block) {
    const std::uint64_t big_endian = __builtin_bswap64(next++);
    std::memcpy(counter + 8, &big_endian, 8);
    table.stream(&schedule, counter, block, 1);
  };
  std::uint64_t spare[2];
  std::size_t spares = 0;
  if (size % kBlockBytes != 0) {
    take(reinterpret_cast<std::uint8_t*>(spare));
    std::memcpy(out + size / kBlockBytes * kBlockBytes, spare, size % kBlockBytes);
    spare[0] = spare[1], spares = 1;  // only 8-byte words go on from here
  }
  if (group != Group::kField64) return;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < words; ++i) {
    std::uint64_t word;
    std::memcpy(&word, out + 8 * i, 8);
    if (word < kPrime) std::memcpy(out + 8 * kept++, &word, 8);
  }
  while (kept < words) {
    if (spares == 0) take(reinterpret_cast<std::uint8_t*>(spare)), spares = 2;
    if (spare[0] < kPrime) std::memcpy(out + 8 * kept++, &spare[0], 8);
    spare[0] = spare[1], --spares;
  }
}

void generate(const Kernels& table, const Shape& shape, const std::uint8_t* tree_keys, const std::uint8_t* binding,
              const std::uint8_t* const roots[2], const std::uint32_t* alpha, const std::uint8_t* payload,
              std::uint8_t* public_share) {
  const Layout at(shape);
  const Tree tree(table, tree_keys);
  const std::size_t depth = shape.depth(), size = shape.block_bytes();
  Paths paths(tree, shape, roots);
  std::memset(public_share + at.bits, 0, shape.groups * shape.bit_bytes());
  for (std::size_t level = 0; level < depth; ++level) {
    paths.expand();
    for (std::size_t g = 0; g < shape.groups; ++g) {
      std::uint8_t two_bits;
      const Seed correction = paths.descend(g, alpha[g] >> (depth - 1 - level) & 1, two_bits);
      std::memcpy(public_share + (g * depth + level) * kBlockBytes, &correction, kBlockBytes);
      public_share[at.bits + g * shape.bit_bytes() + level / 4] |= static_cast<std::uint8_t>(two_bits << (level % 4 * 2));
    }
  }
  const CorrectLeaf correct = corrector(table, shape.group);
  for (std::uint32_t g = 0; g < shape.groups; ++g) {
    std::uint8_t check[2][kCheckBytes];
    for (int b = 0; b < 2; ++b) {
      leaf_hash(binding, g, alpha[g], paths.seed(g, b), static_cast<std::uint8_t>(paths.control(g, b)), check[b]);
    }
    for (std::size_t i = 0; i < kCheckBytes; ++i) {
      public_share[at.checks + g * kCheckBytes + i] = check[0][i] ^ check[1][i];
    }
    const std::uint8_t* seeds[2] = {reinterpret_cast<const std::uint8_t*>(&paths.seed(g, 0)),
                                    reinterpret_cast<const std::uint8_t*>(&paths.seed(g, 1))};
    const std::uint64_t minus = mask_of(paths.control(g, 1));
    std::uint8_t* out = public_share + at.blocks + g * size;
    if (correct(seeds, payload + g * size, minus, shape.length, out)) {
      correct_by_stretch(table, seeds, payload + g * size, minus, shape.length, out);
    }
  }
}

void expand_tree(const Kernels& table, const Shape& shape, const Report& report, std::uint32_t group, int server,
                 std::uint8_t* seeds, std::uint8_t* bits) {
  const Layout at(shape);
  const std::size_t depth = shape.depth(), m = shape.blocks;
  const Tree tree(table, report.tree_keys);
  std::vector<Seed> level_seeds(m + 1), left((m + 1) / 2), right((m + 1) / 2), scratch((m + 1) / 2);
  std::vector<std::uint8_t> control(m + 1);
  level_seeds[0] = load_seed(report.roots + group * kBlockBytes);
  level_seeds[0].low &= ~std::uint64_t{1};
  control[0] = static_cast<std::uint8_t>(server);
  std::size_t nodes = 1;
  for (std::size_t level = 0; level < depth; ++level) {
    const Seed correction = load_seed(report.public_share + (group * depth + level) * kBlockBytes);
    const std::uint8_t byte = report.public_share[at.bits + group * shape.bit_bytes() + level / 4];
    const std::uint64_t bit_left = byte >> (level % 4 * 2) & 1, bit_right = byte >> (level % 4 * 2 + 1) & 1;
    tree.expand(level_seeds.data(), nodes, left.data(), right.data(), scratch.data());
    // Downwards, because children overwrite the places of later parents.
    for (std::size_t i = nodes; i-- > 0;) {
      const std::uint64_t used = mask_of(control[i]);
      const auto child = [&](Seed y, std::uint64_t bit, std::size_t to) {
        control[to] = static_cast<std::uint8_t>((y.low & 1) ^ (bit & used));
        y.low &= ~std::uint64_t{1};
        level_seeds[to] = y ^ (correction & used);
      };
      if (2 * i + 1 <= m) child(right[i], bit_right, 2 * i + 1);
      child(left[i], bit_left, 2 * i);
    }
    const std::size_t under = std::size_t{1} << (depth - 1 - level);
    nodes = (m + under - 1) / under;
  }
  std::memcpy(seeds, level_seeds.data(), m * kBlockBytes);
  std::memcpy(bits, control.data(), m);
}

void accumulate(const Kernels& table, const Shape& shape, const Report* reports, std::size_t count, int server,
                std::uint8_t* total, unsigned threads) {
  // A Field64 leaf may have to be redone as a whole, so it is not cut.
  const std::size_t piece_bytes = shape.group == Group::kField64 ? shape.block_bytes() : kTileBytes;
  const std::size_t pieces = (shape.block_bytes() + piece_bytes - 1) / piece_bytes;
  const std::size_t by_group = shape.blocks * pieces;
  const std::size_t fits = kTreeScratchBytes / ((kBlockBytes + 1) * shape.blocks);
  const std::size_t batch = std::min(std::max<std::size_t>(1, std::min(fits, kMaxBatch)), std::max<std::size_t>(1, count));
  const GroupAdder group_adder(table, shape, piece_bytes);
  in_threads(shape.groups * by_group, threads, [&](std::size_t first, std::size_t last) {
    Expanded trees(batch, shape.blocks);
    for (std::size_t begin = first; begin < last;) {
      const std::size_t group = begin / by_group, end = std::min(last, (group + 1) * by_group);
      for (std::size_t from = 0; from < count; from += batch) {
        const std::size_t n = std::min(batch, count - from);
        for (std::size_t i = 0; i < n; ++i) {
          expand_tree(table, shape, reports[from + i], static_cast<std::uint32_t>(group), server,
                      &trees.seeds[i * shape.blocks * kBlockBytes], &trees.bits[i * shape.blocks]);
        }
        group_adder.add(trees, reports + from, n, static_cast<std::uint32_t>(group), begin - group * by_group,
                        end - group * by_group, pieces, total);
      }
      begin = end;
    }
  });
}

void block_sums(const Kernels& table, const Shape& shape, const Report& report, int server, std::uint8_t* out) {
  const std::size_t size = shape.block_bytes();
  const AddLeaves add = adder(table, shape.group);
  Expanded tree(1, shape.blocks);
  std::memset(out, 0, shape.groups * size);
  for (std::uint32_t g = 0; g < shape.groups; ++g, out += size) {
    expand_tree(table, shape, report, g, server, tree.seeds.data(), tree.bits.data());
    for (std::size_t j = 0; j < shape.blocks; ++j) {
      const Leaf leaf = {&tree.seeds[j * kBlockBytes], report.public_share + Layout(shape).blocks + g * size,
                         mask_of(tree.bits[j])};
      std::uint8_t above = 0;
      add(&leaf, 1, 0, out, shape.length, &above);
      if (above) redo(table, leaf, shape.length, out);
    }
  }
}

void prove(const Kernels& table, const Shape& shape, const Report* reports, std::size_t count, int server,
           const std::uint8_t* const* digests, std::uint8_t* proofs, unsigned threads) {
  const Layout at(shape);
  in_threads(count, threads, [&](std::size_t first, std::size_t last) {
    Expanded tree(1, shape.blocks);
    for (std::size_t i = first; i < last; ++i) {
      const Report& report = reports[i];
      Blake2b proof(kProofBytes, "preamble-proof/1");
      proof.update(report.binding, kBindingBytes);
      proof.update(digests[i], kDigestBytes);
      for (std::uint32_t g = 0; g < shape.groups; ++g) {
        expand_tree(table, shape, report, g, server, tree.seeds.data(), tree.bits.data());
        const std::uint8_t* check = report.public_share + at.checks + g * kCheckBytes;
        for (std::uint32_t j = 0; j < shape.blocks; ++j) {
          std::uint8_t pi[kCheckBytes];
          leaf_hash(report.binding, g, j, load_seed(&tree.seeds[j * kBlockBytes]), tree.bits[j], pi);
          const std::uint8_t used = static_cast<std::uint8_t>(0 - tree.bits[j]);
          for (std::size_t byte = 0; byte < kCheckBytes; ++byte) pi[byte] ^= check[byte] & used;
          proof.update(pi, sizeof pi);
        }
      }
      proof.finish(proofs + i * kProofBytes);
    }
  });
}

}  // namespace fedsim
