"""Algebraic one-block check over Field64 (stage V2): an independent cross-check of the hash proofs, for tests.

With z_j and rho drawn after the report is fixed, let y_j = <rho, block_j> and A_i = sum_j z_j^i y_j. One non-zero block
gives A_1^2 = A_0 A_2; several give a difference that is a non-zero polynomial of degree 2 in z and rho, so they pass
with probability at most 4 / p. :func:`exchange` evaluates it on shares, without opening the A_i, with correlated
randomness from the client. It is private against semi-honest servers only, which is why reports are checked by hashes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crypto.preamble.dpf import PRIME
from crypto.prg import Stream

CHALLENGE = b"preamble-sketch"
Triple = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Correlation:
    """One server's shares of the client's a_0, a_1, a_2 and c = a_1^2 - a_0 a_2."""

    a: Triple
    c: int


def challenge(seed: bytes, blocks: int, length: int) -> tuple[list[int], list[int]]:
    """Return z, one for each block, and rho, one for each word, from the servers' common 16-byte seed."""
    stream = Stream(seed, CHALLENGE)
    drawn: list[int] = []
    while len(drawn) < blocks + length:
        drawn += [w for w in stream.uint64(blocks + length).tolist() if w < PRIME]
    return drawn[:blocks], drawn[blocks : blocks + length]


def moments(vector: NDArray[np.uint64], z: Sequence[int], rho: Sequence[int]) -> Triple:
    """Return A_0, A_1, A_2 of a vector or of a share of one, shape ``(t, B)``."""
    y = [sum(r * int(word) for r, word in zip(rho, block, strict=True)) for block in vector]
    a0, a1, a2 = (sum(pow(zj, i, PRIME) * yj for zj, yj in zip(z, y, strict=True)) % PRIME for i in range(3))
    return a0, a1, a2


def one_block(a: Triple) -> bool:
    """Return whether opened moments are those of at most one non-zero block."""
    return (a[1] * a[1] - a[0] * a[2]) % PRIME == 0


def correlate(random: Sequence[int]) -> tuple[Correlation, Correlation]:
    """Return the client's correlations from seven field elements: both shares of a_0..a_2, and server 0's of c."""
    first, second = (random[0], random[1], random[2]), (random[3], random[4], random[5])
    a = [(x + y) % PRIME for x, y in zip(first, second, strict=True)]
    c = (a[1] * a[1] - a[0] * a[2]) % PRIME
    return Correlation(first, random[6]), Correlation(second, (c - random[6]) % PRIME)


def masked(moments: Triple, correlation: Correlation) -> Triple:
    """Return what a server opens in the first round: shares of x_i = A_i + a_i."""
    x0, x1, x2 = ((m + a) % PRIME for m, a in zip(moments, correlation.a, strict=True))
    return x0, x1, x2


def answer(server: int, x: Triple, correlation: Correlation) -> int:
    """Return a server's share of A_1^2 - A_0 A_2; the two must add up to zero."""
    a0, a1, a2 = correlation.a
    return (server * (x[1] * x[1] - x[0] * x[2]) - 2 * x[1] * a1 + x[0] * a2 + x[2] * a0 + correlation.c) % PRIME


def exchange(shares: tuple[Triple, Triple], correlations: tuple[Correlation, Correlation]) -> bool:
    """Run both rounds between two servers that hold shares of the moments; return whether the report passes."""
    opened = [masked(s, c) for s, c in zip(shares, correlations, strict=True)]
    x0, x1, x2 = ((p + q) % PRIME for p, q in zip(*opened, strict=True))
    return sum(answer(server, (x0, x1, x2), c) for server, c in enumerate(correlations)) % PRIME == 0
