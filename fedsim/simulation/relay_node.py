"""A simulated federation with one node more: the one of the helper's owner, which relays and trains nothing."""

import itertools as it
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from flwr.app import Message, RecordDict
from flwr.app.user_config import UserConfig

from fedsim.simulation.grid import Reducer, SimulationGrid
from fedsim.simulation.inline import own_copy
from fedsim.simulation.worker import ClientRunner, guest, load_client_app
from fedsim.simulation.wrapped import WrappedGrid

__all__ = ["RelayNodeGrid"]

#: Above the ids that simulated clients have.
NODE_ID = 2**62 + 1


class RelayNodeGrid(WrappedGrid):
    """Adds the designated node to a grid of clients.

    Its app runs here, in the server's process, whatever engine runs the clients: it waits for the helper and computes
    nothing, and holds no secret. The helper is a process of its own.

    Args:
        inner: the clients' grid.
        app: of all nodes, ``"module:attribute"``.
        helper: the daemon's Unix socket, which designates the node.
        run_config: the run's settings.
        seed: of the run.
    """

    def __init__(self, inner: SimulationGrid, app: str, helper: str, run_config: UserConfig, seed: int) -> None:
        super().__init__(inner)
        self._clients = inner
        self._config: UserConfig = {"helper": helper, "partition-id": -1}
        self._runner = ClientRunner(load_client_app(app), run_id=inner.run.run_id, run_config=run_config, seed=seed)
        self._state: RecordDict | None = None
        self._counter = it.count(1)
        self._pushed: dict[str, Message] = {}

    @property
    def node_configs(self) -> Mapping[int, UserConfig]:
        """Those of the clients, and the designated node's."""
        return MappingProxyType({**self._clients.node_configs, NODE_ID: self._config})

    def get_node_ids(self) -> list[int]:
        """See `Grid`; the designated node is the last."""
        return [*self._clients.get_node_ids(), NODE_ID]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """See `Grid`."""
        return [self._push(message) for message in messages]

    def _push(self, message: Message) -> str:
        if message.metadata.dst_node_id != NODE_ID:
            (key,) = self._clients.push_messages([message])
            return key
        key = f"{self.run.run_id:x}.relay.{next(self._counter)}"
        message.metadata.__dict__["_message_id"] = key
        self._pushed[key] = message
        return key

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """See `Grid`; the designated node works when its reply is asked for."""
        wanted = list(message_ids)
        replies = [self._run(self._pushed.pop(key)) for key in wanted if key in self._pushed]
        return replies + self._clients.pull_messages([key for key in wanted if ".relay." not in key])

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """See `Grid`."""
        todo = list(messages)
        clients = [m for m in todo if m.metadata.dst_node_id != NODE_ID]
        replies = iter(self._clients.send_and_receive(clients, timeout=timeout))
        return [self._answer(m) if m.metadata.dst_node_id == NODE_ID else next(replies) for m in todo]

    def stream(
        self,
        batches: Iterable[Sequence[Message]],
        *,
        timeout: float | None = None,
        reducer: Reducer | None = None,
        max_ahead: int | None = None,
    ) -> Iterator[tuple[int, list[Message]]]:
        """See :class:`strategies.rounds.StreamingGrid`; the leader asks the designated node in streams of its own."""
        rest = iter(batches)
        head = [list(batch) for batch in it.islice(rest, 1)]
        if not any(m.metadata.dst_node_id == NODE_ID for batch in head for m in batch):
            # Not listed: a batch is made when the clients are ready for it.
            yield from self._clients.stream(it.chain(head, rest), timeout=timeout, reducer=reducer, max_ahead=max_ahead)
            return
        for index, batch in enumerate(it.chain(head, rest)):
            replies = self.send_and_receive(batch, timeout=timeout)
            yield index, reducer(replies) if reducer else replies

    def client_states(self) -> dict[int, RecordDict]:
        """See :meth:`SimulationGrid.client_states`; the designated node keeps nothing."""
        return self._clients.client_states()

    def restore_client_states(self, states: Mapping[int, RecordDict]) -> None:
        """See :meth:`SimulationGrid.restore_client_states`."""
        self._clients.restore_client_states(states)

    def _answer(self, message: Message) -> Message:
        self._push(message)
        return self._run(self._pushed.pop(message.metadata.message_id))

    def _run(self, message: Message) -> Message:
        with guest(1):
            reply, self._state = self._runner.run(own_copy(message), self._config, self._state)
        return reply
