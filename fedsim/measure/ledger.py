"""The ledger: one record per (round, client, phase), and what the bytes and seconds add up to.

`measured_s` is time on this host's clock; `virtual_s` comes from device profiles and counted work and is NaN where no
profile is in force. `logical_bytes` are the numbers themselves (elements x element size); `wire_bytes` are the
serialised messages with headers, keys and ciphertext expansion.

Files, in the run's folder: ``ledger.csv`` and ``clients.csv`` grow as the run goes (see `fedsim.measure._journal`: a
killed run leaves them readable), ``ledger.parquet`` and ``clients.parquet`` are written at its end.
"""

import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal, cast, get_args

import pyarrow as pa
import pyarrow.compute as pc

from fedsim.measure import _journal
from fedsim.measure.errors import LedgerError

PHASES = ("download", "open", "train", "seal", "upload", "add", "evaluate")
OUTCOMES = ("ok", "dropped", "late", "rejected")
SERVER, HELPER = -1, -2
Party = Literal["clients", "server", "helper"]
Quantity = Literal["logical_bytes", "wire_bytes", "measured_s", "virtual_s", "flops"]


@dataclass(frozen=True, slots=True)
class Entry:
    """What one phase of one client cost in one round.

    Args:
        round: 1, 2, ...; 0 is what happens before the first round.
        client: the partition id, or `SERVER`, or `HELPER` (the second aggregator).
        phase: one of `PHASES`; download and upload are seen from the client.
        logical_bytes: bytes of the numbers themselves.
        wire_bytes: bytes of the serialised message.
        measured_s: seconds on the host's clock.
        virtual_s: seconds of the client's device profile; NaN without one.
        flops: counted floating-point operations.
        peak_memory_bytes: peak memory where known, else 0.
        outcome: one of `OUTCOMES`.
        reason: why the outcome is not "ok"; stored on one line.

    Raises:
        LedgerError: an unknown phase or outcome, a negative or not finite quantity.
    """

    round: int
    client: int
    phase: str
    logical_bytes: int = 0
    wire_bytes: int = 0
    measured_s: float = 0.0
    virtual_s: float = math.nan
    flops: int = 0
    peak_memory_bytes: int = 0
    outcome: str = "ok"
    reason: str = ""

    def __post_init__(self) -> None:
        if self.phase not in PHASES:
            raise LedgerError(f"phase {self.phase!r} is unknown; a phase is one of {', '.join(PHASES)}")
        _check_who(self.round, self.client, self.outcome)
        if min(self.logical_bytes, self.wire_bytes, self.flops, self.peak_memory_bytes) < 0:
            raise LedgerError(f"{self} counts less than nothing; bytes and flops start at 0, check their signs")
        if not 0 <= self.measured_s < math.inf or self.virtual_s < 0 or self.virtual_s == math.inf:
            raise LedgerError(f"{self} has an impossible time; seconds are finite and >= 0, use a monotonic clock")


@dataclass(frozen=True, slots=True)
class ClientRound:
    """One client's whole turn in a round, recorded beside its phases so that the two can be compared.

    Args:
        round: 1, 2, ...
        client: the partition id.
        round_s: seconds from the receipt of the message to the reply, on the host's clock.
        num_examples: examples trained on (0 if it did not train).
        outcome: one of `OUTCOMES`.
        reason: why the outcome is not "ok".

    Raises:
        LedgerError: an unknown outcome, a negative or not finite quantity.
    """

    round: int
    client: int
    round_s: float = 0.0
    num_examples: int = 0
    outcome: str = "ok"
    reason: str = ""

    def __post_init__(self) -> None:
        _check_who(self.round, self.client, self.outcome)
        if not 0 <= self.round_s < math.inf or self.num_examples < 0:
            raise LedgerError(f"{self}: seconds and examples are finite and >= 0; use a monotonic clock")


