"""FedLUAR's state and its step, on whoever reads the mean of a round: the server, or every client alike."""

import logging
from collections.abc import Callable, Collection
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from crypto.packing import Layout, cast
from strategies._luar_layers import Group, Sampler, communication, draw, layer_rng, layers_of, score, trainable
from strategies.errors import Incompatible
from strategies.fedavg import FedAdam, FedAvgM, Floats, ServerOptimiser, with_values
from strategies.records import NamedArrays

log = logging.getLogger(__name__)

Optimiser = Literal["average", "momentum", "adam"]

#: An update made at a learning rate so many times larger or smaller than today's is not applied again.
_RATE_RATIO = 2.0
#: Beyond this share of recycled layers training tends to diverge.
_RISKY_SHARE = 0.75


def change(new: NDArray[np.generic], old: NDArray[np.generic]) -> NDArray[np.generic]:
    """Return ``new - old``, formed in float64 and kept in the arrays' dtype: the update that is re-applied."""
    return cast(new.astype(np.float64) - old.astype(np.float64), str(new.dtype))


def advance(old: NDArray[np.generic], update: NDArray[np.generic]) -> NDArray[np.float64]:
    """Return ``old + update`` in float64; cast to the array's dtype it is the recycled step on either side."""
    return old.astype(np.float64) + update.astype(np.float64)


class LuarState:
    """Scores, ages, last updates and the layers that the next round recycles.

    Args:
        delta, sampler, drop, group, max_staleness, recycle: see :class:`~strategies.fedluar.FedLUAR`.
        learning_rate: the clients' by round, where its changes count; ``None`` where they do not.
        layer_seed: of the draw.
        optimizer: makes steps from pseudo-gradients; ``None`` for FedAvg's own arithmetic.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        *,
        delta: int,
        sampler: Sampler = "score",
        drop: bool = False,
        group: Group = "tensor",
        max_staleness: int | None = None,
        learning_rate: Callable[[int], float] | None = None,
        layer_seed: int = 0,
        optimizer: ServerOptimiser | None = None,
        recycle: Literal["gradient", "step"] = "gradient",
    ) -> None:
        if delta < 0 or (max_staleness is not None and max_staleness < 1):
            raise ValueError(f"delta {delta} must be at least 0, max_staleness {max_staleness} at least 1")
        self.delta, self.drop, self.group = delta, drop, group
        self.sampler: Sampler = sampler
        self.max_staleness, self.learning_rate, self.layer_seed = max_staleness, learning_rate, layer_seed
        self.optimizer = optimizer
        # Without moments the step of a layer is the same every time: recycling it is recycling its gradient.
        self.recycles_steps = recycle == "step" or not moments_of(optimizer)
        self.layers: dict[str, tuple[str, ...]] = {}
        self.scores = self.ages = self.uploads = np.zeros(0)
        self.rounds = 0
        self.recycled: tuple[str, ...] = ()
        self.updates: dict[str, NDArray[np.generic]] = {}
        self.comm, self.stale_share = 1.0, 0.0
        self._buffers: frozenset[str] = frozenset()
        self._loaded: NDArray[np.generic] | None = None

    def begin(self, state: NamedArrays, buffers: Collection[str], *, warn: bool = True) -> None:
        """Find the layers of a model, and warn where training tends to diverge, unless somebody else does.

        Raises:
            Incompatible: the model has no more than `delta` layers, or a loaded state is of another model.
        """
        self._buffers = frozenset(buffers)
        self.layers = self._enough(state)
        count = len(self.layers)
        if warn and self.delta > _RISKY_SHARE * count:
            log.warning("delta %d of %d layers: training tends to diverge above 3/4", self.delta, count)
        if not self.rounds:
            self.scores, self.ages, self.uploads = np.full(count, np.nan), np.zeros(count), np.zeros(count)
        if len(self.scores) != count:
            raise Incompatible(f"the loaded state is of {len(self.scores)} layers: the model has {count}; start anew")
        if self._loaded is not None:
            self.recycled = tuple(list(self.layers)[int(i)] for i in self._loaded)
            self._loaded = None

    def fits(self, layout: Layout, buffers: Collection[str]) -> None:
        """Look at a model's shapes alone, before a run is begun.

        Raises:
            Incompatible: the model has no more than `delta` layers.
        """
        self._buffers = frozenset(buffers)
        floats = [s for s in layout.segments if s.dtype.startswith(("float", "bfloat"))]
        self._enough(NamedArrays({s.name: np.broadcast_to(np.float32(0), s.shape) for s in floats}))

    def _enough(self, state: NamedArrays) -> dict[str, tuple[str, ...]]:
        layers = layers_of(state, self._buffers, self.group)
        if self.delta and self.delta >= len(layers):
            raise Incompatible(
                f"delta {self.delta}: must be below the model's number of layers, {len(layers)} ({self.group} of two "
                "or more dimensions); lower strategy.delta or take a deeper model"
            )
        return layers

    @property
    def left_out(self) -> frozenset[str]:
        """Arrays that do not travel in the next round."""
        return frozenset(self._arrays(self.recycled))

    @property
    def array_ages(self) -> dict[str, int]:
        """For each array that may be recycled, in how many rounds running up to now it was."""
        return {n: int(age) for ns, age in zip(self.layers.values(), self.ages, strict=True) for n in ns}

    @property
    def metrics(self) -> dict[str, float]:
        """What a round's record says: Comm so far, layers recycled next, the oldest update, its share of the energy."""
        return {
            "server_luar_comm": self.comm,
            "server_luar_recycled": float(len(self.recycled)),
            "server_luar_oldest": float(max(self.ages, default=0.0)),
            "server_luar_stale_share": self.stale_share,
        }

    def step(self, mean: Floats, before: NamedArrays, server_round: int) -> NamedArrays:
        """Average what came, recycle the rest, score, and draw the next round's layers.

        Args:
            mean: mean weights of what travelled.
            before: the model at the start of the round; not modified.
            server_round: the round.

        Returns:
            The model after it.
        """
        after = with_values(before, self._averaged(mean, before) | self._recycled(before))
        self.rounds += 1
        if self.delta:
            self._keep(mean, before, after)
            self._count(before)
            self.recycled = self.draw(server_round + 1)
        return after

    def _averaged(self, mean: Floats, before: NamedArrays) -> Floats:
        if self.optimizer is None:
            return mean
        trained = trainable(before, self._buffers)
        return {n: self._stepped(n, v - _wide(before, n), before) if n in trained else v for n, v in mean.items()}

    def _stepped(self, name: str, gradient: NDArray[np.float64], before: NamedArrays) -> NDArray[np.float64]:
        step = gradient if self.optimizer is None else self.optimizer.step(name, gradient)
        return _wide(before, name) + step

    def _recycled(self, before: NamedArrays) -> Floats:
        if self.drop:
            return {}
        names = self._arrays(self.recycled)
        if self.recycles_steps:
            return {n: advance(before.arrays[n], self.updates[n]) for n in names}
        return {n: self._stepped(n, self.updates[n].astype(np.float64), before) for n in names}

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
        sizes = {n: before.arrays[n].nbytes for n in trainable(before, self._buffers)}
        counts = {n: int(c) for ns, c in zip(self.layers.values(), self.uploads, strict=True) for n in ns}
        self.comm = communication(sizes, counts, self.rounds)
        squares = {n: float(np.sum(np.square(u, dtype=np.float64))) for n, u in self.updates.items()}
        stale = sum(squares[n] for n in self._arrays(self.recycled))
        self.stale_share = stale / (sum(squares.values()) or 1.0)

    def draw(self, server_round: int) -> tuple[str, ...]:
        """Return the layers that a round recycles; it follows from scores, seed and round."""
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
        """Take what :meth:`state_dict` returned; :meth:`begin` comes after it."""
        self.scores, self.ages, self.uploads = (state[f"luar/{k}"].astype(float) for k in ("scores", "ages", "uploads"))
        self.rounds = int(state["luar/rounds"])
        self._loaded = state["luar/recycled"]
        self.updates = {k.removeprefix("update/"): a.copy() for k, a in state.items() if k.startswith("update/")}
        moments = {k.removeprefix("moment/"): a for k, a in state.items() if k.startswith("moment/")}
        if self.optimizer is not None:
            self.optimizer.load_state_dict(moments)


