"""The worker process of :class:`fedsim.simulation.ray_grid.RayGrid`: one loaded ``ClientApp``, many clients."""

import pickle
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import ray
from flwr.app import ArrayRecord, Message
from flwr.app.user_config import UserConfig
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity

from fedsim.simulation.grid import FaultCode, Reducer, fault
from fedsim.simulation.together import run_batch
from fedsim.simulation.transit import Packed, make_message, pack, unpack
from fedsim.simulation.worker import ClientRunner, load_client_app


@dataclass(slots=True)
class Head:
    """One client's part of a task, without the content."""

    metadata: dict[str, Any]
    content: int
    node_config: UserConfig
    state: Packed | None


@dataclass(slots=True)
class Task:
    """A batch of messages. Contents that several messages share are there once."""

    number: int
    run_id: int
    contents: list[Packed]
    heads: list[Head]
    reducer: Reducer | None


@dataclass(slots=True)
class Result:
    """What a batch gave.

    Attributes:
        replies: In the order of the batch, or what the reducer made of them.
        states: Node id -> its state, where it changed; None where it was emptied.
        elapsed_s: Wall seconds of the worker.
    """

    replies: list[Packed] = field(default_factory=list)
    states: dict[int, Packed | None] = field(default_factory=dict)
    elapsed_s: float = 0.0


class RayWorker:
    """An actor. Clients run one at a time; ``progress`` answers meanwhile.

    Args:
        app: The app, or where to import it from.
        run_config: The run's settings.
        seed: The grid's.
        threads: Torch threads.
        cohort: Let the clients of a batch meet.
    """

    def __init__(
        self, app: ClientApp | str, run_config: UserConfig, seed: int, threads: int, cohort: bool = False
    ) -> None:
        self._app, self._cohort = load_client_app(app), cohort
        self._run_config, self._seed, self._threads = run_config, seed, threads
        self._current: tuple[int, Result] | None = None

    def ready(self) -> None:
        """Return once the app is loaded."""

    def run(self, task: Task, *shared: Packed) -> Result:
        """Run a batch.

        Args:
            task: The batch.
            shared: Array records that its contents refer to by number.
        """
        start_s = time.perf_counter()
        self._pin_threads()
        result = Result()
        self._current = task.number, result
        replies: list[Message] = []
        for reply, packed in self._run_clients(task, [unpack(packed) for packed in shared], result):
            result.replies.append(packed)
            if task.reducer:
                replies.append(reply)
        self._current = None
        if task.reducer:
            result.replies = [pack(reply) for reply in task.reducer(replies)]
        result.elapsed_s = time.perf_counter() - start_s
        return result

    @ray.method(concurrency_group="progress")
    def progress(self) -> tuple[int, Result] | None:
        """Return the number of the running task and what it has so far."""
        current = self._current
        return (current[0], Result(list(current[1].replies), dict(current[1].states))) if current else None

    def _run_clients(self, task: Task, shared: list[ArrayRecord], result: Result) -> Iterable[tuple[Message, Packed]]:
        """Run the clients, one after another as the caller draws, or together."""
        messages = self._messages(task, shared)
        if not self._cohort:
            return (self._run_client(task, message, head, result) for message, head in messages)
        pairs = list(messages)
        jobs = [partial(self._run_client, task, message, head, result) for message, head in pairs]
        return run_batch(jobs, [message for message, _ in pairs], self._cohort)

    def _messages(self, task: Task, shared: list[ArrayRecord]) -> Iterator[tuple[Message, Head]]:
        for head in task.heads:
            yield make_message(head.metadata, unpack(task.contents[head.content], shared), None), head

    def _run_client(self, task: Task, message: Message, head: Head, result: Result) -> tuple[Message, Packed]:
        """Run one client and note its state."""
        node_id = message.metadata.dst_node_id
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = task.run_id, node_id, task.run_id
        runner = ClientRunner(self._app, run_id=task.run_id, run_config=self._run_config, seed=self._seed)
        before = result.states.get(node_id, head.state)
        reply, state = runner.run(message, head.node_config, None if before is None else unpack(before))
        try:
            packed, after = pack(reply), pack(state) if state else None
        except (TypeError, AttributeError, pickle.PicklingError) as error:
            reply = fault(FaultCode.BAD_REPLY, message, head.node_config, f"returned what cannot be sent: {error}")
            packed, state = pack(reply), None
        if state is not None and not _same(before, after):
            result.states[node_id] = after
        return reply, packed

    def _pin_threads(self) -> None:
        torch: Any = sys.modules.get("torch")
        if torch and torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)


def _same(before: Packed | None, after: Packed | None) -> bool:
    if before is None or after is None:
        return before is after
    return before.same_as(after)


__all__ = ["Head", "RayWorker", "Result", "Task"]
