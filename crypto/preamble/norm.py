"""Norm proof (stage V3): the payload of a report is short, proven in zero knowledge to two honest servers.

A Prio3-style fully linear proof over Field64 (Boneh, Boyle, Corrigan-Gibbs, Gilboa, Ishai 2019; draft-irtf-cfrg-vdaf).
The statement is about the payload x of k B words, of which both servers hold shares without any further message
(:func:`crypto.preamble.dpf.block_sums`): every x_i is an integer in ``[-2^(w-1), 2^(w-1))`` and ``sum x_i^2 <= bound``.
The client also shares the bits b of every x_i and of the slack ``bound - sum x_i^2``. With r from joint randomness the
circuit is

    sum_i r^i b_i (b_i - 1)  +  s (sum x_i^2 + slack - bound)  +  sum_i q^i (x_i - value of its bits)  =  0

Range bits cost w elements for each coordinate, so this statement suits small payloads. For longer ones
:class:`crypto.preamble.pine.WrapCircuit` (stage V4) replaces them by random tests; the proof system is the same.

The gadget sums `chunk` products; wire polynomials go through a random value at 0 and their inputs at 1..M. Field64 is
small against a client that grinds joint randomness, hence :data:`REPETITIONS` independent proofs.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, isqrt
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from crypto.errors import InputError, WireError
from crypto.preamble.dpf import PRIME
from crypto.prg import Stream

REPETITIONS = 3
SHARE, PROOF, JOINT, QUERY = b"pre-norm-share/1", b"pre-norm-proof/1", b"pre-norm-joint/1", b"pre-norm-query/1"
WIRES, TESTS = b"pre-norm-wires/1", b"pre-norm-tests/1"
BLIND_BYTES, PART_BYTES = 16, 32
Vector = list[int]
Rows = NDArray[np.int8]


class Circuit(ABC):
    """A statement about a payload, and its proof's lengths.

    Attributes:
        length: n, payload words.
        bound: largest allowed sum of squares.
        tests: random rows of -1, 0 and 1 that the statement needs beside the proof's own randomness.
    """

    tests: ClassVar[int] = 0
    length: int
    bound: int

    @property
    @abstractmethod
    def bits(self) -> int:
        """Bits that the client shares."""

    @property
    def products(self) -> int:
        """Products of the circuit."""
        return self.bits + self.length

    @property
    def chunk(self) -> int:
        """Products of one gadget call: about the root, so that the proof is short."""
        return max(1, isqrt(self.products))

    @property
    def calls(self) -> int:
        """Gadget calls, M."""
        return ceil(self.products / self.chunk)

    @property
    def proof_length(self) -> int:
        """Elements of one proof: a seed for each wire, and the gadget polynomial at 0..2M."""
        return 2 * self.chunk + 2 * self.calls + 1

    @property
    def tail_bytes(self) -> int:
        """Bytes after the elements of either part: the blind and what the other server contributes to randomness."""
        return BLIND_BYTES + PART_BYTES * (2 if self.tests else 1)

    @property
    def leader_bytes(self) -> int:
        """Bytes of server 0's part of a proof."""
        return 8 * (self.bits + REPETITIONS * self.proof_length) + self.tail_bytes

    @property
    def helper_bytes(self) -> int:
        """Bytes of server 1's part of a proof."""
        return 2 * BLIND_BYTES + self.tail_bytes

    @property
    def message_bytes(self) -> int:
        """Bytes of a verifier message."""
        return BLIND_BYTES + 8 * REPETITIONS * (2 * self.chunk + 2)

    @abstractmethod
    def encode(self, payload: Sequence[int], rows: Rows | None) -> Vector:
        """Return the bits that the client shares for a payload of signed integers.

        Args:
            payload: `length` integers.
            rows: the random tests, shape ``(tests, length)``, where the statement has any.

        Raises:
            InputError: the payload does not satisfy the statement.
        """

    @abstractmethod
    def ties(self, x: Vector, bits: Vector, random: Sequence[int], rows: Rows | None, server: int) -> int:
        """Return a share of what ties bits and payload together linearly; 0 in sum for an honest client."""

    def wires(self, x: Vector, bits: Vector, random: Sequence[int], server: int) -> tuple[list[Vector], list[Vector]]:
        """Return left and right gadget inputs, call by call, of a share (constants are server 0's)."""
        r, s = random[0], random[1]
        one = 1 - server
        left = [power * b % PRIME for power, b in zip(powers(r, len(bits)), bits, strict=True)]
        right = [(b - one) % PRIME for b in bits]
        left += [s * value % PRIME for value in x]
        right += x
        pad = self.chunk * self.calls - self.products
        left, right = left + [0] * pad, right + [0] * pad
        cut = range(0, len(left), self.chunk)
        return [left[i : i + self.chunk] for i in cut], [right[i : i + self.chunk] for i in cut]


