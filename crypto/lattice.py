"""What all RLWE schemes share: the security table, fresh noise, tail bounds.

Security: largest log2 of the whole modulus (key-switching primes included) for a ternary secret and errors of standard
deviation 3.2, classical attacks. Rings 2^10 to 2^15: the Homomorphic Encryption Security Standard (2018), table 1, as
in SEAL's ``util/hestdparms.h``. Ring 2^16: OpenFHE's ``lattice/stdlatticeparms.cpp``, needed for published
contexts only.

Sizes: SEAL writes 64-bit words through zstd, which finds no repeats in random words and only codes the bytes
(Huffman); :func:`compressed_bytes` computes that code from the distribution of the bytes.
"""

import heapq
from collections.abc import Sequence
from functools import lru_cache
from math import log, sqrt
from typing import Literal

from crypto.errors import BudgetExceeded

_MAX_MODULUS_BITS: dict[int, dict[int, int]] = {
    128: {1024: 27, 2048: 54, 4096: 109, 8192: 218, 16384: 438, 32768: 881, 65536: 1772},
    192: {1024: 19, 2048: 37, 4096: 75, 8192: 152, 16384: 305, 32768: 611, 65536: 1228},
    256: {1024: 14, 2048: 29, 4096: 58, 8192: 118, 16384: 237, 32768: 476, 65536: 956},
}

#: Rings that the table knows.
RINGS = tuple(_MAX_MODULUS_BITS[128])

#: Standard deviation of one error coefficient: centred binomial of 21 coin pairs, SEAL's default (HE standard: 3.2).
ERROR_STD = sqrt(21 / 2)

#: A bound may fail with probability 2^-40 over all coordinates of a round.
FAILURE_LOG2 = -40.0

#: How fresh ciphertexts are made: under the secret key; under the public key; under the public key of a larger modulus
#: and then divided by its key-switching prime (SEAL's way when the chain has one).
Encryption = Literal["symmetric", "public", "public-switched"]


def max_modulus_bits(ring: int, security_bits: int = 128) -> int:
    """Return the largest secure log2 q for a ring, or raise :class:`~crypto.errors.BudgetExceeded`."""
    try:
        return _MAX_MODULUS_BITS[security_bits][ring]
    except KeyError:
        known = sorted(_MAX_MODULUS_BITS.get(security_bits, {}))
        raise BudgetExceeded(f"ring {ring} at {security_bits} bits of security: the table knows {known}") from None


def security_bits(ring: int, modulus_bits: float) -> int:
    """Return the highest level (256, 192, 128) that the table grants, or 0 if under 128 bits."""
    for level in (256, 192, 128):
        if modulus_bits <= _MAX_MODULUS_BITS[level].get(ring, -1):
            return level
    return 0


def fresh_noise_std(ring: int, encryption: Encryption) -> float:
    """Return the standard deviation of one noise coefficient of a fresh ciphertext.

    ``symmetric``: e. ``public``: e0 + u*e + s*e1 with u, s ternary, so variance sigma^2 (1 + 4N/3).
    ``public-switched``: what is left after the division is the rounding of c0 + c1*s, uniform in [-1/2, 1/2] each, so
    variance (1 + 2N/3)/12, plus the error divided by the prime, at most sigma.
    """
    if encryption == "symmetric":
        return ERROR_STD
    if encryption == "public":
        return ERROR_STD * sqrt(1 + 4 * ring / 3)
    return sqrt((1 + 2 * ring / 3) / 12 + ERROR_STD**2)


def tail(count: int, failure_log2: float = FAILURE_LOG2) -> float:
    """Return z so that `count` normal values all stay within z standard deviations but for the given probability.

    From the union bound over the two-sided Gaussian tail, ``2 * count * exp(-z^2 / 2) = 2^failure_log2``.
    """
    return sqrt(2 * (log(2.0 * count) - failure_log2 * log(2.0)))


def require_security(ring: int, modulus_bits: int, insecure: bool, what: str) -> int:
    """Return the security level of (ring, log2 q).

    Raises:
        BudgetExceeded: under 128 bits and not declared `insecure`.
    """
    level = security_bits(ring, modulus_bits)
    if not level and not insecure:
        most = max_modulus_bits(ring) if ring in RINGS else 0
        raise BudgetExceeded(
            f"{what} has {modulus_bits} modulus bits at ring {ring}: 128 bits of security allow {most}; use a larger "
            "ring or a shorter chain, or set insecure for an experiment"
        )
    return level


