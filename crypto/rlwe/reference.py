"""The mathematics of :mod:`crypto.rlwe` in numpy, line by line: slow, obvious, and the same words as the native code.

Polynomials are arrays of Python integers (dtype object), one for each prime: shape ``(primes, N)``. Transformed order:
position i holds the value at ``psi^(2 bitreverse(i) + 1)``.
"""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crypto import _native, prg
from crypto.fixed_point import FixedPoint
from crypto.prg import Stream
from crypto.rlwe.parameters import RlweParameters

Polynomial = NDArray[Any]

#: Terms of one smudging coefficient.
SMUDGE_TERMS = 12


def primitive_root(prime: int, ring: int) -> int:
    """Return psi, a primitive 2N-th root of one: a power of the smallest number that has one."""
    for base in range(2, 1000):
        psi = pow(base, (prime - 1) // (2 * ring), prime)
        if pow(psi, ring, prime) == prime - 1:
            return psi
    raise ValueError(f"{prime} has no root of order {2 * ring}: use a prime that is 1 modulo it")


def bit_reversed(ring: int) -> NDArray[np.int64]:
    """Return the permutation that reverses the bits of an index; shape ``(N,)``."""
    bits = ring.bit_length() - 1
    return np.array([int(f"{i:0{bits}b}"[::-1], 2) for i in range(ring)])


@lru_cache(maxsize=16)
def _roots(prime: int, ring: int) -> Polynomial:
    """Return ``psi^bitreverse(i)``."""
    psi, table = primitive_root(prime, ring), [1]
    for _ in range(1, ring):
        table.append(table[-1] * psi % prime)
    reordered: Polynomial = np.array(table, object)[bit_reversed(ring)]
    return reordered


def forward_by_definition(x: Polynomial, prime: int) -> Polynomial:
    """Evaluate one polynomial, shape ``(N,)``, at every odd power of psi; quadratic time."""
    ring = len(x)
    psi = primitive_root(prime, ring)
    points = [pow(psi, 2 * int(r) + 1, prime) for r in bit_reversed(ring)]
    return np.array([sum(int(c) * pow(p, j, prime) for j, c in enumerate(x)) % prime for p in points], object)


def forward(x: Polynomial, prime: int) -> Polynomial:
    """Evaluate one polynomial at every odd power of psi: halve X^2m - r^2 into X^m - r and X^m + r, again and again."""
    ring = len(x)
    blocks = x.reshape(1, ring) % prime
    while blocks.shape[1] > 1:
        groups, half = blocks.shape[0], blocks.shape[1] // 2
        root = _roots(prime, ring)[groups : 2 * groups, None]
        low, high = blocks[:, :half], blocks[:, half:] * root % prime
        blocks = np.stack([(low + high) % prime, (low - high) % prime], axis=1).reshape(2 * groups, half)
    return blocks.reshape(ring)


def inverse(x: Polynomial, prime: int) -> Polynomial:
    """Undo :func:`forward`."""
    ring = len(x)
    blocks = x.reshape(ring, 1)
    while blocks.shape[0] > 1:
        groups = blocks.shape[0] // 2
        pairs = blocks.reshape(groups, 2, -1)
        back = np.array([pow(int(r), -1, prime) for r in _roots(prime, ring)[groups : 2 * groups]], object)[:, None]
        low, high = pairs[:, 0] + pairs[:, 1], (pairs[:, 0] - pairs[:, 1]) * back
        blocks = np.concatenate([low, high], axis=1) % prime
    return blocks.reshape(ring) * pow(ring, -1, prime) % prime


def _stream(seed: bytes, domain: bytes, polynomial: int) -> Stream:
    """Return a stream at counter ``polynomial 2^64``; a counter is 128 bits, of which a Stream seeks 64."""
    return _Numbered(seed, domain, polynomial)


class _Numbered(Stream):
    """A stream of which each polynomial has 2^64 blocks of its own."""

    def __init__(self, seed: bytes, domain: bytes, polynomial: int) -> None:
        super().__init__(seed, domain)
        self._polynomial = polynomial

    def fill(self, out: NDArray[np.uint8]) -> None:
        """See :meth:`crypto.prg.Stream.fill`."""
        counter = (self._polynomial << 64) + self._block
        _native.aes_stream(self._key, counter.to_bytes(16, "big"), out, self._isa)
        self._block += out.size // prg.BLOCK_BYTES


def uniform(p: RlweParameters, seed: bytes, domain: bytes, index: int) -> Polynomial:
    """Return uniform polynomial `index` of a seed, in transformed order."""
    rows = []
    for limb, prime in enumerate(p.moduli):
        stream = _stream(seed, domain, index * len(p.moduli) + limb)
        mask = (1 << prime.bit_length()) - 1
        row = [int(word) & mask for word in stream.uint64(p.ring)]
        spare: list[int] = []
        for i in range(p.ring):
            while row[i] >= prime:
                spare = spare or [int(word) & mask for word in stream.uint64(2)]
                row[i] = spare.pop(0)
        rows.append(row)
    return np.array(rows, object)


def errors(p: RlweParameters, seed: bytes, domain: bytes, index: int) -> Polynomial:
    """Return N errors, shape ``(N,)``: of two times 21 coins, the heads of the first less those of the second."""
    words = _stream(seed, domain, index).uint64(p.ring)
    coins = (1 << 21) - 1
    return np.array([(int(w) & coins).bit_count() - (int(w) >> 32 & coins).bit_count() for w in words], object)


def ternary(p: RlweParameters, seed: bytes, domain: bytes, index: int) -> Polynomial:
    """Return N values of -1, 0, 1, shape ``(N,)``: ``floor(3 word / 2^64) - 1``."""
    return np.array([(3 * int(w) >> 64) - 1 for w in _stream(seed, domain, index).uint64(p.ring)], object)


def smudging(p: RlweParameters, seed: bytes, index: int) -> Polynomial:
    """Return N integers, shape ``(N,)``: sums of 12 uniform words of w bits, less their mean."""
    words = _stream(seed, prg.RLWE_SMUDGE, index).uint64(2 * SMUDGE_TERMS * p.ring)
    mask = (1 << p.smudge_bits) - 1
    terms = [(int(low) | int(high) << 64) & mask for low, high in words.reshape(-1, 2)]
    drawn: Polynomial = np.array(terms, object).reshape(p.ring, SMUDGE_TERMS).sum(axis=1)
    return drawn - SMUDGE_TERMS // 2 * mask


def product(p: RlweParameters, transformed: Polynomial, small: Polynomial) -> Polynomial:
    """Return, by coefficients, the product of a transformed polynomial and one of integers, shape ``(primes, N)``."""
    rows = [inverse(row * forward(small, q) % q, q) for row, q in zip(transformed, p.moduli, strict=True)]
    return np.array(rows, object)


def residues(p: RlweParameters, x: Polynomial) -> Polynomial:
    """Return integers modulo each prime."""
    return np.array([x % q for q in p.moduli], object)


def transformed(p: RlweParameters, x: Polynomial) -> Polynomial:
    """Return integers modulo each prime, in transformed order."""
    return np.array([forward(x, q) for q in p.moduli], object)


def secret(p: RlweParameters, seed: bytes) -> Polynomial:
    """Return a seed's secret, shape ``(N,)``."""
    return ternary(p, seed, prg.RLWE_SECRET, 0)


def public_key(p: RlweParameters, public_seed: bytes, secret_seed: bytes) -> Polynomial:
    """Return ``b = e - a s`` in transformed order."""
    a = uniform(p, public_seed, prg.RLWE_KEY, 0)
    s, e = secret(p, secret_seed), errors(p, secret_seed, prg.RLWE_KEY_ERROR, 0)
    return _modulo(p, transformed(p, e) - a * transformed(p, s))


def messages(p: RlweParameters, codec: FixedPoint, vector: NDArray[np.floating], seed: bytes) -> list[Polynomial]:
    """Return a vector's integers, cut into polynomials of shape ``(N,)``, the last one padded with zeros."""
    cut = []
    for index in range(p.ciphertexts(vector.size)):
        part = vector[index * p.ring : (index + 1) * p.ring]
        words = _stream(seed, prg.RLWE_COINS, index).uint32(part.size) if codec.stochastic else None
        m = codec.encode_with(part, words).values
        cut.append(np.array([*map(int, m), *[0] * (p.ring - part.size)], object))
    return cut


def seal_symmetric(
    p: RlweParameters, codec: FixedPoint, vector: NDArray[np.floating], key: bytes, public_seed: bytes, seed: bytes
) -> list[Polynomial]:
    """Return ``c0 = delta m + e - a s`` of each ciphertext."""
    sealed = []
    for index, m in enumerate(messages(p, codec, vector, seed)):
        a, e = uniform(p, public_seed, prg.RLWE, index), errors(p, seed, prg.RLWE_ERROR, index)
        sealed.append(_modulo(p, residues(p, p.delta * m + e) - product(p, a, secret(p, key))))
    return sealed


def seal_public(
    p: RlweParameters, codec: FixedPoint, vector: NDArray[np.floating], a: Polynomial, b: Polynomial, seed: bytes
) -> tuple[list[Polynomial], list[Polynomial]]:
    """Return ``c0 = delta m + e0 + b u`` and, in transformed order, ``c1 = e1 + a u`` of each ciphertext."""
    first, second = [], []
    for index, m in enumerate(messages(p, codec, vector, seed)):
        u = ternary(p, seed, prg.RLWE_TERNARY, index)
        e0, e1 = (errors(p, seed, prg.RLWE_ERROR, 2 * index + i) for i in (0, 1))
        first.append(_modulo(p, residues(p, p.delta * m + e0) + product(p, b, u)))
        second.append(_modulo(p, transformed(p, e1) + a * transformed(p, u)))
    return first, second


def phase(p: RlweParameters, c0: Polynomial, c1: Polynomial, s: Polynomial) -> Polynomial:
    """Return ``c0 + c1 s``."""
    return _modulo(p, c0 + product(p, c1, s))


def decode(p: RlweParameters, x: Polynomial) -> Polynomial:
    """Return the integers nearest to ``x / delta``, shape ``(N,)``."""
    whole = combine(p, x)
    centred = np.where(whole > p.modulus // 2, whole - p.modulus, whole)
    return (centred + p.delta // 2) // p.delta


def combine(p: RlweParameters, x: Polynomial) -> Polynomial:
    """Return the residues modulo q from those modulo its primes."""
    parts = [row * pow(p.modulus // q, -1, q) % q * (p.modulus // q) for row, q in zip(x, p.moduli, strict=True)]
    return np.array(sum(parts) % p.modulus, object)


def pack(p: RlweParameters, polynomials: list[Polynomial]) -> bytes:
    """Return a plane: residues in their primes' bits, little-endian."""
    out = b""
    for polynomial in polynomials:
        for row, prime in zip(polynomial, p.moduli, strict=True):
            bits = prime.bit_length()
            number = sum(int(r) << (i * bits) for i, r in enumerate(row))
            out += number.to_bytes(p.ring * bits // 8, "little")
    return out


def unpack(p: RlweParameters, plane: bytes) -> list[Polynomial]:
    """Undo :func:`pack`."""
    found, at = [], 0
    while at < len(plane):
        rows = []
        for prime in p.moduli:
            bits = prime.bit_length()
            number = int.from_bytes(plane[at : at + p.ring * bits // 8], "little")
            rows.append([number >> (i * bits) & ((1 << bits) - 1) for i in range(p.ring)])
            at += p.ring * bits // 8
        found.append(np.array(rows, object))
    return found


def _modulo(p: RlweParameters, x: Polynomial) -> Polynomial:
    return np.array([row % q for row, q in zip(x, p.moduli, strict=True)], object)
