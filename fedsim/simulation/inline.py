"""The engine without processes: all clients run in the caller's process, one after another. No Ray is imported."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from flwr.app import Message, RecordDict
from flwr.app.user_config import UserConfig
from flwr.clientapp import ClientApp

from fedsim.simulation.grid import FaultCode, Reducer, SimulationGrid
from fedsim.simulation.together import run_batch
from fedsim.simulation.transit import copy_content, make_message
from fedsim.simulation.worker import ClientRunner, guest, load_client_app


class InlineGrid(SimulationGrid):
    """Runs each batch when it is drawn.

    A deadline is looked at between clients: a client that never returns cannot be stopped here, ``RayGrid`` can.
    A client that ends its process ends the run.

    Args:
        client_app: See :class:`SimulationGrid`, as the rest.
        node_configs: One a client.
        run_config: The run's settings.
        seed: Of the run.
        threads: Torch threads while clients run.
        cohort: See :class:`SimulationGrid`.
        clock: Seconds of a monotonic clock.
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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        app = load_client_app(client_app)
        super().__init__(
            app, node_configs=node_configs, run_config=run_config, seed=seed, threads=threads, cohort=cohort
        )
        self._loaded = app
        self._clock = clock
        self._states: dict[int, RecordDict] = {}
        self._pushed: dict[str, Message] = {}

    def stream(
        self,
        batches: Iterable[Sequence[Message]],
        *,
        timeout: float | None = None,
        reducer: Reducer | None = None,
        max_ahead: int | None = None,
    ) -> Iterator[tuple[int, list[Message]]]:
        """See :meth:`SimulationGrid.stream`; batches complete in their order, so ``max_ahead`` has no effect."""
        late_s = None if timeout is None else self._clock() + timeout
        for index, batch in enumerate(batches):
            replies = self._run_batch(self._admit(batch), late_s)
            yield index, replies if reducer is None else reducer(replies)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Note the messages; they run when their replies are asked for."""
        admitted = self._admit(list(messages))
        self._pushed |= {message.metadata.message_id: message for message in admitted}
        return [message.metadata.message_id for message in admitted]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Run the messages and return their replies; ids that are unknown or already pulled are left out."""
        todo = [self._pushed.pop(i) for i in message_ids if i in self._pushed]
        return self._run_batch(todo, None)

    def client_states(self) -> dict[int, RecordDict]:
        """See :meth:`SimulationGrid.client_states`."""
        places = {node: client for client, node in enumerate(self._node_list)}
        return {places[node]: state for node, state in sorted(self._states.items())}

    def restore_client_states(self, states: Mapping[int, RecordDict]) -> None:
        """See :meth:`SimulationGrid.restore_client_states`."""
        self._states |= {self._node_of(client): state for client, state in states.items()}

    def close(self) -> None:
        """See :meth:`SimulationGrid.close`."""
        if not self._closed:
            self._release()
            self._states.clear()

    def _run_batch(self, batch: list[Message], late_s: float | None) -> list[Message]:
        runner = ClientRunner(self._loaded, run_id=self.run.run_id, run_config=self._run_config, seed=self._seed)
        with guest(self._threads):
            jobs = [partial(self._run_client, runner, message, late_s) for message in batch]
            return run_batch(jobs, batch, self._cohort)

    def _run_client(self, runner: ClientRunner, message: Message, late_s: float | None) -> Message:
        if late_s is not None and self._clock() >= late_s:
            return self._fault(FaultCode.LATE, message, "the deadline had passed before its turn")
        node_id = message.metadata.dst_node_id
        private = own_copy(message)
        reply, state = runner.run(private, self.node_configs[node_id], self._states.get(node_id))
        if state:
            self._states[node_id] = state
        elif state is not None:
            self._states.pop(node_id, None)
        return reply


def own_copy(message: Message) -> Message:
    """Return the message with records of its own over the same array data."""
    return make_message(message.metadata.__dict__, copy_content(message.content), None)
