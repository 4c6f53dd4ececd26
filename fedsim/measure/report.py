"""The report: one HTML file that needs no network and no other file, and a PNG copy of each of its figures.

One run gets its report in its own folder; several runs are laid over each other in the same figures, with their
summaries and the settings in which they differ side by side.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from fedsim.measure import _png, units
from fedsim.measure._chart import Chart
from fedsim.measure._files import write_text
from fedsim.measure._page import render
from fedsim.measure.charts import MOST_SINGLE, charts
from fedsim.measure.errors import ReportError
from fedsim.measure.runs import Run, load_run
from fedsim.measure.summary import LeftOut, Summary, common_target, rows, summarize

logger = logging.getLogger(__name__)
_MOST_LEFT_OUT = 200
_SHOWN_ROUNDS = 12


@dataclass(frozen=True, slots=True)
class Options:
    """What a reader may choose.

    Args:
        target: accuracy in [0, 1] of the "bytes to" and "time to" rows; None for the largest multiple of 5 % that
            every run reached.
        png: write the PNG copies.
    """

    target: float | None = None
    png: bool = True


def write_report(folders: Sequence[Path], out: Path | None = None, options: Options | None = None) -> Path:
    """Write the report of one run, or the comparison of several.

    Args:
        folders: folders of runs, finished or not.
        out: an ``.html`` file or a folder for ``report.html``; None for the run's own folder, or for the folder
            ``comparison`` beside the first of several. Figures go to ``figures/`` beside it.
        options: see `Options`.

    Returns:
        The path of the HTML file.

    Raises:
        ReportError: no folder, the same twice, or a target outside of (0, 1].
        RunFolderError: a folder holds no run.
        LedgerError: a table of a run is damaged.
    """
    options = options or Options()
    runs = _load(folders)
    path = _place(folders, out)
    if options.target is not None and not 0 < options.target <= 1:
        raise ReportError(f"target accuracy {options.target} must lie in (0, 1]; 80 % is 0.8")
    drawn = charts(runs)
    try:
        if options.png:
            for chart in drawn:
                _png.write_png(chart, path.parent / "figures" / f"{chart.key}.png")
        write_text(path, _render(runs, drawn, options))
    except OSError as error:
        reason = error.strerror or str(error)
        raise ReportError(f"{path} cannot be written ({reason}): name another file or make room") from error
    logger.info("report of %d runs with %d figures written to %s", len(runs), len(drawn), path)
    return path


def _load(folders: Sequence[Path]) -> list[Run]:
    if not folders:
        raise ReportError("0 folders: a report needs at least one run; pass runs/NAME")
    places = [Path(folder).resolve() for folder in folders]
    if len(set(places)) < len(places):
        raise ReportError(f"{len(places)} folders with a repeated one: a run is compared with others; pass each once")
    names = [place.name for place in places]
    if len(set(names)) < len(names):
        names = [f"{place.parent.name}/{place.name}" for place in places]
    if len(set(names)) < len(names):
        names = [str(place) for place in places]
    return [load_run(place, name) for place, name in zip(places, names, strict=True)]


def _place(folders: Sequence[Path], out: Path | None) -> Path:
    if out is None:
        first = Path(folders[0])
        return first / "report.html" if len(folders) == 1 else first.parent / "comparison" / "report.html"
    return out if out.suffix.lower() in (".html", ".htm") else out / "report.html"


def _render(runs: Sequence[Run], drawn: Sequence[Chart], options: Options) -> str:
    target = common_target(runs) if options.target is None else options.target
    summaries = [summarize(run, target) for run in runs]
    return render(
        "report.html",
        drawn,
        runs=runs,
        title=runs[0].name if len(runs) == 1 else f"Comparison of {len(runs)} runs",
        headlines=[_headline(run) for run in runs],
        tiles=_tiles(summaries[0]) if len(runs) == 1 else [],
        table=rows(summaries),
        groups=[(name, list(charts_of)) for name, charts_of in groupby(_grouped(drawn), key=lambda chart: chart.group)],
        png=options.png,
        single_left_out=len(runs) > MOST_SINGLE,
        left_out=[_left_out(summary) for summary in summaries],
        facts=[_facts(run) for run in runs],
        differences=_differences(runs),
    )


def _grouped(drawn: Sequence[Chart]) -> list[Chart]:
    order = {group: index for index, group in reversed(list(enumerate(chart.group for chart in drawn)))}
    return sorted(drawn, key=lambda chart: order[chart.group])


def _headline(run: Run) -> list[str]:
    """Return what was run in a few words: the names in its settings, as far as they are there."""

    def setting(section: str, key: str = "name") -> Any:
        part = run.config.get(section)
        return part.get(key) if isinstance(part, dict) else None

    scheme, alpha = setting("data", "scheme"), setting("data", "alpha")
    partition = f"{scheme} {alpha}" if alpha is not None and "dirichlet" in str(scheme) else scheme
    clients, total = setting("federation", "num_clients"), setting("federation", "rounds")
    words = [setting(section) for section in ("task", "model", "strategy", "protection")]
    words += [clients and f"{clients} clients", partition, total and f"{total} rounds", f"seed {run.record.seed}"]
    return [str(word) for word in words if word]


def _tiles(summary: Summary) -> list[tuple[str, str]]:
    tiles = [
        ("best accuracy", units.show_percent(summary.best_accuracy)),
        ("final accuracy", units.show_percent(summary.final_accuracy)),
        ("upload", units.show_bytes(summary.upload_wire_bytes)),
        ("download", units.show_bytes(summary.download_wire_bytes)),
        ("time, measured", units.show_s(summary.measured_s)),
        ("time, virtual", units.show_s(summary.virtual_s)),
        ("turns left out", str(summary.turns - summary.ok_turns) if summary.turns else units.MISSING),
    ]
    return [(label, value) for label, value in tiles if value != units.MISSING]


def _left_out(summary: Summary) -> tuple[list[tuple[LeftOut, str]], int]:
    """Return the rows shown, each with its rounds as text, and how many more there are."""
    shown = summary.left_out[:_MOST_LEFT_OUT]
    return [(row, _rounds(row.rounds)) for row in shown], len(summary.left_out) - len(shown)


def _rounds(rounds: Sequence[int]) -> str:
    words = ", ".join(map(str, rounds[:_SHOWN_ROUNDS]))
    rest = len(rounds) - _SHOWN_ROUNDS
    return f"{words} and {rest} more" if rest > 0 else words


def _facts(run: Run) -> list[tuple[str, str]]:
    """Return what ``run.json`` says beyond the summary, flattened."""
    record = run.record
    plain = {"started": record.started, "ended": record.ended, "why it ended": record.exit_reason}
    hashes = {"SHA-256 of the final weights": record.weights_sha256}
    parts = {"protection": record.protection, "aggregation": record.aggregation, "notes": record.notes}
    pairs = [*plain.items(), *hashes.items(), *_flat(parts), *_flat(record.environment)]
    return [(key, str(value)) for key, value in pairs if value not in ("", None)]


def _differences(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """Return the settings in which the runs differ: (dotted key, one value a run)."""
    flat = [dict(_flat(run.config)) for run in runs]
    keys = dict.fromkeys(key for settings in flat for key in settings)
    table = [(key, [str(settings.get(key, units.MISSING)) for settings in flat]) for key in keys]
    return [(key, values) for key, values in table if len(set(values)) > 1]


def _flat(tree: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for key, value in tree.items():
        name = f"{prefix}{key}"
        pairs += _flat(value, f"{name}.") if isinstance(value, dict) else [(name, value)]
    return pairs
