"""A network that delivers some replies twice."""

from collections.abc import Collection, Iterable
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run

__all__ = ["DuplicatingGrid"]


class DuplicatingGrid(Grid):
    """Hands every reply of some clients out twice, at once and again with the next that are pulled.

    It offers push and pull alone, so that what arrives twice meets the same code as on a real network.

    Args:
        inner: a grid that knows its nodes' configuration.
        clients: whose replies.
        rounds: in which; empty for all.
    """

    def __init__(self, inner: Grid, clients: Collection[int], rounds: Collection[int]) -> None:
        configs = getattr(inner, "node_configs", None) or {}
        self._inner, self._rounds = inner, set(rounds)
        self._nodes = {node for node, config in configs.items() if config["partition-id"] in clients}
        self._again: list[Message] = []

    @property
    def node_configs(self) -> Any:
        """The inner grid's."""
        return getattr(self._inner, "node_configs", None)

    def set_run(self, run: Run) -> None:
        """See `Grid`."""
        self._inner.set_run(run)

    @property
    def run(self) -> Run:
        """See `Grid`."""
        return self._inner.run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """See `Grid`."""
        return self._inner.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        """See `Grid`."""
        return self._inner.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """See `Grid`."""
        return self._inner.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """See `Grid`."""
        found = list(self._inner.pull_messages(message_ids))
        again, self._again = self._again, []
        self._again = [m for m in found if m.metadata.src_node_id in self._nodes and self._hit(m)]
        return [*found, *self._again, *again]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """See `Grid`."""
        return self._inner.send_and_receive(messages, timeout=timeout)

    def _hit(self, message: Message) -> bool:
        group = message.metadata.group_id
        return not self._rounds or (group.isdigit() and int(group) in self._rounds)
