"""What is drawn, apart from how: each chart is data that the browser's and the PNG's painter both read."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedsim.measure import units
from fedsim.measure.ledger import OUTCOMES, PHASES
from fedsim.measure.metrics import ACCURACY, LOSS
from fedsim.measure.runs import Run
from fedsim.measure.summary import at, cumulative, round_bytes

Dash = Literal["solid", "dash", "dot"]
Group = Literal["Learning", "Communication", "Time", "Clients"]
#: Okabe and Ito (2008), told apart by colour-blind readers; one set for light and one for dark paper.
LIGHT = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6B7280", "#8C6D1F")
DARK = ("#4EA3DD", "#F0853C", "#2FC497", "#DE9CC1", "#F2B636", "#8CCBF2", "#9AA3B0", "#C9A94E")
MOST_ROWS = 400


@dataclass(frozen=True, slots=True)
class Line:
    """One curve; `color` counts into the palette."""

    label: str
    x: list[float]
    y: list[float]
    color: int
    dash: Dash = "solid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """What all charts have: a file name without suffix, words, and axis labels with units."""

    key: str
    group: Group
    title: str
    note: str
    x_label: str
    y_label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines(Chart):
    """Curves over a number."""

    lines: list[Line]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars(Chart):
    """Stacked bars: `layers` are (label, heights, color), one height for each of `x`."""

    x: list[str] | list[int]
    layers: list[tuple[str, list[float], int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heat(Chart):
    """A table of cells; None is left blank."""

    x: list[str] | list[int]
    y: list[int]
    z: list[list[float | None]]
    z_label: str


def charts(runs: Sequence[Run]) -> list[Chart]:
    """Return every chart that the runs have data for, in reading order."""
    tagged = [(run, f"_{number}" if len(runs) > 1 else "") for number, run in enumerate(runs, 1)]
    found: list[Chart | None] = [
        _metric(runs, ACCURACY, "Accuracy", 100.0, "accuracy (%)"),
        _metric(runs, LOSS, "Loss", 1.0, "loss"),
        _against_bytes(runs),
        _against_time(runs, virtual=True),
        _against_time(runs, virtual=False),
        _bytes(runs, total=False),
        _bytes(runs, total=True),
        _phases(runs[0]) if len(runs) == 1 else _phases_of_runs(runs),
        _spread(runs),
        *(_turn_times(run, tag) for run, tag in tagged),
        *(_outcomes(run, tag) for run, tag in tagged),
        *_partitions(runs),
    ]
    return [chart for chart in found if chart is not None]


def _label(run: Run, runs: Sequence[Run], what: str) -> str:
    return what if len(runs) == 1 else f"{run.name}, {what}"


def _metric(runs: Sequence[Run], name: str, title: str, factor: float, y_label: str) -> Lines | None:
    lines = []
    for index, run in enumerate(runs):
        for number, (side, series) in enumerate(run.sides(name).items()):
            label = _label(run, runs, "server's test set" if side == "server" else "clients, weighted mean")
            color = index if len(runs) > 1 else number
            dash: Dash = "solid" if number == 0 else "dash"
            lines.append(Line(label, [*series], [factor * value for value in series.values()], color, dash))
    note = f"{title} of the global model after each round; round 0 is the initial model."
    words = {"title": f"{title} per round", "note": note, "x_label": "round", "y_label": y_label}
    return Lines(key=name, group="Learning", **words, lines=lines) if lines else None


def _against_bytes(runs: Sequence[Run]) -> Lines | None:
    spent = [cumulative(round_bytes(run)) for run in runs]
    size, unit = units.byte_unit(max((max(series.values(), default=0) for series in spent), default=0))
    lines = _accuracy_against(runs, spent, size)
    if not lines:
        return None
    return Lines(
        key="accuracy_bytes",
        group="Learning",
        title="Accuracy against bytes",
        note="Wire bytes of all clients, up and down, since the start.",
        x_label=f"bytes up and down ({unit})",
        y_label="accuracy (%)",
        lines=lines,
    )


def _against_time(runs: Sequence[Run], virtual: bool) -> Lines | None:
    spent = [cumulative(run.round_seconds(virtual)) for run in runs]
    size, unit = units.time_unit(max((max(series.values(), default=0) for series in spent), default=0))
    lines = _accuracy_against(runs, spent, size)
    kind = "virtual" if virtual else "measured"
    source = "device profiles and counted work" if virtual else "this host's clock, which other load slows"
    if not lines:
        return None
    return Lines(
        key=f"accuracy_{kind}_time",
        group="Learning",
        title=f"Accuracy against {kind} time",
        note=f"Sum of the rounds' times, from {source}.",
        x_label=f"{kind} time ({unit})",
        y_label="accuracy (%)",
        lines=lines,
    )


def _accuracy_against(runs: Sequence[Run], spent: Sequence[dict[int, float]], size: float) -> list[Line]:
    lines = []
    for index, (run, series) in enumerate(zip(runs, spent, strict=True)):
        accuracy = run.best_known(ACCURACY)
        if accuracy and any(series.values()):
            x = [(at(series, round) or 0.0) / size for round in accuracy]
            lines.append(Line(run.name, x, [100 * value for value in accuracy.values()], index))
    return lines


def _bytes(runs: Sequence[Run], total: bool) -> Lines | None:
    curves = []
    for index, run in enumerate(runs):
        for number, (phase, what) in enumerate((("upload", "up"), ("download", "down"))):
            series = run.ledger.per_round("wire_bytes", phase=phase, party="clients")
            series = {round: value for round, value in series.items() if round > 0}
            if any(series.values()):
                curves.append((index, number, _label(run, runs, what), cumulative(series) if total else series))
    if not curves:
        return None
    size, unit = units.byte_unit(max(max(series.values()) for *_, series in curves))
    several = len(runs) > 1
    dashes: tuple[Dash, Dash] = ("solid", "dash")
    lines = [
        Line(
            label, [*series], [value / size for value in series.values()], index if several else number, dashes[number]
        )
        for index, number, label, series in curves
    ]
    return Lines(
        key="bytes_total" if total else "bytes",
        group="Communication",
        title="Bytes since the start" if total else "Bytes per round",
        note="Wire bytes of all clients: serialised messages with headers, keys and ciphertext expansion.",
        x_label="round",
        y_label=f"bytes ({unit})",
        lines=lines,
    )


def _phases(run: Run) -> Bars | None:
    per_phase = {phase: run.ledger.per_round("measured_s", phase=phase) for phase in PHASES}
    rounds = [round for round in run.ledger.rounds() if round > 0]
    tallest = max((sum(series[round] for series in per_phase.values()) for round in rounds), default=0.0)
    if not tallest:
        return None
    size, unit = units.time_unit(tallest)
    layers = [
        (phase, [series[round] / size for round in rounds], color)
        for color, (phase, series) in enumerate(per_phase.items())
        if any(series[round] for round in rounds)
    ]
    return Bars(
        key="phases",
        group="Time",
        title="Time per phase and round",
        note="Measured seconds of all clients and aggregators, added up (work, not duration).",
        x_label="round",
        y_label=f"time ({unit})",
        x=rounds,
        layers=layers,
    )


def _phases_of_runs(runs: Sequence[Run]) -> Bars | None:
    means = {p: [run.ledger.phase_s(p) / max(1, len(run.rounds())) for run in runs] for p in PHASES}
    tallest = max(sum(column) for column in zip(*means.values(), strict=True))
    if not tallest:
        return None
    size, unit = units.time_unit(tallest)
    layers = [(p, [value / size for value in row], color) for color, (p, row) in enumerate(means.items()) if any(row)]
    return Bars(
        key="phases",
        group="Time",
        title="Time per phase, mean of the rounds",
        note="Measured seconds of all clients and aggregators in a round, added up (work, not duration).",
        x_label="run",
        y_label=f"time ({unit})",
        x=[run.name for run in runs],
        layers=layers,
    )


def _turn_arrays(run: Run) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    ok = np.array([outcome == "ok" for outcome in run.turns["outcome"].to_pylist()], bool)
    columns = (run.turns[name].to_numpy()[ok] for name in ("round", "client", "round_s"))
    round, client, seconds = columns
    return round, client, seconds


def _spread(runs: Sequence[Run]) -> Lines | None:
    raw: list[tuple[str, list[float], list[float], int, Dash]] = []
    for index, run in enumerate(runs):
        round, _, seconds = _turn_arrays(run)
        numbers = [int(number) for number in np.unique(round)]
        slices = [seconds[round == number] for number in numbers]
        quantiles: tuple[tuple[str, float, Dash], ...] = (("slowest", 1.0, "dash"), ("median", 0.5, "solid"))
        for number, (what, share, dash) in enumerate(quantiles):
            values = [float(np.quantile(part, share)) for part in slices]
            color = index if len(runs) > 1 else 1 - number
            raw.append((_label(run, runs, what), [*map(float, numbers)], values, color, dash))
    largest = max((max(values, default=0.0) for _, _, values, _, _ in raw), default=0.0)
    size, unit = units.time_unit(largest)
    lines = [Line(label, x, [value / size for value in y], color, dash) for label, x, y, color, dash in raw if x]
    if not lines:
        return None
    return Lines(
        key="turns",
        group="Time",
        title="Median and slowest client",
        note="From the receipt of the message to the reply, measured, of the clients that counted.",
        x_label="round",
        y_label=f"client's time ({unit})",
        lines=lines,
    )


def _turn_times(run: Run, tag: str) -> Heat | None:
    round, client, seconds = _turn_arrays(run)
    if not round.size:
        return None
    rounds, clients = np.unique(round), np.unique(client)
    shown, note = _thinned(clients)
    table = np.full((len(clients), len(rounds)), np.nan)
    table[np.searchsorted(clients, client), np.searchsorted(rounds, round)] = seconds
    size, unit = units.time_unit(float(seconds.max()))
    return Heat(
        key="turns_by_client" + tag,
        group="Time",
        title=_title("Time of each client", run, tag),
        note=f"Measured; blank where a client was not asked or did not count.{note}",
        x_label="round",
        y_label="client",
        x=rounds.tolist(),
        y=clients[shown].tolist(),
        z=_cells(table[shown] / size),
        z_label=f"time ({unit})",
    )


def _outcomes(run: Run, tag: str) -> Bars | None:
    if not run.turns.num_rows:
        return None
    round, outcome = run.turns["round"].to_numpy(), np.array(run.turns["outcome"].to_pylist())
    rounds = np.unique(round)
    layers = []
    for name, color in zip(OUTCOMES, (0, 1, 4, 3), strict=True):
        counts = np.bincount(np.searchsorted(rounds, round[outcome == name]), minlength=len(rounds))
        if counts.any():
            layers.append((name, counts.astype(float).tolist(), color))
    return Bars(
        key="outcomes" + tag,
        group="Clients",
        title=_title("Who was asked, who counted", run, tag),
        note="Dropped: no reply. Late: after the deadline. Rejected: a reply that could not be used.",
        x_label="round",
        y_label="clients",
        x=rounds.tolist(),
        layers=layers,
    )


def _partitions(runs: Sequence[Run]) -> list[Chart]:
    known = [run for run in runs if run.partition is not None]
    same = len(known) == len(runs) and all(run.partition == runs[0].partition for run in known)
    if same:
        return [_partition(runs[0], "")]
    return [_partition(run, f"_{number}" if len(runs) > 1 else "") for number, run in enumerate(known, 1)]


def _partition(run: Run, tag: str) -> Chart:
    assert run.partition is not None
    part = run.partition
    empty = f" {len(part.empty)} clients hold nothing." if part.empty else ""
    measures = "".join(f" {name}: {units.show_number(value)}." for name, value in part.measures.items())
    words: dict[str, str] = {"key": "partition" + tag, "title": _title("Who holds what", run, tag)}
    shown, thinned = _thinned(np.arange(len(part.sizes)))
    if not part.histogram:
        note = f"Training examples of each client.{empty}{measures}{thinned}"
        sizes = [float(part.sizes[client]) for client in shown]
        axes = {"x_label": "client", "y_label": "examples"}
        return Bars(group="Clients", **words, note=note, **axes, x=shown.tolist(), layers=[("examples", sizes, 0)])
    counts = np.array(part.histogram, float)[shown]
    note = f"Training examples of each client by label; blank where there are none.{empty}{measures}{thinned}"
    cells = _cells(np.where(counts > 0, counts, np.nan))
    axes = {"x_label": "label", "y_label": "client", "z_label": "examples"}
    return Heat(group="Clients", **words, note=note, **axes, x=part.classes, y=shown.tolist(), z=cells)


def _thinned(clients: np.ndarray) -> tuple[np.ndarray, str]:
    """Return which rows to draw, evenly chosen so that a picture stays readable, and the words that say so."""
    step = -(-len(clients) // MOST_ROWS)
    note = "" if step <= 1 else f" One client in {step} is drawn."
    return np.arange(0, len(clients), max(step, 1)), note


def _cells(table: np.ndarray) -> list[list[float | None]]:
    return [[None if np.isnan(cell) else float(f"{cell:.4g}") for cell in row] for row in table]


def _title(title: str, run: Run, tag: str) -> str:
    return f"{title}: {run.name}" if tag else title
