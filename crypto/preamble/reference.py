"""The block-sparse DPF once more, slow and obvious: what the native kernels are tested against.

It shares no code with them: AES comes from ``cryptography``, words are numpy arrays or Python integers, and every step
is a loop over nodes. Branches on secrets make it unfit for anything but tests.
"""

import hashlib

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from crypto.preamble.dpf import CHECK_BYTES, PRIME, PROOF_BYTES, Group, Report, Shape, Words

LEAF, PROOF = b"preamble-leaf/1", b"preamble-proof/1"
Node = tuple[int, int]
Correction = tuple[int, int, int]


def xor(a: bytes, b: bytes) -> bytes:
    """Return the bitwise difference of two strings of equal length."""
    return bytes(x ^ y for x, y in zip(a, b, strict=True))


class Tree:
    """The generator of one report's trees; seeds are 128-bit integers. Counts its AES calls."""

    def __init__(self, tree_keys: bytes) -> None:
        self._ciphers = [Cipher(algorithms.AES(tree_keys[i : i + 16]), modes.ECB()).encryptor() for i in (0, 16)]
        self.aes_calls = 0

    def expand(self, seed: int) -> tuple[Node, Node]:
        """Return (seed, control bit) of both children: y = AES_K(sigma(s)) ^ sigma(s)."""
        low, high = seed % 2**64, seed >> 64
        sigma = (high ^ low) << 64 | high
        children = []
        for cipher in self._ciphers:
            self.aes_calls += 1
            y = int.from_bytes(cipher.update(sigma.to_bytes(16, "little")), "little") ^ sigma
            children.append((y & ~1, y & 1))
        return children[0], children[1]


def keystream(seed: int, size_bytes: int) -> bytes:
    """Return AES-128-CTR keystream under a leaf seed, counter from 0."""
    key = seed.to_bytes(16, "little")
    return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(size_bytes))


