"""Folding sealed replies into one running total, on the server or on the worker that ran the clients."""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from crypto import CryptoError, WireError
from crypto.base import Adder, Plan, Tag
from strategies.clipping import NormLimit
from strategies.protection import Protection
from strategies.records import config_record, find, inside, need, put, read_sealed, sealed_record, wire_bytes
from strategies.rounds import Reducer

#: Error codes of replies that the server, or a worker for it, refuses.
REJECTED = 104


@dataclass(slots=True)
class Delivered:
    """What is known of one client after its reply was folded.

    Attributes:
        node_id: Flower's id of the node.
        num_examples: as the client states.
        metrics: its training metrics.
        phases: seconds (and other costs) per phase, as the client measured them.
        upload_bytes: what Flower moved for the reply.
        sealed_bytes: of these, the sealed parts.
        add_s: time to add it up.
        error: why it was left out; empty if it counts.
        error_code: the reply's error code, 0 if it counts.
        pieces: the sums that it is in, in a round of several; see :mod:`strategies.piece_fold`.
    """

    node_id: int
    num_examples: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    phases: dict[str, float] = field(default_factory=dict)
    upload_bytes: int = 0
    sealed_bytes: int = 0
    add_s: float = 0.0
    error: str = ""
    error_code: int = 0
    pieces: tuple[str, ...] = ()


class Totals:
    """Running totals of one round, one per aggregator."""

    def __init__(self, adders: Sequence[Adder]) -> None:
        self._adders = list(adders)

    @property
    def count(self) -> int:
        """Number of client vectors inside."""
        return self._adders[0].count

    def add(self, parts: Sequence[bytes]) -> None:
        """Add one client's parts, to all aggregators or to none."""
        for adder, part in zip(self._adders, parts, strict=True):
            adder.add(part)

    def try_rest(self, parts: Sequence[bytes]) -> None:
        """Add all parts but the first, to find out whether they can be added.

        Raises:
            CryptoError: one cannot.
        """
        for adder, part in list(zip(self._adders, parts, strict=True))[1:]:
            adder.add(part)

    def merge(self, totals: Sequence[bytes]) -> None:
        """Add partial totals."""
        for adder, total in zip(self._adders, totals, strict=True):
            adder.merge(total)

    def totals(self) -> list[bytes]:
        """Return the sealed totals in aggregator order."""
        return [adder.total() for adder in self._adders]


@dataclass(slots=True)
class HelperCosts:
    """What a second aggregator cost in one round.

    Attributes:
        received_bytes: relayed reports and proofs, their framing included.
        sent_bytes: its answers.
        busy_s: seconds that it worked, on its own clock.
    """

    received_bytes: int = 0
    sent_bytes: int = 0
    busy_s: float = 0.0


class Fold(ABC):
    """One round's way from replies to sealed totals, as the server drives it.

    Attributes:
        reducer: what runs beside the clients on each chunk of replies, before :meth:`take`; ``None`` for nothing.
        helper: costs of a second aggregator, where there is one.
    """

    reducer: Reducer | None = None
    helper: HelperCosts | None = None

    @abstractmethod
    def take(self, replies: list[Message]) -> None:
        """Add one chunk's replies in order, and note in each what became of it, for :func:`delivered`.

        Raises:
            StrategyError: the sum cannot go on; one bad reply is no such case.
        """

    @abstractmethod
    def totals(self) -> list[bytes]:
        """Return the sealed totals in aggregator order.

        Raises:
            StrategyError: too few counted, or a party is gone.
        """


class WorkerFold(Fold):
    """Sums chunks on the workers that ran the clients, and merges the chunks' totals here.

    Args:
        protection: the secure sum, as workers need it; see :meth:`~strategies.protection.Protection.public`.
        plan: what the secure sum was sized for.
        tag: the round.
        limit: what each update must keep, where they are not sealed.
    """

    def __init__(self, protection: Protection, plan: Plan, tag: Tag, limit: NormLimit | None = None) -> None:
        secure = protection.secure_sum(plan)
        self.reducer: Reducer = ChunkSum(protection, plan, tag, limit)
        self._totals = Totals([secure.adder(tag) for _ in range(secure.aggregators)])
        self._aggregators = secure.aggregators

    def take(self, replies: list[Message]) -> None:
        """See :meth:`Fold.take`."""
        for reply in replies:
            merge_partial(reply, self._totals, self._aggregators)

    def totals(self) -> list[bytes]:
        """See :meth:`Fold.totals`."""
        return self._totals.totals()


