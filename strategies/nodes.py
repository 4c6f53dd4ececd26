"""Who is there, and who takes part: nodes in partition order, sampled from a seed."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from flwr.app import Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from strategies.errors import NoSuchNodes
from strategies.rounds import chunk_size, chunked, stream

_LONGEST_PAUSE_S = 1.0
#: Key of a node's own configuration that makes it the way to a helper; its value is the helper's socket.
RELAY_KEY = "helper"


@dataclass(frozen=True, slots=True)
class Node:
    """One client as the server knows it.

    Attributes:
        node_id: Flower's id, random in deployments.
        partition_id: the client's number; node ids are never used where order or seeds matter.
        num_examples: training samples that it states, 0 if it was not asked.
        capacity: blocks that it states it can train, 0 if it states none.
        relay: it is no client but the way to a helper, see :mod:`strategies.helper_relay`; it has no number.
    """

    node_id: int
    partition_id: int
    num_examples: int = 0
    capacity: int = 0
    relay: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Participation:
    """Who takes part in a round, and when a round counts.

    Attributes:
        fraction: share of the nodes that is sampled, in (0, 1]; at least one node.
        clients: fixed number of nodes instead of a share.
        min_nodes: nodes that must be connected before the first round.
        min_replies: clients that must deliver; a round with fewer stops the run.
        deadline_s: a round's time limit in seconds; clients that are later are left out. ``None`` waits for all.
        connect_s: how long to wait for `min_nodes`.
        available: (round, partition ids) -> who of them can be asked, at least one, or those ids themselves if all;
            ``None`` for all, always.
    """

    fraction: float = 1.0
    clients: int | None = None
    min_nodes: int = 1
    min_replies: int = 1
    deadline_s: float | None = None
    connect_s: float = 120.0
    available: Callable[[int, Sequence[int]], Collection[int]] | None = None

    def count(self, available: int) -> int:
        """Return how many of `available` nodes a round samples."""
        wanted = self.clients if self.clients is not None else max(1, round(self.fraction * available))
        return min(wanted, available)

    def sample(self, nodes: list[Node], seed: int, server_round: int) -> list[Node]:
        """Return the round's nodes in partition order; depends on seed and round alone, not on who asked before.

        Of those that are available, as many as the round samples of all, or all of them.
        """
        rng = np.random.default_rng(np.random.SeedSequence([seed, server_round, _SAMPLING]))
        wanted = self.count(len(nodes))
        if self.available is not None:
            # What a round costs should depend on who takes part, not on who is registered: all there is the usual case.
            everybody = _PartitionIds(nodes)
            found = self.available(server_round, everybody)
            if found is not everybody:
                there = set(found)
                nodes = [n for n in nodes if n.partition_id in there]
        chosen = rng.choice(len(nodes), size=min(wanted, len(nodes)), replace=False)
        return [nodes[i] for i in sorted(chosen)]


class _PartitionIds(Sequence[int]):
    """The nodes' numbers, read when they are asked for."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes

    def __len__(self) -> int:
        return len(self._nodes)

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> list[int]: ...
    def __getitem__(self, at: int | slice) -> int | list[int]:
        chosen = self._nodes[at]
        return [n.partition_id for n in chosen] if isinstance(chosen, Sequence) else chosen.partition_id


#: Domain separation of the sampling stream from a run's other random streams.
_SAMPLING = 0x53414D50


def wait_for_nodes(grid: Grid, minimum: int, connect_s: float) -> list[int]:
    """Return the ids of all connected nodes once there are `minimum`.

    Raises:
        NoSuchNodes: fewer are there after `connect_s` seconds.
    """
    deadline = time.monotonic() + connect_s
    pause = 0.05
    while len(found := sorted(grid.get_node_ids())) < minimum:
        if time.monotonic() > deadline:
            raise NoSuchNodes(
                f"{len(found)} nodes after {connect_s:g} s: the plan needs {minimum}; start more clients or "
                "lower min_nodes"
            )
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)
    return found