#: The fields of an `Entry` in their order.
Row = tuple[int, int, str, int, int, float, float, int, int, str, str]
_TYPES = {int: pa.int64(), float: pa.float64(), str: pa.string()}
ENTRY_SCHEMA = pa.schema([(field.name, _TYPES[cast(type, field.type)]) for field in fields(Entry)])
CLIENT_SCHEMA = pa.schema([(field.name, _TYPES[cast(type, field.type)]) for field in fields(ClientRound)])
_QUANTITIES = get_args(Quantity)
#: Rounds whose totals a ledger in a folder holds: the one that goes on, and the one before.
_HELD_ROUNDS = 2


class Ledger:
    """All entries of a run, and their totals.

    One million entries take about 90 MB in memory; opened in a folder, only those since the last flush are held,
    and the totals of the newest rounds: older ones are read back from the file when they are asked for. Not
    thread-safe: one driver writes.

    Args:
        folder: the run's folder, whose earlier records are continued; None keeps all in memory until `write`.
        keep_rounds: forget records of later rounds first; a resumed run passes the round of its checkpoint.
        flush_rows: entries held in memory before they are appended to the file.
    """

    def __init__(
        self, folder: Path | None = None, keep_rounds: int | None = None, flush_rows: int = _journal.FLUSH_ROWS
    ) -> None:
        self._entries = _journal.Journal(ENTRY_SCHEMA, folder, "ledger", flush_rows)
        self._clients = _journal.Journal(CLIENT_SCHEMA, folder, "clients", flush_rows)
        # A round's sums as one array of doubles, so that thousands of rounds take little: a place for each kind.
        self._places: dict[tuple[str, Party], int] = {}
        self._totals: dict[int, array[float]] = {}
        if keep_rounds is not None:
            self._entries.keep("round", keep_rounds)
            self._clients.keep("round", keep_rounds)
        self._held = math.inf if folder is None else _HELD_ROUNDS
        self._forgotten = False
        if folder is not None:
            self._book_table(self._entries.table())
            self._forget()

    def add(self, entry: Entry) -> None:
        """Record one phase."""
        e = entry
        virtual_s = 0.0 if e.virtual_s != e.virtual_s else e.virtual_s
        key = (e.round, e.phase, party(e.client))
        self._book(key, (e.logical_bytes, e.wire_bytes, e.measured_s, virtual_s, e.flops))
        self._entries.append(
            (e.round, e.client, e.phase, e.logical_bytes, e.wire_bytes, e.measured_s, e.virtual_s, e.flops)
            + (e.peak_memory_bytes, e.outcome, _journal.one_line(e.reason))
        )

    def extend(self, entries: Iterable[Entry]) -> None:
        """Record several phases."""
        for entry in entries:
            self.add(entry)

    def add_rows(self, rows: Sequence[Row]) -> None:
        """Record several phases, each a tuple of what an `Entry` has; a round's are checked and kept at once.

        Raises:
            LedgerError: see `Entry`; nothing is recorded.
        """
        if not rows:
            return
        columns = list(zip(*rows, strict=True))
        if not _sound(*columns):
            for row in rows:
                Entry(*row)
        for round, client, phase, logical_bytes, wire_bytes, measured_s, virtual_s, flops, *_ in rows:
            counted_s = 0.0 if virtual_s != virtual_s else virtual_s
            self._book((round, phase, party(client)), (logical_bytes, wire_bytes, measured_s, counted_s, flops))
        self._entries.extend([*columns[:-1], [_journal.one_line(reason) for reason in columns[-1]]])

    def add_client(self, turn: ClientRound) -> None:
        """Record a client's whole turn."""
        t = turn
        self._clients.append((t.round, t.client, t.round_s, t.num_examples, t.outcome, _journal.one_line(t.reason)))

    def flush(self) -> None:
        """Append what is held to the files; call it when a round ends, before its checkpoint."""
        self._entries.flush()
        self._clients.flush()
        self._forget()

    def _forget(self) -> None:
        """Drop the totals of rounds that are on disk, but those of the newest."""
        while len(self._totals) > self._held:
            del self._totals[min(self._totals)]
            self._forgotten = True

    def _whole(self, round: int | None) -> "Ledger":
        """Return a ledger that has the totals of a round, or of all; this one unless they were dropped."""
        if not self._forgotten or round in self._totals:
            return self
        found = Ledger()
        found._book_table(self.table())
        return found

    def table(self) -> pa.Table:
        """Return all entries, columns as in `Entry`."""
        return self._entries.table()

    def clients(self) -> pa.Table:
        """Return all client turns, columns as in `ClientRound`."""
        return self._clients.table()

    def write(self, folder: Path | None = None) -> None:
        """Write ``ledger`` and ``clients`` as ``.csv`` and ``.parquet``, each file atomically.

        Args:
            folder: where to; may be left out if the ledger was opened in a folder.
        """
        self._entries.write(folder)
        self._clients.write(folder)

    @classmethod
    def read(cls, folder: Path) -> "Ledger":
        """Return the records of a folder, finished or killed, in memory; the files stay as they are.

        Raises:
            LedgerError: the folder holds no ledger.
        """
        if not any((folder / name).exists() for name in ("ledger.csv", "ledger.parquet")):
            raise LedgerError(f"{folder} holds no ledger.csv or ledger.parquet; pass the folder of a run")
        entries = _journal.read(ENTRY_SCHEMA, folder, "ledger")
        ledger = cls()
        ledger._entries = _journal.Journal(ENTRY_SCHEMA, None, "ledger", base=entries)
        clients = _journal.read(CLIENT_SCHEMA, folder, "clients")
        ledger._clients = _journal.Journal(CLIENT_SCHEMA, None, "clients", base=clients)
        ledger._book_table(entries)
        return ledger

    def total(
        self, quantity: Quantity, *, round: int | None = None, phase: str | None = None, party: Party | None = None
    ) -> float:
        """Return the sum of one quantity over the entries that match; None matches all. NaN times count as 0."""
        column, whole = _QUANTITIES.index(quantity), self._whole(round)
        return sum(
            whole._sum(number, at, column)
            for (what, who), at in whole._places.items()
            if phase in (None, what) and party in (None, who)
            for number in (whole._totals if round is None else [round])
        )

    def per_round(
        self, quantity: Quantity, *, phase: str | None = None, party: Party | None = None
    ) -> dict[int, float]:
        """Return the sum of one quantity by round, ascending, over the entries that match; None matches all."""
        column, whole = _QUANTITIES.index(quantity), self._whole(None)
        found = dict.fromkeys(whole.rounds(), 0.0)
        for (what, who), at in whole._places.items():
            if phase in (None, what) and party in (None, who):
                for number in found:
                    found[number] += whole._sum(number, at, column)
        return found

    def _sum(self, round: int, at: int, column: int) -> float:
        sums = self._totals.get(round, ())
        return sums[at + column] if at < len(sums) else 0.0

    def upload_bytes(self, round: int | None = None, *, logical: bool = False) -> int:
        """Return the bytes that clients sent, in one round or in all."""
        return int(self.total(_kind(logical), round=round, phase="upload", party="clients"))

    def download_bytes(self, round: int | None = None, *, logical: bool = False) -> int:
        """Return the bytes that clients received, in one round or in all."""
        return int(self.total(_kind(logical), round=round, phase="download", party="clients"))

    def phase_s(self, phase: str, round: int | None = None, *, virtual: bool = False) -> float:
        """Return the seconds of one phase over all parties, in one round or in all."""
        return self.total("virtual_s" if virtual else "measured_s", round=round, phase=phase)

    def rounds(self) -> list[int]:
        """Return the rounds that have entries, ascending."""
        return sorted(self._whole(None)._totals)

    def _book(self, key: tuple[int, str, Party], sums: Iterable[float]) -> None:
        round, phase, who = key
        width = len(_QUANTITIES)
        at = self._places.setdefault((phase, who), width * len(self._places))
        held = self._totals.get(round, array("d"))
        if len(held) <= at:
            # Made anew at its length: one that grows takes more than it needs.
            held = self._totals[round] = array("d", [*held, *([0.0] * (at + width - len(held)))])
        for index, value in enumerate(sums):
            held[at + index] += value

    def _book_table(self, table: pa.Table) -> None:
        finite = pc.if_else(pc.is_nan(table["virtual_s"]), 0.0, table["virtual_s"])
        table = table.set_column(table.schema.get_field_index("virtual_s"), "virtual_s", finite)
        keys = ["round", "phase", "client"]
        sums = table.group_by(keys).aggregate([(quantity, "sum") for quantity in _QUANTITIES])
        for row in sums.to_pylist():
            key = (row["round"], row["phase"], party(row["client"]))
            self._book(key, [row[f"{quantity}_sum"] for quantity in _QUANTITIES])


