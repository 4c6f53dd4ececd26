"""Which blocks a client trains: its capacity, the windows that fit, and the draw among them.

Shen et al., NeurIPS 2025: a client that can train L_i of L blocks gets a window of L_i consecutive ones (eq. 1), drawn
with probability ``softmax(B)`` (eq. 6) over the windows' importance B, the sum of their blocks' (eq. 5). Sums of real
models are about 1e-4, where that softmax is uniform, and would saturate it if they were large; so they are divided by
the blocks' mean first, unless `raw` is asked for.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Selector = Literal["importance", "raw", "random", "round_robin", "uniform", "gradient"]
CapacityKind = Literal["tiers", "memory", "half-normal"]
Floats = NDArray[np.float64]

#: Selectors that need the blocks' importance.
SCORED = frozenset({"importance", "raw"})
_WINDOWS, _CAPACITY = 0x4C454657, 0x4C454643
#: Half-normal budgets lie in [1, 5] (arXiv 2408.15600, its code).
_MOST = 5.0


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """How many blocks each client can train.

    Attributes:
        kind: ``tiers`` cycles through `tiers` by the client's number; ``memory`` takes as many blocks as fit into
            `memory_bytes`, cycled alike; ``half-normal`` draws 1 plus half a standard normal, up to 5.
        tiers: blocks.
        memory_bytes: budgets.
        redraw: half-normal capacities change from round to round; tiers and budgets move on by one client a round.
        seed: of the draws.
    """

    kind: CapacityKind = "tiers"
    tiers: tuple[int, ...] = (1, 1, 2, 2, 3, 6)
    memory_bytes: tuple[float, ...] = ()
    redraw: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.tiers or min(self.tiers) < 1:
            raise ValueError(f"tiers {self.tiers} must be one or more whole numbers of at least 1")
        if self.kind == "memory" and not (self.memory_bytes and min(self.memory_bytes) > 0):
            raise ValueError(f"memory {self.memory_bytes} must be one or more positive budgets")

    def blocks(self, client: int, server_round: int, layers: int, peak_bytes: Callable[[int], float]) -> int:
        """Return L_i, in [1, layers].

        Args:
            client: the client's number.
            server_round: the round.
            layers: blocks of the model.
            peak_bytes: memory that a client needs to train so many blocks.
        """
        at = client + (server_round if self.redraw else 0)
        if self.kind == "memory":
            budget = self.memory_bytes[at % len(self.memory_bytes)]
            fitting = [count for count in range(1, layers + 1) if peak_bytes(count) <= budget]
            return max(fitting, default=1)
        if self.kind == "half-normal":
            rng = np.random.default_rng([self.seed, client, server_round if self.redraw else 0, _CAPACITY])
            drawn = _MOST + 1
            while drawn > _MOST:
                drawn = 1.0 + abs(float(rng.standard_normal()))
            return min(int(drawn + 0.5), layers)
        return min(self.tiers[at % len(self.tiers)], layers)


def window_scores(importance: Floats, length: int) -> Floats:
    """Return B_k for each start k, shape ``(L - length + 1,)``: eq. 5."""
    sums = np.concatenate([[0.0], np.cumsum(importance)])
    return np.asarray(sums[length:] - sums[:-length])


def window_probabilities(
    importance: Floats, length: int, *, raw: bool = False, temperature: float = 1.0, per_layer: bool = False
) -> Floats:
    """Return the probability of each start, shape ``(L - length + 1,)``: eq. 6.

    Args:
        importance: I_l of each block, shape ``(L,)``, finite and not negative.
        length: blocks in a window.
        raw: take the sums as they are, as printed in the paper.
        temperature: divides normalised scores; smaller is sharper.
        per_layer: divide normalised scores by the length, so that large tiers do not sample more sharply.
    """
    scores = window_scores(importance, length)
    if not raw:
        scores = scores / ((float(importance.mean()) or 1.0) * temperature * (length if per_layer else 1))
    weights = np.exp(scores - scores.max())
    return np.asarray(weights / weights.sum())


def draw_start(probabilities: Floats, seed: int, server_round: int, client: int) -> int:
    """Return one window's start; depends on the numbers alone, not on who was drawn for before."""
    return int(_rng(seed, server_round, client).choice(len(probabilities), p=probabilities))


def scattered(layers: int, length: int, seed: int, server_round: int, client: int) -> tuple[int, ...]:
    """Return blocks drawn uniformly, neighbours or not, as LISA does (arXiv 2403.17919)."""
    return tuple(sorted(int(i) for i in _rng(seed, server_round, client).choice(layers, size=length, replace=False)))


def round_robin(layers: int, length: int, server_round: int, client: int) -> int:
    """Return the start that is this client's turn: windows one after the other, clients one apart."""
    return (server_round - 1 + client) % (layers - length + 1)


def _rng(seed: int, server_round: int, client: int) -> np.random.Generator:
    return np.random.default_rng([seed, server_round, client, _WINDOWS])