def discover(grid: Grid, participation: Participation, *, ask: bool, relays: int = 0) -> list[Node]:
    """Return the nodes: clients in partition order, then those that relay to a helper.

    A grid that knows its nodes' configuration (`node_configs`) is believed; others, and every grid if `ask`, are asked
    by a ``query.hello`` message. A node whose app does not answer it is numbered after the others, by node id.

    Args:
        grid: any Flower grid.
        participation: says how many clients there must be, and how long to wait.
        ask: see above.
        relays: nodes to wait for beside the clients.

    Raises:
        NoSuchNodes: too few nodes or clients, or two that claim one partition.
    """
    ids = wait_for_nodes(grid, participation.min_nodes + relays, participation.connect_s)
    configs = getattr(grid, "node_configs", None)
    if isinstance(configs, Mapping) and not ask:
        found = [Node(i, int(configs[i]["partition-id"]), relay=RELAY_KEY in configs[i]) for i in ids]
    else:
        found = _greet(grid, ids, participation)
    found.sort(key=lambda n: (n.partition_id, n.node_id))
    nodes = [n for n in found if not n.relay]
    others = [n for n in found if n.relay]
    if len(nodes) < participation.min_nodes and others:
        raise NoSuchNodes(
            f"{len(nodes)} clients beside {len(others)} nodes that relay to a helper: the plan needs "
            f"{participation.min_nodes} clients; start more, a node that relays trains nothing"
        )
    for one, two in zip(nodes, nodes[1:], strict=False):
        if one.partition_id == two.partition_id:
            raise NoSuchNodes(
                f"nodes {one.node_id} and {two.node_id} both claim partition {one.partition_id}: ids must be distinct; "
                "restart one with another partition-id"
            )
    return nodes + others


def _greet(grid: Grid, ids: list[int], participation: Participation) -> list[Node]:
    content = RecordDict()
    messages = [Message(content, dst_node_id=i, message_type="query.hello") for i in ids]
    answers: dict[int, MetricRecord] = {}
    batches = chunked(messages, chunk_size(len(messages)))
    for _, replies in stream(grid, batches, timeout=participation.connect_s):
        for reply in replies:
            if not reply.has_error() and "hello" in reply.content.metric_records:
                answers[reply.metadata.src_node_id] = reply.content.metric_records["hello"]
    nodes = []
    after = 1 + max((_number(a, "partition-id", -1) for a in answers.values()), default=-1)
    for node_id in ids:
        answer = answers.get(node_id)
        if answer is None:
            nodes.append(Node(node_id, after))
            after += 1
        elif _number(answer, "relay", 0):
            nodes.append(Node(node_id, -1, relay=True))
        else:
            examples, capacity = (_number(answer, key, 0) for key in ("num-examples", "capacity"))
            nodes.append(Node(node_id, _number(answer, "partition-id", -1), examples, capacity))
    return nodes


def ask_setup(grid: Grid, nodes: list[Node], timeout_s: float) -> dict[int, bytes]:
    """Return what each node answers to ``query.setup``, a hash, by node id; nodes that do not answer are left out."""
    content = RecordDict()
    messages = [Message(content, dst_node_id=n.node_id, message_type="query.setup") for n in nodes]
    found: dict[int, bytes] = {}
    for _, replies in stream(grid, chunked(messages, chunk_size(len(messages))), timeout=timeout_s):
        for reply in replies:
            if reply.has_error() or "setup" not in reply.content.config_records:
                continue
            digest = reply.content.config_records["setup"].get("digest")
            if isinstance(digest, bytes):
                found[reply.metadata.src_node_id] = digest
    return dict(sorted(found.items()))


def _number(record: MetricRecord, key: str, default: int) -> int:
    value = record.get(key, default)
    return int(value) if isinstance(value, int | float) else default


__all__ = ["Node", "Participation", "ask_setup", "discover", "wait_for_nodes"]
