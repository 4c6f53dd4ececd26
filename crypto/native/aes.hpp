// AES-128 on whatever the processor offers, behind one table of functions.
//
// Every table gives the same bytes; two aggregators on different machines depend on it. The choice is made once, at
// the first use (asking the processor is slow under virtualisation), and can be forced by FEDSIM_ISA.
//
// The translation units with instruction-set flags include this header, intrinsics and lanes.inl only: an inline
// function or template with external linkage compiled there could be picked by the linker for the whole module and
// fault on an older processor.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fedsim {

constexpr std::size_t kBlockBytes = 16;
constexpr std::size_t kScheduleBytes = 176;

/// Round keys of FIPS-197, in byte order, eleven of 16 bytes.
struct Schedule {
  alignas(16) std::uint8_t bytes[kScheduleBytes];
};

/// Groups that shares live in; the code that travels is the enumerator's value.
enum class Group : std::uint8_t {
  kZ32 = 1,      // integers modulo 2^32, 4-byte words
  kZ64 = 2,      // integers modulo 2^64, 8-byte words
  kField64 = 3,  // the field of p = 2^64 - 2^32 + 1 elements, 8-byte words below p
};

/// One leaf's contribution to a tile: the keystream under `seed`, plus `correction` where `mask` is all ones (the
/// leaf's control bit is set) and nothing where it is zero.
struct Leaf {
  const std::uint8_t* seed;
  const std::uint8_t* correction;  // of the tile's first word
  std::uint64_t mask;
};

/// Adds `count` leaves to the `words` words at `tile`, reading each keystream from block `first_block`. Field64 words
/// at or above p are reduced, and `above[i]` is set to 1 if leaf i had one: the caller then redoes that leaf with the
/// rule of stretch(). The other groups leave `above` alone.
using AddLeaves = void (*)(const Leaf* leaves, std::size_t count, std::uint64_t first_block, std::uint8_t* tile,
                           std::size_t words, std::uint8_t* above);

/// Writes the correction of one leaf: payload minus the keystream under seeds[0] plus that under seeds[1], negated where
/// `minus` is all ones and not where it is zero; both from block 0. Field64 payloads must be below p; true means that a
/// keystream may have held a word at or above p, and that `out` is to be made with stretch() instead.
using CorrectLeaf = bool (*)(const std::uint8_t* const* seeds, const std::uint8_t* payload, std::uint64_t minus,
                             std::size_t words, std::uint8_t* out);

/// One implementation. All functions are constant-time in key and data, allow unaligned pointers and any count,
/// 0 included, and never fail. `in` and `out` may be equal but must not overlap otherwise.
struct Kernels {
  const char* name;

  /// Expands a 16-byte key (FIPS-197, section 5.2).
  void (*expand)(const std::uint8_t* key, Schedule* schedule);

  /// Encrypts `blocks` blocks one by one (ECB).
  void (*encrypt)(const Schedule* schedule, const std::uint8_t* in, std::uint8_t* out, std::size_t blocks);

  /// Writes `blocks` blocks of keystream: the encryptions of counter, counter + 1, ..., a 128-bit big-endian number
  /// that wraps (SP 800-38A, CTR with the standard incrementing function over the whole block).
  void (*stream)(const Schedule* schedule, const std::uint8_t* counter, std::uint8_t* out, std::size_t blocks);

  /// Fused stretch, correction and accumulation, by group.
  AddLeaves add_z32;
  AddLeaves add_z64;
  AddLeaves add_field64;

  /// Key generation's stretch of both leaves and correction, fused, by group.
  CorrectLeaf correct_z32;
  CorrectLeaf correct_z64;
  CorrectLeaf correct_field64;
};

/// Returns the table called `name`, or the default one where `name` is null or empty: FEDSIM_ISA if set, else the
/// fastest that this processor supports.
///
/// Throws std::invalid_argument: the name is unknown, or the processor lacks the instructions.
const Kernels& kernels(const char* name = nullptr);

/// Names of the tables that this processor supports, fastest first, null-terminated.
const char* const* supported();

extern const Kernels kGeneric;
#if defined(__x86_64__)
extern const Kernels kAesni;
extern const Kernels kVaes;
#elif defined(__aarch64__)
extern const Kernels kArmv8;
#endif

}  // namespace fedsim