def compressed_bytes(ring: int, prime_bits: Sequence[int], polynomials: int) -> int:
    """Return the bytes of random polynomials as SEAL serialises them, to about 4 %; its headers included.

    One polynomial stands for a seeded ciphertext: the other half is a seed. zstd codes blocks of 2^17 bytes, each with
    a code of its own; the polynomials modulo the primes follow one another.
    """
    bits = [b for _ in range(polynomials) for b in prime_bits]
    total = 0.0
    for first in range(0, ring * len(bits), _BLOCK_WORDS):
        last = min(first + _BLOCK_WORDS, ring * len(bits))
        words = {b: 0 for b in bits}
        for index, b in enumerate(bits):
            words[b] += max(0, min(last, (index + 1) * ring) - max(first, index * ring))
        total += (last - first) * _coded_word_bytes(tuple((b, n / (last - first)) for b, n in words.items() if n))
    return round(total) + (_SEEDED_BYTES if polynomials == 1 else _HEADER_BYTES)


_BLOCK_WORDS = 1 << 14

# SEAL's header, parameter id, sizes and zstd's tables; a seed adds its 64 bytes and the generator's name.
_HEADER_BYTES, _SEEDED_BYTES = 60, 160

# In words of at most 36 bits zstd finds runs of zeros too, which no formula here predicts: measured.
_SHORT_WORD_BYTES = {24: 3.47, 25: 3.87, 26: 4.12, 27: 4.22, 28: 4.25, 29: 4.28, 30: 4.21, 31: 4.15, 32: 4.12}
_SHORT_WORD_BYTES |= {33: 4.94, 34: 5.27, 35: 5.52, 36: 5.72}


@lru_cache(maxsize=256)
def _coded_word_bytes(shares: tuple[tuple[int, float], ...]) -> float:
    """Return the mean Huffman-coded length of the 8-byte words of a block.

    Args:
        shares: pairs (bits, share of the words that are uniform below ``2^bits``); shares add up to 1.
    """
    if len(shares) == 1 and shares[0][0] in _SHORT_WORD_BYTES:
        return _SHORT_WORD_BYTES[shares[0][0]]
    weight = [0.0] * 256
    for bits, share in shares:
        whole, rest = divmod(bits, 8)
        for byte in range(256):
            weight[byte] += share * whole / 256
        for byte in range(1 << rest if rest else 0):
            weight[byte] += share / (1 << rest)
        weight[0] += share * (8 - whole - (rest > 0))
    heap = [w / 8 for w in weight]
    heapq.heapify(heap)
    coded_bits = 0.0
    while len(heap) > 1:
        pair = heapq.heappop(heap) + heapq.heappop(heap)
        coded_bits += pair
        heapq.heappush(heap, pair)
    # zstd stores a block as it is when coding would save less than 1/64.
    return coded_bits if coded_bits < 8 * 63 / 64 else 8.0


def is_prime(number: int) -> bool:
    """Decide primality below 2^64 (Miller-Rabin with the first twelve primes as bases, Sorenson and Webster 2015)."""
    bases = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
    if number < 2 or any(number % base == 0 for base in bases):
        return number in bases
    twos = ((number - 1) & -(number - 1)).bit_length() - 1
    for base in bases:
        x = pow(base, (number - 1) >> twos, number)
        if x not in (1, number - 1) and not any((x := x * x % number) == number - 1 for _ in range(twos - 1)):
            return False
    return True


def batching_prime(ring: int, least: int) -> int:
    """Return the smallest prime p = 1 mod 2N with ``p >= least``: modulo p, N integers fit one plaintext."""
    step = 2 * ring
    candidate = max(step, -(-(least - 1) // step) * step) + 1
    while not is_prime(candidate):
        candidate += step
    return candidate


def batching_prime_below(ring: int, limit: int) -> int:
    """Return the largest prime p = 1 mod 2N below `limit`.

    Raises:
        BudgetExceeded: there is none.
    """
    step = 2 * ring
    candidate = (limit - 2) // step * step + 1
    while candidate > 1 and not is_prime(candidate):
        candidate -= step
    if candidate <= 1:
        raise BudgetExceeded(f"no prime 1 mod {step} below {limit}; use a longer modulus or a smaller ring")
    return candidate
