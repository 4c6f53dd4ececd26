"""A grid around another: what it does not change goes on to the one inside."""

from collections.abc import Iterable
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run

__all__ = ["WrappedGrid"]


class WrappedGrid(Grid):
    """Hands every call on; subclasses override those that they change.

    Args:
        inner: any grid.
    """

    def __init__(self, inner: Grid) -> None:
        self._inner = inner

    @property
    def node_configs(self) -> Any:
        """The inner grid's, or None where it has none."""
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
        return self._inner.pull_messages(message_ids)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """See `Grid`."""
        return self._inner.send_and_receive(messages, timeout=timeout)
