// Python face of dpf.hpp; its contract in Python's words is crypto/_native.pyi.
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "bindings.hpp"
#include "blake2b.hpp"
#include "dpf.hpp"

namespace nb = nanobind;

namespace fedsim {
namespace {

using Input = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Output = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Indices = nb::ndarray<const std::uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

constexpr std::size_t kLargestTotal = std::size_t{1} << 40;

const std::uint8_t* data(const nb::bytes& value) { return reinterpret_cast<const std::uint8_t*>(value.data()); }

void exactly(const char* what, std::size_t size, std::size_t expected) {
  if (size != expected) {
    throw std::invalid_argument(std::string(what) + " of " + std::to_string(size) + " bytes: must be " +
                                std::to_string(expected));
  }
}

Shape shape_of(int group, std::uint32_t groups, std::uint32_t blocks, std::uint32_t length) {
  if (group < 1 || group > 3 || groups == 0 || blocks == 0 || length == 0) {
    throw std::invalid_argument("group code must be 1 (Z32), 2 (Z64) or 3 (Field64), and groups, blocks, length at least 1");
  }
  const Shape shape{static_cast<Group>(group), groups, blocks, length};
  if (static_cast<double>(groups) * blocks * length * 8 > static_cast<double>(kLargestTotal) || blocks > (1u << 30)) {
    throw std::invalid_argument("shape of more than 2^40 bytes or 2^30 blocks in a group; use fewer or shorter blocks");
  }
  return shape;
}

void server_must_be_0_or_1(int server) {
  if (server != 0 && server != 1) throw std::invalid_argument("server " + std::to_string(server) + ": must be 0 or 1");
}

// Views into Python bytes objects that the caller's lists keep alive during the call.
std::vector<Report> reports_of(const Shape& shape, const std::vector<nb::bytes>& tree_keys,
                               const std::vector<nb::bytes>& bindings, const std::vector<nb::bytes>& roots,
                               const std::vector<nb::bytes>& public_shares) {
  const std::size_t n = public_shares.size();
  if (tree_keys.size() != n || bindings.size() != n || roots.size() != n) {
    throw std::invalid_argument("lists of different lengths: one entry a report in each");
  }
  std::vector<Report> out(n);
  for (std::size_t i = 0; i < n; ++i) {
    exactly("tree keys", tree_keys[i].size(), kTreeKeyBytes);
    exactly("binding", bindings[i].size(), kBindingBytes);
    exactly("roots", roots[i].size(), shape.groups * kBlockBytes);
    exactly("public share", public_shares[i].size(), shape.public_bytes());
    out[i] = {data(tree_keys[i]), data(bindings[i]), data(roots[i]), data(public_shares[i])};
  }
  return out;
}

nb::bytes py_generate(int group, std::uint32_t groups, std::uint32_t blocks, std::uint32_t length, const nb::bytes& tree_keys,
                 const nb::bytes& binding, const nb::bytes& roots0, const nb::bytes& roots1, const Indices& alpha,
                 const Input& payload, const std::string& isa) {
  const Shape shape = shape_of(group, groups, blocks, length);
  const Kernels& table = kernels(isa.c_str());
  exactly("tree keys", tree_keys.size(), kTreeKeyBytes);
  exactly("binding", binding.size(), kBindingBytes);
  exactly("roots of server 0", roots0.size(), groups * kBlockBytes);
  exactly("roots of server 1", roots1.size(), groups * kBlockBytes);
  exactly("payload", payload.size(), groups * shape.block_bytes());
  if (alpha.size() != groups) throw std::invalid_argument("block indices: must be one a group");
  bool outside = false;
  for (std::size_t g = 0; g < groups; ++g) outside |= alpha.data()[g] >= blocks;
  if (outside) throw std::invalid_argument("a block index is not below the number of blocks");
  const std::uint8_t* const roots[2] = {data(roots0), data(roots1)};
  PyObject* made = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(shape.public_bytes()));
  if (made == nullptr) throw nb::python_error();
  const nb::bytes out = nb::steal<nb::bytes>(made);
  auto* share = reinterpret_cast<std::uint8_t*>(PyBytes_AS_STRING(made));  // nobody else sees it yet
  {
    nb::gil_scoped_release release;
    generate(table, shape, data(tree_keys), data(binding), roots, alpha.data(), payload.data(), share);
  }
  return out;
}

void py_accumulate(int group, std::uint32_t groups, std::uint32_t blocks, std::uint32_t length, int server,
                   const std::vector<nb::bytes>& tree_keys, const std::vector<nb::bytes>& bindings,
                   const std::vector<nb::bytes>& roots, const std::vector<nb::bytes>& public_shares,
                   const Output& total, unsigned threads, const std::string& isa) {
  const Shape shape = shape_of(group, groups, blocks, length);
  const Kernels& table = kernels(isa.c_str());
  server_must_be_0_or_1(server);
  const std::vector<Report> reports = reports_of(shape, tree_keys, bindings, roots, public_shares);
  exactly("total", total.size(), std::size_t{groups} * blocks * shape.block_bytes());
  nb::gil_scoped_release release;
  accumulate(table, shape, reports.data(), reports.size(), server, total.data(), threads);
}

nb::bytes py_prove(int group, std::uint32_t groups, std::uint32_t blocks, std::uint32_t length, int server,
                   const std::vector<nb::bytes>& tree_keys, const std::vector<nb::bytes>& bindings,
                   const std::vector<nb::bytes>& roots, const std::vector<nb::bytes>& public_shares,
                   const std::vector<nb::bytes>& digests, unsigned threads, const std::string& isa) {
  const Shape shape = shape_of(group, groups, blocks, length);
  const Kernels& table = kernels(isa.c_str());
  server_must_be_0_or_1(server);
  const std::vector<Report> reports = reports_of(shape, tree_keys, bindings, roots, public_shares);
  if (digests.size() != reports.size()) throw std::invalid_argument("digests: must be one a report");
  std::vector<const std::uint8_t*> pointers;
  for (const nb::bytes& digest : digests) {
    exactly("digest", digest.size(), kDigestBytes);
    pointers.push_back(data(digest));
  }
  std::vector<std::uint8_t> proofs(reports.size() * kProofBytes);
  {
    nb::gil_scoped_release release;
    prove(table, shape, reports.data(), reports.size(), server, pointers.data(), proofs.data(), threads);
  }
  return nb::bytes(reinterpret_cast<const char*>(proofs.data()), proofs.size());
}

void py_expand_tree(std::uint32_t groups, std::uint32_t blocks, std::uint32_t length, int group, int server,
                    std::uint32_t which, const nb::bytes& tree_keys, const nb::bytes& roots,
                    const nb::bytes& public_share, const Output& seeds, const Output& bits, const std::string& isa) {
  const Shape shape = shape_of(group, groups, blocks, length);
  const Kernels& table = kernels(isa.c_str());
  server_must_be_0_or_1(server);
  if (which >= groups) throw std::invalid_argument("group " + std::to_string(which) + ": there are " + std::to_string(groups));
  exactly("tree keys", tree_keys.size(), kTreeKeyBytes);
  exactly("roots", roots.size(), groups * kBlockBytes);
  exactly("public share", public_share.size(), shape.public_bytes());
  exactly("seeds", seeds.size(), blocks * kBlockBytes);
  exactly("bits", bits.size(), blocks);
  const Report report{data(tree_keys), nullptr, data(roots), data(public_share)};
  nb::gil_scoped_release release;
  expand_tree(table, shape, report, which, server, seeds.data(), bits.data());
}

void py_block_sums(int group, std::uint32_t groups, std::uint32_t blocks, std::uint32_t length, int server,
                   const nb::bytes& tree_keys, const nb::bytes& roots, const nb::bytes& public_share, const Output& out,
                   const std::string& isa) {
  const Shape shape = shape_of(group, groups, blocks, length);
  const Kernels& table = kernels(isa.c_str());
  server_must_be_0_or_1(server);
  exactly("tree keys", tree_keys.size(), kTreeKeyBytes);
  exactly("roots", roots.size(), groups * kBlockBytes);
  exactly("public share", public_share.size(), shape.public_bytes());
  exactly("output", out.size(), groups * shape.block_bytes());
  const Report report{data(tree_keys), nullptr, data(roots), data(public_share)};
  nb::gil_scoped_release release;
  block_sums(table, shape, report, server, out.data());
}

void py_stretch(int group, const nb::bytes& seed, const Output& out, const std::string& isa) {
  const Shape shape = shape_of(group, 1, 1, 1);
  const Kernels& table = kernels(isa.c_str());
  exactly("seed", seed.size(), kBlockBytes);
  if (out.size() % shape.word_bytes() != 0) throw std::invalid_argument("output: must be whole words of the group");
  nb::gil_scoped_release release;
  stretch(table, shape.group, data(seed), out.size() / shape.word_bytes(), out.data());
}

nb::bytes py_blake2b(const nb::bytes& value, std::size_t digest_bytes, const std::string& person) {
  if (digest_bytes < 1 || digest_bytes > 64 || person.size() > 16) {
    throw std::invalid_argument("digest of 1 to 64 bytes and a personalisation of at most 16 characters");
  }
  std::uint8_t digest[64];
  Blake2b hash(digest_bytes, person.c_str());
  hash.update(data(value), value.size());
  hash.finish(digest);
  return nb::bytes(reinterpret_cast<const char*>(digest), digest_bytes);
}

std::size_t public_bytes(int group, std::uint32_t groups, std::uint32_t blocks, std::uint32_t length) {
  return shape_of(group, groups, blocks, length).public_bytes();
}

}  // namespace