def party(client: int) -> Party:
    """Return whose work an entry's client number stands for."""
    return "clients" if client >= 0 else "server" if client == SERVER else "helper"


def unaccounted(entries: pa.Table, clients: pa.Table) -> pa.Table:
    """Return how much of each client's turn its phases do not explain.

    Args:
        entries: `Ledger.table()`; the phase "add" is the server's work and does not count for the client.
        clients: `Ledger.clients()`.

    Returns:
        Columns round, client, round_s, phases_s and share = |round_s - phases_s| / round_s (0 if both are 0); one row
        a turn, turns that failed before any phase was recorded included with phases_s = 0.
    """
    own = entries.filter(pc.and_(pc.greater_equal(entries["client"], 0), pc.not_equal(entries["phase"], "add")))
    phases = own.group_by(["round", "client"]).aggregate([("measured_s", "sum")])
    joined = (
        clients.select(["round", "client", "round_s"])
        .join(phases, ["round", "client"])
        .sort_by([("round", "ascending"), ("client", "ascending")])
    )
    phases_s = pc.fill_null(joined["measured_s_sum"], 0.0)
    gap = pc.abs(pc.subtract(joined["round_s"], phases_s))
    share = pc.if_else(pc.equal(gap, 0.0), 0.0, pc.divide(gap, joined["round_s"]))
    return pa.table(
        {"round": joined["round"], "client": joined["client"], "round_s": joined["round_s"]}
        | {"phases_s": phases_s, "share": share}
    )


