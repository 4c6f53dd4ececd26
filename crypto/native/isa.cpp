// Choice of the instruction set; see aes.hpp.
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "aes.hpp"

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the kernels read little-endian words in place");

namespace fedsim {
namespace {

constexpr const char* kKnown = "generic, aesni, vaes, armv8";

struct Choice {
  const Kernels* tables[4] = {};
  const char* names[5] = {};
  std::size_t count = 0;

  void add(const Kernels& table) {
    tables[count] = &table;
    names[count++] = table.name;
  }

  // __builtin_cpu_supports also asks whether the operating system saves the wide registers.
  Choice() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool aes = __builtin_cpu_supports("aes") && __builtin_cpu_supports("sse4.2");
    const bool wide = aes && __builtin_cpu_supports("avx2");
#ifdef FEDSIM_EMULATE_VAES
    if (wide) add(kVaes);
#else
    if (wide && __builtin_cpu_supports("vaes")) add(kVaes);
#endif
    if (aes) add(kAesni);
#elif defined(__aarch64__) && defined(__APPLE__)
    add(kArmv8);
#elif defined(__aarch64__)
    if (getauxval(AT_HWCAP) & HWCAP_AES) add(kArmv8);
#endif
    add(kGeneric);
  }

  const Kernels& find(const std::string& name, const char* source) const {
    for (std::size_t i = 0; i < count; ++i) {
      if (name == names[i]) return *tables[i];
    }
    std::string here = names[0];
    for (std::size_t i = 1; i < count; ++i) here += std::string(", ") + names[i];
    const bool known = name == "aesni" || name == "vaes" || name == "armv8";
    throw std::invalid_argument(source + ("'" + name) + (known ? "': this processor lacks it" : "': no such kernels") +
                                " (known: " + kKnown + "); here one can use " + here);
  }
};

const Choice& choice() {
  static const Choice made;
  return made;
}

const Kernels& preferred() {
  static const Kernels& table = [&]() -> const Kernels& {
    const char* forced = std::getenv("FEDSIM_ISA");
    return forced != nullptr && *forced != '\0' ? choice().find(forced, "FEDSIM_ISA=") : *choice().tables[0];
  }();
  return table;
}

}  // namespace

const Kernels& kernels(const char* name) {
  return name == nullptr || *name == '\0' ? preferred() : choice().find(name, "isa=");
}

const char* const* supported() { return choice().names; }

}  // namespace fedsim
