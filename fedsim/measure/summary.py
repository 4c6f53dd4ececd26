"""What a run cost and what it reached, in one row."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from fedsim.measure import units
from fedsim.measure.ledger import PHASES
from fedsim.measure.metrics import ACCURACY, LOSS
from fedsim.measure.runs import Run


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A client that did not count in some rounds, and why."""

    client: int
    outcome: str
    reason: str
    rounds: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ToTarget:
    """What it took until the accuracy first reached a target; None where it never did or was not measured."""

    accuracy: float
    round: int | None = None
    wire_bytes: int | None = None
    measured_s: float | None = None
    virtual_s: float | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """One run in numbers; NaN where nothing was measured. Bytes are the clients' but for `helper_wire_bytes`."""

    name: str
    status: str
    rounds: int
    final_accuracy: float
    best_accuracy: float
    best_round: int | None
    final_loss: float
    upload_logical_bytes: int
    upload_wire_bytes: int
    download_logical_bytes: int
    download_wire_bytes: int
    helper_wire_bytes: int
    measured_s: float
    virtual_s: float
    phase_s: dict[str, float]
    virtual_phase_s: dict[str, float]
    turns: int
    ok_turns: int
    left_out: tuple[LeftOut, ...]
    target: ToTarget | None


def summarize(run: Run, target: float | None = None) -> Summary:
    """Return what a run cost and reached.

    Args:
        run: a run.
        target: an accuracy in [0, 1] for the bytes and time to reach it.
    """
    accuracy, loss = run.best_known(ACCURACY), run.best_known(LOSS)
    best_round = max(accuracy, key=lambda round: (accuracy[round], -round)) if accuracy else None
    ledger = run.ledger
    return Summary(
        name=run.name,
        status=run.record.status,
        rounds=len(run.rounds()),
        final_accuracy=_last(accuracy),
        best_accuracy=math.nan if best_round is None else accuracy[best_round],
        best_round=best_round,
        final_loss=_last(loss),
        upload_logical_bytes=ledger.upload_bytes(logical=True),
        upload_wire_bytes=ledger.upload_bytes(),
        download_logical_bytes=ledger.download_bytes(logical=True),
        download_wire_bytes=ledger.download_bytes(),
        helper_wire_bytes=int(ledger.total("wire_bytes", party="helper")),
        measured_s=_total(run.round_seconds()),
        virtual_s=_total(run.round_seconds(virtual=True)),
        phase_s={phase: ledger.phase_s(phase) for phase in PHASES},
        virtual_phase_s={phase: ledger.phase_s(phase, virtual=True) for phase in PHASES},
        turns=run.turns.num_rows,
        ok_turns=sum(outcome == "ok" for outcome in run.turns["outcome"].to_pylist()),
        left_out=left_out(run),
        target=None if target is None else to_target(run, target),
    )


def to_target(run: Run, accuracy: float) -> ToTarget:
    """Return what it took until the accuracy first reached a target, rounds before it included."""
    reached = next((round for round, value in run.best_known(ACCURACY).items() if value >= accuracy), None)
    if reached is None:
        return ToTarget(accuracy)
    spent = cumulative(round_bytes(run))
    times = (cumulative(run.round_seconds(virtual)) for virtual in (False, True))
    measured_s, virtual_s = (at(series, reached) for series in times)
    return ToTarget(accuracy, reached, int(at(spent, reached) or 0), measured_s, virtual_s)


def common_target(runs: Sequence[Run]) -> float | None:
    """Return the largest multiple of 5 % that every run with accuracies reached; None if there is none above 0."""
    best = [max(series.values()) for run in runs if (series := run.best_known(ACCURACY))]
    steps = math.floor(min(best, default=0.0) * 20 + 1e-9)
    return steps / 20 if 0 < steps <= 20 else None


def left_out(run: Run) -> tuple[LeftOut, ...]:
    """Return the clients that were dropped, late or rejected, by client, with the rounds in which they were."""
    found: dict[tuple[int, str, str], list[int]] = {}
    rows = run.turns if run.turns.num_rows else run.entries
    columns = (rows[name].to_pylist() for name in ("round", "client", "outcome", "reason"))
    for round, client, outcome, reason in zip(*columns, strict=True):
        if outcome != "ok":
            found.setdefault((client, outcome, reason), []).append(round)
    return tuple(LeftOut(*key, rounds=tuple(dict.fromkeys(rounds))) for key, rounds in sorted(found.items()))