@dataclass(frozen=True, slots=True)
class NormCircuit(Circuit):
    """The statement with a range for every coordinate.

    Attributes:
        word_bits: w, bits of a coordinate, sign included.
    """

    length: int
    word_bits: int
    bound: int

    def __post_init__(self) -> None:
        if self.length < 1 or self.word_bits < 1 or self.bound < 0:
            raise InputError(f"{self}: length and word bits must be at least 1, the bound at least 0")
        if self.length << (2 * self.word_bits - 2) >= PRIME - (1 << self.slack_bits):
            raise InputError(f"{self}: squares could wrap in Field64; use fewer word bits")

    @property
    def slack_bits(self) -> int:
        """Bits of the slack."""
        return max(1, self.bound.bit_length())

    @property
    def bits(self) -> int:
        """See :class:`Circuit`."""
        return self.length * self.word_bits + self.slack_bits

    def encode(self, payload: Sequence[int], rows: Rows | None = None) -> Vector:
        """Return the bits of every word and of the slack; see :class:`Circuit`."""
        half = 1 << (self.word_bits - 1)
        slack = self.bound - sum(x * x for x in payload)
        if len(payload) != self.length or any(not -half <= x < half for x in payload) or slack < 0:
            raise InputError(
                f"payload: must be {self.length} integers of {self.word_bits} bits, squares <= {self.bound}"
            )
        words = [(x + half) >> i & 1 for x in payload for i in range(self.word_bits)]
        return words + [slack >> i & 1 for i in range(self.slack_bits)]

    def ties(self, x: Vector, bits: Vector, random: Sequence[int], rows: Rows | None, server: int) -> int:
        """See :class:`Circuit`."""
        s, q = random[1], random[2]
        half, width = 1 << (self.word_bits - 1), self.word_bits
        words = [sum(bits[i * width + j] << j for j in range(width)) for i in range(self.length)]
        slack = sum(b << j for j, b in enumerate(bits[self.length * width :]))
        ties = sum(
            power * (value - word + half * (1 - server))
            for power, value, word in zip(powers(q, self.length), x, words, strict=True)
        )
        return (s * (slack - self.bound * (1 - server)) + ties) % PRIME


@dataclass(frozen=True, slots=True)
class ProofShare:
    """One server's part of a norm proof.

    Attributes:
        bits: share of the bits.
        proofs: shares of the proofs, one for each repetition.
        blind: 16 bytes that hide this share in `part`.
        other_part: the other server's part of the joint randomness.
        other_tests: the other server's part of the tests' randomness, empty for a statement without.
    """

    bits: Vector
    proofs: list[Vector]
    blind: bytes
    other_part: bytes
    other_tests: bytes = b""


@dataclass(frozen=True, slots=True)
class Verifier:
    """What a server publishes: joint seed, and for each repetition output, wire values and gadget value."""

    joint: bytes
    messages: list[Vector]


def prove(
    circuit: Circuit, payload: Sequence[int], digest: bytes, seeds: tuple[bytes, bytes], coins: Sequence[bytes]
) -> tuple[bytes, bytes]:
    """Return both servers' parts, encoded: server 0's in full, server 1's as seeds.

    Args:
        circuit: the statement.
        payload: signed integers, as in the report.
        digest: hash of the report's public share.
        seeds: the report's private seeds; with the digest they determine the shares of the payload.
        coins: five fresh 16-byte seeds: blinds of both servers, the helper's two, the prover's randomness.

    Raises:
        InputError: the payload does not satisfy the statement.
    """
    drawn_tests = [tests_part(v, digest, seeds[v], coins[v]) if circuit.tests else b"" for v in range(2)]
    tests = tests_seed(*drawn_tests) if circuit.tests else b""
    bits = circuit.encode(payload, random_rows(circuit, tests))
    helper = elements(coins[2], SHARE, circuit.bits)
    leader = [(b - h) % PRIME for b, h in zip(bits, helper, strict=True)]
    parts = [joint_part(v, digest, seeds[v], coins[v], share, tests) for v, share in enumerate((leader, helper))]
    joint = joint_seed(parts[0], parts[1], tests)
    x = [value % PRIME for value in payload]
    wires = 2 * circuit.chunk
    drawn = elements(coins[4], WIRES, REPETITIONS * wires)
    proofs = Vector()
    for i in range(REPETITIONS):
        proofs += _proof(circuit, x, bits, _challenge(joint, i), drawn[i * wires : (i + 1) * wires])
    masks = elements(coins[3], PROOF, len(proofs))
    shared = [(a - b) % PRIME for a, b in zip(proofs, masks, strict=True)]
    tails = [coins[v] + parts[1 - v] + drawn_tests[1 - v] for v in range(2)]
    return _pack(leader + shared) + tails[0], coins[2] + coins[3] + tails[1]


