"""A network that delivers some replies twice."""

from collections.abc import Collection, Iterable

from flwr.app import Message
from flwr.serverapp import Grid

from fedsim.simulation.wrapped import WrappedGrid

__all__ = ["DuplicatingGrid"]


class DuplicatingGrid(WrappedGrid):
    """Hands every reply of some clients out twice, at once and again with the next that are pulled.

    It offers push and pull alone, so that what arrives twice meets the same code as on a real network.

    Args:
        inner: a grid that knows its nodes' configuration.
        clients: whose replies.
        rounds: in which; empty for all.
    """

    def __init__(self, inner: Grid, clients: Collection[int], rounds: Collection[int]) -> None:
        configs = getattr(inner, "node_configs", None) or {}
        super().__init__(inner)
        self._rounds = set(rounds)
        self._nodes = {node for node, config in configs.items() if config["partition-id"] in clients}
        self._again: list[Message] = []

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """See `Grid`."""
        found = list(self._inner.pull_messages(message_ids))
        again, self._again = self._again, []
        self._again = [m for m in found if m.metadata.src_node_id in self._nodes and self._hit(m)]
        return [*found, *self._again, *again]

    def _hit(self, message: Message) -> bool:
        group = message.metadata.group_id
        return not self._rounds or (group.isdigit() and int(group) in self._rounds)
