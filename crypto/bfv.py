"""BFV for sums of integers: choice of parameters from a plan; imports no backend.

A vector is written in fixed point (:mod:`crypto.fixed_point`), N integers to a plaintext modulo a prime t = 1 mod 2N.

**Range.** The sum of n clients lies within ``n * max_value``; t is the smallest batching prime above twice that, so
that a sum can never wrap.

**Noise.** Decryption is exact while the noise of the sum stays below ``q / (2t)``. SEAL rounds ``q/t * m``, at most
n / 2 for n clients, and a fresh *symmetric* ciphertext adds one error polynomial whose coefficients never exceed 21
(centred binomial of 21 coin pairs). The bound ``21.5 n`` is therefore certain, whatever is added how often. Under a
*public* key a certain bound would be wasteful: n independent noises stay within ``sqrt(n) * sigma_fresh`` times a tail
that fails with a chance of 2^-40 over all coefficients. q is wider than needed by one bit, or two where the bound is
statistical.

**Secrets.** *Symmetric* ciphertexts are seeded: half of each is a 64-byte seed. All clients then hold the key, which
protects against the server and not against a client that colludes with it. In *public* mode, at twice the bytes, a
client that only seals need not hold the secret; who opens still does. Decryption is exact, so that an opened sum tells
nothing about the noise: the attack on CKKS of Li and Micciancio (2021) does not apply as long as decryption cannot
fail, which range and noise above ensure for honest ciphertexts.
"""

from dataclasses import dataclass
from math import ceil, log2, sqrt
from typing import Literal

from crypto import wire
from crypto._chunks import PREFIX_BYTES
from crypto.base import Budget, Plan
from crypto.errors import BudgetExceeded
from crypto.fixed_point import FixedPoint
from crypto.lattice import batching_prime, compressed_bytes, fresh_noise_std, max_modulus_bits, security_bits, tail

#: Rings that sums may use, smallest first.
RINGS = (2048, 4096)

#: Bits by which q is wider than the noise needs.
MARGIN_BITS = {"symmetric": 1, "public": 2}

#: Largest coefficient of one error polynomial in SEAL.
LARGEST_ERROR = 21

#: A narrower q makes no shorter ciphertext: SEAL writes 64-bit words, and these compress to 4 bytes at best.
LEAST_MODULUS_BITS = 32

#: Bits of one value, sign included, unless told otherwise.
VALUE_BITS = 22

#: SEAL's largest plain modulus and coefficient prime.
MAX_PRIME_BITS = 60

Mode = Literal["symmetric", "public"]


@dataclass(frozen=True, slots=True)
class BfvParameters:
    """Parameters that carry a plan exactly.

    Attributes:
        ring: N; a ciphertext holds N integers.
        chain: bit sizes of the primes of q; all hold data.
        plain_modulus: t, a prime = 1 mod 2N.
        mode: ``symmetric`` (seeded) or ``public``.
    """

    ring: int
    chain: tuple[int, ...]
    plain_modulus: int
    mode: Mode

    @property
    def modulus_bits(self) -> int:
        """log2 q."""
        return sum(self.chain)

    @property
    def security_bits(self) -> int:
        """128, 192 or 256 by the table."""
        return security_bits(self.ring, self.modulus_bits)

    def ciphertexts(self, length: int) -> int:
        """Return how many ciphertexts hold `length` integers."""
        return -(-length // self.ring)

    def least_noise_budget(self, count: int) -> int:
        """Return the noise budget in bits, as SEAL counts it, that a sum of `count` fresh ciphertexts surely keeps."""
        bound = noise(count, self.ring, self.ring, self.mode)
        return max(1, int(self.modulus_bits - log2(2.0 * self.plain_modulus * bound)) - 1)

    def fresh_bytes(self) -> int:
        """Return the bytes of one fresh ciphertext, to about 3 %."""
        return compressed_bytes(self.ring, self.chain, 1 if self.mode == "symmetric" else 2)

    def sum_bytes(self) -> int:
        """Return the bytes of one ciphertext of a total, to about 3 %."""
        return compressed_bytes(self.ring, self.chain, 2)


def codec(plan: Plan, value_bits: int, stochastic: bool) -> FixedPoint:
    """Return the finest fixed point whose values, sign included, take at most `value_bits` bits."""
    return FixedPoint.fitting(
        bound=plan.bound, clients=1, ring_bits=value_bits, max_fraction_bits=64, stochastic=stochastic
    )


def fit(plan: Plan, fixed: FixedPoint, mode: Mode = "symmetric", ring: int | None = None) -> BfvParameters:
    """Choose the smallest ring, t and q that carry a plan exactly at 128 bits of security.

    Args:
        plan: length, clients, bound.
        fixed: how values become integers.
        mode: how clients encrypt.
        ring: use this ring only.

    Raises:
        BudgetExceeded: no allowed ring carries it; the message names the bound.
    """
    if ring is not None and ring not in RINGS:
        raise BudgetExceeded(f"ring {ring}: sums use {list(RINGS)}")
    for candidate in RINGS if ring is None else (ring,):
        plain = batching_prime(candidate, 2 * plan.clients * fixed.max_value + 1)
        bits = max(
            LEAST_MODULUS_BITS,
            ceil(log2(2.0 * plain * noise(plan.clients, _padded(plan.length, candidate), candidate, mode)))
            + MARGIN_BITS[mode],
        )
        if plain < 2**MAX_PRIME_BITS and bits <= max_modulus_bits(candidate):
            primes = -(-bits // MAX_PRIME_BITS)
            each = -(-bits // primes)
            return BfvParameters(candidate, (each,) * primes, plain, mode)
    largest = RINGS[-1] if ring is None else ring
    raise BudgetExceeded(
        f"{fixed.value_bits} value bits + {(plan.clients - 1).bit_length()} bits for {plan.clients} clients need a "
        f"plain modulus of {plain.bit_length()} bits and a ciphertext modulus of {bits} bits: SEAL allows "
        f"{MAX_PRIME_BITS}, and ring {largest} {max_modulus_bits(largest)} at 128 bits of security; lower value_bits "
        "or the number of clients" + ("" if ring is None else ", or let the ring be chosen")
    )


def noise(clients: int, coefficients: int, ring: int, mode: Mode) -> float:
    """Return the bound of the noise of a sum over so many coefficients; see the module docstring."""
    if mode == "symmetric":
        return clients * (LARGEST_ERROR + 0.5)
    return tail(coefficients) * sqrt(clients) * fresh_noise_std(ring, mode) + clients / 2


def _padded(length: int, ring: int) -> int:
    return -(-length // ring) * ring


def budget(parameters: BfvParameters, fixed: FixedPoint, plan: Plan) -> Budget:
    """Return what a round costs and guarantees; sizes to about 3 %.

    The error is that of the fixed point, plus float64's own in the opened sum.
    """
    p, n = parameters, plan.clients
    count = p.ciphertexts(plan.length)
    return Budget(
        upload_bytes=wire.HEADER_BYTES + count * (PREFIX_BYTES + p.fresh_bytes()),
        download_bytes=wire.HEADER_BYTES + count * (PREFIX_BYTES + p.sum_bytes()),
        error_bound=fixed.error_bound(n) + n * plan.bound * 2.0**-52,
        headroom_bits=log2(p.plain_modulus / (2 * n * fixed.max_value)),
        security_bits=p.security_bits,
        # A total and, while a part is checked before it is added, that part unpacked.
        memory_bytes=2 * count * 2 * 8 * p.ring * len(p.chain),
    )
