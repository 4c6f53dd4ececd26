"""Rings for sums on OpenFHE: moduli, sizes, memory, noise.

A sum needs no multiplication, so every context has multiplicative depth 0 and (but for statistical flooding) a single
prime. The primes are derived here as the library derives them, so that an aggregator needs no library; the worker
refuses to open a context in which the library chose otherwise.

**BGV noise.** A ciphertext decrypts to ``m + t*e mod q`` with m the encoded message in [-t/2, t/2). A sum of n opens
exactly while ``n*t/2 + t*e_total < q/2``. Beyond it every slot is silently wrong. With k parties in the key (k = 1
for one key) and sigma the error's deviation, a public-key ciphertext has ``e = e0 + u*E + sum_i(s_i)*e1``, where E is
the sum of k errors and u, s_i are ternary: variance ``sigma^2 (1 + k*4N/3)`` a coefficient.

**Flooding.** In a threshold opening each party adds noise to its partial decryption, lest it tells about its share.
``heuristic``: Gaussian of deviation 2^20 (OpenFHE's constant ``MP_SD``), about 2^7 times the noise of 1000 summed
ciphertexts: no proof. ``statistical``: uniform below a 120-bit product of two extra primes, more than 2^80 times the
noise, so that partial decryptions are statistically independent of the noise they hide; three primes, hence three times
the bytes. BGV only: the library offers no such mode for CKKS.
"""

from dataclasses import dataclass
from functools import cached_property
from math import ceil, log2, sqrt
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from crypto._openfhe.residues import packed_bytes
from crypto.errors import BudgetExceeded
from crypto.lattice import ERROR_STD, is_prime, max_modulus_bits, require_security, tail

Kind = Literal["ckks", "bgv"]
Flooding = Literal["heuristic", "statistical"]

#: Deviation of one party's flooding noise in heuristic mode.
FLOODING_STD = 2.0**20
#: The library derives BGV's primes from the low 32 bits of t only.
MAX_PLAIN_BITS = 31
EXTRA_PRIMES, EXTRA_BITS = 2, 60
RINGS = tuple(2**i for i in range(11, 17))
#: What a worker needs besides its contexts: interpreter, numpy, the library.
_BASE_MEMORY_BYTES = 150 << 20


