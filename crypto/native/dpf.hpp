// Distributed point functions over blocks, k-wise 1-sparse (PREAMBLE, arXiv 2503.11897; Boyle, Gilboa, Ishai 2016).
//
// A vector of k groups of t blocks of B words has at most one non-zero block in each group. generate() splits it into
// a public share and two root seeds for each group; either root with the public share expands to a share that looks
// random, and the two expansions cancel outside the chosen blocks.
//
// Public share, little-endian, h = ceil(log2 t), w-bit words:
//
//   k * h * 16            seed corrections, by group and level
//   k * ceil(2h / 8)      control-bit corrections: bit 2i of a group is level i's left bit, 2i + 1 its right; rest zero
//   k * 64                check strings
//   k * B * w / 8         block corrections
//
// Server 0's share is its expansion, server 1's is minus its expansion: accumulate() adds expansions, and whoever reads
// the total subtracts once. A share is never written to memory.
//
// Seeds have 127 bits: the lowest bit of a seed is its control bit's source and is cleared.
#pragma once

#include <cstddef>
#include <cstdint>

#include "aes.hpp"

namespace fedsim {

constexpr std::size_t kBindingBytes = 32, kTreeKeyBytes = 32, kDigestBytes = 32, kProofBytes = 32, kCheckBytes = 64;

struct Shape {
  Group group;
  std::uint32_t groups;  // k >= 1
  std::uint32_t blocks;  // t >= 1, of each group
  std::uint32_t length;  // B >= 1, words of a block

  std::size_t word_bytes() const { return group == Group::kZ32 ? 4 : 8; }
  std::size_t block_bytes() const { return length * word_bytes(); }
  std::size_t depth() const;  // h
  std::size_t bit_bytes() const { return (2 * depth() + 7) / 8; }
  std::size_t public_bytes() const;
};

/// What one server knows of one report; pointers into memory that outlives the call. Validated by the caller.
struct Report {
  const std::uint8_t* tree_keys;     // 32 bytes: left and right AES key of this report's tree
  const std::uint8_t* binding;       // 32 bytes: hash of version, task, parameters, nonce
  const std::uint8_t* roots;         // 16 bytes a group; the lowest bit of each is ignored
  const std::uint8_t* public_share;  // shape.public_bytes() bytes
};

/// Writes shape.block_bytes() bytes of the leaf stretch: AES-128-CTR under `seed` from counter 0, read as words;
/// Field64 skips 64-bit words at or above p.
void stretch(const Kernels& table, Group group, const std::uint8_t* seed, std::size_t words, std::uint8_t* out);

/// Writes the public share of one report. Neither branches nor memory addresses depend on `alpha`, `payload` or seeds;
/// the one exception, Field64's skipping of words, branches on keystream that is random whatever they are.
///
/// `roots` are server 0's and then server 1's, 16 bytes a group each; `alpha` holds a block index below t for each
/// group; `payload` k * B words of the group, canonical.
void generate(const Kernels& table, const Shape& shape, const std::uint8_t* tree_keys, const std::uint8_t* binding,
              const std::uint8_t* const roots[2], const std::uint32_t* alpha, const std::uint8_t* payload,
              std::uint8_t* public_share);

/// Expands one group's tree in level order; writes t seeds of 16 bytes and t control bits (0 or 1).
void expand_tree(const Kernels& table, const Shape& shape, const Report& report, std::uint32_t group, int server,
                 std::uint8_t* seeds, std::uint8_t* bits);

/// Adds the expansions of `count` reports to `total`, k * t * B words. Threads own disjoint ranges of tiles; the result
/// is the same for any number of them. Extra memory does not depend on `count`.
void accumulate(const Kernels& table, const Shape& shape, const Report* reports, std::size_t count, int server,
                std::uint8_t* total, unsigned threads);

/// Writes the sum of each group's blocks of one report's expansion, k * B words: for a report that passes prove(), a
/// share of its payload.
void block_sums(const Kernels& table, const Shape& shape, const Report& report, int server, std::uint8_t* out);

/// Writes the 32-byte one-block proof of each report (verifiable DPF of de Castro and Polychroniadou 2022, one hash a
/// block). Two servers that accept a report have equal proofs. Leaf hashes cover the control bit; `digests`, 32 bytes a
/// report, are the hashes of the public shares, so that servers given different ones disagree.
void prove(const Kernels& table, const Shape& shape, const Report* reports, std::size_t count, int server,
           const std::uint8_t* const* digests, std::uint8_t* proofs, unsigned threads);

}  // namespace fedsim
