"""FedBuff: buffered asynchronous aggregation (Nguyen et al., AISTATS 2022).

`concurrency` clients train at any time, each on the model that was current when it began. Whoever ends puts its change
into a buffer and is replaced; when the buffer holds K changes the server applies them (algorithm 1)::

    x <- x + eta_g / K * sum_i s(tau_i) Delta_i,        s(tau) = (1 + tau)^-a,  a = 1/2

tau_i is the number of server steps since client i began (section 5, "staleness"). With weights w_i by examples the step
is ``eta_g sum w_i s(tau_i) Delta_i / sum w_i``; the paper's case is w_i = 1.

A "round" here is one server step: the K clients that fill the buffer. In simulation a client's training is carried out
when it ends, on the model that it had been sent, so that its change is sealed for the buffer that takes it: any
protection whose sum the server reads carries it. The order of arrivals comes from a :class:`Pace`.
"""

import heapq
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from strategies.fedavg import FedAvg, Floats
from strategies.fedavg import replace as put
from strategies.nodes import Node
from strategies.records import NamedArrays, model_record

__all__ = ["Even", "FedBuff", "Pace", "staleness_weight"]

#: Domain separation of the draw of clients from a run's other random streams.
_STARTS = 0x62756666


class Pace(Protocol):
    """How long clients take."""

    def turn_s(self, partition_id: int) -> float:
        """Return the seconds of a client's turn, positive."""
        ...

    def stepped(self, at_s: float) -> None:
        """The server's buffer was full at this time since the start."""
        ...


class Even:
    """All clients take equally long."""

    def turn_s(self, partition_id: int) -> float:
        """See :class:`Pace`."""
        return 1.0

    def stepped(self, at_s: float) -> None:
        """See :class:`Pace`."""


def staleness_weight(staleness: int, exponent: float) -> float:
    """Return ``(1 + staleness)^-exponent``; 1 for exponent 0 (section 5)."""
    return float((1 + staleness) ** -exponent)