@dataclass(frozen=True)
class Ring:
    """One context.

    Attributes:
        kind: ``"ckks"`` (approximate, N/2 reals a ciphertext) or ``"bgv"`` (exact, N integers).
        ring: N, a power of two from 2048 to 65536.
        first_bits: size of the first prime, at most 60.
        scale_bits: log2 of the CKKS scale; 0 for BGV.
        plain_bits: BGV's t is the first prime above ``2^plain_bits`` with t = 1 mod 2N; 0 for CKKS.
        flooding: see the module docstring.
    """

    kind: Kind
    ring: int
    first_bits: int
    scale_bits: int = 0
    plain_bits: int = 0
    flooding: Flooding = "heuristic"

    def __post_init__(self) -> None:
        if self.ring not in RINGS:
            raise BudgetExceeded(f"ring {self.ring}: must be one of {list(RINGS)}")
        if not 20 <= self.first_bits <= 60:
            raise BudgetExceeded(f"first prime of {self.first_bits} bits: must lie in [20, 60]")
        if self.kind == "ckks":
            self._check_ckks()
        else:
            self._check_bgv()
        require_security(self.ring, self.modulus_bits, False, f"a {self.kind} modulus")

    def _check_ckks(self) -> None:
        if self.flooding != "heuristic":
            raise BudgetExceeded("statistical flooding for CKKS: OpenFHE has none; use BGV")
        if not 1 <= self.scale_bits <= self.first_bits - 2:
            raise BudgetExceeded(
                f"scale 2^{self.scale_bits} with a first prime of {self.first_bits} bits: must lie between 2^1 and "
                f"2^{self.first_bits - 2}; lower the scale"
            )
        most = max_modulus_bits(self.ring) - 1
        if self.first_bits > most:  # the library counts one bit more than the modulus has
            raise BudgetExceeded(f"first prime of {self.first_bits} bits at ring {self.ring}: OpenFHE takes {most}")

    def _check_bgv(self) -> None:
        least = self.ring.bit_length() + 1
        if not least <= self.plain_bits <= MAX_PLAIN_BITS:
            raise BudgetExceeded(
                f"plaintext modulus of {self.plain_bits} bits at ring {self.ring}: must lie in "
                f"[{least}, {MAX_PLAIN_BITS}]"
            )
        if self.first_bits < self.plain_bits + self.ring.bit_length() + 3:
            raise BudgetExceeded(
                f"first prime of {self.first_bits} bits: OpenFHE wants it 1 modulo t*2N, so at least "
                f"{self.plain_bits + self.ring.bit_length() + 3} bits; use a longer one or fewer plain bits"
            )

    @cached_property
    def plain_modulus(self) -> int:
        """BGV's t; 0 for CKKS."""
        return prime_above(2**self.plain_bits, 2 * self.ring) if self.kind == "bgv" else 0

    @cached_property
    def moduli(self) -> tuple[int, ...]:
        """The primes of q, in the library's order."""
        step = 2 * self.ring * max(1, self.plain_modulus)
        primes = [prime_below(2**self.first_bits, step)]
        candidate = 2**EXTRA_BITS
        for _ in range(EXTRA_PRIMES if self.flooding == "statistical" else 0):
            candidate = prime_below(candidate, step)
            while candidate in primes:
                candidate = prime_below(candidate, step)
            primes.append(candidate)
        return tuple(primes)

    @cached_property
    def moduli_array(self) -> NDArray[np.uint64]:
        """The primes, shape ``(limbs,)``."""
        return np.array(self.moduli, np.uint64)

    @cached_property
    def modulus_bits(self) -> int:
        """Bits of q."""
        return ceil(sum(log2(q) for q in self.moduli))

    @property
    def security_bits(self) -> int:
        """Claimed classical security."""
        return require_security(self.ring, self.modulus_bits, True, "")

    @property
    def slots(self) -> int:
        """Values per ciphertext."""
        return self.ring if self.kind == "bgv" else self.ring // 2

    @property
    def residue_bits(self) -> int:
        """Bits of one residue on the wire."""
        return max(self.moduli).bit_length()

    def ciphertexts(self, length: int) -> int:
        """Return how many ciphertexts hold `length` values."""
        return -(-length // self.slots)

    def shape(self, polynomials: int) -> tuple[int, int, int]:
        """Return the shape of an object's residues."""
        return (polynomials, len(self.moduli), self.ring)

    def bytes_of(self, polynomials: int) -> int:
        """Return the wire bytes of an object of ring elements: 2 in a ciphertext, 1 in a share or a partial."""
        return packed_bytes(polynomials * len(self.moduli) * self.ring, self.residue_bits)

    @property
    def worker_memory_bytes(self) -> int:
        """Estimate of a worker's memory: interpreter, transform tables, the samples of a context's opening."""
        element = 8 * len(self.moduli) * self.ring
        return _BASE_MEMORY_BYTES + 200 * element

    def spec(self) -> dict[str, object]:
        """Return what the worker opens the context from."""
        return {
            "kind": self.kind,
            "ring": self.ring,
            "first_bits": self.first_bits,
            "scale_bits": self.scale_bits,
            "plain_modulus": self.plain_modulus,
            "flooding": self.flooding,
            "moduli": list(self.moduli),
        }


def fresh_std(ring: int, parties: int, symmetric: bool) -> float:
    """Return the deviation of one noise coefficient of a fresh ciphertext, without BGV's factor t; see the module."""
    return ERROR_STD if symmetric else ERROR_STD * sqrt(1 + parties * 4 * ring / 3)


def bgv_margin_bits(
    ring: Ring, clients: int, ciphertexts: int, parties: int, symmetric: bool, threshold: bool
) -> float:
    """Return log2 of q/2 over the largest noisy coefficient of a sum; negative where sums would be silently wrong."""
    z = tail(ciphertexts * ring.ring)
    variance = clients * fresh_std(ring.ring, parties, symmetric) ** 2
    uniform = 0.0
    if threshold and ring.flooding == "heuristic":
        variance += parties * FLOODING_STD**2
    elif threshold:
        uniform = parties * 2.0 ** (EXTRA_PRIMES * EXTRA_BITS - 1)
    largest = ring.plain_modulus * (clients / 2 + z * sqrt(variance) + uniform)
    return sum(log2(q) for q in ring.moduli) - 1 - log2(largest)


def prime_above(start: int, step: int) -> int:
    """Return the least prime above `start` that is 1 modulo `step`."""
    candidate = start // step * step + 1
    while candidate <= start or not is_prime(candidate):
        candidate += step
    return candidate


def prime_below(end: int, step: int) -> int:
    """Return the largest prime below `end` that is 1 modulo `step`."""
    candidate = (end - 2) // step * step + 1
    while candidate > 1 and not is_prime(candidate):
        candidate -= step
    if candidate <= 1:
        raise BudgetExceeded(f"no prime below {end} is 1 modulo {step}; use a longer first prime or fewer plain bits")
    return candidate