def _kind(logical: bool) -> Quantity:
    return "logical_bytes" if logical else "wire_bytes"


def _sound(
    rounds: tuple[int, ...],
    clients: tuple[int, ...],
    phases: tuple[str, ...],
    logical_bytes: tuple[int, ...],
    wire_bytes: tuple[int, ...],
    measured_s: tuple[float, ...],
    virtual_s: tuple[float, ...],
    flops: tuple[int, ...],
    peaks: tuple[int, ...],
    outcomes: tuple[str, ...],
    reasons: tuple[str, ...],
) -> bool:
    """Return whether all entries of these columns are such as `Entry` takes."""
    least = min(min(column) for column in (rounds, logical_bytes, wire_bytes, flops, peaks))
    times = all(0 <= s < math.inf for s in measured_s) and not any(s < 0 or s == math.inf for s in virtual_s)
    words = set(phases) <= set(PHASES) and set(outcomes) <= set(OUTCOMES)
    return least >= 0 and min(clients) >= HELPER and times and words


def _check_who(round: int, client: int, outcome: str) -> None:
    if round < 0 or client < HELPER:
        raise LedgerError(f"round {round}, client {client}: rounds start at 0, clients at {HELPER} (the helper)")
    if outcome not in OUTCOMES:
        raise LedgerError(f"outcome {outcome!r} is unknown; an outcome is one of {', '.join(OUTCOMES)}")
