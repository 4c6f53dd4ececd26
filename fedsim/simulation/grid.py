"""What all simulation engines share: a Flower ``Grid`` whose nodes are virtual clients of this process.

A grid runs messages through a ``ClientApp`` and returns the replies. Any Flower strategy works on it unchanged; our own
round loop uses :meth:`SimulationGrid.stream`, which holds a few batches at a time instead of a whole round.
"""

import hashlib
import itertools as it
import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from types import MappingProxyType, TracebackType
from typing import Any, Protocol, Self

import numpy as np
from flwr.app import Message, RecordDict
from flwr.app.error import Error
from flwr.app.user_config import UserConfig
from flwr.clientapp import ClientApp
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedsim.simulation.transit import content_bytes

# A batch should cost its worker about this long: long against a call, short against a round.
BATCH_TARGET_S = 0.1
FIRST_BATCH = 4


class FaultCode(IntEnum):
    """Codes of the error replies that a grid makes in the place of a client's reply."""

    RAISED = 2
    """The client raised; same number as in Flower's own engine. The reason holds the original traceback."""
    BAD_REPLY = 101
    """The client returned something that is no reply to its message."""
    DIED = 102
    """The client's worker process ended while running it, twice."""
    LATE = 103
    """No reply before the deadline."""


class Reducer(Protocol):
    """Folds one batch's replies where the clients ran, e.g. into a partial sum.

    Law: picklable, and a function of the replies alone, in the order of the batch. Error replies are among them.
    """

    def __call__(self, replies: list[Message]) -> list[Message]:
        """Return what travels on instead of the replies."""
        ...


