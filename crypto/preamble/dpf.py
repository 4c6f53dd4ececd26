"""Block-sparse distributed point functions: the face of the native kernels.

A :class:`Shape` of k groups of t blocks of B words describes a vector with at most one non-zero block in each group.
:func:`shard` splits it into one public share and two private seeds; :func:`accumulate` adds a server's expansions of
many reports without ever holding a share; :func:`unshard` combines the two servers' totals. A slow, obvious version of
all of it is :mod:`crypto.preamble.reference`.

Source: Asi et al., "PREAMBLE" (arXiv 2503.11897), in the k-wise 1-sparse form; tree of Boyle, Gilboa, Ishai (2016).
"""

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crypto import _native
from crypto.errors import InputError

VERSION = 1
NONCE_BYTES = TASK_BYTES = SEED_BYTES = 16
DIGEST_BYTES = PROOF_BYTES = 32
CHECK_BYTES = 64
PRIME = 2**64 - 2**32 + 1

# BLAKE2b personalisations: one for each use of the hash, "/1" is the version of the protocol.
BIND, TREE, ROOT, PUBLIC = b"preamble-bind/1", b"preamble-tree/1", b"preamble-root/1", b"preamble-publ/1"
_BIND = struct.Struct("<B16sBIII16s")

Words = NDArray[np.uint32] | NDArray[np.uint64]


class Group(Enum):
    """What shares are made of; the value is the code in a report."""

    Z32 = 1
    Z64 = 2
    FIELD64 = 3

    @property
    def dtype(self) -> np.dtype[Any]:
        """Little-endian unsigned words."""
        return np.dtype("<u4") if self is Group.Z32 else np.dtype("<u8")

    @property
    def order(self) -> int:
        """Number of elements."""
        return {Group.Z32: 2**32, Group.Z64: 2**64, Group.FIELD64: PRIME}[self]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Shape of a block-sparse vector.

    Attributes:
        group: the group of its words.
        groups: k, the number of groups; each has at most one non-zero block.
        blocks: t, the number of blocks in a group; any number from 1.
        length: B, the number of words in a block.
    """

    group: Group
    groups: int
    blocks: int
    length: int

    def __post_init__(self) -> None:
        if min(self.groups, self.blocks, self.length) < 1 or self.blocks > 2**30 or 8 * self.size > 2**40:
            raise InputError(
                f"{self.groups} groups of {self.blocks} blocks of {self.length} words: each must be at least 1, blocks "
                "at most 2^30, all together at most 2^37 words; use fewer or shorter blocks"
            )

    @property
    def size(self) -> int:
        """D, the number of words of the whole vector."""
        return self.groups * self.blocks * self.length

    @property
    def depth(self) -> int:
        """h = ceil(log2 t), levels of a tree."""
        return (self.blocks - 1).bit_length()

    @property
    def bit_bytes(self) -> int:
        """Bytes of a group's control-bit corrections."""
        return (2 * self.depth + 7) // 8

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return self.length * self.group.dtype.itemsize

    @property
    def body_bytes(self) -> int:
        """Bytes of a public share after its nonce."""
        return self.groups * (16 * self.depth + self.bit_bytes + CHECK_BYTES + self.block_bytes)

    @property
    def public_bytes(self) -> int:
        """Bytes of a public share, nonce included."""
        return NONCE_BYTES + self.body_bytes

    @property
    def codes(self) -> tuple[int, int, int, int]:
        """Group code, k, t and B, as hashes and kernels take them."""
        return self.group.value, self.groups, self.blocks, self.length