def decode_share(circuit: Circuit, server: int, data: bytes) -> ProofShare:
    """Return a server's part of a proof from what :func:`prove` made.

    Raises:
        WireError: wrong length, or an element at or above p.
    """
    if len(data) != (circuit.leader_bytes if server == 0 else circuit.helper_bytes):
        raise WireError(f"norm proof of {len(data)} bytes: this statement makes another length; use one config")
    tail = data[-circuit.tail_bytes :]
    blind, other, tests = tail[:BLIND_BYTES], tail[BLIND_BYTES:][:PART_BYTES], tail[BLIND_BYTES + PART_BYTES :]
    if server == 0:
        values = _unpack(data[: -circuit.tail_bytes])
        bits, flat = values[: circuit.bits], values[circuit.bits :]
    else:
        bits = elements(data[:16], SHARE, circuit.bits)
        flat = elements(data[16:32], PROOF, REPETITIONS * circuit.proof_length)
    proofs = [flat[i : i + circuit.proof_length] for i in range(0, len(flat), circuit.proof_length)]
    return ProofShare(bits, proofs, blind, other, tests)


def encode_message(message: Verifier) -> bytes:
    """Return a verifier message as bytes."""
    return message.joint + b"".join(_pack(m) for m in message.messages)


def decode_message(circuit: Circuit, data: bytes) -> Verifier:
    """Return a verifier message from bytes.

    Raises:
        WireError: wrong length, or an element at or above p.
    """
    if len(data) != circuit.message_bytes:
        raise WireError(f"verifier message of {len(data)} bytes: must be {circuit.message_bytes}")
    flat, size = _unpack(data[BLIND_BYTES:]), 2 * circuit.chunk + 2
    return Verifier(data[:BLIND_BYTES], [flat[i : i + size] for i in range(0, len(flat), size)])


def _pack(values: Vector) -> bytes:
    return np.array(values, "<u8").tobytes()


def _unpack(data: bytes) -> Vector:
    words = np.frombuffer(data, "<u8")
    if (words >= np.uint64(PRIME)).any():
        raise WireError("a proof element is at or above p = 2^64 - 2^32 + 1: not canonical; the sender is left out")
    return [int(word) for word in words]


def query(
    circuit: Circuit,
    server: int,
    x: Vector,
    share: ProofShare,
    digest: bytes,
    seed: bytes,
    verify_key: bytes,
    nonce: bytes,
) -> Verifier:
    """Return a server's verifier message.

    Args:
        x: this server's share of the payload: block sums, negated modulo p for server 1.
        share: its part of the proof.
        digest: hash of the public share.
        seed: its private seed of the report.
        verify_key: 16 bytes that both servers hold and no client knows.
        nonce: the report's.
    """
    tests = b""
    if circuit.tests:
        mine = tests_part(server, digest, seed, share.blind)
        tests = tests_seed(*((mine, share.other_tests) if server == 0 else (share.other_tests, mine)))
    rows_of_tests = random_rows(circuit, tests)
    own = joint_part(server, digest, seed, share.blind, share.bits, tests)
    joint = joint_seed(*((own, share.other_part) if server == 0 else (share.other_part, own)), tests)
    at = hashlib.blake2b(nonce + joint, key=verify_key, person=QUERY, digest_size=16).digest()
    points = [t for t in elements(at, QUERY, REPETITIONS + 8) if t > circuit.calls][:REPETITIONS]
    messages = []
    for i, t in enumerate(points):
        random, proof = _challenge(joint, i), share.proofs[i]
        wire_seeds, gadget = proof[: 2 * circuit.chunk], proof[2 * circuit.chunk :]
        left, right = circuit.wires(x, share.bits, random, server)
        rows = [[*column] for column in zip(*(a + b for a, b in zip(left, right, strict=True)), strict=True)]
        weights = _lagrange(circuit.calls, t)
        values = [_dot(weights, [s, *row]) for s, row in zip(wire_seeds, rows, strict=True)]
        output = sum(gadget[1 : circuit.calls + 1]) + circuit.ties(x, share.bits, random, rows_of_tests, server)
        messages.append([output % PRIME, *values, _dot(_lagrange(2 * circuit.calls, t), gadget)])
    return Verifier(joint, messages)