def round_bytes(run: Run) -> dict[int, float]:
    """Return the clients' wire bytes, both directions, by round."""
    up = run.ledger.per_round("wire_bytes", phase="upload", party="clients")
    down = run.ledger.per_round("wire_bytes", phase="download", party="clients")
    return {round: up[round] + down[round] for round in up}


def cumulative(by_round: dict[int, float]) -> dict[int, float]:
    """Return the running sum over the rounds."""
    return dict(zip(by_round, accumulate(by_round.values()), strict=True))


def at(by_round: dict[int, float], round: int) -> float | None:
    """Return a running sum as it stood after `round`; None if the series is empty, 0 before its first round."""
    known = np.array(sorted(by_round))
    place = int(np.searchsorted(known, round, side="right"))
    if not known.size:
        return None
    return by_round[int(known[place - 1])] if place else 0.0


def rows(summaries: Sequence[Summary]) -> list[tuple[str, list[str]]]:
    """Return the summary as text: (label, one cell a run); rows that no run can fill are left out."""
    table: list[tuple[str, list[str]]] = [("status", [s.status for s in summaries])]

    def put(label: str, cells: list[str]) -> None:
        if any(cell != units.MISSING for cell in cells):
            table.append((label, cells))

    put("rounds", [str(s.rounds) for s in summaries])
    put("final accuracy", [units.show_percent(s.final_accuracy) for s in summaries])
    put("best accuracy", [_best(s) for s in summaries])
    put("final loss", [units.show_number(s.final_loss) for s in summaries])
    put("upload, wire (logical)", [_pair(s.upload_wire_bytes, s.upload_logical_bytes) for s in summaries])
    put("download, wire (logical)", [_pair(s.download_wire_bytes, s.download_logical_bytes) for s in summaries])
    put("second aggregator, wire", [units.show_bytes(s.helper_wire_bytes or None) for s in summaries])
    put("time, measured", [units.show_s(s.measured_s) for s in summaries])
    put("time, virtual", [units.show_s(s.virtual_s) for s in summaries])
    for phase in PHASES:
        put(f"{phase}, all parties, measured (virtual)", [_times(s, phase) for s in summaries])
    put("client turns that counted", [_turns(s) for s in summaries])
    for label, cells in _target_rows(summaries):
        put(label, cells)
    return table


def _target_rows(summaries: Sequence[Summary]) -> list[tuple[str, list[str]]]:
    targets = [s.target or ToTarget(math.nan) for s in summaries]
    name = f"{100 * next((t.accuracy for t in targets if t.accuracy == t.accuracy), math.nan):g} %"
    return [
        (f"rounds to {name}", [units.show_number(t.round) for t in targets]),
        (f"bytes to {name}", [units.show_bytes(t.wire_bytes) for t in targets]),
        (f"measured time to {name}", [units.show_s(t.measured_s) for t in targets]),
        (f"virtual time to {name}", [units.show_s(t.virtual_s) for t in targets]),
    ]


def _best(summary: Summary) -> str:
    if summary.best_round is None:
        return units.MISSING
    return f"{units.show_percent(summary.best_accuracy)} (round {summary.best_round})"


def _pair(wire_bytes: int, logical_bytes: int) -> str:
    if not wire_bytes and not logical_bytes:
        return units.MISSING
    return f"{units.show_bytes(wire_bytes)} ({units.show_bytes(logical_bytes)})"


def _times(summary: Summary, phase: str) -> str:
    measured_s, virtual_s = summary.phase_s[phase], summary.virtual_phase_s[phase]
    if not measured_s and not virtual_s:
        return units.MISSING
    return f"{units.show_s(measured_s or None)} ({units.show_s(virtual_s or None)})"


def _turns(summary: Summary) -> str:
    return f"{summary.ok_turns} of {summary.turns}" if summary.turns else units.MISSING


def _last(series: dict[int, float]) -> float:
    return next(reversed(series.values()), math.nan)


def _total(series: dict[int, float]) -> float:
    return sum(series.values()) if series else math.nan
