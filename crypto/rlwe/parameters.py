"""Additive RLWE: choice of parameters from a plan, with the bounds that it rests on.

R_q = Z_q[X] / (X^N + 1), t a power of two, delta = floor(q / t). A vector in fixed point (:mod:`crypto.fixed_point`)
stands in the coefficients, N values a ciphertext: ``c0 + c1 s = delta m + e``. Sums of integers need no multiplication,
so that t is no batching prime and q no longer than range and noise demand.

**Range.** The sum of n clients lies within ``n * max_value``; ``t >= 2 n max_value + 1``, so that it never wraps.

**Failure.** Opening is exact while every coefficient of the noise stays below ``delta / 2``. An error coefficient is a
sum of 42 independent signs of 1/2: sub-Gaussian with its own variance 21/2 as parameter (Hoeffding), and so is every
sum and every combination with fixed coefficients. With V the parameter of the whole noise, a ciphertext fails with
probability at most ``2 N exp(-B^2 / 2V)`` for ``B = delta/2 - 1``; B is chosen for 2^-40.

- *symmetric*: the noise is a sum of n errors, ``V = 21/2 n``, and never above ``21 n``.
- *public*: each client adds ``E u + e0 + e1 s``, with u and s ternary and E the error of the public key. Given s and
  the sum U of the u, ``V = 21/2 (n + |U|^2 + n |s|^2)``. A ternary coefficient is sub-Gaussian with parameter 2/3, so
  ``|U|^2 <= 1.4 * 2/3 n N`` and the like for s, each but for ``exp(-N (0.4 - ln 1.4) / 2) < 2^-46`` at N >= 1024; the
  Gaussian part is chosen for 2^-41. With k members in the key, E and s are sums of k.
- *threshold*: each of k members adds smudging of parameter 4^w to the total's noise; ``V + k 4^w``.

**Security.** Ring-LWE with a uniform ternary secret and errors of deviation 3.24: largest log2 q by the table of the
Homomorphic Encryption Security Standard (:mod:`crypto.lattice`), 27 bits at N=1024, 54 at N=2048, 109 at N=4096.

**Smudging.** A partial decryption tells ``c1 s_i``; together with the total and all other members' shares it tells the
total's noise, which depends on s_i. Noise x is added so that what is sent is within statistical distance
``2^-smudging_bits`` of something that can be computed from the opened sum without s_i, *over all openings of the key
together*. x is a sum of 12 uniform words, of deviation 2^w; shifting it by r changes its square root by a squared
Hellinger distance of at most ``r^2 I / 8`` with I its Fisher information, ``I <= 1.01 / 4^w``; distances of independent
coefficients add; and the statistical distance is at most sqrt(2) times the Hellinger distance. With M coefficients
in all openings and a mean square noise of V, ``2^w >= 2^(smudging_bits - 1) sqrt(1.01 M V)`` does it.
"""

from dataclasses import dataclass
from functools import cached_property
from math import ceil, log2, sqrt

from crypto import wire
from crypto._one_key import Mode
from crypto.base import Budget, Plan
from crypto.errors import BudgetExceeded
from crypto.fixed_point import FixedPoint
from crypto.lattice import ERROR_STD, FAILURE_LOG2, batching_prime_below, max_modulus_bits, security_bits, tail

#: Rings of sums with one key holder, smallest first; a committee's noise needs the largest.
RINGS = (1024, 2048)
COMMITTEE_RINGS = (2048, 4096)

#: Bits of one prime that the native code takes.
MAX_PRIME_BITS = 57

#: Fewest bits of q: below, primes 1 mod 2N are too rare for every number of bits to have one.
LEAST_MODULUS_BITS = 18

#: Largest coefficient of one error polynomial.
LARGEST_ERROR = 21

#: By how much squared norms of ternary polynomials may exceed their mean; see the module docstring.
NORM_EXCESS = 1.4

#: Fisher information of a smudging coefficient times its variance, at most; a test computes it.
SMUDGE_INFORMATION = 1.01

