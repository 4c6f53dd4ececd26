"""Fixed point: floats <-> integers of a ring, with a count of what was clipped and a proof that sums cannot wrap.

A value x with ``abs(x) <= bound`` becomes an integer near ``x * 2^fraction_bits``; sums of integers are exact, so the
only errors are clipping (counted) and rounding (at most one step a client). The bit budget

    value bits + weight bits + ceil(log2 clients) <= ring bits

is checked before round 1. Every scheme that sums in a ring shares this module.
"""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, frexp, isfinite

import numpy as np
from numpy.typing import NDArray

from crypto.errors import BudgetExceeded, InputError

logger = logging.getLogger(__name__)

#: ``f(n)`` returns n random bytes; :func:`os.urandom` outside tests.
RandomBytes = Callable[[int], bytes]

#: Share of clipped coordinates above which :meth:`FixedPoint.encode` warns.
CLIPPING_WARNING_SHARE = 0.01

# Coordinates encoded at a time: the float64 and uint32 scratch of a chunk stays near the L2 cache.
_CHUNK = 1 << 16
# Integers stay exact in int64 and in the float64 product when they are below this.
_MAX_VALUE_BITS = 53


@dataclass(frozen=True, slots=True)
class Encoded:
    """An encoded vector.

    Attributes:
        values: signed integers, shape as the input, within ``[-max_value, max_value]`` of the codec.
        clipped: number of coordinates that were outside the bound.
    """

    values: NDArray[np.int64]
    clipped: int

    @property
    def clipped_share(self) -> float:
        """Share of clipped coordinates, 0 for an empty vector."""
        return self.clipped / max(1, self.values.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedPoint:
    """A codec between floats and integers on the grid ``2^-fraction_bits``.

    Attributes:
        bound: values beyond ``[-bound, bound]`` are clipped and counted; finite and positive.
        fraction_bits: binary digits after the point, in [-64, 64].
        weight_bits: bits of the largest integer weight that a client multiplies onto its encoded values; 0 where
            weights are applied before encoding.
        stochastic: round up with a probability equal to the fraction, so that the expectation is the value; else to
            nearest, ties to even.

    Example:
        >>> codec = FixedPoint.fitting(bound=1.0, clients=100, ring_bits=32)
        >>> codec.fraction_bits, codec.required_bits(100)
        (23, 32)
    """

    bound: float
    fraction_bits: int
    weight_bits: int = 0
    stochastic: bool = True

    def __post_init__(self) -> None:
        if not (isfinite(self.bound) and self.bound > 0):
            raise InputError(f"bound {self.bound} must be finite and positive; give the largest absolute value")
        if not -64 <= self.fraction_bits <= 64:
            raise InputError(f"{self.fraction_bits} fraction bits: must lie in [-64, 64]; rescale the values")
        if not 0 <= self.weight_bits <= 64:
            raise InputError(f"{self.weight_bits} weight bits: must lie in [0, 64]; normalise the weights")
        if self.bound * 2.0**self.fraction_bits > 2.0**_MAX_VALUE_BITS:
            raise BudgetExceeded(
                f"bound {self.bound:g} with {self.fraction_bits} fraction bits needs integers above "
                f"2^{_MAX_VALUE_BITS}, which float64 does not hold exactly: use at most "
                f"{self.fraction_bits - ceil(np.log2(self.bound * 2.0**self.fraction_bits)) + _MAX_VALUE_BITS} bits"
            )

    @classmethod
    def fitting(
        cls,
        *,
        bound: float,
        clients: int,
        ring_bits: int,
        weight_bits: int = 0,
        max_fraction_bits: int = 40,
        stochastic: bool = True,
    ) -> "FixedPoint":
        """Return the finest codec whose sums of `clients` vectors fit a ring of `ring_bits` bits.

        Raises:
            BudgetExceeded: not even one bit a value fits, or the steps would be too wide for a double.
        """
        spare = ring_bits - weight_bits - _log2_ceil(clients)
        # 2 * ceil(bound * 2^f) + 1 <= 2^spare needs bound * 2^f <= 2^(spare-1) - 1; frexp gives bound < 2^exponent.
        exponent = frexp(bound)[1]
        bits = min(max_fraction_bits, spare - 1 - exponent, _MAX_VALUE_BITS - exponent)
        for fraction_bits in (bits + 1, bits, bits - 1):
            if spare >= 2 and -64 <= fraction_bits <= min(64, max_fraction_bits):
                if bound * 2.0**fraction_bits <= 2.0 ** min(spare - 1, _MAX_VALUE_BITS) - 1:
                    return cls(bound=bound, fraction_bits=fraction_bits, weight_bits=weight_bits, stochastic=stochastic)
        if spare >= 2:
            raise BudgetExceeded(
                f"bound {bound:g}: in {spare} bits a step would be wider than 2^64; give a smaller bound, near the "
                "largest value that a coordinate takes"
            )
        raise BudgetExceeded(
            f"{clients} clients with {weight_bits} weight bits leave {spare} bits of a {ring_bits}-bit ring for a "
            f"value within {bound:g}: at least 2 are needed; use a wider ring or fewer clients"
        )

    @property
    def step(self) -> float:
        """Distance of two neighbours on the grid."""
        return 2.0**-self.fraction_bits

    @property
    def max_value(self) -> int:
        """Largest absolute integer that :meth:`encode` returns."""
        return ceil(self.bound * 2.0**self.fraction_bits)

    @property
    def value_bits(self) -> int:
        """Bits that hold every encoded value with its sign: the least v with ``2 * max_value + 1 <= 2^v``."""
        return (2 * self.max_value).bit_length()

    def required_bits(self, clients: int) -> int:
        """Return the bit budget of a sum: value bits + weight bits + ceil(log2 clients)."""
        return self.value_bits + self.weight_bits + _log2_ceil(clients)

    def check(self, clients: int, ring_bits: int) -> None:
        """Prove that a sum of `clients` vectors cannot wrap modulo ``2^ring_bits`` (or any larger modulus).

        Raises:
            BudgetExceeded: the bit budget is larger than the ring; the message shows the sum of its parts.
        """
        if self.required_bits(clients) > ring_bits:
            excess = self.required_bits(clients) - ring_bits
            raise BudgetExceeded(
                f"{self.value_bits} value bits + {self.weight_bits} weight bits + {_log2_ceil(clients)} bits for "
                f"{clients} clients = {self.required_bits(clients)} bits, but the ring has {ring_bits}, so a sum at "
                f"the bound {self.bound:g} would wrap; drop {excess} fraction bits (of {self.fraction_bits}), lower "
                "the bound or use a wider ring"
            )

    def headroom_bits(self, clients: int, ring_bits: int) -> int:
        """Return the ring's spare bits; negative where :meth:`check` refuses."""
        return ring_bits - self.required_bits(clients)

    def error_bound(self, clients: int) -> float:
        """Return the largest rounding error of one coordinate of a sum of unclipped vectors."""
        return clients * self.step * (1.0 if self.stochastic else 0.5)

    def encode(self, vector: NDArray[np.floating], random_bytes: RandomBytes = os.urandom) -> Encoded:
        """Encode a vector with fresh randomness.

        Args:
            vector: floats, any shape; not modified.
            random_bytes: source of the rounding coins, 4 bytes a coordinate; the operating system by default. Read
                only where the codec is stochastic.

        Raises:
            InputError: a value is NaN or infinite; names the first coordinate (in C order).
        """
        flat = vector.reshape(-1)
        out = np.empty(flat.size, np.int64)
        clipped = 0
        for at in range(0, flat.size, _CHUNK):
            chunk = flat[at : at + _CHUNK]
            words = np.frombuffer(random_bytes(4 * chunk.size), "<u4") if self.stochastic else None
            if not np.isfinite(chunk.sum(dtype=np.float64)):
                _check_finite(flat)
            part = self.encode_with(chunk, words)
            out[at : at + chunk.size] = part.values
            clipped += part.clipped
        if clipped > CLIPPING_WARNING_SHARE * out.size:
            logger.warning(
                "%d of %d values (%.1f %%) lie outside the bound %g and were clipped; raise the bound or clip updates",
                clipped,
                out.size,
                100 * clipped / out.size,
                self.bound,
            )
        return Encoded(out.reshape(vector.shape), clipped)

    def encode_with(self, vector: NDArray[np.floating], words: NDArray[np.uint32] | None) -> Encoded:
        """Encode finite values with given rounding coins; the deterministic core of :meth:`encode`.

        Args:
            vector: finite floats, shape ``(n,)``.
            words: one uniform 32-bit word a coordinate, shape ``(n,)``; a value rounds up iff its fraction is above
                ``word * 2^-32``, so the expectation is right to 2^-32 of a step. ``None`` for a codec that rounds to
                nearest.
        """
        exact = vector.astype(np.float64)
        clipped = int(np.count_nonzero(np.abs(exact) > self.bound))
        np.clip(exact, -self.bound, self.bound, out=exact)
        exact *= 2.0**self.fraction_bits
        if words is None:
            # The bound itself may round up past the grid point below it, never past ceil(bound * 2^f).
            return Encoded(np.rint(exact).astype(np.int64), clipped)
        floor = np.floor(exact)
        exact -= floor
        floor += exact > words * 2.0**-32
        return Encoded(floor.astype(np.int64), clipped)

    def decode(self, total: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the values of a sum of encoded vectors (or of one): ``total * step``."""
        return total.astype(np.float64) * self.step


def report_clipped(clipped: int, size: int, bound: float) -> None:
    """Warn where more than :data:`CLIPPING_WARNING_SHARE` of the values were clipped."""
    if clipped > CLIPPING_WARNING_SHARE * size:
        logger.warning(
            "%d of %d values lie outside the bound %g and were clipped; raise the bound or clip updates",
            clipped,
            size,
            bound,
        )


def to_residues(values: NDArray[np.int64], modulus: int) -> NDArray[np.uint64]:
    """Return signed integers modulo `modulus` (2 to 2^64); negatives become ``modulus - abs(value)``."""
    _check_modulus(modulus)
    bits = values.astype(np.uint64)
    if modulus == 1 << 64:
        return bits
    return np.where(values < 0, np.uint64(modulus - 1) - ~bits % np.uint64(modulus), bits % np.uint64(modulus))


def from_residues(residues: NDArray[np.uint64], modulus: int) -> NDArray[np.int64]:
    """Return the centred lift: the representatives in ``[-modulus/2, modulus/2)`` of residues below `modulus`."""
    _check_modulus(modulus)
    if modulus == 1 << 64:
        return residues.astype(np.int64)
    negative = residues >= np.uint64((modulus + 1) // 2)
    return np.where(negative, residues - np.uint64(modulus), residues).astype(np.int64)


def _check_modulus(modulus: int) -> None:
    if not 2 <= modulus <= 1 << 64:
        raise InputError(f"modulus {modulus} must lie in [2, 2^64]; use one 64-bit word a coordinate")


def _check_finite(flat: NDArray[np.floating]) -> None:
    bad = np.flatnonzero(~np.isfinite(flat))
    if bad.size:
        raise InputError(
            f"coordinate {int(bad[0])} is {flat[bad[0]]} ({bad.size} such values): values must be finite; lower the "
            "learning rate or clip gradients"
        )


def _log2_ceil(clients: int) -> int:
    if clients < 1:
        raise InputError(f"{clients} clients: a sum needs at least 1")
    return (clients - 1).bit_length()
