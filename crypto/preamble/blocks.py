"""From a dense vector to k blocks: sampling, clipping and rounding, in the k-wise 1-sparse form.

The padded vector is cut into blocks of B coordinates and the blocks into k groups of t consecutive ones. A client sends
one block of each group, chosen uniformly by its private coins, scaled by t: an unbiased estimate of its vector with
variance ``(t - 1) ||v||^2``. Privacy rests on one fact, which holds for any input: **a sent block, rounded to integers,
has squared norm at most** ``floor((2^f s)^2)``, where ``s = t L`` and ``L = c C sqrt(B / D)`` (the expected length of a
block of a rotated vector of norm C, times the clip factor c).

The default sampler of arXiv 2503.11897 ("k-wise 1-sparse"); rounding after arXiv 2102.06387, section 4.
"""

import os
from dataclasses import dataclass
from math import floor, isfinite, sqrt

import numpy as np
from numpy.typing import NDArray

from crypto.errors import BudgetExceeded, InputError
from crypto.fixed_point import FixedPoint, RandomBytes
from crypto.preamble.rotation import Rotation, padded_length

# Squared norms of integer blocks must be exact in int64, rounding's surplus included.
_MAX_BLOCK_BITS = 31
# Shrinking by sqrt(B) steps before rounding keeps the bound without a redraw; done where it costs less than this.
_SHRINK_SHARE = 1e-3
# A redraw succeeds with probability at least 1 - exp(-1/2); after this many, round toward zero, which always fits.
_REDRAWS = 64
_LEAST_NOISE_STEPS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockShape:
    """How a vector is cut: public, the same for all clients and servers of a round.

    Attributes:
        length: coordinates of the vector.
        block_size: coordinates of a block, B.
        groups: blocks that a client sends, k; one of each group.
        rotated: the vector is rotated (and padded to a power of two) first.
    """

    length: int
    block_size: int
    groups: int
    rotated: bool = True

    def __post_init__(self) -> None:
        if min(self.length, self.block_size, self.groups) < 1:
            raise InputError(f"{self}: length, block size and groups must be at least 1")

    @property
    def spread_length(self) -> int:
        """Coordinates over which a vector's energy is spread, D: after the rotation, before padding to whole groups."""
        return padded_length(self.length) if self.rotated else self.length

    @property
    def payload_length(self) -> int:
        """Coordinates that a client sends, ``k B``."""
        return self.groups * self.block_size

    @property
    def blocks_per_group(self) -> int:
        """Blocks of a group, t; also the factor by which a sent block is scaled."""
        return -(-self.spread_length // self.payload_length)

    @property
    def padded_length(self) -> int:
        """Coordinates of the aggregate, ``k t B``."""
        return self.payload_length * self.blocks_per_group


@dataclass(frozen=True, slots=True)
class Selection:
    """What one client sends. Secret: the indices must never leave the client in the clear.

    Attributes:
        indices: chosen block of each group, shape ``(k,)``, int64 in ``[0, t)``.
        payload: the blocks as integers, shape ``(k, B)``, int64.
        clipped: number of sent blocks that were shortened to the bound L.
    """

    indices: NDArray[np.int64]
    payload: NDArray[np.int64]
    clipped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampler:
    """A client's way from a float vector to integer blocks, and the way back for the sum.

    Attributes:
        shape: the cut.
        fraction_bits: f; a sent value x becomes an integer near ``2^f x``.
        norm_bound: C; vectors longer than C are scaled down to it, shorter ones are left alone.
        clip_factor: c; the noise must be computed with the same.
        rotation: the round's rotation; ``None`` iff the shape is not rotated.
    """

    shape: BlockShape
    fraction_bits: int
    norm_bound: float = 1.0
    clip_factor: float = 1.0
    rotation: Rotation | None = None

    def __post_init__(self) -> None:
        for name, value in (("norm bound", self.norm_bound), ("clip factor", self.clip_factor)):
            if not (isfinite(value) and value > 0):
                raise InputError(f"{name} {value} must be finite and positive")
        if (self.rotation is not None) != self.shape.rotated or (
            self.rotation is not None and self.rotation.length != self.shape.length
        ):
            raise InputError(
                f"rotation of {self.rotation.length if self.rotation else 'no'} coordinates for {self.shape}: give the "
                "round's rotation exactly where the shape is rotated"
            )
        if self.integer_bound > 2.0**_MAX_BLOCK_BITS:
            raise BudgetExceeded(
                f"{self.fraction_bits} fraction bits put a block's norm at {self.integer_bound:.3g}: squares are exact "
                f"up to 2^{_MAX_BLOCK_BITS}; use fewer fraction bits"
            )
        if self._rounding_limit() <= 0:
            raise BudgetExceeded(
                f"{self.fraction_bits} fraction bits put a block's norm at {self.integer_bound:.3g} steps, less than "
                f"rounding {self.shape.block_size} coordinates may add; use more fraction bits"
            )

    @property
    def block_bound(self) -> float:
        """L: an unscaled block is clipped to this norm."""
        return self.clip_factor * self.norm_bound * sqrt(self.shape.block_size / self.shape.spread_length)

    @property
    def sensitivity(self) -> float:
        """s = t L: the norm that no sent block exceeds; the noise is ``r s`` for the accountant's r."""
        return self.shape.blocks_per_group * self.block_bound

    @property
    def integer_bound(self) -> float:
        """2^f s; the sensitivity in integer steps."""
        return self.sensitivity * 2.0**self.fraction_bits

    @property
    def squared_bound(self) -> int:
        """``floor((2^f s)^2)``: no emitted integer block has a larger squared norm."""
        return floor(self.integer_bound**2)

    def select(self, vector: NDArray[np.floating], random_bytes: RandomBytes = os.urandom) -> Selection:
        """Choose, clip, scale and round one client's blocks.

        Args:
            vector: shape ``(length,)``, floats; not modified.
            random_bytes: the client's private coins, fresh per report; the operating system's by default. Never
                derive them from a nonce or a public seed: hiding the choice is what amplifies privacy.

        Raises:
            InputError: a value is not finite, or the shape differs.
        """
        shape = self.shape
        blocks = self._blocks(vector)
        indices = uniform_indices(shape.groups, shape.blocks_per_group, random_bytes)
        return self._emit(blocks[np.arange(shape.groups), indices], indices, random_bytes)

    def _blocks(self, vector: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return the clipped, rotated, padded vector, shape ``(k, t, B)``."""
        shape = self.shape
        if vector.shape != (shape.length,) or vector.dtype.kind != "f":
            raise InputError(f"vector of dtype {vector.dtype}, shape {vector.shape}: must be floats ({shape.length},)")
        bad = np.flatnonzero(~np.isfinite(vector))
        if bad.size:
            raise InputError(f"coordinate {bad[0]} is {vector[bad[0]]} ({bad.size} such values): values must be finite")
        spread = vector.astype(np.float64)
        largest = float(np.abs(spread).max())
        # In units of the largest entry, so that squares neither overflow nor vanish.
        unit = spread / (largest or 1.0)
        norm = sqrt(float(np.einsum("i,i->", unit, unit)))
        if norm * largest > self.norm_bound:
            spread *= self.norm_bound / norm / largest
        if self.rotation is not None:
            spread = self.rotation.apply(spread).astype(np.float64, copy=False)
        padded = np.pad(spread, (0, shape.padded_length - spread.size))
        return padded.reshape(shape.groups, shape.blocks_per_group, shape.block_size)

    def _emit(self, blocks: NDArray[np.float64], indices: NDArray[np.int64], random_bytes: RandomBytes) -> Selection:
        """Clip blocks of shape ``(k, B)`` to L, scale by t and round within the integer bound."""
        clipped, count = clip_rows(blocks, self.block_bound)
        limit = self._rounding_limit() * 2.0**-self.fraction_bits
        scaled = clip_rows(clipped * self.shape.blocks_per_group, limit)[0]
        return Selection(indices, self._round(scaled, random_bytes), count)

    def _rounding_limit(self) -> float:
        """Return the norm, in steps, to which blocks are cut before they are rounded.

        Unconditional rounding moves a block by less than sqrt(B), so ``2^f s - sqrt(B)`` always fits. Where that
        would cost much, the larger a with ``a^2 + B/4 + a + sqrt(B)/2 = (2^f s)^2`` is used and rounding is redrawn
        until it fits, which one draw does with probability at least ``1 - exp(-1/2)`` (arXiv 2102.06387, Prop. 22).
        """
        bound, root = self.integer_bound, sqrt(self.shape.block_size)
        if root <= _SHRINK_SHARE * bound:
            return bound - root
        room = bound**2 - root**2 / 4 - root / 2 + 0.25
        return sqrt(room) - 0.5 if room > 0.25 else 0.0

    def _round(self, blocks: NDArray[np.float64], random_bytes: RandomBytes) -> NDArray[np.int64]:
        codec = FixedPoint(bound=self.sensitivity, fraction_bits=self.fraction_bits)
        out = np.trunc(blocks * 2.0**self.fraction_bits).astype(np.int64)
        open_rows = np.arange(blocks.shape[0])
        for _ in range(_REDRAWS):
            words = np.frombuffer(random_bytes(4 * open_rows.size * blocks.shape[1]), "<u4")
            drawn = codec.encode_with(blocks[open_rows].reshape(-1), words).values.reshape(open_rows.size, -1)
            fits = np.einsum("kb,kb->k", drawn, drawn) <= self.squared_bound
            out[open_rows[fits]] = drawn[fits]
            open_rows = open_rows[~fits]
            if not open_rows.size:
                break
        return out

    def scatter(self, selection: Selection, total: NDArray[np.int64]) -> None:
        """Add a selection in place to a dense sum of shape ``(padded_length,)``: what both servers do together."""
        shape = self.shape
        view = total.reshape(shape.groups, shape.blocks_per_group, shape.block_size)
        view[np.arange(shape.groups), selection.indices] += selection.payload

    def decode(self, total: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the float sum, shape ``(length,)``, of an integer total of shape ``(padded_length,)``."""
        if total.shape != (self.shape.padded_length,):
            raise InputError(f"total of shape {total.shape}: this round's is ({self.shape.padded_length},)")
        spread = total[: self.shape.spread_length].astype(np.float64) * 2.0**-self.fraction_bits
        return spread if self.rotation is None else self.rotation.undo(spread).astype(np.float64, copy=False)


def check_capacity(sampler: Sampler, *, clients: int, sigma: float, ring_bits: int, parties: int = 2) -> None:
    """Prove that a noisy sum cannot wrap and that its noise is fine enough.

    The first is ``n 2^f s + 8 sqrt(parties) 2^f sigma < 2^(ring_bits - 1)``. The second, ``2^f sigma >= 10``, makes the
    discrete Gaussian as good as the continuous one that accounting assumes, up to ``exp(-2 pi^2 100)``.

    Args:
        sampler: gives 2^f and s.
        clients: n, the largest cohort.
        sigma: standard deviation of one party's noise, in the units of the vector.
        ring_bits: the group's bits, rounded down (32, 64; 63 for Field64).
        parties: independent noises in the release. Eight standard deviations leave 1e-15 a coordinate.

    Raises:
        BudgetExceeded: one of them fails. Wrapping would spoil the sum, never privacy.
    """
    scale = 2.0**sampler.fraction_bits
    if 0 < scale * sigma < _LEAST_NOISE_STEPS:
        raise BudgetExceeded(
            f"noise of {scale * sigma:.3g} steps at {sampler.fraction_bits} fraction bits: must be at least "
            f"{_LEAST_NOISE_STEPS}, for accounting assumes continuous noise; use more fraction bits"
        )
    needed = clients * scale * sampler.sensitivity + 8 * sqrt(parties) * scale * sigma
    if needed >= 2.0 ** (ring_bits - 1):
        raise BudgetExceeded(
            f"a sum of {clients} clients at {sampler.fraction_bits} fraction bits reaches {needed:.3g}, but a "
            f"{ring_bits}-bit ring holds {2.0 ** (ring_bits - 1):.3g}; use fewer fraction bits or a wider ring"
        )


def uniform_indices(count: int, bound: int, random_bytes: RandomBytes) -> NDArray[np.int64]:
    """Return `count` exactly uniform integers in ``[0, bound)``, bound at most 2^63, by masking and rejection."""
    mask = np.uint64((1 << (bound - 1).bit_length()) - 1)
    accepted = np.empty(0, np.uint64)
    while accepted.size < count:
        words = np.frombuffer(random_bytes(8 * (count - accepted.size)), "<u8") & mask
        accepted = np.concatenate([accepted, words[words < np.uint64(bound)]])
    return accepted.astype(np.int64)


def clip_rows(rows: NDArray[np.float64], limit: float) -> tuple[NDArray[np.float64], int]:
    """Return rows scaled down to norm `limit` where longer, and how many were; huge and tiny values are fine."""
    largest = np.abs(rows).max(axis=1, initial=0.0)
    unit = np.where(largest > 0, largest, 1.0)
    ratio = rows / unit[:, None]
    length = np.sqrt(np.einsum("kb,kb->k", ratio, ratio))
    # Compare in units of the largest entry: the norm itself may overflow.
    with np.errstate(over="ignore"):
        too_long = length > limit / unit
    scaled = ratio * np.where(too_long, limit / np.maximum(length, 1.0), 1.0)[:, None]
    return np.where(too_long[:, None], scaled, rows), int(np.count_nonzero(too_long))