#: Statistical distance of all partial decryptions of a key, as an exponent, unless told otherwise.
SMUDGING_BITS = 40

SEED_BYTES = 16


@dataclass(frozen=True)
class RlweParameters:
    """Parameters that carry a plan exactly.

    Attributes:
        ring: N; a ciphertext holds N integers.
        moduli: the primes of q, each 1 mod 2N; one, or two for committees.
        plain_bits: log2 t.
        mode: ``symmetric`` (seeded) or ``public``.
        parties: members whose shares add up to the key; 1 without a committee.
        smudge_bits: w, log2 of the deviation of a member's smudging; 0 without a committee.
    """

    ring: int
    moduli: tuple[int, ...]
    plain_bits: int
    mode: Mode
    parties: int = 1
    smudge_bits: int = 0

    @cached_property
    def modulus(self) -> int:
        """q."""
        product = 1
        for prime in self.moduli:
            product *= prime
        return product

    @property
    def delta(self) -> int:
        """The factor of the plaintext, ``floor(q / t)``."""
        return self.modulus >> self.plain_bits

    @property
    def modulus_bits(self) -> int:
        """Bits of one coefficient on the wire."""
        return sum(prime.bit_length() for prime in self.moduli)

    @property
    def security_bits(self) -> int:
        """128, 192 or 256 by the table."""
        return security_bits(self.ring, self.modulus_bits)

    def ciphertexts(self, length: int) -> int:
        """Return how many ciphertexts hold `length` integers."""
        return -(-length // self.ring)

    def plane_bytes(self, length: int) -> int:
        """Return the bytes of one packed polynomial for each ciphertext: N log2 q / 8, exactly."""
        return self.ciphertexts(length) * self.ring * self.modulus_bits // 8

    def part_bytes(self, length: int) -> int:
        """Return the bytes of a sealed vector without its frame."""
        return SEED_BYTES + self.plane_bytes(length) if self.mode == "symmetric" else 2 * self.plane_bytes(length)

    def total_bytes(self, length: int) -> int:
        """Return the bytes of a total without its frame."""
        return 2 * self.plane_bytes(length)

    def noise_bound(self, count: int) -> float:
        """Return what the noise of an opened sum of `count` vectors stays below, but for 2^-40 a ciphertext."""
        if self.mode == "symmetric":
            bound = tail(self.ring, FAILURE_LOG2) * sqrt(noise_variance(self.ring, self.mode, count))
            return min(bound, LARGEST_ERROR * count)
        variance = noise_variance(self.ring, self.mode, count, self.parties)
        if self.parties > 1:
            variance += self.parties * 4.0**self.smudge_bits
        return tail(self.ring, FAILURE_LOG2 - 1) * sqrt(variance)


def noise_variance(ring: int, mode: Mode, count: int, parties: int = 1) -> float:
    """Return the sub-Gaussian parameter V of a noise coefficient of a sum; see the module docstring."""
    if mode == "symmetric":
        return ERROR_STD**2 * count
    return ERROR_STD**2 * count * (1 + NORM_EXCESS * 4 / 3 * parties * ring)


def fit(plan: Plan, fixed: FixedPoint, mode: Mode = "symmetric", ring: int | None = None) -> RlweParameters:
    """Choose the smallest ring and the shortest q that carry a plan exactly at 128 bits of security.

    Args:
        plan: length, clients, bound.
        fixed: how values become integers.
        mode: how clients encrypt.
        ring: use this ring only.

    Raises:
        BudgetExceeded: no allowed ring carries it; the message names the bits.
    """
    if ring is not None and ring not in RINGS:
        raise BudgetExceeded(f"ring {ring}: sums use {list(RINGS)}")
    for candidate in RINGS if ring is None else (ring,):
        shape = RlweParameters(candidate, (), _plain_bits(plan, fixed), mode)
        found = _with_moduli(shape, plan, 1)
        if found is not None:
            return found
    raise _refusal(plan, fixed, shape, "value_bits or the number of clients")


def fit_committee(
    plan: Plan, fixed: FixedPoint, parties: int, openings: int, smudging_bits: int = SMUDGING_BITS
) -> RlweParameters:
    """Choose parameters for a key shared by `parties` members that answer for at most `openings` totals.

    Raises:
        BudgetExceeded: no ring carries it; the message names the bits.
    """
    for candidate in COMMITTEE_RINGS:
        shown = -(-plan.length // candidate) * candidate * openings
        variance = noise_variance(candidate, "public", plan.clients, parties)
        smudge = ceil(smudging_bits - 1 + log2(SMUDGE_INFORMATION * shown * variance) / 2)
        shape = RlweParameters(candidate, (), _plain_bits(plan, fixed), "public", parties, smudge)
        found = _with_moduli(shape, plan, 2)
        if found is not None:
            return found
    raise _refusal(plan, fixed, shape, "value_bits, smudging_bits, the number of rounds or of clients")


def _plain_bits(plan: Plan, fixed: FixedPoint) -> int:
    return (2 * plan.clients * fixed.max_value).bit_length()


def _least_bits(shape: RlweParameters, plan: Plan) -> int:
    """Return the fewest bits of q that leave room for t and twice the noise."""
    return ceil(log2(2 * shape.noise_bound(plan.clients) + 2)) + shape.plain_bits


def _with_moduli(shape: RlweParameters, plan: Plan, most_primes: int) -> RlweParameters | None:
    """Return the shape with the shortest q that holds the plan, or None if that is too long for the ring."""
    bits = int(log2(2 * shape.noise_bound(plan.clients) + 2)) + shape.plain_bits
    for candidate in range(max(bits, LEAST_MODULUS_BITS), max_modulus_bits(shape.ring) + 1):
        primes = -(-candidate // MAX_PRIME_BITS)
        if primes > most_primes:
            break
        found = RlweParameters(
            shape.ring,
            _primes(shape.ring, candidate, primes),
            shape.plain_bits,
            shape.mode,
            shape.parties,
            shape.smudge_bits,
        )
        if found.delta >= 2 * shape.noise_bound(plan.clients) + 2:
            return found
    return None


def _primes(ring: int, bits: int, count: int) -> tuple[int, ...]:
    """Return the largest primes 1 mod 2N of together so many bits."""
    if count == 1:
        return (batching_prime_below(ring, 2**bits),)
    first = batching_prime_below(ring, 2 ** (bits - bits // 2))
    return first, batching_prime_below(ring, min(first, 2 ** (bits // 2)))


def _refusal(plan: Plan, fixed: FixedPoint, shape: RlweParameters, remedy: str) -> BudgetExceeded:
    smudging = f", smudging of {shape.smudge_bits} bits" if shape.parties > 1 else ""
    return BudgetExceeded(
        f"{fixed.value_bits} value bits + {(plan.clients - 1).bit_length()} bits for {plan.clients} clients{smudging} "
        f"need a modulus of {_least_bits(shape, plan)} bits: ring {shape.ring} allows {max_modulus_bits(shape.ring)} "
        f"at 128 bits of security; lower {remedy}"
    )


def budget(parameters: RlweParameters, fixed: FixedPoint, plan: Plan) -> Budget:
    """Return what a round costs and guarantees; bytes are exact.

    The error is that of the fixed point, plus float64's own in the opened sum.
    """
    p, n = parameters, plan.clients
    total = wire.HEADER_BYTES + p.total_bytes(plan.length)
    return Budget(
        upload_bytes=wire.HEADER_BYTES + p.part_bytes(plan.length),
        download_bytes=total,
        error_bound=fixed.error_bound(n) + n * plan.bound * 2.0**-52,
        headroom_bits=log2(2**p.plain_bits / (2 * n * fixed.max_value)),
        security_bits=p.security_bits,
        # The running total in 64-bit words, and its packed form while it is framed.
        memory_bytes=2 * 8 * p.ciphertexts(plan.length) * p.ring * len(p.moduli) + 2 * total,
    )
