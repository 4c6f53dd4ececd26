"""What all strategies share on the server: layout -> seal -> sum -> apply.

A strategy is a Flower `Strategy` that owns its round loop: it streams replies into a running sealed total, so that
memory is O(model) however many clients take part. Subclasses say which arrays travel and what to do with their mean.
"""

import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Protocol

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import NDArray

from crypto import Layout
from crypto.base import Plan, Tag
from strategies import committee
from strategies.clipping import CLIP_NORM, NormLimit
from strategies.errors import Incompatible
from strategies.fold import Fold, WorkerFold, delivered
from strategies.helper_relay import Relay
from strategies.nodes import Node, Participation, discover
from strategies.outcome import RoundRecord, logical_bytes, mean_arrays, means
from strategies.plan import BufferRule, Payload, RoundPlan, Weighting
from strategies.protection import Plain, Protection
from strategies.records import (
    NamedArrays,
    array_record,
    model_record,
    read_model,
    sealed_record,
    wire_bytes,
)
from strategies.rounds import chunk_size, chunked, in_order, stream
from strategies.sealed_state import SealedState

log = logging.getLogger(__name__)


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


class FederatedStrategy(Strategy):
    """Server half of a strategy.

    Args:
        participation: who takes part.
        protection: the secure sum.
        weighting: ``examples`` weights clients by their number of samples, ``uniform`` alike.
        buffers: rule for untrained state.
        seed: of the sampling.
        evaluate_fraction: share of the nodes that evaluates the global model after each round; 0 for none.
        evaluate_every: rounds between evaluations; the last round is always evaluated.
        weight_scale: divides numbers of examples; ``None`` asks the clients for theirs where a bound needs it.
        chunk: clients whose vectors are summed as one, see :mod:`strategies.rounds`; ``None`` chooses by their number.
        clip_norm: bound of a client's change, see :mod:`strategies.clipping`; ``None`` for none.
        observer: see :class:`RoundObserver`.

    Raises:
        Incompatible: the strategy needs the opened model on the server and the protection keeps it from there, or the
            protection counts all clients alike and the weighting does not.
    """

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
    def of(cls, options: Mapping[str, Any], **common: Any) -> "FederatedStrategy":
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
        return FederatedStrategy.travelling(self, layout, 0)

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

    # ----------------------------------------------------------------- the round loop

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
        first_round: int = 1,
        sealed: SealedState | None = None,
        history: bool = True,
    ) -> Result:
        """Run the federation.

        Args:
            grid: any Flower grid.
            initial_arrays: the model of round 0, an ordinary record or :func:`~strategies.records.model_record`.
            num_rounds: last round.
            timeout: a round's time limit in seconds where the participation sets none.
            train_config: scalars for the client app, sent with each plan.
            evaluate_config: the same for evaluation.
            evaluate_fn: Flower's server-side evaluation; not called while only clients can open the model.
            first_round: 1, or one past a checkpoint's round.
            sealed: a checkpoint's sealed total, where only clients can open the model.
            history: whether the result has each round's metrics; an observer who writes them down needs no second copy,
                which grows with the rounds.

        Returns:
            Flower's `Result`; its `arrays` are empty while only clients can open the model.

        Raises:
            TooFewReplies, EmptyRound: a round failed; :attr:`state` is that of the last good round.
            NoSuchNodes: too few nodes are connected.
            BudgetExceeded: the plan does not fit the protection.
        """
        result = Result()
        self.begin(grid, initial_arrays)
        self.sealed = sealed
        for server_round in range(first_round, num_rounds + 1):
            record = self._round(grid, server_round, num_rounds, timeout, train_config)
            if server_round % self.evaluate_every == 0 or server_round == num_rounds:
                self._evaluate(grid, record, timeout, evaluate_config, evaluate_fn, result)
            self.observer.round_done(record, self)
            result.train_metrics_clientapp[server_round] = MetricRecord(
                {k: v for k, v in record.metrics.items() if k.startswith("train_")}
            )
            if not history:
                result = Result()
        if self.state is not None and self.sealed is None:
            result.arrays = array_record(self.state)
        return result

    def begin(self, grid: Grid, initial_arrays: ArrayRecord) -> None:
        """Take the initial model, find the nodes, and size the secure sum; everything that can be refused is, here."""
        self.state = read_model(initial_arrays)
        self.sealed = None
        scaled = self.protection.bounded and self.weighting == "examples" and self.weight_scale is None
        relayed = self.protection.relayed
        found = discover(grid, self.participation, ask=scaled, relays=int(relayed))
        self._nodes = [node for node in found if not node.relay]
        self._relay = Relay.among(grid, found) if relayed else None
        if scaled:
            self.weight_scale = float(max((n.num_examples for n in self._nodes), default=0) or 1)
        self._secure_plan = Plan(
            length=self.longest(self.state.layout).length,
            clients=self.participation.count(len(self._nodes)),
            bound=self.protection.bound,
        )
        self.protection.secure_sum(self._secure_plan)
        self.summary()

    def _round(
        self, grid: Grid, server_round: int, rounds: int, timeout: float, train_config: ConfigRecord | None
    ) -> RoundRecord:
        started = time.perf_counter()
        record = RoundRecord(round=server_round, rounds=rounds)
        record.nodes = self.choose(server_round)
        plan, layout = self._plan(server_round, rounds, record.nodes)
        content = self._training_content(plan, train_config)
        record.download_bytes, record.logical_download_bytes = wire_bytes(content), logical_bytes(content)
        messages = self._training_messages(content, record)
        fold = self._fold(grid, messages, plan.tag(layout.length), record, self.participation.deadline_s or timeout)
        record.require(self.participation.min_replies)
        self._settle(fold, plan, layout, record, grid)
        record.round_s = time.perf_counter() - started
        return record

    def _plan(self, server_round: int, rounds: int, nodes: list[Node]) -> tuple[RoundPlan, Layout]:
        if self.state is None or self._secure_plan is None:
            raise RuntimeError("begin() must come first")
        layout = self.travelling(self.state.layout, server_round)
        plan = RoundPlan(
            strategy=self.name,
            round=server_round,
            rounds=rounds,
            names=layout.names,
            layout_hash=layout.hash,
            payload=self.sent,
            weighting=self.weighting,
            weight_scale=self.weight_scale or 1.0,
            buffers=self.buffers.mode,
            first_partition=nodes[0].partition_id if self.buffers.mode == "first" and nodes else -1,
            secure=self._secure_plan,
            extras=self.extras(server_round) | ({} if self.clip_norm is None else {CLIP_NORM: self.clip_norm}),
        )
        return plan, layout

    def _content(self, plan: RoundPlan, config: ConfigRecord | None) -> RecordDict:
        """Return a message's content: the model, or the last sealed total, and the plan."""
        content = self._plan_content(plan, config)
        if self.sealed is not None:
            content["total"] = sealed_record(self.sealed.totals)
            previous = self.sealed.plan.record()
            previous["weight"], previous["count"] = self.sealed.weight, self.sealed.count
            previous["first-counts"] = self.sealed.first_counts
            content["total-plan"] = previous
        elif self.state is not None:
            content["model"] = model_record(self.state)
        return content

    @staticmethod
    def _plan_content(plan: RoundPlan, config: ConfigRecord | None) -> RecordDict:
        """Return a message's content with the plan alone."""
        record = plan.record()
        for key, value in (config or {}).items():
            record.setdefault(key, value)
        return RecordDict({"config": record})

    def _training_content(self, plan: RoundPlan, config: ConfigRecord | None) -> RecordDict:
        """Return what :meth:`contents` makes each client's training message from: model and plan, or the plan alone."""
        return self._content(plan, config)

    def message_content(self, server_round: int) -> RecordDict:
        """Return what a client is sent after this round: the model, or the last sealed total, and a plan."""
        plan, _ = self._plan(server_round, server_round, [])
        return self._content(plan, None)

    def _training_messages(self, content: RecordDict, record: RoundRecord) -> list[Message]:
        contents = self.contents(content, record.nodes, record.round)
        record.downloads = _sizes(contents)
        return _addressed(contents, record.nodes, MessageType.TRAIN, record.round)

    def _evaluation_messages(
        self, nodes: list[Node], plan: RoundPlan, config: ConfigRecord | None, record: RoundRecord
    ) -> list[Message]:
        contents = self.contents(self._content(plan, config), nodes, record.round + 1)
        record.evaluate_downloads = {n.partition_id: s for n, s in zip(nodes, _sizes(contents), strict=True)}
        return _addressed(contents, nodes, MessageType.EVALUATE, record.round)

    def _fold(self, grid: Grid, messages: list[Message], tag: Tag, record: RoundRecord, timeout: float) -> Fold:
        """Send the messages and fold what comes back, chunk by chunk in order."""
        fold = self._new_fold(tag)
        batches = chunked(messages, self.chunk or chunk_size(len(messages)))
        nodes = iter(record.nodes)
        for replies in in_order(stream(grid, batches, timeout=timeout, reducer=fold.reducer)):
            self._take(fold, replies, nodes, record)
        return fold

    def _new_fold(self, tag: Tag) -> Fold:
        if self._secure_plan is None:
            raise RuntimeError("begin() must come first")
        own = self.protection.fold(self._secure_plan, tag, self._relay)
        if own is not None:
            return own
        limit = None
        if self.clip_norm is not None and not self.protection.bounded and self.state is not None:
            layout = self.travelling(self.state.layout, tag.round)
            limit = NormLimit.of(layout, self.clip_norm, self.weighting, self.weight_scale or 1.0)
        return WorkerFold(self.protection.public(self._secure_plan), self._secure_plan, tag, limit)

    @staticmethod
    def _take(fold: Fold, replies: list[Message], nodes: Iterator[Node], record: RoundRecord) -> None:
        fold.take(replies)
        for reply in replies:
            node = next(nodes)
            item = delivered(reply, node.node_id)
            record.delivered.append(item)
            if item.error:
                reason = item.error.partition("\n")[0]
                log.warning("round %d, client %d left out: %s", record.round, node.partition_id, reason)

    def _settle(
        self, fold: Fold, plan: RoundPlan, layout: Layout, record: RoundRecord, grid: Grid | None = None
    ) -> None:
        counted = [d for d in record.delivered if not d.error]
        self.answered([d.node_id for d in counted])
        weight = sum(plan.weight(d.num_examples) for d in counted)
        record.metrics |= means(counted, "train_")
        facts = self.protection.round_facts(plan.secure, plan.tag(layout.length))
        record.metrics |= {f"server_{name}": value for name, value in facts.items()}
        first_counts = any(n.partition_id == plan.first_partition and not d.error for n, d in record.pairs())
        if self.protection.opened_by == "clients":
            totals, self.moved_round = fold.totals(), plan.round
            self.sealed = SealedState(totals, plan, layout.length, weight, len(counted), first_counts)
            return
        vector = self._open(fold.totals(), plan, plan.tag(layout.length), record, grid)
        record.helper = fold.helper
        mean = self._weighed(mean_arrays(vector, layout, weight, self.buffers, first_counts), record, plan)
        self._advance(self._moved(mean) if plan.payload != self.payload else mean, plan.round)

    def _advance(self, mean: dict[str, NDArray[np.float64]], server_round: int) -> None:
        """Apply a round's mean, and note that the model is no longer that of the round before."""
        self.moved_round = server_round
        try:
            self.apply(mean, server_round)
        except Exception:
            # A step that is refused leaves the model as it was; one that is interrupted may not.
            self.moved_round = server_round - 1
            raise

    def _open(
        self, totals: list[bytes], plan: RoundPlan, tag: Tag, record: RoundRecord, grid: Grid | None
    ) -> NDArray[np.float64]:
        """Return a total's sum, opened by the server or by the committee; its seconds are noted."""
        started = time.perf_counter()
        if self.protection.opened_by == "committee":
            vector = self._ask_committee(totals, plan, tag, record, grid)
        else:
            vector = self.protection.opener(plan.secure).open(totals, tag)
        record.open_s += time.perf_counter() - started
        return vector

    def _weighed(
        self, mean: dict[str, NDArray[np.float64]], record: RoundRecord, plan: RoundPlan
    ) -> dict[str, NDArray[np.float64]]:
        """Return the means, where not all clients added to all arrays; given the sums over all clients' weight."""
        return mean

    def _moved(self, change: dict[str, NDArray[np.float64]]) -> dict[str, NDArray[np.float64]]:
        """Return the mean weights, given the mean change of the weights."""
        if self.state is None or self.payload != "weights":
            raise Incompatible(f"strategy '{self.name}' sends '{self.payload}': it cannot be told a mean change")
        return {name: self.state.arrays[name].astype(np.float64) + value for name, value in change.items()}

    def _ask_committee(
        self, totals: list[bytes], plan: RoundPlan, tag: Tag, record: RoundRecord, grid: Grid | None
    ) -> NDArray[np.float64]:
        """Send the total to the committee and fuse its partial decryptions."""
        if grid is None:
            raise Incompatible(f"protection '{self.protection.name}' needs a message round more: run it by start()")
        return committee.open_total(grid, self._nodes, self.protection, totals, plan, tag, record)

    # ----------------------------------------------------------------- evaluation

    def _evaluate(
        self,
        grid: Grid,
        record: RoundRecord,
        timeout: float,
        config: ConfigRecord | None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None,
        result: Result,
    ) -> None:
        if self.state is not None and self.sealed is None:
            metrics = self.observer.evaluate(record.round, self.state)
            record.metrics |= {f"server_{k}": v for k, v in metrics.items()}
            if evaluate_fn is not None and (more := evaluate_fn(record.round, array_record(self.state))) is not None:
                result.evaluate_metrics_serverapp[record.round] = more
                record.metrics |= {f"server_{k}": float(v) for k, v in more.items() if isinstance(v, int | float)}
        if self.evaluate_fraction > 0:
            self._evaluate_on_clients(grid, record, timeout, config)
            result.evaluate_metrics_clientapp[record.round] = MetricRecord(
                {k: v for k, v in record.metrics.items() if k.startswith("client_")}
            )

    def _evaluate_on_clients(
        self, grid: Grid, record: RoundRecord, timeout: float, config: ConfigRecord | None
    ) -> None:
        share = Participation(fraction=self.evaluate_fraction)
        nodes = share.sample(self._nodes, self.seed + 1, record.round)
        plan, _ = self._plan(record.round, record.rounds, nodes)
        messages = self._evaluation_messages(nodes, plan, config, record)
        batches = chunked(messages, self.chunk or chunk_size(len(messages)))
        answers = in_order(stream(grid, batches, timeout=self.participation.deadline_s or timeout))
        order = iter(nodes)
        for reply in (r for replies in answers for r in replies):
            node = next(order)
            item = delivered(reply, node.node_id)
            item.upload_bytes = 0 if reply.has_error() else wire_bytes(reply.content)
            record.evaluated[node.partition_id] = item
        self.answered([d.node_id for d in record.evaluated.values() if not d.error])
        record.metrics |= means([d for d in record.evaluated.values() if not d.error], "client_")

    # ----------------------------------------------------------------- Flower's own interface

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """See `flwr.serverapp.strategy.Strategy`; for loops other than :meth:`start`."""
        if self.state is None:
            self.begin(grid, arrays)
        self._pending = RoundRecord(round=server_round, rounds=server_round)
        self._pending.nodes = self.choose(server_round)
        plan, layout = self._plan(server_round, server_round, self._pending.nodes)
        self._pending_plan = plan, layout
        return self._training_messages(self._training_content(plan, config), self._pending)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """See `flwr.serverapp.strategy.Strategy`."""
        record, (plan, layout) = self._pending, self._pending_plan
        by_node = {r.metadata.src_node_id: r for r in replies}
        record.nodes = [n for n in record.nodes if n.node_id in by_node]
        ordered = [by_node[n.node_id] for n in record.nodes]
        fold = self._new_fold(plan.tag(layout.length))
        nodes = iter(record.nodes)
        for chunk in chunked(ordered, self.chunk or chunk_size(len(ordered))):
            replies = fold.reducer(list(chunk)) if fold.reducer else list(chunk)
            self._take(fold, replies, nodes, record)
        record.require(self.participation.min_replies)
        self._settle(fold, plan, layout, record)
        arrays = array_record(self.state) if self.state is not None and self.sealed is None else None
        return arrays, MetricRecord(dict(record.metrics))

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """See `flwr.serverapp.strategy.Strategy`."""
        if self.evaluate_fraction == 0:
            return []
        nodes = Participation(fraction=self.evaluate_fraction).sample(self._nodes, self.seed + 1, server_round)
        plan, _ = self._plan(server_round, server_round, nodes)
        return self._evaluation_messages(nodes, plan, config, RoundRecord(round=server_round, rounds=server_round))

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """See `flwr.serverapp.strategy.Strategy`."""
        items = [delivered(r, r.metadata.src_node_id) for r in replies]
        self.answered([d.node_id for d in items if not d.error])
        return MetricRecord(dict(means([d for d in items if not d.error], ""))) if items else None


def _sizes(contents: list[RecordDict]) -> list[tuple[int, int]]:
    """Return what Flower moves for each message, and of these the model's or the total's bytes."""
    distinct = {id(c): c for c in contents}
    sizes = {key: (wire_bytes(c), logical_bytes(c)) for key, c in distinct.items()}
    return [sizes[id(c)] for c in contents]


def _addressed(contents: list[RecordDict], nodes: list[Node], kind: str, server_round: int) -> list[Message]:
    group = str(server_round)
    return [
        Message(c, dst_node_id=n.node_id, message_type=kind, group_id=group)
        for c, n in zip(contents, nodes, strict=True)
    ]


__all__ = ["FederatedStrategy", "RoundObserver"]
