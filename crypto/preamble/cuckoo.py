"""k blocks anywhere: cuckoo placement over the k-wise 1-sparse form (the paper's O(D) route; batch codes).

A round's public seed gives every block three places, each a position in one of M bins. A client puts each of its k
blocks in a bin of its own, so that its vector has at most one non-zero block in each bin: a
:class:`~crypto.preamble.dpf.Shape` of M groups of ``bin_blocks`` blocks, with the same kernels, proofs and wire format.
The servers add bins; whoever opens the total sums the three places of each block once. Three times the PRG work and
about M / k times the upload of the k-wise form, for a choice of blocks without groups.

Bins that stay empty carry zeros at a random position. A set of blocks that does not fit is drawn again, silently: the
law of the choice moves by at most the failure probability, which belongs into delta.
"""

from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from crypto.errors import InputError
from crypto.fixed_point import RandomBytes
from crypto.preamble.blocks import uniform_indices
from crypto.preamble.dpf import Group, Shape, Words, add_words
from crypto.prg import Stream

PLACES = 3
CUCKOO = b"cuckoo/1"
_DRAWS = 64


@dataclass(frozen=True, slots=True)
class Cuckoo:
    """Where blocks may stand.

    Attributes:
        places: shape ``(blocks, 3)``, int64: place y is position ``y % bin_blocks`` of bin ``y // bin_blocks``; all
            places are distinct.
        bins: M.
        bin_blocks: positions of a bin.
    """

    places: NDArray[np.int64]
    bins: int
    bin_blocks: int

    @classmethod
    def from_seed(cls, seed: bytes, blocks: int, bins: int) -> "Cuckoo":
        """Return the places that a 16-byte public seed stands for: a permutation of ``3 * blocks``.

        Raises:
            InputError: the seed is not 16 bytes, or blocks or bins are not positive.
        """
        if blocks < 1 or bins < 1:
            raise InputError(f"{blocks} blocks, {bins} bins: both must be at least 1")
        keys = Stream(seed, CUCKOO).uint64(PLACES * blocks)
        order = np.argsort(keys, kind="stable").reshape(blocks, PLACES)
        return cls(order, bins, ceil(PLACES * blocks / bins))

    def shape(self, group: Group, length: int) -> Shape:
        """Return the block-sparse shape of one client's bins."""
        return Shape(group=group, groups=self.bins, blocks=self.bin_blocks, length=length)

    def place(self, chosen: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Return a place for each chosen block, all in different bins, or None where there is none.

        Augmenting paths find a placement whenever one exists. Time depends on the secret choice: client side only.

        Args:
            chosen: distinct block indices, shape ``(k,)``.
        """
        options = self.places[chosen].tolist()
        owner: dict[int, int] = {}
        held: list[int] = [-1] * len(options)
        for start in range(len(options)):
            if not self._augment(start, options, owner, held):
                return None
        return np.array(held, np.int64)

    def _augment(self, start: int, options: list[list[int]], owner: dict[int, int], held: list[int]) -> bool:
        """Breadth-first search for a free bin; moves the owners along the path."""
        came: dict[int, tuple[int, int]] = {}
        queue = [start]
        for block in queue:
            for y in options[block]:
                taken = y // self.bin_blocks
                if taken in came:
                    continue
                came[taken] = (block, y)
                if taken in owner:
                    queue.append(owner[taken])
                    continue
                self._move(taken, start, came, owner, held)
                return True
        return False

    def _move(
        self, free: int, start: int, came: dict[int, tuple[int, int]], owner: dict[int, int], held: list[int]
    ) -> None:
        while True:
            block, y = came[free]
            left = held[block] // self.bin_blocks if held[block] >= 0 else -1
            owner[free], held[block] = block, y
            if block == start:
                return
            free = left

    def draw(self, count: int, random_bytes: RandomBytes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return a uniform set of `count` blocks that fits, and a place for each.

        Raises:
            InputError: more blocks than there are bins or blocks, or no set fits in 64 draws.
        """
        blocks = self.places.shape[0]
        if not 1 <= count <= min(blocks, self.bins):
            raise InputError(f"{count} of {blocks} blocks in {self.bins} bins: must be at least 1 and fit both")
        for _ in range(_DRAWS):
            chosen = uniform_subset(blocks, count, random_bytes)
            places = self.place(chosen)
            if places is not None:
                return chosen, places
        raise InputError(f"no {count} blocks fit {self.bins} bins in {_DRAWS} draws: use about 1.5 bins a block")

    def fill(
        self, places: NDArray[np.int64], payload: Words, random_bytes: RandomBytes
    ) -> tuple[NDArray[np.uint32], Words]:
        """Return position and content of every bin, as :func:`crypto.preamble.dpf.shard` takes them.

        Args:
            places: what :meth:`place` found for each block.
            payload: the blocks in the same order, shape ``(k, B)``.
        """
        indices = uniform_indices(self.bins, self.bin_blocks, random_bytes).astype(np.uint32)
        content = np.zeros((self.bins, payload.shape[1]), payload.dtype)
        indices[places // self.bin_blocks] = places % self.bin_blocks
        content[places // self.bin_blocks] = payload
        return indices, content

    def gather(self, group: Group, total: Words) -> Words:
        """Return the sum by block, shape ``(blocks, B)``, of an opened total of shape ``(M, bin_blocks, B)``."""
        flat = total.reshape(self.bins * self.bin_blocks, -1)
        first, second, third = (flat[self.places[:, i]] for i in range(PLACES))
        return add_words(group, add_words(group, first, second), third)


def uniform_subset(size: int, count: int, random_bytes: RandomBytes) -> NDArray[np.int64]:
    """Return `count` distinct uniform integers below `size`, in the order of drawing (Floyd's method)."""
    chosen: dict[int, None] = {}
    for top in range(size - count, size):
        drawn = int(uniform_indices(1, top + 1, random_bytes)[0])
        chosen[top if drawn in chosen else drawn] = None
    return np.array(list(chosen), np.int64)
