// Python face of rlwe.hpp; its contract in Python's words is crypto/_native.pyi.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "rlwe.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace fedsim {
namespace {

template <class T>
using Array = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bytes = Array<const std::uint8_t>;
using MutableBytes = Array<std::uint8_t>;
using Words = Array<std::uint64_t>;
using Integers = Array<std::int64_t>;
using Reals = Array<double>;

Key key_of(const nb::bytes& value, const char* what) {
  if (value.size() != kBlockBytes) {
    throw std::invalid_argument(std::string(what) + " of " + std::to_string(value.size()) + " bytes: must be 16");
  }
  Key key;
  std::memcpy(key.data(), value.data(), key.size());
  return key;
}

void require_size(std::size_t size, std::size_t expected, const char* what) {
  if (size != expected) {
    throw std::invalid_argument(std::string(what) + " of " + std::to_string(size) + " entries: must have " +
                                std::to_string(expected));
  }
}

std::size_t polynomials_in(std::size_t size, std::size_t each, const char* what) {
  if (size == 0 || size % each != 0) {
    throw std::invalid_argument(std::string(what) + " of " + std::to_string(size) +
                                " entries: must be a positive multiple of " + std::to_string(each));
  }
  return size / each;
}

std::size_t words_of(const Ring& ring) { return ring.n() * ring.limbs(); }

const RingKernels& table(const std::string& isa) { return ring_kernels(isa.c_str()); }

void check_multiplier(const Ring& ring, const Multiplier& multiplier) {
  if (multiplier.limbs() != ring.limbs()) throw std::invalid_argument("multiplier of another ring: make it for this one");
}

void check_encoding(const Ring& ring, double bound, double scale) {
  if (!(std::isfinite(bound) && bound > 0 && std::isfinite(scale) && scale > 0) || bound * scale > 0x1p50 ||
      std::ceil(bound * scale) > std::ldexp(1.0, static_cast<int>(ring.plain_bits()) - 1)) {
    throw std::invalid_argument("bound " + std::to_string(bound) + " at scale " + std::to_string(scale) +
                                ": values must fit half of 2^" + std::to_string(ring.plain_bits()) + " and 2^50");
  }
}

template <class T>
std::size_t symmetric(const Ring& ring, const Array<const T>& values, double bound, double scale,
                      const std::optional<nb::bytes>& coins, const Multiplier& secret, const nb::bytes& uniform_key,
                      const nb::bytes& error_key, const MutableBytes& out, const std::string& isa) {
  check_encoding(ring, bound, scale);
  check_multiplier(ring, secret);
  require_size(out.size(), ring.plane_bytes(values.size()), "output");
  const Key coin_key = coins ? key_of(*coins, "coin key") : Key{};
  const Key a = key_of(uniform_key, "uniform key"), e = key_of(error_key, "error key");
  const RingKernels& kernels = table(isa);
  nb::gil_scoped_release release;
  return seal_symmetric<T>(ring, kernels, values.data(), values.size(), {bound, scale, coins ? &coin_key : nullptr},
                           secret, a, e, out.data());
}

template <class T>
std::size_t public_key(const Ring& ring, const Array<const T>& values, double bound, double scale,
                       const std::optional<nb::bytes>& coins, const Multiplier& b, const Multiplier& a,
                       const nb::bytes& ternary_key, const nb::bytes& error_key, const MutableBytes& out,
                       const std::string& isa) {
  check_encoding(ring, bound, scale);
  check_multiplier(ring, a);
  check_multiplier(ring, b);
  require_size(out.size(), 2 * ring.plane_bytes(values.size()), "output");
  const Key coin_key = coins ? key_of(*coins, "coin key") : Key{};
  const Key u = key_of(ternary_key, "ternary key"), e = key_of(error_key, "error key");
  const RingKernels& kernels = table(isa);
  nb::gil_scoped_release release;
  return seal_public<T>(ring, kernels, values.data(), values.size(), {bound, scale, coins ? &coin_key : nullptr}, b, a,
                        u, e, out.data());
}

void bind_random(nb::class_<Ring>& c) {
  c.def(
      "uniform",
      [](const Ring& ring, const nb::bytes& key, std::uint64_t index, const Words& out, const std::string& isa) {
        require_size(out.size(), words_of(ring), "output");
        uniform(ring, table(isa), key_of(key, "key"), index, out.data());
      },
      "key"_a, "index"_a, "out"_a.noconvert(), "isa"_a = "");
  c.def(
      "errors",
      [](const Ring& ring, const nb::bytes& key, std::uint64_t index, const Integers& out, const std::string& isa) {
        require_size(out.size(), ring.n(), "output");
        errors(ring, table(isa), key_of(key, "key"), index, out.data());
      },
      "key"_a, "index"_a, "out"_a.noconvert(), "isa"_a = "");
  c.def(
      "ternary",
      [](const Ring& ring, const nb::bytes& key, std::uint64_t index, const Integers& out, const std::string& isa) {
        require_size(out.size(), ring.n(), "output");
        ternary(ring, table(isa), key_of(key, "key"), index, out.data());
      },
      "key"_a, "index"_a, "out"_a.noconvert(), "isa"_a = "");
  c.def(
      "add_uniform",
      [](const Ring& ring, const nb::bytes& key, const Words& total, const std::string& isa) {
        const std::size_t count = polynomials_in(total.size(), words_of(ring), "total");
        const Key k = key_of(key, "key");
        const RingKernels& kernels = table(isa);
        nb::gil_scoped_release release;
        add_uniform(ring, kernels, k, count, total.data());
      },
      "key"_a, "total"_a.noconvert(), "isa"_a = "");
  c.def(
      "add_smudging",
      [](const Ring& ring, const nb::bytes& key, unsigned bits, const Words& total, const std::string& isa) {
        if (bits < 1 || bits > 100) throw std::invalid_argument(std::to_string(bits) + " bits: must lie in [1, 100]");
        const std::size_t count = polynomials_in(total.size(), words_of(ring), "total");
        const Key k = key_of(key, "key");
        const RingKernels& kernels = table(isa);
        nb::gil_scoped_release release;
        add_smudging(ring, kernels, k, bits, count, total.data());
      },
      "key"_a, "bits"_a, "total"_a.noconvert(), "isa"_a = "");
}

void bind_planes(nb::class_<Ring>& c) {
  c.def(
      "forward",
      [](const Ring& ring, const Integers& x, const Words& out, const std::string& isa) {
        require_size(x.size(), ring.n(), "input");
        require_size(out.size(), words_of(ring), "output");
        const RingKernels& kernels = table(isa);
        for (std::size_t limb = 0; limb < ring.limbs(); ++limb) {
          kernels.residues(ring.prime(limb), x.data(), out.data() + limb * ring.n());
          kernels.forward(ring.prime(limb), out.data() + limb * ring.n());
        }
      },
      "x"_a.noconvert(), "out"_a.noconvert(), "isa"_a = "");
  c.def(
      "multiply_add",
      [](const Ring& ring, const Words& x, const Multiplier& m, const Words& total, const std::string& isa) {
        check_multiplier(ring, m);
        require_size(x.size(), words_of(ring), "input");
        require_size(total.size(), words_of(ring), "total");
        for (std::size_t limb = 0, at = 0; limb < ring.limbs(); ++limb, at += ring.n()) {
          table(isa).multiply_add(ring.prime(limb), x.data() + at, m.factor(limb), total.data() + at);
        }
      },
      "x"_a.noconvert(), "multiplier"_a, "total"_a.noconvert(), "isa"_a = "");
  c.def(
      "canonical",
      [](const Ring& ring, const Bytes& plane, const std::string& isa) {
        const std::size_t count = polynomials_in(plane.size(), ring.polynomial_bytes(), "plane");
        const RingKernels& kernels = table(isa);
        nb::gil_scoped_release release;
        return canonical(ring, kernels, plane.data(), count);
      },
      "plane"_a.noconvert(), "isa"_a = "");
  c.def(
      "add_plane",
      [](const Ring& ring, const Bytes& plane, const Words& total, const std::string& isa) {
        const std::size_t count = polynomials_in(plane.size(), ring.polynomial_bytes(), "plane");
        require_size(total.size(), count * words_of(ring), "total");
        const RingKernels& kernels = table(isa);
        nb::gil_scoped_release release;
        return add_plane(ring, kernels, plane.data(), count, total.data());
      },
      "plane"_a.noconvert(), "total"_a.noconvert(), "isa"_a = "");
  c.def(
      "add_product",
      [](const Ring& ring, const Bytes& plane, const Multiplier& secret, const Words& total, const std::string& isa) {
        const std::size_t count = polynomials_in(plane.size(), ring.polynomial_bytes(), "plane");
        check_multiplier(ring, secret);
        require_size(total.size(), count * words_of(ring), "total");
        const RingKernels& kernels = table(isa);
        nb::gil_scoped_release release;
        add_product(ring, kernels, plane.data(), count, secret, total.data());
      },
      "plane"_a.noconvert(), "secret"_a, "total"_a.noconvert(), "isa"_a = "");
  c.def(
      "pack_plane",
      [](const Ring& ring, const Words& total, const MutableBytes& out, const std::string& isa) {
        const std::size_t count = polynomials_in(total.size(), words_of(ring), "total");
        require_size(out.size(), count * ring.polynomial_bytes(), "output");
        const RingKernels& kernels = table(isa);
        nb::gil_scoped_release release;
        pack_plane(ring, kernels, total.data(), count, out.data());
      },
      "total"_a.noconvert(), "out"_a.noconvert(), "isa"_a = "");
  c.def(
      "decode",
      [](const Ring& ring, const Words& phases, double step, const Reals& out, const std::string& isa) {
        require_size(phases.size(), ring.ciphertexts(out.size()) * words_of(ring), "phases");
        const RingKernels& kernels = table(isa);
        nb::gil_scoped_release release;
        const Decoded found = decode(ring, kernels, phases.data(), step, out.size(), out.data());
        return std::make_pair(found.largest_value, found.largest_noise);
      },
      "phases"_a.noconvert(), "step"_a, "out"_a.noconvert(), "isa"_a = "");
  c.def(
      "open",
      [](const Ring& ring, const Bytes& first, const Bytes& second, const Multiplier& secret, double step,
         const Reals& out, const std::string& isa) -> std::optional<std::pair<std::int64_t, double>> {
        require_size(first.size(), ring.plane_bytes(out.size()), "first plane");
        require_size(second.size(), ring.plane_bytes(out.size()), "second plane");
        check_multiplier(ring, secret);
        const RingKernels& kernels = table(isa);
        nb::gil_scoped_release release;
        Decoded found;
        if (!open(ring, kernels, first.data(), second.data(), secret, step, out.size(), out.data(), &found)) {
          return std::nullopt;
        }
        return std::make_pair(found.largest_value, found.largest_noise);
      },
      "first"_a.noconvert(), "second"_a.noconvert(), "secret"_a, "step"_a, "out"_a.noconvert(), "isa"_a = "");
}

}  // namespace

