"""What a strategy says of itself: which arrays travel, what is asked of clients, what becomes of their mean."""

import logging
from abc import abstractmethod
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import numpy as np
from flwr.app import RecordDict
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from crypto import Layout
from crypto.base import Plan
from strategies.errors import Incompatible
from strategies.helper_relay import Relay
from strategies.nodes import Node, Participation
from strategies.outcome import RoundRecord
from strategies.plan import BufferRule, Payload, Weighting
from strategies.protection import Plain, Protection
from strategies.records import (
    NamedArrays,
)
from strategies.sealed_state import SealedState

log = logging.getLogger(__name__)


if TYPE_CHECKING:
    from strategies.base import FederatedStrategy


class RoundObserver(Protocol):
    """Whoever wants to know: progress, ledger, checkpoints."""

    def evaluate(self, server_round: int, state: NamedArrays) -> dict[str, float]:
        """Evaluate the global model where the server holds it; metric names without prefix."""
        ...

    def round_done(self, record: RoundRecord, strategy: "FederatedStrategy") -> None:
        """One round was applied and evaluated."""
        ...


class _Nobody:
    def evaluate(self, server_round: int, state: NamedArrays) -> dict[str, float]:
        return {}

    def round_done(self, record: RoundRecord, strategy: "FederatedStrategy") -> None:
        return


class Hooks(Strategy):
    """What a strategy says, and what all are told; arguments as in :class:`~strategies.base.FederatedStrategy`."""

    #: Name on the command line and in plans; the client half of this name is used.
    name: ClassVar[str]
    #: What :meth:`apply` wants the mean of. What clients send may differ: a protection can ask for the change alone,
    #: and the mean is then added to the model before :meth:`apply` sees it.
    payload: ClassVar[Payload] = "weights"
    #: Whether the server must hold the opened model (server optimisers, scores of layers).
    needs_open_model: ClassVar[bool] = False
    #: What to do where the server must hold the opened model and only clients can open it.
    where_sealed: ClassVar[str] = "use fedavg, or a protection that others can open"

    def __init__(
        self,
        *,
        participation: Participation | None = None,
        protection: Protection | None = None,
        weighting: Weighting = "examples",
        buffers: BufferRule | None = None,
        seed: int = 0,
        evaluate_fraction: float = 0.0,
        evaluate_every: int = 1,
        weight_scale: float | None = None,
        chunk: int | None = None,
        clip_norm: float | None = None,
        observer: RoundObserver | None = None,
    ) -> None:
        self.participation = participation or Participation()
        self.protection: Protection = protection or Plain()
        self.weighting: Weighting = weighting
        self.buffers = buffers or BufferRule()
        self.seed = seed
        self.evaluate_fraction = evaluate_fraction
        self.evaluate_every = evaluate_every
        self.weight_scale = weight_scale
        self.chunk = chunk
        self.clip_norm = clip_norm
        self.observer: RoundObserver = observer or _Nobody()
        self.state: NamedArrays | None = None
        self.sealed: SealedState | None = None
        #: The last round whose sum was applied, in part at least.
        self.moved_round = 0
        self._nodes: list[Node] = []
        self._relay: Relay | None = None
        self._secure_plan: Plan | None = None
        if self.needs_open_model and self.protection.opened_by == "clients":
            raise Incompatible(
                f"strategy '{self.name}' with protection '{self.protection.name}': the strategy's server step needs "
                f"the opened sum, which only clients can open; {self.where_sealed}"
            )
        if self.protection.uniform_only and weighting != "uniform":
            raise Incompatible(
                f"weighting '{weighting}' with protection '{self.protection.name}': its guarantee is stated per "
                "client, so every client counts the same; set weighting to uniform"
            )

    @classmethod
    def of(cls, options: Mapping[str, Any], **common: Any) -> Self:
        """Return the half for a strategy's settings; `common` are the arguments that all strategies share."""
        return cls(**options, **common)

    @property
    def sent(self) -> Payload:
        """What clients send: as the protection demands, else as the strategy does."""
        # Where the server sees updates it can check their norm, if it sees changes.
        if self.clip_norm is not None and not self.protection.bounded:
            return "delta"
        return self.protection.payload or self.payload

    # ----------------------------------------------------------------- what a paper says

    def travelling(self, layout: Layout, server_round: int) -> Layout:
        """Return the layout of what clients send back this round; all that the buffer rule lets travel.

        Counters (arrays that are not floats) do not travel under a bounded protection: they outgrow any bound.
        """
        travelling = self.buffers.travelling(layout)
        if not self.protection.bounded:
            return travelling
        return travelling.only(s.name for s in travelling.segments if s.dtype.startswith(("float", "bfloat")))

    def longest(self, layout: Layout) -> Layout:
        """Return the layout of the longest round, for which the secure sum is sized."""
        return Hooks.travelling(self, layout, 0)

    def extras(self, server_round: int) -> dict[str, int | float | str | bool | bytes]:
        """Return the strategy's own scalars for the client half."""
        return {}

    def choose(self, server_round: int) -> list[Node]:
        """Return who is asked in a round, in partition order; sampled unless a strategy knows better."""
        return self.participation.sample(self._nodes, self.seed, server_round)

    def contents(self, content: RecordDict, nodes: list[Node], server_round: int) -> list[RecordDict]:
        """Return each client's message, made from that for all; alike unless a strategy knows better.

        Args:
            content: plan and model; the latter is the one that `server_round` begins with, so that an evaluation after
                round t has t + 1 here.
            nodes: who gets one.
            server_round: see `content`.
        """
        return [content] * len(nodes)

    def answered(self, nodes: Collection[int]) -> None:
        """Take note of the node ids that answered the last messages of :meth:`contents`."""

    @abstractmethod
    def apply(self, mean: dict[str, NDArray[np.float64]], server_round: int) -> None:
        """Update :attr:`state` from the weighted mean of what clients sent, float64 arrays by name."""

    def state_dict(self) -> dict[str, NDArray[np.generic]]:
        """Return the strategy's own state (server momentum, ...) for a checkpoint; the model is not part of it."""
        return {}

    def load_state_dict(self, state: dict[str, NDArray[np.generic]]) -> None:
        """Take the state that :meth:`state_dict` returned."""

    def summary(self) -> None:
        """Log the strategy's settings."""
        log.info(
            "%s over %s: %s weighting, participation %s",
            self.name,
            self.protection.name,
            self.weighting,
            self.participation,
        )


__all__ = ["Hooks", "RoundObserver"]