def decide(circuit: Circuit, first: Verifier, second: Verifier) -> bool:
    """Return whether two servers' messages prove the statement."""
    if first.joint != second.joint:
        return False
    for a, b in zip(first.messages, second.messages, strict=True):
        output, *values, gadget = [(p + q) % PRIME for p, q in zip(a, b, strict=True)]
        left, right = values[: circuit.chunk], values[circuit.chunk :]
        if output != 0 or _dot(left, right) != gadget:
            return False
    return True


def elements(seed: bytes, domain: bytes, count: int) -> Vector:
    """Return uniform field elements from a 16-byte seed, by rejection."""
    stream, out = Stream(seed, domain), Vector()
    while len(out) < count:
        out += [w for w in stream.uint64(count + 4).tolist() if w < PRIME]
    return out[:count]


def tests_part(server: int, digest: bytes, seed: bytes, blind: bytes) -> bytes:
    """Return a server's part of the tests' randomness: it binds all that its share of the payload follows from."""
    return hashlib.blake2b(bytes([server]) + digest + seed, key=blind, person=TESTS, digest_size=32).digest()


def tests_seed(first: bytes, second: bytes) -> bytes:
    """Return the seed of the random tests."""
    return hashlib.blake2b(first + second, person=TESTS, digest_size=16).digest()


def random_rows(circuit: Circuit, seed: bytes) -> Rows | None:
    """Return the random tests, shape ``(tests, length)``: -1 and 1 with probability 1/4 each, 0 with 1/2."""
    if not circuit.tests:
        return None
    count = circuit.tests * circuit.length
    words = Stream(seed, TESTS).uint64(-(-count // 32))
    pairs = np.unpackbits(words.view(np.uint8))[: 2 * count].reshape(circuit.tests, circuit.length, 2)
    rows: Rows = pairs.sum(axis=2, dtype=np.int8) - np.int8(1)
    return rows


def joint_part(server: int, digest: bytes, seed: bytes, blind: bytes, bits: Vector, tests: bytes) -> bytes:
    """Return a server's part of the joint randomness: it binds the public share, its seed, its bits and the tests."""
    part = hashlib.blake2b(bytes([server]) + digest + seed + tests, key=blind, person=JOINT, digest_size=32)
    part.update(b"".join(b.to_bytes(8, "little") for b in bits))
    return part.digest()


def joint_seed(first: bytes, second: bytes, tests: bytes) -> bytes:
    """Return the seed of the joint randomness; servers that derived different tests derive different seeds."""
    return hashlib.blake2b(first + second + tests, person=JOINT, digest_size=16).digest()


def _challenge(joint: bytes, repetition: int) -> Vector:
    seed = hashlib.blake2b(joint + bytes([repetition]), person=JOINT, digest_size=16).digest()
    return elements(seed, JOINT, 3)


def _proof(circuit: Circuit, x: Vector, bits: Vector, random: Vector, wire_seeds: Vector) -> Vector:
    left, right = circuit.wires(x, bits, random, 0)
    rows = [[*column] for column in zip(*(a + b for a, b in zip(left, right, strict=True)), strict=True)]
    polynomials = [[s, *row] for s, row in zip(wire_seeds, rows, strict=True)]
    gadget = []
    for point in range(2 * circuit.calls + 1):
        if point <= circuit.calls:
            values = [p[point] for p in polynomials]
        else:
            weights = _lagrange(circuit.calls, point)
            values = [_dot(weights, p) for p in polynomials]
        gadget.append(_dot(values[: circuit.chunk], values[circuit.chunk :]))
    return wire_seeds + gadget


def powers(base: int, count: int) -> Vector:
    out = [base % PRIME]
    for _ in range(count - 1):
        out.append(out[-1] * base % PRIME)
    return out


def _dot(a: Sequence[int], b: Sequence[int]) -> int:
    return sum(p * q for p, q in zip(a, b, strict=True)) % PRIME


@lru_cache(maxsize=1024)
def _lagrange(degree: int, point: int) -> tuple[int, ...]:
    """Return the weights that take values at 0..degree to the value at `point`."""
    if point <= degree:
        return tuple(int(i == point) for i in range(degree + 1))
    before, after = [1], [1]
    for i in range(degree):
        before.append(before[-1] * (point - i) % PRIME)
        after.append(after[-1] * (point - degree + i) % PRIME)
    factorial = [1]
    for i in range(1, degree + 1):
        factorial.append(factorial[-1] * i % PRIME)
    return tuple(
        before[i]
        * after[degree - i]
        * (-1) ** (degree - i)
        * pow(factorial[i] * factorial[degree - i], -1, PRIME)
        % PRIME
        for i in range(degree + 1)
    )
