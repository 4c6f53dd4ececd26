"""The report of a sweep: one HTML file, PNG copies of its figures, and its tables as CSV and LaTeX."""

import csv
import io
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from experiments.sweeps import charts
from experiments.sweeps.spec import Spec
from experiments.sweeps.statistics import Cell, Mean, cells_of, common_target, mean, ratio, to_reach
from fedsim.measure import units
from fedsim.measure._files import write_text
from fedsim.measure.pages import Chart, Section, Table, timeline, write_page
from fedsim.measure.runs import load_run

__all__ = ["csv_text", "latex_text", "overhead_rows", "write_sweep_report"]

_FOOTER = (
    "Intervals are 95 %, by Student's t over seeds. Bytes are serialised messages of all clients, both ways, and the "
    "second aggregator's. Virtual time comes from device profiles and counted work. results.parquet and trials.csv "
    "have one row a trial, summary.csv, summary.tex and overhead.csv the tables; each trial's folder is in runs/."
)


def write_sweep_report(spec: Spec, rows: Sequence[dict[str, Any]], folder: Path, *, png: bool = True) -> Path:
    """Write ``report.html``, ``figures/``, ``summary.csv``, ``summary.tex``, ``overhead.csv``, ``trials.csv``.

    Args:
        spec: the sweep.
        rows: as :func:`experiments.sweeps.results.collect` returns them.
        folder: the sweep's.
        png: write the PNG copies.
    """
    cells = cells_of(rows)
    base = next((cell for cell in cells if spec.baseline and cell.arm == spec.baseline), None)
    target = spec.target or common_target(cells)
    summary, overhead = summary_rows(cells, target), overhead_rows(cells, base)
    write_text(folder / "summary.csv", csv_text(summary))
    write_text(folder / "summary.tex", latex_text(summary))
    write_text(folder / "overhead.csv", csv_text(overhead))
    write_text(folder / "trials.csv", csv_text(trial_rows(rows)))
    sections = [
        Section("Summary", "Mean ± half of the 95 % interval over seeds.", [_table(_parts(summary, reach=False))]),
        Section("What it took", _target_words(target), [] if target is None else [_table(_parts(summary, reach=True))]),
        Section("Overhead", _base_words(spec, base), [_table(overhead)], _overhead_charts(cells)),
        Section("Learning", "", [], _learning_charts(cells, spec)),
        Section("Devices", "", [], [*charts.fairness(cells), *_timelines(cells, folder)]),
        Section("Not finished", *_not_finished(rows)),
    ]
    finished = sum(row["status"] == "finished" for row in rows)
    counts = [("trials", str(len(rows))), ("finished", str(finished)), ("combinations", str(len(cells)))]
    return write_page(
        folder / "report.html",
        spec.name,
        [section for section in sections if section.tables or section.charts or section.text],
        kicker="sweep",
        chips=[f"{len(spec.seeds)} seeds", *spec.varied],
        tiles=counts,
        footer=_FOOTER,
        png=png,
    )