void bind_rlwe(nb::module_& m) {
  m.def("ring_isas", [] {
    std::vector<std::string> out;
    for (const char* const* name = ring_supported(); *name != nullptr; ++name) out.emplace_back(*name);
    return out;
  });
  nb::class_<Ring> ring(m, "RlweRing");
  ring.def(nb::init<std::size_t, std::vector<std::uint64_t>, unsigned>(), "n"_a, "moduli"_a, "plain_bits"_a);
  ring.def_prop_ro("polynomial_bytes", &Ring::polynomial_bytes);
  bind_random(ring);
  bind_planes(ring);
  ring.def("seal_symmetric", symmetric<float>, "values"_a.noconvert(), "bound"_a, "scale"_a, "coins"_a.none(),
           "secret"_a, "uniform_key"_a, "error_key"_a, "out"_a.noconvert(), "isa"_a = "");
  ring.def("seal_symmetric", symmetric<double>, "values"_a.noconvert(), "bound"_a, "scale"_a, "coins"_a.none(),
           "secret"_a, "uniform_key"_a, "error_key"_a, "out"_a.noconvert(), "isa"_a = "");
  ring.def("seal_public", public_key<float>, "values"_a.noconvert(), "bound"_a, "scale"_a, "coins"_a.none(), "b"_a,
           "a"_a, "ternary_key"_a, "error_key"_a, "out"_a.noconvert(), "isa"_a = "");
  ring.def("seal_public", public_key<double>, "values"_a.noconvert(), "bound"_a, "scale"_a, "coins"_a.none(), "b"_a,
           "a"_a, "ternary_key"_a, "error_key"_a, "out"_a.noconvert(), "isa"_a = "");
  nb::class_<Multiplier>(m, "RlweMultiplier")
      .def(
          "__init__",
          [](Multiplier* self, const Ring& r, const Array<const std::uint64_t>& words, bool divided) {
            require_size(words.size(), words_of(r), "words");
            new (self) Multiplier(r, words.data(), divided);
          },
          "ring"_a, "words"_a.noconvert(), "divided"_a);
}

}  // namespace fedsim