def luar_state(
    *,
    delta: int = 2,
    sampler: Sampler = "score",
    drop: bool = False,
    group: Group = "tensor",
    max_staleness: int | None = None,
    refresh_on_lr_change: bool = True,
    learning_rate: Callable[[int], float] | None = None,
    layer_seed: int | None = None,
    optimizer: Optimiser = "average",
    server_lr: float = 1.0,
    server_momentum: float = 0.9,
    beta1: float = 0.9,
    beta2: float = 0.99,
    tau: float = 1e-3,
    recycle: Literal["gradient", "step"] = "gradient",
) -> LuarState:
    """Return the method's state for options as :class:`~strategies.fedluar.FedLUAR` takes them."""
    return LuarState(
        delta=delta,
        sampler=sampler,
        drop=drop,
        group=group,
        max_staleness=max_staleness,
        learning_rate=learning_rate if refresh_on_lr_change else None,
        layer_seed=layer_seed or 0,
        optimizer=_optimiser(optimizer, server_lr, server_momentum, beta1, beta2, tau),
        recycle=recycle,
    )


def _optimiser(
    kind: Optimiser, lr: float, momentum: float, beta1: float, beta2: float, tau: float
) -> ServerOptimiser | None:
    """Return what makes steps from pseudo-gradients; ``None`` for FedAvg's own arithmetic."""
    if kind == "adam":
        return FedAdam(server_lr=lr, beta1=beta1, beta2=beta2, tau=tau)
    if kind == "momentum":
        return FedAvgM(server_lr=lr, server_momentum=momentum)
    return None if lr == 1.0 else FedAvgM(server_lr=lr, server_momentum=0.0)


def moments_of(optimizer: ServerOptimiser | None) -> bool:
    """Tell whether an optimiser's steps depend on earlier ones."""
    return optimizer is not None and not (isinstance(optimizer, FedAvgM) and optimizer.server_momentum == 0.0)


def _wide(state: NamedArrays, name: str) -> NDArray[np.float64]:
    return state.arrays[name].astype(np.float64)
