"""FedLUAR: layer-wise update aggregation with recycling (Kim, Kang, Lee, NeurIPS 2025, arXiv 2503.11146).

Each round the server names delta layers that nobody sends. For these it applies the update of the last round once more
(eq. 3-5); all others it averages as FedAvg does. Afterwards it scores the layers that were averaged by
||Delta|| / ||x|| (eq. 1; a recycled layer keeps its score) and draws the next delta layers without replacement with
probability proportional to 1/score (eq. 2). Round 1 recycles nothing.

With a server optimiser the paper's code recycles what arrives at the optimiser (`recycle="gradient"`, FedOpt); the
step that it made last can be recycled instead, its state of that layer standing still (`recycle="step"`, FedACG). For
plain averaging and a plain server learning rate the two are one.

A client trains all layers, also those that it does not send: nothing is saved in computation. `downlink="delta"` is not
in the paper, see :mod:`strategies._luar_downlink`.
"""

import logging
from collections.abc import Callable, Collection
from typing import Any, Literal

import numpy as np
from flwr.app import ArrayRecord, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from crypto import Layout
from crypto.packing import cast
from strategies._luar_downlink import Downlink, LuarClient, advance, change
from strategies._luar_layers import Group, Sampler, communication, draw, layer_rng, layers_of, score, trainable
from strategies.base import FederatedStrategy
from strategies.errors import Incompatible
from strategies.fedavg import FedAdam, FedAvgM, Floats, ServerOptimiser, replace
from strategies.fold import Fold
from strategies.nodes import Node
from strategies.outcome import RoundRecord
from strategies.plan import RoundPlan, Weighting
from strategies.records import NamedArrays

log = logging.getLogger(__name__)

Optimiser = Literal["average", "momentum", "adam"]

#: An update made at a learning rate so many times larger or smaller than today's is not applied again.
_RATE_RATIO = 2.0
#: Beyond this share of recycled layers training tends to diverge.
_RISKY_SHARE = 0.75


