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
