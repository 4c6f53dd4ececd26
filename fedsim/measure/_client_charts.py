"""Charts of the single clients: how long each took, who counted, who holds what."""

from collections.abc import Sequence

import numpy as np
import pyarrow.compute as pc

from fedsim.measure import units
from fedsim.measure._chart import Bars, Chart, Heat, Span, Spans
from fedsim.measure.ledger import OUTCOMES, PHASES
from fedsim.measure.runs import Run

MOST_ROWS = 400
#: Rows of a timeline, whose labels must stay readable.
MOST_TIMELINES = 40
_TURN = ("download", "open", "train", "seal", "upload")


def turn_arrays(run: Run) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return round, client and seconds of the turns that counted, each of shape (turns,)."""
    ok = np.array([outcome == "ok" for outcome in run.turns["outcome"].to_pylist()], bool)
    columns = (run.turns[name].to_numpy()[ok] for name in ("round", "client", "round_s"))
    round, client, seconds = columns
    return round, client, seconds


def timeline(run: Run, tag: str) -> Spans | None:
    """Return what each client did when in the last round, in virtual time."""
    turns, outcomes = _last_turns(run)
    if not turns:
        return None
    order = sorted(turns, key=lambda client: (sum(turns[client].values()), client))
    shown, note = _thinned(np.array(order), MOST_TIMELINES)
    size, unit = units.time_unit(max(sum(phases.values()) for phases in turns.values()))
    rows, spans = [], []
    for client in (order[place] for place in shown):
        word = outcomes.get(client, "ok")
        rows.append(f"{client}" if word == "ok" else f"{client} ({word})")
        at_s = 0.0
        for phase, seconds in turns[client].items():
            if seconds > 0:
                spans.append(Span(rows[-1], phase, at_s / size, (at_s + seconds) / size, PHASES.index(phase)))
            at_s += seconds
    round_, length_s = next(reversed(run.round_seconds(virtual=True).items()))
    return Spans(
        key="timeline" + tag,
        group="Time",
        title=_title(f"Round {round_} in virtual time", run, tag),
        note=f"Each client's turn on its device, fastest first; the line is the end of the round.{note}",
        x_label=f"virtual time ({unit})",
        y_label="client",
        rows=rows,
        spans=sorted(spans, key=lambda span: span.color),
        mark=length_s / size,
        mark_label="end of the round",
    )


def _last_turns(run: Run) -> tuple[dict[int, dict[str, float]], dict[int, str]]:
    """Return client -> phase -> virtual seconds of the last round's training, and client -> outcome."""
    last = max((round for round in run.round_seconds(virtual=True)), default=0)
    entries = run.entries.filter(pc.equal(run.entries["round"], last))
    columns = (entries[name].to_pylist() for name in ("client", "phase", "virtual_s", "outcome"))
    turns: dict[int, dict[str, float]] = {}
    outcomes: dict[int, str] = {}
    for client, phase, seconds, outcome in zip(*columns, strict=True):
        # A client that evaluates afterwards has a second download and upload in its round.
        if client >= 0 and phase in _TURN and seconds == seconds and phase not in turns.setdefault(client, {}):
            turns[client][phase] = seconds
            if phase == "upload":
                outcomes[client] = outcome
    ordered = {
        client: {phase: phases[phase] for phase in _TURN if phase in phases}
        for client, phases in turns.items()
        if "train" in phases
    }
    return ordered, outcomes


def turn_times(run: Run, tag: str) -> Heat | None:
    """Return each client's time in each round; `tag` tells the runs of a comparison apart."""
    round, client, seconds = turn_arrays(run)
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


def outcomes(run: Run, tag: str) -> Bars | None:
    """Return how many clients were asked in each round, by outcome."""
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


def partitions(runs: Sequence[Run]) -> list[Chart]:
    """Return what each client holds; once if all runs share one partition."""
    known = [run for run in runs if run.partition is not None]
    same = len(known) == len(runs) and all(run.partition == runs[0].partition for run in known)
    if same:
        return [_partition(runs[0], "")]
    return [_partition(run, f"_{number}" if len(runs) > 1 else "") for number, run in enumerate(known, 1)]


def _partition(run: Run, tag: str) -> Chart:
    assert run.partition is not None
    part = run.partition
    empty = f" {len(part.empty)} clients hold nothing." if part.empty else ""
    words_of = [f"{name} {units.show_number(value)}" for name, value in part.measures.items()]
    measures = f" Skew: {', '.join(words_of)}." if words_of else ""
    words: dict[str, str] = {"key": "partition" + tag, "title": _title("Who holds what", run, tag)}
    shown, thinned = _thinned(np.arange(len(part.sizes)))
    if not part.histogram:
        note = f"Training examples of each client.{empty}{measures}{thinned}"
        sizes = [float(part.sizes[client]) for client in shown]
        return Bars(
            key=words["key"],
            group="Clients",
            title=words["title"],
            note=note,
            x_label="client",
            y_label="examples",
            x=shown.tolist(),
            layers=[("examples", sizes, 0)],
        )
    counts = np.array(part.histogram, float)[shown]
    note = f"Training examples of each client by label; blank where there are none.{empty}{measures}{thinned}"
    cells = _cells(np.where(counts > 0, counts, np.nan))
    axes = {"x_label": "label", "y_label": "client", "z_label": "examples"}
    return Heat(group="Clients", **words, note=note, **axes, x=part.classes, y=shown.tolist(), z=cells)


def _thinned(clients: np.ndarray, most: int = MOST_ROWS) -> tuple[np.ndarray, str]:
    """Return which rows to draw, evenly chosen so that a picture stays readable, and the words that say so."""
    step = -(-len(clients) // most)
    note = "" if step <= 1 else f" One client in {step} is drawn."
    return np.arange(0, len(clients), max(step, 1)), note


def _cells(table: np.ndarray) -> list[list[float | None]]:
    return [[None if np.isnan(cell) else float(f"{cell:.4g}") for cell in row] for row in table]


def _title(title: str, run: Run, tag: str) -> str:
    return f"{title}: {run.name}" if tag else title