class SimulationGrid(Grid):
    """Base of :class:`fedsim.simulation.inline.InlineGrid` and :class:`fedsim.simulation.ray_grid.RayGrid`.

    Args:
        client_app: The app, or where to import it from as ``"module:attribute"``.
        node_configs: One a client; the index is its partition id. ``partition-id``, ``num-partitions`` are filled in.
        run_config: The run's settings, the same for all clients.
        seed: Decides node ids and the state of the global generators (random, numpy, torch) before each client.
        threads: Torch threads of one client; more than 1 may change the last bits of a result.
        cohort: Let the clients of a batch meet, see :mod:`fedsim.simulation.together`.

    Raises:
        ValueError: No clients, or a seed or thread count out of range.
    """

    def __init__(
        self,
        client_app: ClientApp | str,
        *,
        node_configs: Sequence[UserConfig],
        run_config: UserConfig,
        seed: int,
        threads: int = 1,
        cohort: bool = False,
    ) -> None:
        if not node_configs:
            raise ValueError("node_configs is empty: a federation has at least 1 client; pass one mapping a client")
        if not 0 <= seed < 2**64 or threads < 1:
            raise ValueError(f"seed {seed}, threads {threads}: a seed is in [0, 2**64), threads >= 1; choose others")
        self._app = client_app
        self._seed, self._threads, self._cohort = seed, threads, cohort
        self._run_config = dict(run_config)
        filled = [
            {**config, "partition-id": index, "num-partitions": len(node_configs)}
            for index, config in enumerate(node_configs)
        ]
        self.node_configs: Mapping[int, UserConfig] = MappingProxyType(
            dict(zip(_node_ids(seed, len(filled)), filled, strict=True))
        )
        self._node_list = list(self.node_configs)
        self._counter = it.count(1)
        self._client_s: dict[str, float] = {}
        self._closed = False
        self._earlier_identity = _identity()
        self.set_run(Run.create_empty(run_id=_draw(seed, "run")))

    # -- Flower's interface ---------------------------------------------------------------------------------------

    def set_run(self, run: Run) -> None:
        """See ``Grid.set_run``; messages made in this process then belong to the run."""
        self._run = run
        TaskIdentity.run_id, TaskIdentity.node_id = run.run_id, SUPERLINK_NODE_ID
        TaskIdentity.task_id = run.primary_task_id or run.run_id

    @property
    def run(self) -> Run:
        """See ``Grid.run``."""
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """See ``Grid.create_message``."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """Return all node ids, ordered by partition id."""
        return list(self._node_list)

    @abstractmethod
    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Start the messages; see ``Grid.push_messages``."""

    @abstractmethod
    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies that are there, without waiting; see ``Grid.pull_messages``."""

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Run the messages and return their replies in the order of the messages.

        Args:
            messages: To any nodes; drawn at once.
            timeout: Seconds for all of them; a client that is late gets an error reply of ``FaultCode.LATE``.
        """
        todo = list(messages)
        replies: list[Message] = []
        starts: list[int] = []
        found: dict[int, list[Message]] = {}
        held_bytes = 0
        for index, part in self.stream(self._auto_batches(todo, starts), timeout=timeout):
            held_bytes += sum(content_bytes(r.content) for r in part if r.has_content())
            self._keep(part, held_bytes)
            found[index] = part
        for index in range(len(starts)):
            replies += found[index]
        return replies

    # -- Our own ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def stream(
        self,
        batches: Iterable[Sequence[Message]],
        *,
        timeout: float | None = None,
        reducer: Reducer | None = None,
        max_ahead: int | None = None,
    ) -> Iterator[tuple[int, list[Message]]]:
        """Run batches of messages, each by one worker in order, and yield them as they complete.

        Args:
            batches: Drawn lazily, one when a worker can take it.
            timeout: Seconds for the whole stream, from the first draw. What is outstanding then is answered by error
                replies of ``FaultCode.LATE``, and the batches not yet drawn are drawn and answered in the same way.
            reducer: Folds each batch's replies in the worker.
            max_ahead: Batch i starts only when i < (oldest batch not yet yielded) + max_ahead, so that a caller who
                folds in order holds at most that many results. Default: 4 a worker.

        Yields:
            (batch index, replies in the order of the batch, or what the reducer made of them).

        Raises:
            ValueError: A message to a node that is not of this grid.
        """

    @abstractmethod
    def client_states(self) -> dict[int, RecordDict]:
        """Return what each client keeps in ``context.state`` between its messages, by partition id; not copied."""

    @abstractmethod
    def restore_client_states(self, states: Mapping[int, RecordDict]) -> None:
        """Give clients what :meth:`client_states` returned in an earlier process.

        Raises:
            ValueError: a partition id that is not of this grid.
        """

    @abstractmethod
    def close(self) -> None:
        """End the workers and give the process's task identity back. May be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- For the engines -------------------------------------------------------------------------------------------

    def _keep(self, replies: list[Message], held_bytes: int) -> None:  # noqa: B027 - a hook that most engines need not
        """Prepare replies to be held until a round is complete; so many bytes are held, these included."""

    def _workers(self) -> int:
        return 1

    def _node_of(self, client: int) -> int:
        if not 0 <= client < len(self._node_list):
            raise ValueError(
                f"client {client}: this grid has clients 0 to {len(self._node_list) - 1}; use its own states"
            )
        return self._node_list[client]

    def _release(self) -> None:
        """Restore the task identity that was there before this grid."""
        self._closed = True
        TaskIdentity._run_id, TaskIdentity._node_id, TaskIdentity._task_id = self._earlier_identity

    def _admit(self, batch: Sequence[Message]) -> list[Message]:
        """Check a batch and number its messages."""
        if self._closed:
            raise RuntimeError("the grid is closed: no message can be sent; open a new one")
        for message in batch:
            meta = message.metadata
            if meta.dst_node_id not in self.node_configs:
                raise ValueError(
                    f"message to node {meta.dst_node_id}: this grid has {len(self._node_list)} other nodes; "
                    "take ids from get_node_ids()"
                )
            if not message.has_content():
                raise ValueError(f"message to node {meta.dst_node_id} has no content; send a RecordDict")
            meta.__dict__["_message_id"] = f"{self._run.run_id:x}.{next(self._counter)}"
        return list(batch)

    def _auto_batches(self, messages: Sequence[Message], starts: list[int]) -> Iterator[Sequence[Message]]:
        """Cut messages into batches: by count at first, then by the measured time of a client."""
        start = 0
        while start < len(messages):
            starts.append(start)
            left = len(messages) - start
            size = self._batch_size(messages[start].metadata.message_type, left)
            yield messages[start : start + size]
            start += size

    def _batch_size(self, message_type: str, left: int) -> int:
        fair = math.ceil(left / (2 * self._workers()))
        client_s = self._client_s.get(message_type)
        wanted = FIRST_BATCH if client_s is None else round(BATCH_TARGET_S / max(client_s, 1e-6))
        return max(1, min(fair, wanted))

    def _learn(self, batch: Sequence[Message], elapsed_s: float) -> None:
        """Update the measured time of a client of this kind."""
        kind, client_s = batch[0].metadata.message_type, elapsed_s / len(batch)
        earlier = self._client_s.get(kind, client_s)
        self._client_s[kind] = 0.5 * (earlier + client_s)

    def _fault(self, code: FaultCode, message: Message, what: str) -> Message:
        return fault(code, message, self.node_configs[message.metadata.dst_node_id], what)


def fault(code: FaultCode, message: Message, node_config: UserConfig, what: str) -> Message:
    """Return the error reply that stands for a client's missing reply.

    Args:
        code: What kind of fault.
        message: The client's message.
        node_config: The client's, for its partition id.
        what: What happened, as the end of a sentence about the client.
    """
    meta = message.metadata
    client = f"client {node_config['partition-id']} (node {meta.dst_node_id}), {meta.message_type}"
    reply = Message(Error(int(code), f"{client}, round {meta.group_id or '-'}: {what}"), reply_to=message)
    return number_reply(message, reply)


def number_reply(message: Message, reply: Message) -> Message:
    """Give a reply its id, as Flower's SuperLink does."""
    reply.metadata.__dict__["_message_id"] = message.metadata.message_id + ".r"
    return reply


def client_seed(seed: int, partition_id: int, message: Message) -> int:
    """Return the 64-bit seed of a client's global generators for one message.

    A function of (seed, partition id, message type, group id) alone, so that it does not depend on workers or order.
    """
    meta = message.metadata
    return _draw(seed, "client", partition_id, meta.message_type, meta.group_id)


def _draw(seed: int, *names: object) -> int:
    text = "|".join(map(str, (seed, *names))).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8, person=b"fedsim.grid").digest(), "little") >> 1


def _node_ids(seed: int, count: int) -> list[int]:
    """Distinct ids below 2**62 in ascending order; far from small numbers, so that none is taken for a partition id."""
    ids: set[int] = set()
    rng = np.random.default_rng(_draw(seed, "nodes"))
    while len(ids) < count:
        ids.update(rng.integers(2**40, 2**62, size=count - len(ids)).tolist())
    return sorted(ids)


def _identity() -> tuple[Any, Any, Any]:
    return TaskIdentity._run_id, TaskIdentity._node_id, TaskIdentity._task_id
