"""Sending a round's messages and folding the replies, in bounded memory and in a fixed order.

The sampled clients, in order, are cut into fixed chunks; each chunk's vectors are summed in order, and the chunks' sums
are merged in order. The cut depends on the number of sampled clients alone, so neither the number of workers nor the
order of arrival can change a bit of the result.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from flwr.app import Error, Message, Metadata, RecordDict
from flwr.serverapp import Grid

Reducer = Callable[[list[Message]], list[Message]]

#: Error code of a reply that did not come before the deadline.
LATE = 103
_FIRST_PAUSE_S = 0.05
_IN_FLIGHT = 64
_LONGEST_PAUSE_S = 1.0


@runtime_checkable
class StreamingGrid(Protocol):
    """A grid that runs whole batches and hands replies back as they complete."""

    def stream(
        self,
        batches: Iterable[Sequence[Message]],
        *,
        timeout: float | None = None,
        reducer: Reducer | None = None,
        max_ahead: int | None = None,
    ) -> Iterator[tuple[int, list[Message]]]:
        """Yield (batch index, replies in the batch's order) in order of completion."""
        ...


def chunk_size(clients: int) -> int:
    """Return how many clients one chunk holds: about 16 chunks a round, at most 64 clients in one."""
    return max(1, min(64, -(-clients // 16)))


def chunked(messages: Sequence[Message], size: int) -> list[Sequence[Message]]:
    """Cut into chunks of `size`; the last may be shorter."""
    return [messages[i : i + size] for i in range(0, len(messages), size)]


def like(message: Message, content: RecordDict, node_id: int) -> Message:
    """Return a message as this one with another content for another node."""
    meta, new = Metadata.__new__(Metadata), Message.__new__(Message)
    meta.__dict__.update(message.metadata.__dict__, _dst_node_id=node_id)
    new.__dict__.update(message.__dict__, _metadata=meta, _content=content)
    return new


def answer(message: Message, content: RecordDict) -> Message:
    """Return the reply to a message, as Flower's constructor makes it but for its checks."""
    asked, now_s = message.metadata.__dict__, time.time()
    meta, new = Metadata.__new__(Metadata), Message.__new__(Message)
    meta.__dict__.update(
        asked,
        _message_id="",
        _delivered_at="",
        _reply_to_message_id=asked["_message_id"],
        _src_node_id=asked["_dst_node_id"],
        _dst_node_id=asked["_src_node_id"],
        _src_task_id=asked["_dst_task_id"],
        _dst_task_id=asked["_src_task_id"],
        _created_at=now_s,
        _ttl=asked["_ttl"] - (now_s - asked["_created_at"]),
    )
    new.__dict__.update(_metadata=meta, _content=content, _error=None)
    return new


def in_order(results: Iterable[tuple[int, list[Message]]]) -> Iterator[list[Message]]:
    """Yield the batches' replies by batch index, holding back those that came early."""
    waiting: dict[int, list[Message]] = {}
    turn = 0
    for index, replies in results:
        waiting[index] = replies
        while turn in waiting:
            yield waiting.pop(turn)
            turn += 1


def stream(
    grid: Grid,
    batches: Sequence[Sequence[Message]],
    *,
    timeout: float | None,
    reducer: Reducer | None = None,
    max_ahead: int | None = None,
) -> Iterator[tuple[int, list[Message]]]:
    """Send batches through any grid and yield (batch index, replies) as batches complete.

    A grid that streams itself is handed the batches; any other is driven by push and pull, with pauses that double from
    50 ms to 1 s and restart at each reply. Replies that do not come before `timeout` (s, from now) become error replies
    of code :data:`LATE`. At most `max_ahead` batches beyond the oldest open one are in flight; by default about
    64 messages, and at least two batches.
    """
    if isinstance(grid, StreamingGrid):
        yield from grid.stream(batches, timeout=timeout, reducer=reducer)
        return
    largest = max(map(len, batches), default=1)
    for index, replies in _Exchange(grid, batches, timeout, max_ahead or max(2, _IN_FLIGHT // largest)).run():
        yield index, reducer(replies) if reducer else replies


@dataclass(slots=True)
class _Open:
    batch: int
    at: int
    message: Message


class _Exchange:
    """Push and pull on a grid that knows nothing of batches."""

    def __init__(self, grid: Grid, batches: Sequence[Sequence[Message]], timeout: float | None, max_ahead: int) -> None:
        self._grid, self._batches, self._max_ahead = grid, batches, max_ahead
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._open: dict[str, _Open] = {}
        self._replies: dict[int, list[Message | None]] = {}
        self._next = 0
        self._puller = _Puller(grid)

    def run(self) -> Iterator[tuple[int, list[Message]]]:
        pause = _FIRST_PAUSE_S
        while self._push() or self._open or self._replies:
            got = self._pull()
            for message in got:
                self._place(message)
            yield from self._completed()
            pause = _FIRST_PAUSE_S if got else min(2 * pause, _LONGEST_PAUSE_S)
            if self._left() <= 0:
                self._give_up()
                yield from self._completed()
            elif self._open and not got:
                time.sleep(min(pause, max(0.0, self._left())))

    def _left(self) -> float:
        return float("inf") if self._deadline is None else self._deadline - time.monotonic()

    def _push(self) -> bool:
        oldest = min(self._replies, default=self._next)
        pushed = False
        while self._next < len(self._batches) and self._next < oldest + self._max_ahead:
            batch = self._batches[self._next]
            self._replies[self._next] = [None] * len(batch)
            for at, (key, message) in enumerate(zip(self._grid.push_messages(batch), batch, strict=True)):
                if key:
                    self._open[key] = _Open(self._next, at, message)
                else:
                    self._replies[self._next][at] = late(message, "the node could not be reached")
            self._next += 1
            pushed = True
        return pushed

    def _pull(self) -> list[Message]:
        if not self._open:
            return []
        return self._puller.pull(list(self._open), None if self._deadline is None else max(0.01, self._left()))

    def _place(self, reply: Message) -> None:
        slot = self._open.pop(reply.metadata.reply_to_message_id, None)
        if slot is not None:
            self._replies[slot.batch][slot.at] = reply

    def _completed(self) -> Iterator[tuple[int, list[Message]]]:
        for index in sorted(self._replies):
            replies = [r for r in self._replies[index] if r is not None]
            if len(replies) == len(self._replies[index]):
                del self._replies[index]
                yield index, replies

    def _give_up(self) -> None:
        for slot in self._open.values():
            self._replies[slot.batch][slot.at] = late(slot.message, "no reply before the deadline")
        self._open.clear()
        for index in range(self._next, len(self._batches)):
            self._replies[index] = [late(m, "not sent before the deadline") for m in self._batches[index]]
        self._next = len(self._batches)


def late(message: Message, reason: str) -> Message:
    """Return the error reply of a message that was not answered in time."""
    return Message(Error(LATE, reason), reply_to=message)


class _Puller:
    """Pulls in a daemon thread, so that a pull that hangs in the transport cannot outlive the deadline."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._results: queue.SimpleQueue[list[Message] | BaseException] = queue.SimpleQueue()
        self._busy = False

    def pull(self, keys: list[str], timeout_s: float | None) -> list[Message]:
        """Return what has arrived, or nothing if the transport does not answer within `timeout_s`."""
        if not self._busy:
            threading.Thread(target=self._work, args=(keys,), daemon=True).start()
            self._busy = True
        try:
            result = self._results.get(timeout=timeout_s)
        except queue.Empty:
            return []
        self._busy = False
        if isinstance(result, BaseException):
            raise result
        return result

    def _work(self, keys: list[str]) -> None:
        try:
            self._results.put(list(self._grid.pull_messages(keys)))
        except BaseException as error:  # handed over to the caller's thread, which raises it
            self._results.put(error)