class FedBuff(FedAvg):
    """Server half of FedBuff; clients run FedAvg's.

    Args:
        buffer_size: K, at least 1.
        server_lr: eta_g, positive.
        staleness_exponent: a, at least 0; 0 counts stale changes like fresh ones.
        pace: order and time of arrivals; all alike by default.
        common: see :class:`~strategies.base.FederatedStrategy`; the participation is the number of clients that train
            at any time, and at least `buffer_size`.

    Raises:
        ValueError: a value is out of range.
    """

    name = "fedbuff"
    payload = "delta"
    needs_open_model = True

    def __init__(
        self,
        *,
        buffer_size: int = 5,
        server_lr: float = 1.0,
        staleness_exponent: float = 0.5,
        pace: Pace | None = None,
        **common: Any,
    ) -> None:
        if buffer_size < 1 or not server_lr > 0 or not staleness_exponent >= 0:
            raise ValueError(
                f"buffer_size {buffer_size} must be at least 1, server_lr {server_lr} positive, staleness_exponent "
                f"{staleness_exponent} at least 0"
            )
        super().__init__(**common)
        self.buffer_size, self.server_lr, self.exponent = buffer_size, server_lr, staleness_exponent
        self.pace: Pace = pace or Even()
        # A step has at most `buffer_size` replies, whatever a round of the whole concurrency would need.
        least = min(self.participation.min_replies, buffer_size)
        self.participation = replace(self.participation, min_replies=least)
        #: (end, partition, version it began with) of the clients that train.
        self.flying: list[tuple[float, int, int]] = []
        #: Version -> the model of that version, as long as somebody trains on it.
        self.versions: dict[int, NamedArrays] = {}
        self.now_s = 0.0
        self.staleness: list[int] = []
        self._step, self._began = 0, dict[int, int]()

    def choose(self, server_round: int) -> list[Node]:
        """Return the clients that fill the buffer of this step, in partition order."""
        if self.state is None:
            raise RuntimeError("begin() must come first")
        self.versions[server_round - 1] = self.state
        self._fill(server_round, set())
        arrived: dict[int, int] = {}
        while self.flying and len(arrived) < self.buffer_size:
            self.now_s, partition, version = heapq.heappop(self.flying)
            arrived[partition] = version
            self._fill(server_round, set(arrived))
        self.pace.stepped(self.now_s)
        self._step, self._began = server_round, arrived
        return [node for node in self._nodes if node.partition_id in arrived]

    def _fill(self, server_round: int, busy: set[int]) -> None:
        """Start clients until as many train as may; they begin now, on the newest model."""
        wanted, buffered = self.participation.count(len(self._nodes)), len(busy)
        busy = busy | {partition for _, partition, _ in self.flying}
        idle = [n.partition_id for n in self._nodes if n.partition_id not in busy]
        if self.participation.available is not None and idle:
            there = self.participation.available(server_round, idle)
            idle = [partition for partition in idle if partition in there]
        missing = min(wanted - len(self.flying), len(idle))
        if missing <= 0:
            return
        rng = np.random.default_rng([_STARTS, self.seed, server_round, buffered])
        for partition in sorted(int(p) for p in rng.choice(idle, size=missing, replace=False)):
            heapq.heappush(self.flying, (self.now_s + self.pace.turn_s(partition), partition, server_round - 1))

    def contents(self, content: RecordDict, nodes: list[Node], server_round: int) -> list[RecordDict]:
        """Return for each client the model that it began with, and how much its change will count.

        Clients that evaluate get the newest.
        """
        if self.state is None or server_round != self._step:
            return super().contents(content, nodes, server_round)
        self.staleness = [server_round - 1 - self._began[n.partition_id] for n in nodes]
        models: dict[int, ArrayRecord] = {}
        found = []
        for staleness in self.staleness:
            version = server_round - 1 - staleness
            if version not in models:
                kept = self.versions[version].arrays
                # A checkpoint keeps arrays and not their order.
                ordered = {name: kept[name] for name in self.state.arrays}
                models[version] = model_record(NamedArrays(ordered, self.state.dtypes))
            config = ConfigRecord(dict(content.config_records["config"]))
            config["x.update-scale"] = staleness_weight(staleness, self.exponent)
            found.append(RecordDict({"config": config, "model": models[version]}))
        return found

    def apply(self, mean: Floats, server_round: int) -> None:
        """Add the mean of the weighted changes; forget models that nobody trains on."""
        if self.state is None:
            raise RuntimeError("begin() must come first")
        moved = {
            name: self.state.arrays[name].astype(np.float64) + self.server_lr * change for name, change in mean.items()
        }
        put(self, moved)
        used = {version for _, _, version in self.flying}
        self.versions = {version: model for version, model in self.versions.items() if version in used}

    def state_dict(self) -> dict[str, NDArray[np.generic]]:
        """Who trains until when on which model, and those models."""
        ordered = sorted(self.flying)
        state: dict[str, NDArray[np.generic]] = {
            "fedbuff/end_s": np.array([end for end, _, _ in ordered], np.float64),
            "fedbuff/clients": np.array([[partition, version] for _, partition, version in ordered], np.int64).reshape(
                -1, 2
            ),
            "fedbuff/now_s": np.array(self.now_s),
        }
        for version, model in self.versions.items():
            state |= {f"fedbuff/version/{version}/{name}": array for name, array in model.arrays.items()}
        return state

    def load_state_dict(self, state: dict[str, NDArray[np.generic]]) -> None:
        """See :meth:`~strategies.base.FederatedStrategy.load_state_dict`."""
        ends, clients = state["fedbuff/end_s"], state["fedbuff/clients"]
        self.flying = [(float(end), int(p), int(v)) for end, (p, v) in zip(ends, clients, strict=True)]
        self.now_s = float(state["fedbuff/now_s"])
        models: dict[int, dict[str, NDArray[np.generic]]] = {}
        for key, array in state.items():
            if key.startswith("fedbuff/version/"):
                version, _, name = key.removeprefix("fedbuff/version/").partition("/")
                models.setdefault(int(version), {})[name] = array
        self.versions = {version: NamedArrays(arrays) for version, arrays in models.items()}
