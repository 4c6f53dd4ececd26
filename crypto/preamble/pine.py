"""Norm proof for long payloads (stage V4): PINE's wrap-around tests in place of a range for every coordinate.

The statement is that ``sum x_i^2 <= bound`` over the integers. Modulo p it is proven with bits of ``v = sum x_i^2`` and
of ``bound - v``; what remains is that the sum did not wrap. For that the client passes r tests: with random z in
``{-1, 0, 1}^n`` the product ``<z, x>`` modulo p lies in ``[-W, W)``, shown by its bits. A vector whose squares wrap
passes one test with probability 1/2 at most, so all of them with ``2^-r``; a short vector fails one with probability
below ``2 exp(-W^2 / bound)``, at most 2^-108 here.

Rothblum, Omri, Chen, Talwar, PINE (arXiv 2311.10237), sections 4.1 and 4.2, remark 4.12 (W so that the range is a power
of two), and draft-chen-cfrg-vdaf-pine, section "Wraparound Protocol", with all tests to be passed (tau = 1), so that
they are linear and need no success bits. The tests' randomness binds both servers' shares of x before the client knows
it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from crypto.errors import InputError
from crypto.preamble.dpf import PRIME
from crypto.preamble.norm import Circuit, Rows, Vector, powers

#: Random tests, r: the chance of a false statement is 2^-r before grinding.
TESTS = 100
#: W is at least this many times the bound's root.
_ALPHA_TENTHS = 87
#: Payload norms of up to so many steps leave the field large enough; :func:`fits` is the exact rule.
WRAP_NORM_STEPS = (1 << 28) / 8.7 - 2
# The field must have at least this many times W^2 elements (the draft's 81 B ln(2 / eta)).
_FIELD_MARGIN = 81


@dataclass(frozen=True, slots=True)
class WrapCircuit(Circuit):
    """The statement ``sum x_i^2 <= bound`` without a range for each coordinate; see the module.

    Raises:
        InputError: the length or the bound is out of range for the field.
    """

    tests: ClassVar[int] = TESTS
    length: int
    bound: int

    def __post_init__(self) -> None:
        if self.length < 1 or self.bound < 1:
            raise InputError(f"{self}: length and bound must be at least 1")
        if not fits(self.bound):
            raise InputError(f"{self}: the field is too small to tell squares that wrap; use fewer fraction bits")

    @property
    def norm_bits(self) -> int:
        """Bits of the sum of squares, and of what is left to the bound."""
        return self.bound.bit_length()

    @property
    def test_bits(self) -> int:
        """Bits of one test's result."""
        return _half_range(self.bound).bit_length()

    @property
    def bits(self) -> int:
        """See :class:`~crypto.preamble.norm.Circuit`."""
        return 2 * self.norm_bits + self.tests * self.test_bits

    def encode(self, payload: Sequence[int], rows: Rows | None) -> Vector:
        """Return the bits of the sum of squares, of the rest, and of each test's result.

        Raises:
            InputError: the payload is too long, or fails a test (less than 2^-100 for a short one).
        """
        assert rows is not None
        half, squares = _half_range(self.bound), sum(x * x for x in payload)
        if len(payload) != self.length or squares > self.bound:
            raise InputError(f"payload: must be {self.length} integers with squares <= {self.bound}")
        results = (rows.astype(np.int64) @ np.array(payload, np.int64)).tolist()
        if any(not -half <= y < half for y in results):
            raise InputError("the payload fails a test that all short ones pass but for a chance of 2^-100; seal again")
        words = [(squares, self.norm_bits), (self.bound - squares, self.norm_bits)]
        words += [(y + half, self.test_bits) for y in results]
        return [word >> i & 1 for word, width in words for i in range(width)]

    def ties(self, x: Vector, bits: Vector, random: Sequence[int], rows: Rows | None, server: int) -> int:
        """See :class:`~crypto.preamble.norm.Circuit`."""
        assert rows is not None
        s, q = random[1], random[2]
        one, wide, width = 1 - server, self.norm_bits, self.test_bits
        square = sum(b << j for j, b in enumerate(bits[:wide]))
        rest = sum(b << j for j, b in enumerate(bits[wide : 2 * wide]))
        tests = bits[2 * wide :]
        words = [sum(tests[i + j] << j for j in range(width)) for i in range(0, len(tests), width)]
        weights = powers(q, self.tests + 1)
        total = -s * square + weights[0] * (square + rest - self.bound * one)
        offset = _half_range(self.bound) * one
        for weight, y, word in zip(weights[1:], products(rows, x), words, strict=True):
            total += weight * (y + offset - word)
        return total % PRIME


def fits(bound: int) -> bool:
    """Return whether Field64 is large enough for the tests at this bound of the sum of squares."""
    half = _half_range(bound)
    return _FIELD_MARGIN * half * half <= PRIME and 3 * bound + 2 < PRIME


def products(rows: Rows, x: Vector) -> Vector:
    """Return ``rows @ x`` modulo p, for field elements x."""
    words: NDArray[np.uint64] = np.array(x, np.uint64)
    wide = rows.astype(np.int64)
    low = (wide @ (words & np.uint64(0xFFFFFFFF)).astype(np.int64)).tolist()
    high = (wide @ (words >> np.uint64(32)).astype(np.int64)).tolist()
    return [(int(a) + (int(b) << 32)) % PRIME for a, b in zip(low, high, strict=True)]


def _half_range(bound: int) -> int:
    """Return W, the least power of two that is at least 8.7 times the bound's root."""
    root = isqrt(bound) + 1
    return 1 << (-(-root * _ALPHA_TENTHS // 10) - 1).bit_length()


__all__ = ["TESTS", "WRAP_NORM_STEPS", "WrapCircuit", "fits", "products"]
