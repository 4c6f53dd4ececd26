"""PrME (DictPFL, section 4.2): which coordinates are sent, decided from the history of opened means alone.

Temporal inactivity pruning: a coordinate is pruned while it was among the smallest share s of the mean update in each
of the last tau rounds. Holistic reactivation: a pruned coordinate is sent all the same with a probability p of its own,
which falls by the factor beta when it then proves small and rises by 1/beta when it does not; a client sends what it
gathered there since it was pruned. All draws come from a counter-based generator under a key that only clients know,
so that every client finds the same coordinates alone, and the server none.

The paper leaves open what the share is taken of, the first p and when p moves; see :class:`PruneOptions`.
"""

import hashlib
import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Population = Literal["all", "transmitted"]
Update = Literal["reactivated", "every_round"]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneOptions:
    """How coordinates are pruned.

    Attributes:
        prune_share: s, share of the coordinates that may count as small in a round, in [0, 1); 0 prunes nothing, ever.
        patience: tau, rounds in a row that a coordinate must be small; at least 1.
        beta: in (0, 1).
        p_init: first reactivation probability; beta if ``None``.
        population: ``all``: the share is of all coordinates, those not sent as 0 (equation 4, literally), so that at
            least 1 - s is always sent; ``transmitted``: of those that were sent, so that pruning compounds.
        hrc_update: p moves for ``reactivated`` coordinates, or at ``every_round`` for all pruned ones.
        noise_floor: mean updates up to this count as small whatever the share says.
        reactivation: False turns reactivation off.
        residual: False drops what a pruned coordinate gathers.
    """

    prune_share: float = 0.7
    patience: int = 3
    beta: float = 0.2
    p_init: float | None = None
    population: Population = "all"
    hrc_update: Update = "reactivated"
    noise_floor: float = 1e-7
    reactivation: bool = True
    residual: bool = True

    def __post_init__(self) -> None:
        if not (0 <= self.prune_share < 1 and self.patience >= 1 and 0 < self.beta < 1):
            raise ValueError(
                f"prune_share {self.prune_share} must lie in [0, 1), patience {self.patience} be at least 1, beta "
                f"{self.beta} lie in (0, 1)"
            )
        if self.p_init is not None and not 0 <= self.p_init <= 1:
            raise ValueError(f"p_init {self.p_init} must lie in [0, 1]: it is a probability")
        if not (math.isfinite(self.noise_floor) and self.noise_floor >= 0):
            raise ValueError(f"noise_floor {self.noise_floor} must be finite and at least 0")


@dataclass(frozen=True)
class Mask:
    """What is sent in a round.

    Attributes:
        active: bool of all coordinates.
        pruned: the history's word, before reactivation.
        index: the active ones, ascending: the order in which they are packed.
    """

    active: Bools
    pruned: Bools

    @property
    def index(self) -> NDArray[np.int64]:
        """See the class."""
        return np.flatnonzero(self.active)


@dataclass(frozen=True)
class History:
    """The replicated state; equal at all clients to the last bit.

    Attributes:
        quiet: uint16, rounds in a row that a coordinate was small, at most `patience`.
        chance: float64, its reactivation probability; remembered while it is not pruned.
    """

    quiet: NDArray[np.uint16]
    chance: Floats

    @classmethod
    def fresh(cls, count: int, options: PruneOptions) -> "History":
        """Return the state before the first round: nothing is pruned until `patience` rounds have been seen."""
        start = options.beta if options.p_init is None else options.p_init
        return cls(np.zeros(count, np.uint16), np.full(count, start))

    def mask(self, options: PruneOptions, secret: bytes, server_round: int) -> Mask:
        """Return what is sent in a round."""
        pruned = self.quiet >= options.patience if options.prune_share > 0 else np.zeros(len(self.quiet), np.bool_)
        drawn = uniforms(secret, server_round, len(self.quiet)) < self.chance
        react = pruned & drawn if options.reactivation else np.zeros_like(pruned)
        return Mask(~pruned | react, pruned)

    def after(self, delta: Floats, mask: Mask, options: PruneOptions) -> "History":
        """Return the state after a round.

        Args:
            delta: mean update, 0 where nothing was sent.
            mask: the round's.
            options: see :class:`PruneOptions`.
        """
        small = small_ones(np.abs(delta), mask.active, options)
        quiet = np.where(small, np.minimum(self.quiet + np.uint16(1), np.uint16(options.patience)), np.uint16(0))
        tried = mask.pruned & mask.active if options.hrc_update == "reactivated" else mask.pruned
        chance = self.chance.copy()
        chance[tried & small] *= options.beta
        chance[tried & ~small] = np.minimum(chance[tried & ~small] / options.beta, 1.0)
        return History(quiet.astype(np.uint16), chance)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the state as named arrays."""
        return {"quiet": self.quiet, "chance": self.chance}


def small_ones(size: Floats, active: Bools, options: PruneOptions) -> Bools:
    """Return which coordinates count as small: under the s-quantile or the noise floor, and all that were not sent.

    The quantile is the value of rank ``floor(s * n)`` from below, so that strictly smaller are at most ``s * n``.
    """
    population = size if options.population == "all" else size[active]
    rank = math.floor(options.prune_share * len(population))
    bound = np.partition(population, rank)[rank] if len(population) else 0.0
    small: Bools = (size < bound) | (size <= options.noise_floor) | ~active
    return small


def uniforms(secret: bytes, server_round: int, count: int) -> Floats:
    """Return `count` numbers in [0, 1) that follow from the clients' secret and the round alone.

    Philox (Salmon et al. 2011) under a key hashed from both; 53 bits of each 64-bit word.
    """
    key = hashlib.sha256(b"fedsim-prune-v1" + secret + server_round.to_bytes(4, "little")).digest()
    words = np.random.Philox(key=np.frombuffer(key[:16], "<u8").astype(np.uint64)).random_raw(count)
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


__all__ = ["History", "Mask", "PruneOptions", "small_ones", "uniforms"]
