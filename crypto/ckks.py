"""CKKS for sums: parameters, headroom, error bound. Shared by both CKKS backends; imports none.

A sum needs no multiplication, so a lean chain does: data primes that hold ``sum * scale`` with room, and for SEAL one
more prime that serves key switching only (it costs security budget, never bytes).

**Headroom.** Encoding maps N/2 real slots to N integer coefficients. Slots bounded by B in absolute value give
coefficients bounded by ``B * scale`` (each is an average of slots times roots of unity). Decryption is right as long
as ``abs(coefficient) < q / 2``; hence the sum of all clients, noise included, must stay below
``2^(data_bits - scale_bits - 1)``. Beyond it CKKS wraps *silently*: 16 x 100.0 on chain [40, 40] at scale 2^30 opens
as -448. :func:`check` refuses such a plan before round 1.

**Error.** One slot of the opened sum of n ciphertexts carries, in standard deviations of the real part,
``sqrt(N/2) * (sqrt(n) * sigma_fresh + n * sigma_round) / scale``: fresh noises are independent; the roundings of the
encoding (sigma_round^2 = 1/12) are not when clients send equal vectors, so they add up. The bound multiplies this by
the tail that holds for all coordinates but for a chance of 2^-40, adds the float64 rounding of the transforms, and
the release grid below.

**Release.** Who holds both ciphertexts and exact decryptions of a CKKS sum can solve for the secret key (Li and
Micciancio, Eurocrypt 2021). Openers therefore round every opened value to a grid as coarse as the noise bound
(:meth:`CkksBound.release`), which withholds the low bits that carry the noise. This is a mitigation, not a proof: a
proof needs noise flooding of tens of bits. Opened sums must stay with the key's holders; where that cannot be had, use
an exact scheme (``bfv``), the default.
"""

from dataclasses import dataclass
from math import ceil, floor, log2, sqrt

import numpy as np
from numpy.typing import NDArray

from crypto import wire
from crypto._chunks import PREFIX_BYTES
from crypto.base import Budget, Plan
from crypto.errors import BudgetExceeded
from crypto.lattice import RINGS, Encryption, compressed_bytes, fresh_noise_std, require_security, tail

#: SEAL's largest prime, in bits; OpenFHE's is the same in its 64-bit build.
MAX_PRIME_BITS = 60

#: An error bound above this share of one client's bound is refused: fewer than 10 bits would survive.
LARGEST_RELATIVE_ERROR = 2.0**-10