void bind_dpf(nb::module_& m) {
  m.def("dpf_public_bytes", public_bytes, nb::arg("group"), nb::arg("groups"), nb::arg("blocks"), nb::arg("length"));
  m.def("dpf_generate", py_generate, nb::arg("group"), nb::arg("groups"), nb::arg("blocks"), nb::arg("length"),
        nb::arg("tree_keys"), nb::arg("binding"), nb::arg("roots0"), nb::arg("roots1"), nb::arg("alpha").noconvert(),
        nb::arg("payload").noconvert(), nb::arg("isa") = "");
  m.def("dpf_accumulate", py_accumulate, nb::arg("group"), nb::arg("groups"), nb::arg("blocks"), nb::arg("length"),
        nb::arg("server"), nb::arg("tree_keys"), nb::arg("bindings"), nb::arg("roots"), nb::arg("public_shares"),
        nb::arg("total").noconvert(), nb::arg("threads") = 1, nb::arg("isa") = "");
  m.def("dpf_prove", py_prove, nb::arg("group"), nb::arg("groups"), nb::arg("blocks"), nb::arg("length"),
        nb::arg("server"), nb::arg("tree_keys"), nb::arg("bindings"), nb::arg("roots"), nb::arg("public_shares"),
        nb::arg("digests"), nb::arg("threads") = 1, nb::arg("isa") = "");
  m.def("dpf_expand_tree", py_expand_tree, nb::arg("groups"), nb::arg("blocks"), nb::arg("length"), nb::arg("group"),
        nb::arg("server"), nb::arg("which"), nb::arg("tree_keys"), nb::arg("roots"), nb::arg("public_share"),
        nb::arg("seeds").noconvert(), nb::arg("bits").noconvert(), nb::arg("isa") = "");
  m.def("dpf_block_sums", py_block_sums, nb::arg("group"), nb::arg("groups"), nb::arg("blocks"), nb::arg("length"),
        nb::arg("server"), nb::arg("tree_keys"), nb::arg("roots"), nb::arg("public_share"), nb::arg("out").noconvert(),
        nb::arg("isa") = "");
  m.def("dpf_stretch", py_stretch, nb::arg("group"), nb::arg("seed"), nb::arg("out").noconvert(), nb::arg("isa") = "");
  m.def("blake2b", py_blake2b, nb::arg("data"), nb::arg("digest_bytes"), nb::arg("person"));
}

}  // namespace fedsim
