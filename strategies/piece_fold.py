"""Several sums in one round: each client adds to those pieces of the model that it trained.

A piece (a transformer block, say) has its own layout and its own running total, over the clients that were asked for
it. Pieces share no coordinate, so knowing several totals tells nothing about a client that one total alone would not;
what a piece's total hides depends on how many clients are in it.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from flwr.app import ConfigRecord, Message, RecordDict

from crypto import CryptoError, WireError
from crypto.base import Plan, Tag
from strategies.fold import Fold, Totals, check_examples
from strategies.protection import Protection
from strategies.records import read_sealed, sealed_record, wire_bytes
from strategies.rounds import Reducer

SEALED, PARTIAL = "sealed.", "partial."


@dataclass(frozen=True)
class Expected:
    """What one client was asked for.

    Attributes:
        pieces: that must be there.
        chosen: how many further pieces the client chooses by itself.
    """

    pieces: frozenset[str]
    chosen: int = 0

    def check(self, names: set[str], known: Mapping[str, Tag]) -> None:
        """Raise :class:`~crypto.errors.WireError` unless these are the pieces that the client was asked for."""
        if not self.pieces <= names <= set(known) or len(names) != len(self.pieces) + self.chosen:
            raise WireError(
                f"pieces {sorted(names)[:5]} were sent: {sorted(self.pieces)[:5]} and {self.chosen} more were asked "
                "for; client and server must run the same strategy"
            )


class PieceFold(Fold):
    """One round's sums, a total for each piece.

    Args:
        protection: the secure sum, as workers need it.
        plan: what it was sized for: the longest piece.
        tags: of each piece.
        expected: by node id.
    """

    def __init__(
        self, protection: Protection, plan: Plan, tags: Mapping[str, Tag], expected: Mapping[int, Expected]
    ) -> None:
        secure = protection.secure_sum(plan)
        self.reducer: Reducer = _PieceSum(protection, plan, dict(tags), dict(expected))
        self._aggregators = secure.aggregators
        self._totals = {p: Totals([secure.adder(t) for _ in range(secure.aggregators)]) for p, t in tags.items()}

    def take(self, replies: list[Message]) -> None:
        """See :meth:`~strategies.fold.Fold.take`."""
        for reply in replies:
            if reply.has_error():
                continue
            records = reply.content.array_records
            started = time.perf_counter()
            for name in [n for n in records if n.startswith(PARTIAL)]:
                self._totals[name.removeprefix(PARTIAL)].merge(read_sealed(records[name], self._aggregators))
            notes = reply.content.config_records["folded"]
            before = notes["add_s"]
            notes["add_s"] = (before if isinstance(before, float) else 0.0) + time.perf_counter() - started

    def count(self, piece: str) -> int:
        """Return how many clients are in a piece's total."""
        return self._totals[piece].count

    def totals(self, piece: str | None = None) -> list[bytes]:
        """Return a piece's sealed totals in aggregator order.

        Raises:
            WireError: no piece is named; there is no total of all.
        """
        if piece is None:
            raise WireError("a round of several sums has no single total: name a piece")
        return self._totals[piece].totals()


@dataclass(frozen=True)
class _PieceSum:
    """Sums one chunk of replies in order; a picklable reducer, see :class:`~strategies.fold.ChunkSum`."""

    protection: Protection
    plan: Plan
    tags: dict[str, Tag]
    expected: dict[int, Expected]

    def __call__(self, replies: list[Message]) -> list[Message]:
        """Return one reply for each one given, in the same order."""
        secure = self.protection.secure_sum(self.plan)
        totals = {p: Totals([secure.adder(t) for _ in range(secure.aggregators)]) for p, t in self.tags.items()}
        carrier: RecordDict | None = None
        for reply in replies:
            if not reply.has_error():
                added = self._take(reply, totals, secure.aggregators)
                carrier = reply.content if added and carrier is None else carrier
        for piece, total in totals.items():
            if carrier is not None and total.count:
                carrier[PARTIAL + piece] = sealed_record(total.totals())
        return replies

    def _take(self, reply: Message, totals: dict[str, Totals], aggregators: int) -> list[str]:
        """Move one reply's parts into the totals; note sizes, seconds, what was added, and the reason if that fails."""
        content, started = reply.content, time.perf_counter()
        notes: dict[str, int | float | str | list[str]] = {"upload_bytes": wire_bytes(content)}
        added: list[str] = []
        try:
            parts = self._parts(reply, aggregators)
            notes["sealed_bytes"] = sum(len(p) for each in parts.values() for p in each)
            for piece, sealed in parts.items():
                totals[piece].add(sealed)
                added.append(piece)
        except CryptoError as error:
            notes["rejected"] = str(error)
        for name in [n for n in content.array_records if n.startswith(SEALED)]:
            content.pop(name)
        # A client that failed half-way is in the sums of the pieces before: its weight must count there.
        notes["pieces"] = added
        notes["add_s"] = time.perf_counter() - started
        content["folded"] = ConfigRecord(notes)  # type: ignore[arg-type]
        return added

    def _parts(self, reply: Message, aggregators: int) -> dict[str, list[bytes]]:
        content = reply.content
        check_examples(content)
        records = {n.removeprefix(SEALED): r for n, r in content.array_records.items() if n.startswith(SEALED)}
        asked = self.expected.get(reply.metadata.src_node_id)
        if asked is None:
            raise WireError(f"node {reply.metadata.src_node_id} was not asked for anything in this round")
        asked.check(set(records), self.tags)
        return {piece: read_sealed(records[piece], aggregators) for piece in self.tags if piece in records}