@dataclass(frozen=True, slots=True)
class CkksParameters:
    """Ring, modulus chain and scale.

    Attributes:
        ring: N, a power of two; a ciphertext holds N/2 real values.
        chain: bit sizes of the primes, data primes first.
        scale_bits: log2 of the scale.
        special: the chain's last prime serves key switching only and holds no data (SEAL's way).
        insecure: allow less than 128 bits of security.
    """

    ring: int = 4096
    chain: tuple[int, ...] = (54, 54)
    scale_bits: int = 40
    special: bool = True
    insecure: bool = False

    def __post_init__(self) -> None:
        if self.ring not in RINGS:
            raise BudgetExceeded(f"ring {self.ring}: must be one of {list(RINGS)}")
        if len(self.chain) < 1 + self.special or not all(20 <= bits <= MAX_PRIME_BITS for bits in self.chain):
            raise BudgetExceeded(
                f"chain {list(self.chain)}: must be at least {1 + self.special} primes of 20 to {MAX_PRIME_BITS} bits"
            )
        if not 1 <= self.scale_bits <= self.data_bits - 2:
            raise BudgetExceeded(
                f"scale 2^{self.scale_bits} on chain {list(self.chain)}: must lie between 2^1 and "
                f"2^{self.data_bits - 2}, the data primes less sign and noise; lower the scale"
            )
        require_security(self.ring, sum(self.chain), self.insecure, f"chain {list(self.chain)}")

    @property
    def data_primes(self) -> tuple[int, ...]:
        """Bit sizes of the primes that hold data."""
        return self.chain[:-1] if self.special else self.chain

    @property
    def data_bits(self) -> int:
        """log2 of the ciphertext modulus."""
        return sum(self.data_primes)

    @property
    def slots(self) -> int:
        """Real values per ciphertext."""
        return self.ring // 2

    @property
    def scale(self) -> float:
        """What values are multiplied with before rounding."""
        return float(2.0**self.scale_bits)

    @property
    def capacity(self) -> float:
        """A sum must stay below this in absolute value; beyond, it wraps silently."""
        return float(2.0 ** (self.data_bits - self.scale_bits - 1))

    @property
    def security_bits(self) -> int:
        """128, 192 or 256 by the table; 0 if insecure."""
        return require_security(self.ring, sum(self.chain), True, "")

    def ciphertexts(self, length: int) -> int:
        """Return how many ciphertexts hold `length` values."""
        return -(-length // self.slots)


@dataclass(frozen=True, slots=True)
class CkksBound:
    """What :func:`check` proved for a plan.

    Attributes:
        noise_bound: largest error of one coordinate of the decrypted sum.
        grid: opened values are rounded to multiples of this power of two, at least `noise_bound`.
        headroom_bits: log2 of capacity over the largest sum, noise included; positive.
    """

    noise_bound: float
    grid: float
    headroom_bits: float

    @property
    def error_bound(self) -> float:
        """Largest error of one coordinate of the opened sum: noise and half a grid step."""
        return self.noise_bound + self.grid / 2

    def release(self, opened: NDArray[np.float64]) -> NDArray[np.float64]:
        """Round decrypted values to the grid, in place; see the module docstring."""
        opened /= self.grid
        np.rint(opened, out=opened)
        opened *= self.grid
        return opened


def noise_bound(
    parameters: CkksParameters, plan: Plan, encryption: Encryption, extra_std: float = 0.0, extra_count: int = 0
) -> float:
    """Return the largest error of one coordinate of a decrypted sum; see the module docstring.

    Args:
        parameters: ring, chain, scale.
        plan: length, clients, bound.
        encryption: how fresh ciphertexts are made.
        extra_std: standard deviation of one coefficient of noise added per partial decryption (flooding).
        extra_count: number of such additions.
    """
    n = plan.clients
    fresh = sqrt(n * fresh_noise_std(parameters.ring, encryption) ** 2 + extra_count * extra_std**2)
    std = sqrt(parameters.slots) * (fresh + n * sqrt(1 / 12)) / parameters.scale
    # float64 butterflies at the clients (each adds its own) and at the opener: one rounding per level.
    floats = 2 * n * plan.bound * log2(parameters.ring) * 2.0**-52
    return std * tail(plan.length) + floats


def check(
    parameters: CkksParameters, plan: Plan, encryption: Encryption, extra_std: float = 0.0, extra_count: int = 0
) -> CkksBound:
    """Prove that a plan fits, before round 1.

    Raises:
        BudgetExceeded: the sum can reach the point where it wraps, or the error bound is more than
            :data:`LARGEST_RELATIVE_ERROR` of one client's bound.
    """
    noise = noise_bound(parameters, plan, encryption, extra_std, extra_count)
    largest = plan.clients * plan.bound + noise
    if largest >= parameters.capacity:
        raise BudgetExceeded(_headroom_message(parameters, plan, largest))
    bound = CkksBound(noise, 2.0 ** ceil(log2(noise)), log2(parameters.capacity / largest))
    if bound.error_bound > plan.bound * LARGEST_RELATIVE_ERROR:
        raise BudgetExceeded(
            f"error bound {bound.error_bound:.3g} of a sum at scale 2^{parameters.scale_bits}: must be at most 2^-10 "
            f"of one client's bound {plan.bound:g}; raise the scale or lower the number of clients"
        )
    return bound


def budget(parameters: CkksParameters, bound: CkksBound, plan: Plan, seeded: bool) -> Budget:
    """Return what a round costs and guarantees on SEAL; sizes to about 3 %.

    Args:
        parameters: ring, chain, scale.
        bound: what :func:`check` proved.
        plan: length, clients, bound.
        seeded: clients' ciphertexts carry a seed instead of their random half (symmetric mode).
    """
    p, count = parameters, parameters.ciphertexts(plan.length)
    fresh = compressed_bytes(p.ring, p.data_primes, 1 if seeded else 2)
    return Budget(
        upload_bytes=wire.HEADER_BYTES + count * (PREFIX_BYTES + fresh),
        download_bytes=wire.HEADER_BYTES + count * (PREFIX_BYTES + compressed_bytes(p.ring, p.data_primes, 2)),
        error_bound=bound.error_bound,
        headroom_bits=bound.headroom_bits,
        security_bits=p.security_bits,
        # A total and, while a part is checked before it is added, that part unpacked.
        memory_bytes=2 * count * 2 * 8 * p.ring * len(p.data_primes),
    )


def _headroom_message(parameters: CkksParameters, plan: Plan, largest: float) -> str:
    chain = list(parameters.chain)
    fitting = parameters.data_bits - 1 - (floor(log2(largest)) + 1)
    longer = [MAX_PRIME_BITS, *chain[1:]]
    remedy = f"use a longer first prime, for example chain {longer}" if longer != chain else "use more data primes"
    if fitting >= 1:
        remedy += f", or scale 2^{fitting} or below"
    return (
        f"sum of {plan.clients} clients at {plan.bound:g} can reach {plan.clients * plan.bound:g}: chain {chain} at "
        f"scale 2^{parameters.scale_bits} holds sums below the bound {parameters.capacity:g} only and wraps "
        f"silently beyond; {remedy}"
    )