@dataclass(frozen=True)
class Report:
    """What one server knows of one client's vector.

    Attributes:
        shape: public, from the task's parameters and never from the message.
        task: 16 bytes that name the run, round and layout; part of every hash.
        nonce: 16 public random bytes, unique among the reports of a task.
        seed: the server's 16-byte private seed.
        body: public share after the nonce, ``shape.body_bytes`` long.
        proof: this server's part of the norm proof (:mod:`crypto.preamble.norm`), empty where none is asked for.
    """

    shape: Shape
    task: bytes
    nonce: bytes
    seed: bytes
    body: bytes
    proof: bytes = b""

    def __repr__(self) -> str:
        return f"Report(nonce={self.nonce.hex()})"

    @cached_property
    def binding(self) -> bytes:
        """32 bytes that bind version, task, parameters and nonce."""
        return binding(self.shape, self.task, self.nonce)

    @cached_property
    def tree_keys(self) -> bytes:
        """Left and right AES keys of this report's trees: no two reports share a fixed key."""
        return hashlib.blake2b(self.binding, person=TREE, digest_size=32).digest()

    def roots(self, server: int) -> bytes:
        """Return the root seeds of all groups, 16 bytes each."""
        return root_seeds(self.shape, self.binding, self.seed, server)

    @cached_property
    def digest(self) -> bytes:
        """32 bytes that bind the public share."""
        return public_digest(self.nonce, self.body)


def binding(shape: Shape, task: bytes, nonce: bytes) -> bytes:
    """Return the hash of version, task, parameters and nonce."""
    if len(task) != TASK_BYTES or len(nonce) != NONCE_BYTES:
        raise InputError(f"task of {len(task)} and nonce of {len(nonce)} bytes: both must have 16")
    packed = _BIND.pack(VERSION, task, *shape.codes, nonce)
    return hashlib.blake2b(packed, person=BIND, digest_size=32).digest()


def root_seeds(shape: Shape, binding: bytes, seed: bytes, server: int) -> bytes:
    """Return a server's root seeds: AES-CTR under a key derived from its private seed, 16 bytes a group."""
    key = hashlib.blake2b(binding + bytes([server]), key=seed, person=ROOT, digest_size=16).digest()
    out = np.empty(16 * shape.groups, np.uint8)
    _native.aes_stream(key, bytes(16), out)
    return out.tobytes()


def public_digest(nonce: bytes, body: bytes) -> bytes:
    """Return the hash of a public share."""
    digest = hashlib.blake2b(nonce, person=PUBLIC, digest_size=DIGEST_BYTES)
    digest.update(body)
    return digest.digest()


def shard(
    shape: Shape,
    task: bytes,
    nonce: bytes,
    seeds: tuple[bytes, bytes],
    indices: NDArray[np.uint32],
    payload: Words,
    isa: str = "",
) -> bytes:
    """Split a block-sparse vector; deterministic, all randomness comes as arguments.

    Args:
        shape: the vector's shape.
        task: 16 bytes.
        nonce: 16 public random bytes, never used twice.
        seeds: private seeds of server 0 and server 1, 16 bytes each, from the operating system.
        indices: which block of each group is sent, shape ``(k,)``, each below t; secret.
        payload: the blocks, shape ``(k, B)``, words of the group; secret. All zeros hide that nothing was sent.

    Returns:
        The public share after its nonce, ``shape.body_bytes`` long.

    Raises:
        InputError: an argument has the wrong length, an index or a field word is out of range.
    """
    if payload.shape != (shape.groups, shape.length) or payload.dtype != shape.group.dtype:
        raise InputError(
            f"payload of shape {payload.shape}, dtype {payload.dtype}: must be ({shape.groups}, {shape.length}) of "
            f"{shape.group.dtype}"
        )
    # As a list: numpy's AVX-512 comparisons lower the clock of some processors for the kernel that follows.
    if indices.shape != (shape.groups,) or not 0 <= min(indices.tolist()) <= max(indices.tolist()) < shape.blocks:
        raise InputError(f"block indices: must be {shape.groups} numbers below {shape.blocks}")
    if shape.group is Group.FIELD64 and (payload >= np.uint64(PRIME)).any():
        raise InputError("payload has a word at or above p = 2^64 - 2^32 + 1: reduce it first")
    if any(len(seed) != SEED_BYTES for seed in seeds):
        raise InputError(f"private seeds of {[len(s) for s in seeds]} bytes: must be {SEED_BYTES} each")
    views = [Report(shape, task, nonce, seed, b"") for seed in seeds]
    return _native.dpf_generate(
        *shape.codes,
        views[0].tree_keys,
        views[0].binding,
        views[0].roots(0),
        views[1].roots(1),
        np.ascontiguousarray(indices, np.uint32),
        np.ascontiguousarray(payload).view(np.uint8).reshape(-1),
        isa,
    )


