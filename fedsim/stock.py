"""Runs one of Flower's own strategies, measured and guarded like ours.

Flower's strategies call `Grid.send_and_receive` and see every reply. The grid that they get here counts bytes, puts
replies in the clients' order, and turns replies that would spoil an average (missing names, other shapes, values that
are not finite, no samples) into failures that name the client.
"""

import logging
import random
import time
from collections.abc import Iterable
from typing import Any

import flwr.serverapp.strategy as flower_strategies
import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp import Grid
from numpy.typing import NDArray

from crypto import CryptoError
from fedsim.config import FlwrStrategyConfig
from fedsim.errors import FedsimError
from fedsim.recorder import Recorder
from fedsim.simulation.wrapped import WrappedGrid
from fedsim.site import Site
from strategies.fold import REJECTED, Delivered, check_examples, delivered
from strategies.nodes import Node, Participation, discover
from strategies.outcome import RoundRecord, logical_bytes, means
from strategies.records import NamedArrays, array_record, read_model, wire_bytes
from strategies.rounds import late

log = logging.getLogger(__name__)


class GuardedGrid(WrappedGrid):
    """A grid that measures and checks what passes through it.

    Args:
        inner: does the work.
        nodes: the federation's clients in partition order.
        state: the model whose names and shapes replies must have.
        rounds: number of rounds, for the records.
        min_replies: usable training replies that a round needs.
        deadline_s: a round's time limit in seconds, or ``None``.
    """

    def __init__(
        self,
        inner: Grid,
        nodes: list[Node],
        state: NamedArrays,
        rounds: int,
        min_replies: int,
        deadline_s: float | None,
    ) -> None:
        super().__init__(inner)
        self._state, self._min_replies, self._deadline_s = state, min_replies, deadline_s
        self._nodes = {n.node_id: n for n in nodes}
        self._rounds = rounds
        self.record = RoundRecord(round=0, rounds=rounds)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send, receive, check, and return the usable replies in partition order.

        Raises:
            EmptyRound, TooFewReplies: too few usable training replies.
        """
        todo = sorted(messages, key=lambda m: self._nodes[m.metadata.dst_node_id].partition_id)
        if not todo:
            return []
        training = todo[0].metadata.message_type.startswith("train")
        started = time.perf_counter()
        limit = self._deadline_s if self._deadline_s is not None else timeout
        replies = {r.metadata.src_node_id: r for r in self._inner.send_and_receive(todo, timeout=limit)}
        kept = self._book_training(todo, replies) if training else self._book_evaluation(todo, replies)
        if training:
            self.record.round_s = time.perf_counter() - started
            self.record.require(self._min_replies)
        return kept

    def _book_training(self, todo: list[Message], replies: dict[int, Message]) -> list[Message]:
        first = todo[0].content
        self.record = RoundRecord(round=self.record.round + 1, rounds=self._rounds)
        self.record.nodes = [self._nodes[m.metadata.dst_node_id] for m in todo]
        self.record.download_bytes, self.record.logical_download_bytes = wire_bytes(first), logical_bytes(first)
        kept = []
        for message, node in zip(todo, self.record.nodes, strict=True):
            reply = replies.get(node.node_id) or late(message, "no reply before the deadline")
            item = self._examine(reply, node, training=True)
            self.record.delivered.append(item)
            if not item.error:
                kept.append(reply)
        self.record.metrics |= means([d for d in self.record.delivered if not d.error], "train_")
        return kept

    def _book_evaluation(self, todo: list[Message], replies: dict[int, Message]) -> list[Message]:
        # Flower's strategies send one content to all.
        sizes = wire_bytes(todo[0].content), logical_bytes(todo[0].content)
        kept = []
        for message in todo:
            node = self._nodes[message.metadata.dst_node_id]
            reply = replies.get(node.node_id) or late(message, "no reply before the deadline")
            item = self._examine(reply, node, training=False)
            self.record.evaluate_downloads[node.partition_id] = sizes
            self.record.evaluated[node.partition_id] = item
            if not item.error:
                kept.append(reply)
        self.record.metrics |= means([d for d in self.record.evaluated.values() if not d.error], "client_")
        return kept

    def _examine(self, reply: Message, node: Node, *, training: bool) -> Delivered:
        item = delivered(reply, node.node_id)
        if reply.has_error():
            return item
        item.upload_bytes, item.sealed_bytes = wire_bytes(reply.content), logical_bytes(reply.content)
        try:
            check_examples(reply.content)
            if training:
                sent = read_model(reply.content.array_records["arrays"])
                self._state.layout.check_same(sent.layout)
                self._state.layout.pack(sent.arrays)
        except (CryptoError, KeyError) as error:
            item.error, item.error_code = str(error), REJECTED
            log.warning("round %d, client %d left out: %s", self.record.round, node.partition_id, error)
        # The phases are ours; a strategy of Flower's would average them as metrics, or stumble over them.
        reply.content.pop("phases", None)
        return item


class _Served:
    """The state that the recorder saves."""

    sealed = None

    def __init__(self, state: NamedArrays) -> None:
        self.state: NamedArrays | None = state

    def state_dict(self) -> dict[str, NDArray[np.generic]]:
        return {}


def run_stock(grid: Grid, site: Site, recorder: Recorder) -> NamedArrays:
    """Run the strategy of Flower's that the settings name.

    Returns:
        The final model.

    Raises:
        EmptyRound, TooFewReplies: as in our own loop.
        FedsimError: Flower refuses the strategy's options.
    """
    federation = site.config.federation
    found = discover(grid, Participation(min_nodes=federation.num_clients), ask=False)
    nodes = [node for node in found if not node.relay]
    guarded = GuardedGrid(
        grid, nodes, site.initial, federation.rounds, federation.needed_replies, federation.deadline_s
    )
    served = _Served(site.initial)

    def after_round(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        if server_round == 0:
            return None
        served.state = read_model(arrays)
        metrics = recorder.evaluate(server_round, served.state)
        guarded.record.metrics |= {f"server_{k}": v for k, v in metrics.items()}
        recorder.round_done(guarded.record, served)
        return MetricRecord(dict(metrics)) if metrics else None

    # Flower samples nodes from the global generator.
    random.seed(site.config.seed)
    _build(site).start(
        guarded, array_record(site.initial), federation.rounds, timeout=6 * 3600.0, evaluate_fn=after_round
    )
    return served.state or site.initial


def _build(site: Site) -> flower_strategies.Strategy:
    config = site.config.strategy
    if not isinstance(config, FlwrStrategyConfig):
        raise TypeError(f"strategy '{config.name}' is not one of Flower's: name it flwr:<ClassName>")
    federation = site.config.federation
    options: dict[str, Any] = {
        "fraction_train": site.config.asked / federation.num_clients,
        "fraction_evaluate": federation.client_evaluation_fraction,
        "min_train_nodes": 1,
        "min_evaluate_nodes": 1 if federation.client_evaluation_fraction else 0,
        "min_available_nodes": federation.num_clients,
        **(_for_q_fedavg(site) if config.class_name == "QFedAvg" else {}),
        **config.options,
    }
    try:
        strategy = getattr(flower_strategies, config.class_name)(**options)
    except (TypeError, ValueError) as error:
        raise FedsimError(f"Flower refuses {config.class_name} with {config.options}: {error}") from error
    assert isinstance(strategy, flower_strategies.Strategy)
    return strategy


def _for_q_fedavg(site: Site) -> dict[str, Any]:
    """Return what Flower's q-FedAvg needs to know of our clients."""
    return {"client_learning_rate": site.config.training.lr, "train_loss_key": "loss"}
