"""Public random rotation of a round: spreads a vector evenly, so that no block is much longer than the others.

``R = H diag(signs) P / sqrt(D)``: zero-pad to a power of two D, permute, flip signs, Hadamard transform. The seed is
public and fresh per round; privacy never depends on it, only the share of clipped blocks does. The permutation is
needed: with signs and Hadamard alone a vector supported on one residue modulo the block size keeps uneven blocks.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crypto import _native, prg
from crypto.errors import InputError

SEED_BYTES = prg.SEED_BYTES


@dataclass(frozen=True, slots=True, eq=False)
class Rotation:
    """An orthogonal map from R^length into R^padded and its inverse.

    Attributes:
        signs: shape ``(length,)``, float32, each +1 or -1.
        order: shape ``(length,)``, int64: coordinate i moves to ``order[i]``; distinct, below `padded`.

    Example:
        >>> rotation = Rotation.from_seed(bytes(16), 3)
        >>> bool(np.allclose(rotation.undo(rotation.apply(np.ones(3))), 1))
        True
    """

    signs: NDArray[np.float32]
    order: NDArray[np.int64]

    @classmethod
    def from_seed(cls, seed: bytes, length: int) -> "Rotation":
        """Return the rotation that a 16-byte public seed stands for, the same on every machine.

        Raises:
            InputError: the seed is not 16 bytes or the length not positive.
        """
        if len(seed) != SEED_BYTES or length < 1:
            raise InputError(f"seed of {len(seed)} bytes, length {length}: must be {SEED_BYTES} bytes and at least 1")
        stream = prg.Stream(seed, prg.ROTATION)
        padded = padded_length(length)
        # Sort words whose upper bits are random and whose lower bits are the index: much faster than an argsort,
        # and a tie between random parts (64 - log2 D bits, so rare) has one outcome everywhere.
        index = np.arange(padded, dtype=np.uint64)
        keys = stream.uint64(padded) & ~np.uint64(padded - 1) | index
        keys.sort()
        order = (keys[:length] & np.uint64(padded - 1)).astype(np.int64)
        bits = np.unpackbits(np.frombuffer(stream.bytes(-(-length // 8)), np.uint8), count=length)
        return cls(1 - 2 * bits.astype(np.float32), order)

    @property
    def length(self) -> int:
        """Number of coordinates before the rotation."""
        return self.signs.size

    @property
    def padded(self) -> int:
        """Number of coordinates after it: the next power of two."""
        return padded_length(self.length)

    def apply(self, vector: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return R v, shape ``(padded,)``, in the vector's dtype; the norm is kept."""
        self._check(vector, self.length)
        spread = np.zeros(self.padded, vector.dtype)
        spread[self.order] = vector * self.signs.astype(vector.dtype)
        _native.hadamard(spread)
        return spread

    def undo(self, rotated: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return the transpose of R times a vector of shape ``(padded,)``; inverts :meth:`apply`."""
        self._check(rotated, self.padded)
        return hadamard(rotated)[self.order] * self.signs.astype(rotated.dtype)

    @staticmethod
    def _check(vector: NDArray[np.floating], size: int) -> None:
        if vector.shape != (size,) or vector.dtype.kind != "f":
            raise InputError(f"vector of dtype {vector.dtype}, shape {vector.shape}: must be floats of shape ({size},)")


def padded_length(length: int) -> int:
    """Return the least power of two that is at least `length`."""
    return 1 << (length - 1).bit_length()


def hadamard(vector: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return the orthonormal Walsh-Hadamard transform (natural order) of a vector of 2^p floats; its own inverse.

    The same bits on every machine.

    Raises:
        ValueError: the length is no power of two.
    """
    transformed = np.array(vector, copy=True)
    _native.hadamard(transformed)
    return transformed
