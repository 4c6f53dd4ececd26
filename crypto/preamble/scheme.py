"""PREAMBLE as a secure sum: public description, the client's role and the opener's.

Two servers, a leader and a helper, each hold one share of every client's block-sparse vector; a third party, or either
of them, adds their totals. One honest server keeps every vector secret behind its noise; both must be honest for the
sum to be right. Not a plain sum: clients send a random sample of blocks of their clipped vectors and each server adds
discrete Gaussian noise, so the opened sum is an unbiased estimate (up to clipping) and differentially private.

The steps have VDAF's names: a client *shards*, servers *verify* and *aggregate*, the opener *unshards*.
"""

import hashlib
import os
import struct
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import ceil, isclose, log2, sqrt
from typing import Any, Literal

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from numpy.typing import NDArray

from crypto import wire as frames
from crypto.base import Budget, FloatVector, Opener, Plan, Sealer, SecureSum, Tag
from crypto.errors import BudgetExceeded, InputError, WireError
from crypto.fixed_point import RandomBytes, from_residues, to_residues
from crypto.preamble import dpf, pine, wire
from crypto.preamble.aggregator import HelperAdder, LeaderAdder
from crypto.preamble.blocks import BlockShape, Sampler, Selection, check_capacity
from crypto.preamble.dpf import Group, Report, Shape, Words
from crypto.preamble.noise import DiscreteGaussian, Noise
from crypto.preamble.norm import Circuit, NormCircuit, prove
from crypto.preamble.rotation import Rotation, padded_length
from crypto.preamble.sizing import Choice, sensitivity

