"""Charts over the rounds, over bytes and over time; several runs are laid over each other."""

from collections.abc import Sequence

import numpy as np

from fedsim.measure import units
from fedsim.measure._chart import Bars, Line, Lines
from fedsim.measure._client_charts import turn_arrays
from fedsim.measure.ledger import PHASES
from fedsim.measure.metrics import ACCURACY
from fedsim.measure.runs import Run
from fedsim.measure.summary import at, cumulative, round_bytes

Series = dict[int, float]
#: (run's index, 0 for the main and 1 for the other curve, values by round)
Curve = tuple[int, int, Series]
_SIDES = ("server's test set", "clients, weighted mean")


def metric(runs: Sequence[Run], name: str, title: str, factor: float, y_label: str) -> Lines | None:
    """Return a metric by round, of both sides."""
    curves = [
        (index, 0 if side == "server" else 1, {round: factor * value for round, value in series.items()})
        for index, run in enumerate(runs)
        for side, series in run.sides(name).items()
    ]
    if not curves:
        return None
    return Lines(
        key=name,
        group="Learning",
        title=f"{title} per round",
        note=f"{title} of the global model after each round; round 0 is the initial model.{_key(runs, curves, _SIDES)}",
        x_label="round",
        y_label=y_label,
        lines=_lines(runs, curves, _SIDES, 1.0),
        from_zero=False,
    )


def against_bytes(runs: Sequence[Run]) -> Lines | None:
    """Return accuracy against the bytes it took."""
    spent = [cumulative(round_bytes(run)) for run in runs]
    size, unit = units.byte_unit(_largest(spent))
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
        from_zero=False,
    )


def against_time(runs: Sequence[Run], virtual: bool) -> Lines | None:
    """Return accuracy against the time it took, virtual or measured."""
    spent = [cumulative(run.round_seconds(virtual)) for run in runs]
    size, unit = units.time_unit(_largest(spent))
    lines = _accuracy_against(runs, spent, size)
    if not lines:
        return None
    kind = "virtual" if virtual else "measured"
    source = "device profiles and counted work" if virtual else "this host's clock, which other load slows"
    return Lines(
        key=f"accuracy_{kind}_time",
        group="Learning",
        title=f"Accuracy against {kind} time",
        note=f"Sum of the rounds' times, from {source}.",
        x_label=f"{kind} time ({unit})",
        y_label="accuracy (%)",
        lines=lines,
        from_zero=False,
    )


def traffic(runs: Sequence[Run], total: bool) -> Lines | None:
    """Return the clients' wire bytes up and down, by round or since the start."""
    curves: list[Curve] = []
    for index, run in enumerate(runs):
        for number, phase in enumerate(("upload", "download")):
            series = run.ledger.per_round("wire_bytes", phase=phase, party="clients")
            series = {round: value for round, value in series.items() if round > 0}
            if any(series.values()):
                curves.append((index, number, cumulative(series) if total else series))
    if not curves:
        return None
    size, unit = units.byte_unit(_largest([series for *_, series in curves]))
    key = _key(runs, curves, ("up", "down"))
    return Lines(
        key="bytes_total" if total else "bytes",
        group="Communication",
        title="Bytes since the start" if total else "Bytes per round",
        note=f"Wire bytes of all clients: serialised messages with headers, keys and ciphertext expansion.{key}",
        x_label="round",
        y_label=f"bytes ({unit})",
        lines=_lines(runs, curves, ("up", "down"), size),
    )


def spread(runs: Sequence[Run]) -> Lines | None:
    """Return the median and the slowest client's time by round."""
    curves: list[Curve] = []
    for index, run in enumerate(runs):
        round, _, seconds = turn_arrays(run)
        by_round = {int(number): seconds[round == number] for number in np.unique(round)}
        if by_round:
            curves.append((index, 0, {number: float(np.median(part)) for number, part in by_round.items()}))
            curves.append((index, 1, {number: float(part.max()) for number, part in by_round.items()}))
    if not curves:
        return None
    size, unit = units.time_unit(_largest([series for *_, series in curves]))
    key = _key(runs, curves, ("median", "slowest"))
    return Lines(
        key="turns",
        group="Time",
        title="Median and slowest client",
        note=f"From the receipt of the message to the reply, measured, of the clients that counted.{key}",
        x_label="round",
        y_label=f"client's time ({unit})",
        lines=_lines(runs, curves, ("median", "slowest"), size),
    )


def phases(run: Run) -> Bars | None:
    """Return one run's seconds by phase and round, stacked."""
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


def phases_of_runs(runs: Sequence[Run]) -> Bars | None:
    """Return each run's mean seconds by phase in a round, stacked."""
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
        x_label="",
        y_label=f"time ({unit})",
        x=[run.name for run in runs],
        layers=layers,
    )


def _accuracy_against(runs: Sequence[Run], spent: Sequence[Series], size: float) -> list[Line]:
    lines = []
    for index, (run, series) in enumerate(zip(runs, spent, strict=True)):
        accuracy = run.best_known(ACCURACY)
        if accuracy and any(series.values()):
            x = [(at(series, round) or 0.0) / size for round in accuracy]
            y = [100 * value for value in accuracy.values()]
            lines.append(Line(run.name, x, y, index, "solid", run.name, run.name))
    return lines


def _lines(runs: Sequence[Run], curves: Sequence[Curve], names: tuple[str, str], size: float) -> list[Line]:
    """Return the curves divided by `size`: one run's in two colours, several runs' a colour each and dashes."""
    lines = []
    spoken_for: set[int] = set()
    for index, number, series in curves:
        x, y = [float(round) for round in series], [value / size for value in series.values()]
        name, what = runs[index].name, names[number]
        if len(runs) == 1:
            lines.append(Line(what, x, y, number, "dash" if number else "solid", what, what))
        else:
            legend = "" if index in spoken_for else name
            lines.append(Line(f"{name}, {what}", x, y, index, "dash" if number else "solid", legend, name))
        spoken_for.add(index)
    return lines


def _key(runs: Sequence[Run], curves: Sequence[Curve], names: tuple[str, str]) -> str:
    """Return the words that explain dashes, where the legend does not."""
    if len(runs) == 1:
        return ""
    seen = sorted({number for _, number, _ in curves})
    words = "; ".join(f"{('solid', 'dashed')[number]}: {names[number]}" for number in seen)
    return f" {words[0].upper()}{words[1:]}."


def _largest(many: Sequence[Series]) -> float:
    return max((max(series.values(), default=0.0) for series in many), default=0.0)