def stretch(group: Group, seed: int, words: int) -> Words:
    """Return the words of one leaf; the field skips words at or above p."""
    size = words * group.dtype.itemsize
    if group is not Group.FIELD64:
        return np.frombuffer(keystream(seed, size), group.dtype)
    out: list[int] = []
    while len(out) < words:
        size += 1024
        out = [w for w in np.frombuffer(keystream(seed, size // 8 * 8), "<u8").tolist() if w < PRIME]
    return np.array(out[:words], np.uint64)


def add(group: Group, a: Words, b: Words) -> Words:
    """Return a + b in the group."""
    if group is Group.FIELD64:
        return np.asarray((a.astype(object) + b.astype(object)) % PRIME).astype(np.uint64)
    return np.add(a, b)


def negate(group: Group, a: Words) -> Words:
    """Return -a in the group."""
    if group is Group.FIELD64:
        return np.asarray(-a.astype(object) % PRIME).astype(np.uint64)
    return np.negative(a)


def leaf_hash(binding: bytes, group: int, index: int, seed: int, bit: int) -> bytes:
    """Return the 64-byte hash of one leaf, control bit included."""
    data = binding + group.to_bytes(4, "little") + index.to_bytes(4, "little") + seed.to_bytes(16, "little")
    return hashlib.blake2b(data + bytes([bit]), person=LEAF, digest_size=CHECK_BYTES).digest()


def roots(report: Report, server: int) -> list[int]:
    """Return a report's root seeds as integers, lowest bit cleared."""
    flat = report.roots(server)
    return [int.from_bytes(flat[i : i + 16], "little") & ~1 for i in range(0, len(flat), 16)]


def shard_group(
    views: tuple[Report, Report], group: int, alpha: int, beta: Words
) -> tuple[list[Correction], bytes, Words]:
    """Return level corrections, check string and block correction of one group (KeyGen of the brief, one block)."""
    shape, tree = views[0].shape, Tree(views[0].tree_keys)
    seed = [roots(views[0], 0)[group], roots(views[1], 1)[group]]
    bit = [0, 1]
    corrections: list[Correction] = []
    for level in range(shape.depth):
        a = alpha >> (shape.depth - 1 - level) & 1
        children = [tree.expand(seed[0]), tree.expand(seed[1])]
        seed_correction = children[0][1 - a][0] ^ children[1][1 - a][0]
        left = children[0][0][1] ^ children[1][0][1] ^ a ^ 1
        right = children[0][1][1] ^ children[1][1][1] ^ a
        for b in range(2):
            child_seed, child_bit = children[b][a]
            if bit[b]:
                child_seed ^= seed_correction
                child_bit ^= (left, right)[a]
            seed[b], bit[b] = child_seed, child_bit
        corrections.append((seed_correction, left, right))
    check = xor(*(leaf_hash(views[0].binding, group, alpha, seed[b], bit[b]) for b in range(2)))
    x0, x1 = (stretch(shape.group, s, shape.length) for s in seed)
    block = add(shape.group, add(shape.group, beta, negate(shape.group, x0)), x1)
    return corrections, check, negate(shape.group, block) if bit[1] else block


def shard(
    shape: Shape, task: bytes, nonce: bytes, seeds: tuple[bytes, bytes], indices: list[int], payload: Words
) -> bytes:
    """Return what :func:`crypto.preamble.dpf.shard` returns."""
    views = (Report(shape, task, nonce, seeds[0], b""), Report(shape, task, nonce, seeds[1], b""))
    levels, bits, checks, blocks = b"", b"", b"", b""
    for g in range(shape.groups):
        corrections, check, block = shard_group(views, g, indices[g], payload[g])
        levels += b"".join(c[0].to_bytes(16, "little") for c in corrections)
        packed = sum((left | right << 1) << 2 * i for i, (_, left, right) in enumerate(corrections))
        bits += packed.to_bytes(shape.bit_bytes, "little")
        checks += check
        blocks += block.astype(shape.group.dtype).tobytes()
    return levels + bits + checks + blocks


def parse(report: Report, group: int) -> tuple[list[Correction], bytes, Words]:
    """Return level corrections, check string and block correction of one group of a public share."""
    shape = report.shape
    at_bits = 16 * shape.groups * shape.depth
    at_checks = at_bits + shape.groups * shape.bit_bytes
    at_blocks = at_checks + shape.groups * CHECK_BYTES
    packed = int.from_bytes(report.body[at_bits + group * shape.bit_bytes :][: shape.bit_bytes], "little")
    corrections = []
    for level in range(shape.depth):
        seed = int.from_bytes(report.body[16 * (group * shape.depth + level) :][:16], "little")
        corrections.append((seed, packed >> 2 * level & 1, packed >> (2 * level + 1) & 1))
    check = report.body[at_checks + CHECK_BYTES * group :][:CHECK_BYTES]
    block = report.body[at_blocks + shape.block_bytes * group :][: shape.block_bytes]
    return corrections, check, np.frombuffer(block, shape.group.dtype)


def leaf(report: Report, server: int, group: int, index: int) -> Node:
    """Return seed and control bit of one leaf, walking down from the root."""
    tree, (corrections, _, _) = Tree(report.tree_keys), parse(report, group)
    seed, bit = roots(report, server)[group], server
    for level, (seed_correction, left, right) in enumerate(corrections):
        a = index >> (report.shape.depth - 1 - level) & 1
        child_seed, child_bit = tree.expand(seed)[a]
        if bit:
            child_seed ^= seed_correction
            child_bit ^= (left, right)[a]
        seed, bit = child_seed, child_bit
    return seed, bit


def leaves(report: Report, server: int, group: int, tree: Tree | None = None) -> list[Node]:
    """Return all leaves of one group in order, level by level; `tree` counts the AES calls."""
    tree = tree or Tree(report.tree_keys)
    nodes: list[Node] = [(roots(report, server)[group], server)]
    corrections, _, _ = parse(report, group)
    for level, (seed_correction, left, right) in enumerate(corrections):
        children: list[Node] = []
        for seed, bit in nodes:
            for (s, t), correction in zip(tree.expand(seed), (left, right), strict=True):
                children.append((s ^ seed_correction, t ^ correction) if bit else (s, t))
        under = 2 ** (report.shape.depth - 1 - level)
        nodes = children[: -(-report.shape.blocks // under)]
    return nodes


def expand(report: Report, server: int) -> Words:
    """Return a server's expansion, shape ``(k, t, B)``: its share up to server 1's minus sign."""
    shape = report.shape
    out = np.zeros((shape.groups, shape.blocks, shape.length), shape.group.dtype)
    for g in range(shape.groups):
        _, _, block = parse(report, g)
        for j, (seed, bit) in enumerate(leaves(report, server, g)):
            words = stretch(shape.group, seed, shape.length)
            out[g, j] = add(shape.group, words, block) if bit else words
    return out


def accumulate(shape: Shape, server: int, reports: list[Report], total: Words) -> Words:
    """Return the total plus all expansions."""
    for report in reports:
        total = add(shape.group, total, expand(report, server))
    return total


def prove(report: Report, server: int) -> bytes:
    """Return the report's one-block proof."""
    proof = hashlib.blake2b(report.binding + report.digest, person=PROOF, digest_size=PROOF_BYTES)
    for g in range(report.shape.groups):
        _, check, _ = parse(report, g)
        for j, (seed, bit) in enumerate(leaves(report, server, g)):
            pi = leaf_hash(report.binding, g, j, seed, bit)
            proof.update(xor(pi, check) if bit else pi)
    return proof.digest()