def trial_rows(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what each finished trial reached and cost, without the seconds of this host."""
    columns = ("final_accuracy", "worst_decile_accuracy", "upload_bytes", "download_bytes", "virtual_s", "ok_turns")
    return [
        {"arm": row["arm"], "seed": row["seed"]}
        | {name.removeprefix("set:"): value for name, value in row.items() if name.startswith("set:")}
        | {name: math.nan if row[name] is None else row[name] for name in columns}
        for row in rows
        if row["status"] == "finished"
    ]


def summary_rows(cells: Sequence[Cell], target: float | None) -> list[dict[str, Any]]:
    """Return one row a combination: accuracies, costs, and what it took to reach the target."""
    found = []
    for cell in cells:
        row: dict[str, Any] = {"combination": cell.name, "seeds": len(cell.rows)}
        row |= _pair("final accuracy", cell.mean("final_accuracy"))
        row |= _pair("best accuracy", cell.mean("best_accuracy"))
        row |= _pair("worst decile", cell.mean("worst_decile_accuracy"))
        row |= _pair("bytes", cell.total_bytes())
        row |= _pair("virtual time", cell.mean("virtual_s"))
        row |= _pair("measured time", cell.mean("measured_s"))
        if target is not None:
            for what, label in (("round", "rounds"), ("bytes", "bytes"), ("virtual_s", "virtual time")):
                values = [to_reach(trial, target, what) for trial in cell.rows]
                row |= _pair(f"{label} to {100 * target:g} %", mean(values))
            row["reached"] = f"{sum(v is not None for v in values)}/{len(values)}"
        found.append(row)
    return found


def overhead_rows(cells: Sequence[Cell], base: Cell | None) -> list[dict[str, Any]]:
    """Return what each combination costs beside the baseline, cheapest in bytes first."""
    found = []
    for cell in sorted(cells, key=lambda cell: (cell.total_bytes().value, cell.name)):
        bytes_, other = cell.total_bytes(), base.total_bytes().value if base else math.nan
        found.append(
            {
                "combination": cell.name,
                **_pair("bytes", bytes_),
                "bytes ratio": bytes_.value / other,
                **_pair("virtual time", cell.mean("virtual_s")),
                "virtual ratio": ratio(cell, base, "virtual_s").value,
                **_pair("measured time", cell.mean("measured_s")),
                "measured ratio": ratio(cell, base, "measured_s").value,
                **_pair("final accuracy", cell.mean("final_accuracy")),
                "accuracy ratio": ratio(cell, base, "final_accuracy").value,
            }
        )
    return found


def _pair(name: str, value: Mean) -> dict[str, float]:
    return {name: value.value, f"{name} ±": value.half}


def _learning_charts(cells: Sequence[Cell], spec: Spec) -> list[Chart]:
    if not cells:
        return []
    curves = [*charts.accuracy_against(cells, "virtual_s"), *charts.accuracy_against(cells, "bytes")]
    return [*curves, *charts.heat_maps(cells, spec.heat)]


def _overhead_charts(cells: Sequence[Cell]) -> list[Chart]:
    return [*charts.overhead(cells, virtual=True), *charts.overhead(cells, virtual=False)]


def _timelines(cells: Sequence[Cell], folder: Path) -> list[Chart]:
    """Return the last round of the first trial, client by client."""
    for cell in cells:
        place = folder / "runs" / cell.rows[0]["trial"]
        if place.is_dir() and (chart := timeline(load_run(place), "")) is not None:
            return [chart]
    return []


def _target_words(target: float | None) -> str:
    if target is None:
        return "There is no accuracy that all reached."
    return f"To reach {100 * target:g} % for the first time, over the seeds that did."


def _base_words(spec: Spec, base: Cell | None) -> str:
    if base is None:
        return "Cheapest first, by bytes."
    return f"Cheapest first, by bytes; ratios are over {base.name}."


def _not_finished(rows: Sequence[dict[str, Any]]) -> tuple[str, list[Table]]:
    left = [row for row in rows if row["status"] != "finished"]
    if not left:
        return "", []
    lines = [[row["trial"], row["status"], row.get("reason") or ""] for row in left]
    return "", [Table(["trial", "status", "reason"], lines, words=3)]


_SHOW: list[tuple[str, Callable[[float], str]]] = [
    ("ratio", lambda v: units.MISSING if math.isnan(v) else f"{v:.3g}"),
    ("accuracy", units.show_percent),
    ("decile", units.show_percent),
    ("bytes", units.show_bytes),
    ("time", units.show_s),
]


def _shown(name: str, value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    show = next((show for word, show in _SHOW if word in name), units.show_number)
    return show(value)


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    """Return rows with each mean and its interval in one cell."""
    names = [name for name in (rows[0] if rows else {}) if not name.endswith(" ±")]
    lines = [[_cell(row, name) for name in names] for row in rows]
    used = [i for i in range(len(names)) if any(line[i] != units.MISSING for line in lines)]
    return Table([names[i] for i in used], [[line[i] for i in used] for line in lines])


def _parts(rows: Sequence[dict[str, Any]], reach: bool) -> list[dict[str, Any]]:
    """Return the columns on reaching the target, or the others; the combination stands in both."""

    def wanted(name: str) -> bool:
        return name == "combination" or (" to " in name or name == "reached") == reach

    return [{name: value for name, value in row.items() if wanted(name)} for row in rows]


def _cell(row: dict[str, Any], name: str) -> str:
    half = row.get(f"{name} ±", math.nan)
    text = _shown(name, row[name])
    return text if math.isnan(half) else f"{text} ± {_shown(name, half)}"


def csv_text(rows: Sequence[dict[str, Any]]) -> str:
    """Return rows as CSV, numbers with six digits, nothing for what is not known."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = list(rows[0]) if rows else []
    writer.writerow(names)
    for row in rows:
        writer.writerow([_csv(row[name]) for name in names])
    return out.getvalue()


def _csv(value: Any) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.6g}"
    return str(value)


_TEX = {"&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}"}
_TEX |= {"^": r"\textasciicircum{}", "\\": r"\textbackslash{}", "±": r"$\pm$", "–": "--", "µ": r"$\mu$"}


def latex_text(rows: Sequence[dict[str, Any]]) -> str:
    """Return rows as a LaTeX ``tabular``, which needs no package."""
    table = _table(rows)

    def line(cells: Sequence[str]) -> str:
        return " & ".join("".join(_TEX.get(letter, letter) for letter in cell) for cell in cells) + r" \\"

    columns = "l" * table.words + "r" * (len(table.columns) - table.words)
    head = [rf"\begin{{tabular}}{{{columns}}}", r"\hline", line(table.columns), r"\hline"]
    return "\n".join([*head, *(line(cells) for cells in table.rows), r"\hline", r"\end{tabular}", ""])
