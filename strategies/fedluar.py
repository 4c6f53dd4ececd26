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

from collections.abc import Callable, Collection
from typing import Any, Literal

import numpy as np
from flwr.app import ArrayRecord, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from crypto import Layout
from strategies._luar_downlink import Downlink, LuarClient
from strategies._luar_layers import Group, Sampler
from strategies._luar_state import Optimiser, luar_state
from strategies.base import FederatedStrategy
from strategies.errors import Incompatible
from strategies.fedavg import Floats
from strategies.fold import Fold
from strategies.nodes import Node
from strategies.outcome import RoundRecord
from strategies.plan import RoundPlan, Weighting


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
        server_lr: eta of these, see :mod:`strategies.fedavg`.
        server_momentum: of ``momentum``.
        beta1: decay of ``adam``'s first moment.
        beta2: decay of its second one.
        tau: its degree of adaptivity.
        recycle: what is applied again: ``gradient`` or ``step``, see the module's docstring.
        weighting: ``uniform`` as in the paper.
        common: see :class:`~strategies.base.FederatedStrategy`.

    Raises:
        ValueError: an argument is out of range.
        Incompatible: ``downlink="delta"`` with an optimiser whose steps a client cannot repeat.
    """

    name = "fedluar"
    needs_open_model = True
    where_sealed = (
        "use SealedFedLUAR with SealedLuarClient, whose clients run the step, or a protection that others open"
    )

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
        if not mu >= 0:
            raise ValueError(f"mu {mu} must be at least 0")
        super().__init__(weighting=weighting, **common)
        self.mu = mu
        self.luar = luar_state(
            delta=delta,
            sampler=sampler,
            drop=drop,
            group=group,
            max_staleness=max_staleness,
            refresh_on_lr_change=refresh_on_lr_change,
            learning_rate=learning_rate,
            layer_seed=self.seed if layer_seed is None else layer_seed,
            optimizer=optimizer,
            server_lr=server_lr,
            server_momentum=server_momentum,
            beta1=beta1,
            beta2=beta2,
            tau=tau,
            recycle=recycle,
        )
        if downlink == "delta" and not self.luar.recycles_steps:
            raise Incompatible(
                f"downlink 'delta' with optimizer '{optimizer}' and recycle 'gradient': a client cannot repeat steps "
                "that depend on the server's moments; use recycle 'step', or downlink 'full'"
            )
        self.down = Downlink(drop) if downlink == "delta" else None

    # ----------------------------------------------------------------- the round

    def begin(self, grid: Grid, initial_arrays: ArrayRecord) -> None:
        """See :meth:`~strategies.base.FederatedStrategy.begin`; finds the layers.

        Raises:
            Incompatible: the model has no more than `delta` layers, or a loaded state is of another model.
        """
        super().begin(grid, initial_arrays)
        assert self.state is not None
        self.luar.begin(self.state, self.buffers.names)

    def travelling(self, layout: Layout, server_round: int) -> Layout:
        """Return the layout without the recycled layers."""
        layout, left_out = super().travelling(layout, server_round), self.luar.left_out
        return layout.only(n for n in layout.names if n not in left_out)

    def longest(self, layout: Layout) -> Layout:
        """A round without recycled layers.

        Raises:
            Incompatible: the model has no more than `delta` layers.
        """
        self.luar.fits(layout, self.buffers.names)
        return super().longest(layout)

    def extras(self, server_round: int) -> dict[str, int | float | str | bool | bytes]:
        """Tell the clients mu."""
        return {"proximal-mu": self.mu} if self.mu else {}

    def contents(self, content: RecordDict, nodes: list[Node], server_round: int) -> list[RecordDict]:
        """Return each client's message; under ``downlink="delta"`` without what that client can make itself."""
        if self.down is None or self.state is None:
            return super().contents(content, nodes, server_round)
        return self.down.contents(content, self.state, self.luar.array_ages, [n.node_id for n in nodes], server_round)

    def answered(self, nodes: Collection[int]) -> None:
        """Note what these clients hold now."""
        if self.down is not None:
            self.down.delivered(nodes)

    def _settle(
        self, fold: Fold, plan: RoundPlan, layout: Layout, record: RoundRecord, grid: Grid | None = None
    ) -> None:
        super()._settle(fold, plan, layout, record, grid)
        record.metrics |= self.luar.metrics

    def apply(self, mean: Floats, server_round: int) -> None:
        """Average what came, recycle the rest, score, and draw the next round's layers."""
        if self.state is None:
            raise RuntimeError("begin() must come first")
        self.state = self.luar.step(mean, self.state, server_round)

    def state_dict(self) -> dict[str, NDArray[np.generic]]:
        """See :meth:`~strategies.base.FederatedStrategy.state_dict`."""
        return self.luar.state_dict()

    def load_state_dict(self, state: dict[str, NDArray[np.generic]]) -> None:
        """See :meth:`~strategies.base.FederatedStrategy.load_state_dict`."""
        self.luar.load_state_dict(state)


__all__ = ["FedLUAR", "LuarClient"]