SECURITY_BITS = 127
#: Up to so many bits of payload each coordinate's range is proven (V3); longer payloads pass wrap-around tests (V4).
MAX_NORM_BITS = 1 << 13
#: Words of the longest payload whose norm a client can prove in some seconds.
MAX_NORM_WORDS = 1 << 14
TASK, ROUND_ROTATION = b"preamble-task/1", b"preamble-round/1"
#: A total carries the digest of the nonces that were accepted, so that totals of different cohorts do not open.
COHORT_BYTES = 32
_TASK = struct.Struct("<16s16sIQ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """What the two servers and all clients agree on; the sizing tool finds them for a privacy target.

    Attributes:
        norm_bound: C, clients clip their vectors to this Euclidean norm.
        block_size: B, coordinates of a block.
        groups: k, blocks that a client sends.
        sigma: standard deviation of each server's noise, in the units of the vector.
        fraction_bits: f, one step of the sum is ``2^-f``.
        group: what shares are made of.
        clip_factor: c, blocks are clipped to c times their expected norm.
        rotated: vectors are rotated by signs, permutation and Hadamard transform; off only where they are flat already.
        verify: ``"blocks"`` checks that each group has one block at most (V1); ``"strict"`` checks only the encoding
            and that both servers have the same public share (V0), for clients that are trusted not to cheat;
            ``"norm"`` also has the payload's norm proven, over Field64: by ranges for small payloads (V3), by
            wrap-around tests up to 2^14 words (V4).
        minimum_cohort: a server hands out no total of fewer accepted reports.
        batch: reports that a server holds before it verifies and adds them; its memory grows with this.
    """

    norm_bound: float
    block_size: int
    groups: int
    sigma: float
    fraction_bits: int = 20
    group: Group = Group.Z64
    clip_factor: float = 1.0
    rotated: bool = True
    verify: Literal["strict", "blocks", "norm"] = "blocks"
    minimum_cohort: int = 2
    batch: int = 16

    def __post_init__(self) -> None:
        if self.minimum_cohort < 1 or self.batch < 1:
            raise InputError(f"minimum cohort {self.minimum_cohort}, batch {self.batch}: both must be at least 1")

    @classmethod
    def of(cls, choice: Choice, *, norm_bound: float, clip_factor: float = 1.0, **others: Any) -> "Parameters":
        """Return the parameters of a sized round; norm bound and clip factor must be those it was sized for.

        Raises:
            InputError: they are not: the noise would not hide a block.
        """
        made = sensitivity(choice.shape, clip_factor, norm_bound)
        if not isclose(made, choice.sensitivity, rel_tol=1e-9):
            raise InputError(
                f"norm bound {norm_bound}, clip factor {clip_factor}: a block reaches {made:.6g}, but the noise was "
                f"sized for {choice.sensitivity:.6g}; size the round with the same"
            )
        return cls(
            norm_bound=norm_bound,
            block_size=choice.shape.block_size,
            groups=choice.shape.groups,
            sigma=choice.sigma,
            clip_factor=clip_factor,
            rotated=choice.shape.rotated,
            **others,
        )


class PreambleSum(SecureSum):
    """Two-server block-sparse sum with noise.

    Args:
        plan: `length` and `clients` size it; the Euclidean bound is the parameters' `norm_bound`, not the plan's bound.
        parameters: see :class:`Parameters`; shorter rounds than the plan's have their own, see :meth:`shortened`.
        helper_key: the helper's raw X25519 public key, 32 bytes, pinned in the clients' configuration.
        run: 16 bytes that name the run.

    Raises:
        BudgetExceeded: the sum could wrap in the group, or the fixed-point grid is too fine or too coarse.
    """

    scheme = "preamble"
    aggregators = 2
    opened_by = "server"

    def __init__(self, plan: Plan, parameters: Parameters, *, helper_key: bytes, run: bytes) -> None:
        if len(run) != 16 or len(helper_key) != 32:
            raise InputError(f"run of {len(run)} bytes, helper key of {len(helper_key)}: must be 16 and 32")
        self.plan, self.parameters, self.helper_key, self.run = plan, parameters, helper_key, run
        bits = 32 if parameters.group is Group.Z32 else 64 if parameters.group is Group.Z64 else 63
        sampler = _bounds(parameters, plan.length)
        _norm_circuit(parameters, plan.length)
        check_capacity(sampler, clients=plan.clients, sigma=parameters.sigma, ring_bits=bits)

    def shortened(self, length: int) -> "PreambleSum":
        """Return the sum for a round of `length` coordinates, padded to whole groups: fewer groups, the same guarantee.

        Block size B, blocks a group t and noise over sensitivity r stay (t may grow by rounding), and
        ``k' = ceil(D' / (B t))`` of the k groups are sent. A group less is a report with a group that never holds
        anything, and 1 of t + 1 positions is 1 of a random t of them: both are post-processing of the plan's round, so
        whatever the plan's rounds guarantee, alone or composed, holds with such rounds among them. A vector of norm C
        has longer blocks when it has fewer, so sigma grows with the sensitivity, by ``sqrt(k / k')``; the noise's norm
        over all coordinates stays. A round that would need all k groups is the plan's own.

        Raises:
            BudgetExceeded: `length` exceeds the plan's.
        """
        if length > self.plan.length:
            raise BudgetExceeded(
                f"a round of {length} coordinates: the plan's longest round has {self.plan.length}; size the plan for "
                "the longest round"
            )
        p = self.parameters
        full = _bounds(p, self.plan.length)
        spread = padded_length(length) if p.rotated else length
        # One block that is the whole vector shrinks itself.
        dense = full.shape.blocks_per_group == 1 == p.groups
        block = spread if dense else p.block_size
        in_group = block * full.shape.blocks_per_group
        groups = -(-spread // in_group)
        whole = groups * in_group
        if (groups, block) == (p.groups, p.block_size) or whole >= self.plan.length:
            return self
        less = replace(p, groups=groups, block_size=block)
        growth = _bounds(less, whole).sensitivity / full.sensitivity
        bits = p.fraction_bits - max(0, ceil(log2(growth) - 1e-9))
        return PreambleSum(
            replace(self.plan, length=whole),
            replace(less, sigma=p.sigma * growth, fraction_bits=bits),
            helper_key=self.helper_key,
            run=self.run,
        )

    @cached_property
    def _params_hash(self) -> bytes:
        return frames.params_hash(self.scheme, dpf.VERSION, self.plan, self.parameters, self.run.hex())

    def header(self, tag: Tag) -> frames.Header:
        """Return what the frames of one round must carry; the key id is that of the helper's key."""
        key_id = hashlib.sha256(self.helper_key).digest()[:8]
        return frames.Header(scheme=self.scheme, params_hash=self._params_hash, key_id=key_id, tag=tag)

    def shape(self, tag: Tag) -> Shape:
        """Return the block-sparse shape of one round."""
        p = self.parameters
        blocks = _block_shape(p, tag.length).blocks_per_group
        return Shape(group=p.group, groups=p.groups, blocks=blocks, length=p.block_size)

    def circuit(self, tag: Tag) -> Circuit | None:
        """Return what clients prove about their norm, or None where nothing is asked for."""
        return _norm_circuit(self.parameters, tag.length)

    def proof_bytes(self, tag: Tag) -> wire.ProofBytes:
        """Return the lengths of both parts of a norm proof."""
        circuit = self.circuit(tag)
        return wire.NO_PROOF if circuit is None else wire.ProofBytes(circuit.leader_bytes, circuit.helper_bytes)

    def task(self, tag: Tag) -> bytes:
        """Return the 16 bytes that bind run, parameters, round and layout into every hash of a report."""
        packed = _TASK.pack(self.run, tag.layout_hash, tag.round, tag.length) + self._params_hash
        return hashlib.blake2b(packed, person=TASK, digest_size=16).digest()

    def sampler(self, tag: Tag) -> Sampler:
        """Return the round's way between floats and blocks, with its public rotation."""
        seed = hashlib.blake2b(self.task(tag), person=ROUND_ROTATION, digest_size=16).digest()
        return _round_sampler(self.parameters, tag.length, seed)

    def noise(self, threads: int = 1) -> Noise:
        """Return one server's noise."""
        return DiscreteGaussian.of(self.parameters.sigma, self.parameters.fraction_bits, threads)

    @cached_property
    def budget(self) -> Budget:
        """Bytes are exact. The error bound is eight standard deviations of noise, sampling and rounding for vectors
        that the rotation has spread; blocks clipped by chance add to it.
        """
        p, tag = self.parameters, Tag(round=0, layout_hash=bytes(16), length=self.plan.length)
        shape, sampler = self.shape(tag), _bounds(p, self.plan.length)
        n, step, proof = self.plan.clients, 2.0**-p.fraction_bits, self.proof_bytes(tag)
        sampling = n * (shape.blocks - 1) * p.norm_bound**2 / sampler.shape.spread_length
        deviation = sqrt(2 * p.sigma**2 + sampling + n * step**2)
        largest = n * sampler.sensitivity + 8 * sqrt(2) * p.sigma
        total = shape.size * p.group.dtype.itemsize
        return Budget(
            upload_bytes=2 * frames.HEADER_BYTES + wire.leader_bytes(shape, proof) + wire.helper_bytes(proof),
            download_bytes=2 * (frames.HEADER_BYTES + COHORT_BYTES + total),
            error_bound=8 * deviation,
            headroom_bits=log2(p.group.order / 2) - log2(largest / step),
            security_bits=SECURITY_BITS,
            memory_bytes=2 * total + p.batch * (wire.leader_bytes(shape, proof) + wire.sealed_bytes(proof)),
        )

    def sealer(self, random_bytes: RandomBytes = os.urandom) -> "PreambleSealer":
        """Return a client's role."""
        return PreambleSealer(self, random_bytes)

    def adder(self, tag: Tag) -> LeaderAdder:
        """Return the leader's role for one round."""
        return self.leader(tag)

    def leader(
        self, tag: Tag, noise: Noise | None = None, threads: int = 1, verify_key: bytes | None = None
    ) -> LeaderAdder:
        """Return the leader's role for one round.

        Args:
            tag: the round.
            noise: replaces the parameters' noise in tests.
            threads: native threads.
            verify_key: 16 secret bytes that both servers hold and no client; needed where norms are proven.
        """
        return LeaderAdder(self, tag, noise or self.noise(threads), threads, verify_key)

    def helper(
        self,
        tag: Tag,
        key: X25519PrivateKey,
        noise: Noise | None = None,
        threads: int = 1,
        verify_key: bytes | None = None,
    ) -> HelperAdder:
        """Return the helper's role for one round; only the helper has the key. Arguments as in :meth:`leader`."""
        return HelperAdder(self, tag, key, noise or self.noise(threads), threads, verify_key)

    def opener(self) -> "PreambleOpener":
        """Return the role that adds both totals."""
        return PreambleOpener(self)


class PreambleSealer(Sealer):
    """Samples blocks of a vector and shards them.

    Args:
        scheme: the public description.
        random_bytes: the client's private coins; the operating system's outside tests.
    """

    def __init__(self, scheme: PreambleSum, random_bytes: RandomBytes = os.urandom) -> None:
        self._scheme = scheme
        self._random_bytes = random_bytes
        self._key = X25519PublicKey.from_public_bytes(scheme.helper_key)
        self._clipped = 0

    def seal(self, vector: FloatVector, tag: Tag) -> list[bytes]:
        """Return the leader's and the helper's framed part; see :meth:`crypto.base.Sealer.seal`."""
        selection = self._scheme.sampler(tag).select(vector, self._random_bytes)
        self._clipped = selection.clipped * self._scheme.parameters.block_size
        parts = wire.encode(self.shard(selection, tag), self._key)
        header = self._scheme.header(tag)
        return [frames.encode(header, frames.PART, 1, body) for body in (parts.leader, parts.helper)]

    def shard(self, selection: Selection, tag: Tag) -> tuple[Report, Report]:
        """Split chosen blocks into both servers' reports, under a fresh nonce and fresh seeds."""
        shape, task = self._scheme.shape(tag), self._scheme.task(tag)
        nonce, seeds = self._random_bytes(16), (self._random_bytes(16), self._random_bytes(16))
        payload = to_residues(selection.payload, shape.group.order).astype(shape.group.dtype)
        body = dpf.shard(shape, task, nonce, seeds, selection.indices.astype(np.uint32), payload)
        circuit, proofs = self._scheme.circuit(tag), (b"", b"")
        if circuit is not None:
            coins = [self._random_bytes(16) for _ in range(5)]
            integers = selection.payload.reshape(-1).tolist()
            proofs = prove(circuit, integers, dpf.public_digest(nonce, body), seeds, coins)
        first, second = (Report(shape, task, nonce, s, body, proof) for s, proof in zip(seeds, proofs, strict=True))
        return first, second

    @property
    def clipped(self) -> int:
        """Coordinates in sent blocks that were shortened to the bound by the last :meth:`seal`."""
        return self._clipped


class PreambleOpener(Opener):
    """Adds the leader's and the helper's totals."""

    def __init__(self, scheme: PreambleSum) -> None:
        self._scheme = scheme

    def open(self, totals: list[bytes], tag: Tag) -> NDArray[np.float64]:
        """Unshard: return the noisy sum of the accepted vectors, shape ``(tag.length,)``.

        Raises:
            WireError: not two totals of this round, or of different cohorts.
        """
        if len(totals) != 2:
            raise WireError(f"{len(totals)} totals: the sum needs the leader's and the helper's, in that order")
        shape = self._scheme.shape(tag)
        size = COHORT_BYTES + shape.size * shape.group.dtype.itemsize
        leader, helper = (frames.decode(t, self._scheme.header(tag), frames.TOTAL, size) for t in totals)
        if leader.count != helper.count or leader.body[:COHORT_BYTES] != helper.body[:COHORT_BYTES]:
            raise WireError(
                f"leader counted {leader.count} reports and helper {helper.count}, or not the same ones: the sum of "
                "different cohorts means nothing; settle every batch on both sides"
            )
        words = dpf.unshard(shape, self._words(leader.body, shape), self._words(helper.body, shape))
        return self._scheme.sampler(tag).decode(from_residues(words.reshape(-1).astype(np.uint64), shape.group.order))

    @staticmethod
    def _words(body: memoryview, shape: Shape) -> Words:
        words: Words = np.frombuffer(body[COHORT_BYTES:], shape.group.dtype)
        if shape.group is Group.FIELD64 and (words >= np.uint64(dpf.PRIME)).any():
            raise WireError("a total has a word at or above p: not canonical; the server sent something else")
        return words


def _block_shape(parameters: Parameters, length: int) -> BlockShape:
    return BlockShape(
        length=length,
        block_size=parameters.block_size,
        groups=parameters.groups,
        rotated=parameters.rotated,
    )


def _sampler(parameters: Parameters, shape: BlockShape, rotation: Rotation | None) -> Sampler:
    return Sampler(
        shape=shape,
        fraction_bits=parameters.fraction_bits,
        norm_bound=parameters.norm_bound,
        clip_factor=parameters.clip_factor,
        rotation=rotation,
    )


def _bounds(parameters: Parameters, length: int) -> Sampler:
    """Return a sampler with the bounds of the real one, without drawing a rotation."""
    spread = padded_length(length) if parameters.rotated else length
    shape = BlockShape(length=spread, block_size=parameters.block_size, groups=parameters.groups, rotated=False)
    return _sampler(parameters, shape, None)


@lru_cache(maxsize=8)
def _norm_circuit(parameters: Parameters, length: int) -> Circuit | None:
    """Return the statement: range of a coordinate from a block's bound, norm from all blocks together."""
    if parameters.verify != "norm":
        return None
    sampler = _bounds(parameters, length)
    words, word_bits = parameters.groups * parameters.block_size, int(sampler.integer_bound).bit_length() + 1
    bound = parameters.groups * sampler.squared_bound
    if parameters.group is not Group.FIELD64 or words > MAX_NORM_WORDS:
        raise BudgetExceeded(
            f"norm proofs of {words} words in {parameters.group.name}: need Field64 and at most {MAX_NORM_WORDS} "
            'words; send fewer words, or verify="blocks"'
        )
    if words * word_bits <= MAX_NORM_BITS:
        return NormCircuit(length=words, word_bits=word_bits, bound=bound)
    if not pine.fits(bound):
        raise BudgetExceeded(
            f"norm proofs at {parameters.fraction_bits} fraction bits: squares up to {bound:.3g} are too many for the "
            'field; use fewer fraction bits, or verify="blocks"'
        )
    return pine.WrapCircuit(length=words, bound=bound)


@lru_cache(maxsize=2)
def _round_sampler(parameters: Parameters, length: int, seed: bytes) -> Sampler:
    rotation = Rotation.from_seed(seed, length) if parameters.rotated else None
    return _sampler(parameters, _block_shape(parameters, length), rotation)