@dataclass(frozen=True)
class ChunkSum:
    """Sums one chunk of replies in order; a picklable reducer for grids that run it beside the clients.

    The first reply that counts comes back with the chunk's partial totals in place of its own parts; the others come
    back without parts. Replies that cannot be added keep their metrics and carry the reason.
    """

    protection: Protection
    plan: Plan
    tag: Tag
    limit: NormLimit | None = None

    def __call__(self, replies: list[Message]) -> list[Message]:
        """Return one reply for each one given, in the same order."""
        secure = self.protection.secure_sum(self.plan)
        totals = Totals([secure.adder(self.tag) for _ in range(secure.aggregators)])
        carrier: RecordDict | None = None
        for reply in replies:
            if reply.has_error():
                continue
            if add_reply(reply.content, totals, secure.aggregators, self._check) and carrier is None:
                carrier = reply.content
        if carrier is not None:
            carrier["partial"] = sealed_record(totals.totals())
        return replies

    def _check(self, parts: list[bytes], examples: int) -> None:
        if self.limit is not None:
            self.limit.check(parts[0], self.tag, examples)


def merge_partial(reply: Message, totals: Totals, aggregators: int) -> None:
    """Merge the chunk's totals, if this reply carries them, and note the time in it."""
    partial = None if reply.has_error() else find(reply.content, "partial", ArrayRecord)
    if partial is None:
        return
    started = time.perf_counter()
    totals.merge(read_sealed(partial, aggregators))
    folded = need(reply.content, "folded", ConfigRecord)
    folded["add_s"] = float(_number(folded, "add_s", float)) + time.perf_counter() - started


def add_reply(
    content: RecordDict,
    totals: Totals,
    aggregators: int,
    check: Callable[[list[bytes], int], None] | None = None,
) -> bool:
    """Move one reply's parts into the totals; note sizes, seconds and the reason if that fails.

    Args:
        content: the reply's.
        totals: what to add to.
        aggregators: how many parts there must be.
        check: raises :class:`~crypto.errors.WireError` for parts that must not count, given the stated examples.
    """
    started = time.perf_counter()
    notes: dict[str, int | float | str] = {"upload_bytes": wire_bytes(content)}
    taken = False
    try:
        parts = sealed_parts(content, aggregators)
        notes["sealed_bytes"] = sum(map(len, parts))
        if check is not None:
            check(parts, check_examples(content))
        totals.add(parts)
        taken = True
    except CryptoError as error:
        notes["rejected"] = str(error)
    content.pop("sealed", None)
    notes["add_s"] = time.perf_counter() - started
    put(content, "folded", config_record(notes))
    return taken


def sealed_parts(content: RecordDict, aggregators: int) -> list[bytes]:
    """Return a reply's sealed parts in aggregator order.

    Raises:
        WireError: there are none, or the reply states no examples.
    """
    check_examples(content)
    sealed = find(content, "sealed", ArrayRecord)
    if sealed is None:
        raise WireError("the reply holds no sealed update: client and server must run the same strategy")
    return read_sealed(sealed, aggregators)


def reply_bytes(content: RecordDict) -> int:
    """Return what Flower moved for a client's reply, also after its parts were folded."""
    folded = find(content, "folded", ConfigRecord)
    return wire_bytes(content) if folded is None else _number(inside(folded), "upload_bytes")


def check_examples(content: RecordDict) -> int:
    """Return the stated number of examples.

    Raises:
        WireError: missing, not a finite number, zero or negative.
    """
    metrics = find(content, "metrics", MetricRecord)
    value = None if metrics is None else inside(metrics).get("num-examples")
    if not isinstance(value, int | float) or not 0 < value < 2**53:
        raise WireError(f"num-examples is {value!r}: must be a positive number; a client without samples cannot count")
    return int(value)


def delivered(reply: Message, node_id: int) -> Delivered:
    """Read what a folded reply says of its client."""
    if reply.has_error():
        return Delivered(node_id, error=reply.error.reason or "no reason given", error_code=reply.error.code)
    content = reply.content
    notes = find(content, "folded", ConfigRecord)
    folded = {} if notes is None else inside(notes)
    rejected, pieces = str(folded.get("rejected", "")), folded.get("pieces", [])
    metrics = _scalars(content, "metrics")
    return Delivered(
        node_id,
        num_examples=_whole(metrics.pop("num-examples", 0.0)),
        metrics=metrics,
        phases=_scalars(content, "phases"),
        upload_bytes=_number(folded, "upload_bytes"),
        sealed_bytes=_number(folded, "sealed_bytes"),
        add_s=float(_number(folded, "add_s", float)),
        error=rejected,
        error_code=REJECTED if rejected else 0,
        pieces=tuple(map(str, pieces)) if isinstance(pieces, list) else (),
    )


def _whole(value: float) -> int:
    # What a refused reply states may be anything, also NaN.
    return int(value) if math.isfinite(value) else 0


def _scalars(content: RecordDict, name: str) -> dict[str, float]:
    record = find(content, name, MetricRecord)
    if record is None:
        return {}
    return {k: float(v) for k, v in inside(record).items() if type(v) is float or isinstance(v, int)}


def _number(record: Mapping[str, object], key: str, kind: type = int) -> int:
    value = record.get(key, 0)
    return kind(value) if isinstance(value, int | float) else 0