class FedLUAR(FederatedStrategy):
    """Server half.

    Args:
        delta: number of layers that are recycled in a round, below the model's number of layers; 0 is FedAvg.
        sampler: ``score`` is the paper's; ``uniform``, ``round_robin`` and ``deterministic`` are controls.
        drop: control: the drawn layers stand still instead of being moved by their last update.
        group: ``tensor``: a layer is a kernel, as in the paper; ``module``: a kernel with its bias.
        downlink: ``full``: the whole model goes down, as in the paper; ``delta``: less what clients can make alone.
        max_staleness: a layer is aggregated afresh after so many recycled rounds; ``None`` for no limit, as in the
            paper.
        refresh_on_lr_change: aggregate layers afresh whose update was made at another learning rate, by a factor of
            2 or more; needs `learning_rate`.
        learning_rate: the clients' learning rate by round.
        layer_seed: of the draw of layers; `seed` if ``None``.
        mu: weight of FedProx's proximal term in the clients' loss.
        optimizer: what the server does with the pseudo-gradient: ``average``, ``momentum``, ``adam``.
        server_lr, server_momentum, beta1, beta2, tau: see :mod:`strategies.fedavg`.
        recycle: what is applied again: ``gradient`` or ``step``, see the module's docstring.
        weighting: ``uniform`` as in the paper.
        common: see :class:`~strategies.base.FederatedStrategy`.

    Raises:
        ValueError: an argument is out of range.
        Incompatible: ``downlink="delta"`` with an optimiser whose steps a client cannot repeat.
    """

    name = "fedluar"
    needs_open_model = True

    def __init__(
        self,
        *,
        delta: int = 2,
        sampler: Sampler = "score",
        drop: bool = False,
        group: Group = "tensor",
        downlink: Literal["full", "delta"] = "full",
        max_staleness: int | None = None,
        refresh_on_lr_change: bool = True,
        learning_rate: Callable[[int], float] | None = None,
        layer_seed: int | None = None,
        mu: float = 0.0,
        optimizer: Optimiser = "average",
        server_lr: float = 1.0,
        server_momentum: float = 0.9,
        beta1: float = 0.9,
        beta2: float = 0.99,
        tau: float = 1e-3,
        recycle: Literal["gradient", "step"] = "gradient",
        weighting: Weighting = "uniform",
        **common: Any,
    ) -> None:
        if delta < 0 or not mu >= 0 or (max_staleness is not None and max_staleness < 1):
            raise ValueError(f"delta {delta}, mu {mu} must be at least 0, max_staleness {max_staleness} at least 1")
        super().__init__(weighting=weighting, **common)
        self.delta, self.drop, self.group, self.mu = delta, drop, group, mu
        self.sampler: Sampler = sampler
        self.max_staleness = max_staleness
        self.learning_rate = learning_rate if refresh_on_lr_change else None
        self.layer_seed = self.seed if layer_seed is None else layer_seed
        self.optimizer = _optimizer(optimizer, server_lr, server_momentum, beta1, beta2, tau)
        # Without moments the step of a layer is the same every time: recycling it is recycling its gradient.
        self.recycles_steps = recycle == "step" or optimizer == "average"
        if downlink == "delta" and not self.recycles_steps:
            raise Incompatible(
                f"downlink 'delta' with optimizer '{optimizer}' and recycle 'gradient': a client cannot repeat steps "
                "that depend on the server's moments; use recycle 'step', or downlink 'full'"
            )
        self.down = Downlink(drop) if downlink == "delta" else None
        self.layers: dict[str, tuple[str, ...]] = {}
        self.scores = self.ages = self.uploads = np.zeros(0)
        self.rounds = 0
        self.recycled: tuple[str, ...] = ()
        self._loaded: NDArray[np.generic] | None = None
        self.updates: dict[str, NDArray[np.generic]] = {}
        self._comm, self._stale_share = 1.0, 0.0

    # ----------------------------------------------------------------- the round

    def begin(self, grid: Grid, initial_arrays: ArrayRecord) -> None:
        """See :meth:`~strategies.base.FederatedStrategy.begin`; finds the layers.

        Raises:
            Incompatible: the model has no more than `delta` layers, or a loaded state is of another model.
        """
        super().begin(grid, initial_arrays)
        assert self.state is not None
        self.layers = layers_of(self.state, self.buffers.names, self.group)
        count = len(self.layers)
        if self.delta and self.delta >= count:
            raise Incompatible(
                f"delta {self.delta}: must be below the model's number of layers, {count} ({self.group} of two or more "
                "dimensions); lower strategy.delta or take a deeper model"
            )
        if self.delta > _RISKY_SHARE * count:
            log.warning("delta %d of %d layers: training tends to diverge above 3/4", self.delta, count)
        if not self.rounds:
            self.scores, self.ages, self.uploads = np.full(count, np.nan), np.zeros(count), np.zeros(count)
        if len(self.scores) != count:
            raise Incompatible(f"the loaded state is of {len(self.scores)} layers: the model has {count}; start anew")
        if self._loaded is not None:
            self.recycled = tuple(list(self.layers)[int(i)] for i in self._loaded)
            self._loaded = None

    def travelling(self, layout: Layout, server_round: int) -> Layout:
        """Return the layout without the recycled layers."""
        layout, left_out = super().travelling(layout, server_round), set(self._arrays(self.recycled))
        return layout.only(n for n in layout.names if n not in left_out)

    def extras(self, server_round: int) -> dict[str, int | float | str | bool | bytes]:
        """Tell the clients mu."""
        return {"proximal-mu": self.mu} if self.mu else {}

    def contents(self, content: RecordDict, nodes: list[Node], server_round: int) -> list[RecordDict]:
        """Return each client's message; under ``downlink="delta"`` without what that client can make itself."""
        if self.down is None or self.state is None:
            return super().contents(content, nodes, server_round)
        ages = {n: int(age) for ns, age in zip(self.layers.values(), self.ages, strict=True) for n in ns}
        return self.down.contents(content, self.state, ages, [n.node_id for n in nodes], server_round)

    def answered(self, nodes: Collection[int]) -> None:
        """Note what these clients hold now."""
        if self.down is not None:
            self.down.delivered(nodes)

    def _settle(
        self, fold: Fold, plan: RoundPlan, layout: Layout, record: RoundRecord, grid: Grid | None = None
    ) -> None:
        super()._settle(fold, plan, layout, record, grid)
        record.metrics |= {
            "server_luar_comm": self._comm,
            "server_luar_recycled": float(len(self.recycled)),
            "server_luar_oldest": float(max(self.ages, default=0.0)),
            "server_luar_stale_share": self._stale_share,
        }

    def apply(self, mean: Floats, server_round: int) -> None:
        """Average what came, recycle the rest, score, and draw the next round's layers."""
        if self.state is None:
            raise RuntimeError("begin() must come first")
        before = self.state
        replace(self, self._averaged(mean, before) | self._recycled(before))
        if not self.delta:
            self.rounds += 1
            return
        self._keep(mean, before, self.state)
        self._count(before)
        self.recycled = self._draw(server_round + 1)

    def _averaged(self, mean: Floats, before: NamedArrays) -> Floats:
        if self.optimizer is None:
            return mean
        trained = trainable(before, self.buffers.names)
        return {n: self._step(n, v - _wide(before, n), before) if n in trained else v for n, v in mean.items()}

    def _step(self, name: str, gradient: NDArray[np.float64], before: NamedArrays) -> NDArray[np.float64]:
        step = gradient if self.optimizer is None else self.optimizer.step(name, gradient)
        return _wide(before, name) + step

    def _recycled(self, before: NamedArrays) -> Floats:
        if self.drop:
            return {}
        names = self._arrays(self.recycled)
        if self.recycles_steps:
            return {n: advance(before.arrays[n], self.updates[n]) for n in names}
        return {n: self._step(n, self.updates[n].astype(np.float64), before) for n in names}

    def _keep(self, mean: Floats, before: NamedArrays, after: NamedArrays) -> None:
        """Store the updates and scores of the layers that were averaged."""
        for index, (layer, names) in enumerate(self.layers.items()):
            if layer in self.recycled:
                self.ages[index] += 1
                continue
            self.ages[index] = 0
            self.uploads[index] += 1
            deltas = {n: mean[n] - _wide(before, n) for n in names}
            self.scores[index] = score(list(deltas.values()), [_wide(before, n) for n in names])
            for n, delta in deltas.items():
                old, new = before.arrays[n], after.arrays[n]
                self.updates[n] = change(new, old) if self.recycles_steps else cast(delta, str(old.dtype))

    def _count(self, before: NamedArrays) -> None:
        self.rounds += 1
        sizes = {n: before.arrays[n].nbytes for n in trainable(before, self.buffers.names)}
        counts = {n: int(c) for ns, c in zip(self.layers.values(), self.uploads, strict=True) for n in ns}
        self._comm = communication(sizes, counts, self.rounds)
        squares = {n: float(np.sum(np.square(u, dtype=np.float64))) for n, u in self.updates.items()}
        stale = sum(squares[n] for n in self._arrays(self.recycled))
        self._stale_share = stale / (sum(squares.values()) or 1.0)

    def _draw(self, server_round: int) -> tuple[str, ...]:
        rng = layer_rng(self.layer_seed, server_round)
        chosen = draw(self.scores, self.delta, self.sampler, server_round=server_round, rng=rng)
        names = list(self.layers)
        return tuple(names[i] for i in chosen if self._may_recycle(int(self.ages[i]), server_round))

    def _may_recycle(self, age: int, server_round: int) -> bool:
        """Tell whether an update that was recycled `age` times in a row may be applied once more."""
        if self.max_staleness is not None and age >= self.max_staleness:
            return False
        if self.learning_rate is None:
            return True
        ratio = self.learning_rate(server_round - 1 - age) / self.learning_rate(server_round)
        return 1 / _RATE_RATIO < ratio < _RATE_RATIO

    def _arrays(self, layers: tuple[str, ...]) -> list[str]:
        return [n for layer in layers for n in self.layers[layer]]

    # ----------------------------------------------------------------- checkpoints

    def state_dict(self) -> dict[str, NDArray[np.generic]]:
        """Scores, ages, counts and the next round's layers by index, updates and moments by name.

        The draws follow from seed and round, so no generator is part of it.
        """
        names = list(self.layers)
        own: dict[str, NDArray[np.generic]] = {
            "luar/scores": self.scores.copy(),
            "luar/ages": self.ages.copy(),
            "luar/uploads": self.uploads.copy(),
            "luar/recycled": np.array([names.index(layer) for layer in self.recycled], np.int64),
            "luar/rounds": np.array(self.rounds, np.int64),
        }
        own |= {f"update/{n}": a for n, a in self.updates.items()}
        moments = self.optimizer.state_dict() if self.optimizer is not None else {}
        return own | {f"moment/{k}": a for k, a in moments.items()}

    def load_state_dict(self, state: dict[str, NDArray[np.generic]]) -> None:
        """See :meth:`~strategies.base.FederatedStrategy.load_state_dict`."""
        self.scores, self.ages, self.uploads = (state[f"luar/{k}"].astype(float) for k in ("scores", "ages", "uploads"))
        self.rounds = int(state["luar/rounds"])
        self._loaded = state["luar/recycled"]
        self.updates = {k.removeprefix("update/"): a.copy() for k, a in state.items() if k.startswith("update/")}
        moments = {k.removeprefix("moment/"): a for k, a in state.items() if k.startswith("moment/")}
        if self.optimizer is not None:
            self.optimizer.load_state_dict(moments)


def _optimizer(
    kind: Optimiser, lr: float, momentum: float, beta1: float, beta2: float, tau: float
) -> ServerOptimiser | None:
    """Return what makes steps from pseudo-gradients; ``None`` for FedAvg's own arithmetic."""
    if kind == "adam":
        return FedAdam(server_lr=lr, beta1=beta1, beta2=beta2, tau=tau)
    if kind == "momentum":
        return FedAvgM(server_lr=lr, server_momentum=momentum)
    return None if lr == 1.0 else FedAvgM(server_lr=lr, server_momentum=0.0)


def _wide(state: NamedArrays, name: str) -> NDArray[np.float64]:
    return state.arrays[name].astype(np.float64)


__all__ = ["FedLUAR", "LuarClient"]
