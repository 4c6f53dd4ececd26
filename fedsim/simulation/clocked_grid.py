"""A grid on a virtual clock: replies that come too late in virtual time do not count, whenever they really came."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from flwr.app import Error, Message, MetricRecord
from flwr.serverapp import Grid

from fedsim.simulation.clock import Turn, VirtualClock, Work
from fedsim.simulation.wrapped import WrappedGrid
from strategies.fold import reply_bytes
from strategies.records import find, inside, wire_bytes
from strategies.rounds import LATE, Reducer, stream

__all__ = ["GONE", "ClockedGrid"]

#: Error code of a reply of a client that went away in the middle of its turn.
GONE = 105


class ClockedGrid(WrappedGrid):
    """Times every training exchange on a virtual clock, and cuts what its policy leaves out.

    A policy that cuts must see replies before they are added, so they are added here and not on the workers: batch by
    batch where each client is judged by itself, all at once where the first ones count. What is pushed is not timed.

    Args:
        inner: any grid.
        clock: holds the turns of the last exchange afterwards.
    """

    def __init__(self, inner: Grid, clock: VirtualClock) -> None:
        super().__init__(inner)
        self._clock = clock
        self._partitions: dict[int, int] = {}

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """See `Grid`; cuts a training exchange as :meth:`stream` does."""
        todo = list(messages)
        replies = list(self._inner.send_and_receive(todo, timeout=timeout))
        if not _trains(todo):
            return replies
        by_node = {reply.metadata.src_node_id: reply for reply in replies}
        turns: dict[int, Turn] = {}
        self._time(todo, [by_node[n] for m in todo if (n := m.metadata.dst_node_id) in by_node], {}, turns)
        left_out = self._clock.settle(turns, len(todo) - len(turns))
        return [
            self._judged(by_node[m.metadata.dst_node_id], m, left_out)
            for m in todo
            if m.metadata.dst_node_id in by_node
        ]

    def stream(
        self,
        batches: Iterable[Sequence[Message]],
        *,
        timeout: float | None = None,
        reducer: Reducer | None = None,
        max_ahead: int | None = None,
    ) -> Iterator[tuple[int, list[Message]]]:
        """See :class:`strategies.rounds.StreamingGrid`."""
        parts = [list(batch) for batch in batches]
        if not any(map(_trains, parts)):
            for index, replies in stream(self._inner, parts, timeout=timeout, reducer=reducer, max_ahead=max_ahead):
                self._learn(replies)
                yield index, replies
            return
        yield from self._train(parts, timeout, reducer, max_ahead)

    def _train(
        self, parts: list[list[Message]], timeout: float | None, reducer: Reducer | None, max_ahead: int | None
    ) -> Iterator[tuple[int, list[Message]]]:
        cuts = self._clock.cuts
        turns: dict[int, Turn] = {}
        sizes: dict[int, int] = {}
        held: dict[int, list[Message]] = {}
        inner = stream(self._inner, parts, timeout=timeout, reducer=None if cuts else reducer, max_ahead=max_ahead)
        for index, replies in inner:
            self._time(parts[index], replies, sizes, turns)
            if cuts:
                held[index] = replies
            else:
                yield index, replies
        left_out = self._clock.settle(turns, sum(map(len, parts)) - len(turns))
        for index in sorted(held):
            kept = [self._judged(r, m, left_out) for r, m in zip(held.pop(index), parts[index], strict=True)]
            yield index, reducer(kept) if reducer else kept

    def _time(
        self, messages: Sequence[Message], replies: Sequence[Message], sizes: dict[int, int], turns: dict[int, Turn]
    ) -> None:
        """Put the turns of those that replied into `turns`; `sizes` keeps the bytes of contents that many share."""
        contents = {m.metadata.dst_node_id: m.content for m in messages}
        for reply in replies:
            node = reply.metadata.src_node_id
            # A node that did not say which client it is has no device: it is not timed, and never late.
            if reply.has_error() or node not in contents or self._partition(node) < 0:
                continue
            content = contents[node]
            if id(content) not in sizes:
                sizes[id(content)] = wire_bytes(content)
            phases = find(reply.content, "phases", MetricRecord)
            noted = {} if phases is None else inside(phases)
            work = Work(
                download_bytes=sizes[id(content)],
                upload_bytes=reply_bytes(reply.content),
                flops=int(_number(noted, "train_flops")),
                slowness=_number(noted, "slowness", 1.0),
                evaluate_flops=int(_number(noted, "evaluate_flops")),
            )
            client = self._partition(node)
            turns[client] = self._clock.turn(client, work)

    def _judged(self, reply: Message, message: Message, left_out: dict[int, str]) -> Message:
        reason = left_out.get(self._partition(message.metadata.dst_node_id), "")
        if not reason or reply.has_error():
            return reply
        code = GONE if reason.startswith("went away") else LATE
        return Message(Error(code, reason), reply_to=message)

    def _partition(self, node_id: int) -> int:
        if node_id not in self._partitions and self.node_configs:
            self._partitions = {n: int(config["partition-id"]) for n, config in self.node_configs.items()}
        return self._partitions.get(node_id, -1)

    def _learn(self, replies: Sequence[Message]) -> None:
        """Note which client a node is, where it says so."""
        for reply in replies:
            hello = None if reply.has_error() else find(reply.content, "hello", MetricRecord)
            if hello is not None:
                number = hello.get("partition-id")
                if isinstance(number, int):
                    self._partitions[reply.metadata.src_node_id] = number


def _trains(messages: Sequence[Message]) -> bool:
    return bool(messages) and messages[0].metadata.message_type.startswith("train")


def _number(record: Mapping[str, object], key: str, default: float = 0.0) -> float:
    value = record.get(key, default)
    return float(value) if isinstance(value, int | float) else default