def empty_total(shape: Shape) -> Words:
    """Return a server's running total of no reports, shape ``(k, t, B)``."""
    return np.zeros((shape.groups, shape.blocks, shape.length), shape.group.dtype)


def accumulate(
    shape: Shape, server: int, reports: Sequence[Report], total: Words, threads: int = 1, isa: str = ""
) -> None:
    """Add a server's expansions of all reports to its running total, in place.

    Memory beyond the total does not grow with the number of reports. Server 1's minus sign is left to
    :func:`unshard`.

    Args:
        shape: the shape of every report.
        server: 0 or 1.
        reports: validated reports; see :mod:`crypto.preamble.wire`.
        total: shape ``(k, t, B)``, C-contiguous.
        threads: native threads, each owning disjoint tiles; the result does not depend on it.

    Raises:
        ValueError: a report or the total has the wrong length or type; the total is unchanged.
    """
    if total.dtype != shape.group.dtype or not total.flags.c_contiguous:
        raise InputError(f"total of dtype {total.dtype}: must be C-contiguous {shape.group.dtype}; see empty_total")
    _native.dpf_accumulate(
        *shape.codes,
        server,
        [r.tree_keys for r in reports],
        [r.binding for r in reports],
        [r.roots(server) for r in reports],
        [r.body for r in reports],
        total.reshape(-1).view(np.uint8),
        threads,
        isa,
    )


def prove(shape: Shape, server: int, reports: Sequence[Report], threads: int = 1, isa: str = "") -> list[bytes]:
    """Return each report's 32-byte one-block proof; two servers accept a report iff their proofs are equal."""
    proofs = _native.dpf_prove(
        *shape.codes,
        server,
        [r.tree_keys for r in reports],
        [r.binding for r in reports],
        [r.roots(server) for r in reports],
        [r.body for r in reports],
        [r.digest for r in reports],
        threads,
        isa,
    )
    return [proofs[i : i + PROOF_BYTES] for i in range(0, len(proofs), PROOF_BYTES)]


def block_sums(report: Report, server: int, isa: str = "") -> Words:
    """Return the sum of each group's blocks of a server's expansion, shape ``(k, B)``.

    For a report whose one-block proofs agree, server 0's minus server 1's is the payload.
    """
    shape = report.shape
    out = np.empty((shape.groups, shape.length), shape.group.dtype)
    flat = out.reshape(-1).view(np.uint8)
    _native.dpf_block_sums(*shape.codes, server, report.tree_keys, report.roots(server), report.body, flat, isa)
    return out


def add_words(group: Group, a: Words, b: Words) -> Words:
    """Return a + b in the group, elementwise; words of the field must be below p."""
    total = np.add(a, b)
    if group is not Group.FIELD64:
        return total
    return np.where((total < a) | (total >= np.uint64(PRIME)), total - np.uint64(PRIME), total)


def unshard(shape: Shape, total0: Words, total1: Words) -> Words:
    """Return the sum of all vectors, shape ``(k, t, B)``: server 0's total minus server 1's."""
    if shape.group is not Group.FIELD64:
        return np.subtract(total0, total1)
    difference = np.subtract(total0, total1)
    return np.where(total0 < total1, difference + np.uint64(PRIME), difference)
