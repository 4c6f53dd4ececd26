"""The round loop of all strategies: layout -> seal -> sum -> apply."""

import logging
import time
from collections.abc import Callable, Iterator

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from numpy.typing import NDArray

from crypto import Layout
from crypto.base import Plan, Tag
from strategies import committee
from strategies._hooks import Hooks
from strategies.clipping import CLIP_NORM, NormLimit
from strategies.errors import Incompatible
from strategies.fold import Fold, WorkerFold, delivered
from strategies.helper_relay import Relay
from strategies.nodes import Node, Participation, discover
from strategies.outcome import RoundRecord, logical_bytes, mean_arrays, means
from strategies.plan import RoundPlan
from strategies.records import array_record, model_record, read_model, sealed_record, wire_bytes
from strategies.rounds import chunk_size, chunked, in_order, like, stream
from strategies.sealed_state import SealedState

log = logging.getLogger(__name__)


class RoundLoop(Hooks):
    """A strategy that owns its round loop: replies stream into a running sealed total, so that memory is O(model)."""

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


def _sizes(contents: list[RecordDict]) -> list[tuple[int, int]]:
    """Return what Flower moves for each message, and of these the model's or the total's bytes."""
    distinct = {id(c): c for c in contents}
    sizes = {key: (wire_bytes(c), logical_bytes(c)) for key, c in distinct.items()}
    return [sizes[id(c)] for c in contents]


def _addressed(contents: list[RecordDict], nodes: list[Node], kind: str, server_round: int) -> list[Message]:
    if not nodes:
        return []
    # Flower's constructor checks and looks up the same for each message; the others are the first one's likes.
    first = Message(contents[0], dst_node_id=nodes[0].node_id, message_type=kind, group_id=str(server_round))
    return [first, *(like(first, c, n.node_id) for c, n in zip(contents[1:], nodes[1:], strict=True))]


__all__ = ["RoundLoop"]
