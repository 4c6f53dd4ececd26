"""Every strategy under every protection on one small task: what runs, what it costs, what is refused and why.

``python -m experiments.matrix`` runs the cells that the table does not have yet, each as the command ``fedsim run
experiments/configs/matrix.toml --strategy S --protection P`` in a process of its own, and writes the table and
the page made from it.
"""

import argparse
import csv
import importlib
import os
import tempfile
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedsim.config import FAMILIES, PROTECTIONS, STRATEGIES, load_config
from fedsim.errors import ConfigError
from fedsim.measure.runs import load_run
from fedsim.measure.summary import summarize

__all__ = ["Cell", "cells", "page", "read_table", "refusal"]

ROOT = Path(__file__).parents[1]
SETTINGS = Path("experiments/configs/matrix.toml")
TABLE = Path("experiments/results/matrix.csv")
PAGE = Path("docs/matrix.md")
Row = dict[str, str | int | float]
FIELDS = ("strategy", "protection", "refused", "accuracy", "upload_bytes", "download_bytes", "virtual_s", "cpu_s")
#: Settings of a strategy's own on this task; the others have their defaults.
_ADAMW = ("training.optimizer=adamw", "training.lr=0.005")
_VIT = ("model.name=vit-tiny", "model.options.dim=32", "model.options.depth=3", *_ADAMW)
OWN: dict[str, tuple[str, ...]] = {
    "fedadam": ("strategy.server_lr=0.03",),
    "fedavgm": ("strategy.server_momentum=0.5",),
    "fedbuff": ("federation.participation=0.5", "strategy.buffer_size=3"),
    "fedluar": ("strategy.delta=1",),
    "dictpfl": ("strategy.rank=8", "strategy.dict_scale=u"),
    "leff": (*_VIT, "strategy.tiers=[1,2,3]", "strategy.distil_steps=4"),
    "partial": (*_VIT, "strategy.trained=blocks"),
}
#: The same for a protection: with six clients private noise would drown everything, so its arithmetic alone is shown.
UNDER: dict[str, tuple[str, ...]] = {
    "preamble": ("protection.noise=off-not-private", "protection.clip_norm=4", "protection.min_cohort=2"),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One strategy under one protection.

    Attributes:
        strategy: its name on the command line.
        protection: the same.
        refused: the rule that forbids it, empty where it runs.
    """

    strategy: str
    protection: str
    refused: str

    @property
    def arguments(self) -> list[str]:
        """What the command line is called with."""
        own = [*OWN.get(self.strategy, ()), *UNDER.get(self.protection, ())]
        head = ["run", str(SETTINGS), "--strategy", self.strategy, "--protection", self.protection]
        return [*head, *(part for text in own for part in ("--set", text))]


def cells() -> list[Cell]:
    """Return all cells, strategies in the order of the settings; ``flwr:FedMedian`` stands for Flower's own."""
    names = [name for name in STRATEGIES if name not in FAMILIES] + ["flwr:FedMedian"]
    return [Cell(s, p, refusal(s, p)) for s in names for p in PROTECTIONS]


def refusal(strategy: str, protection: str) -> str:
    """Return why the program refuses a combination, by its own rules and without training; empty if it does not."""
    more = [*OWN.get(strategy, ()), *UNDER.get(protection, ())]
    try:
        load_config(ROOT / SETTINGS, [f"strategy.name={strategy}", f"protection.name={protection}", *more])
    except ConfigError as error:
        return "; ".join(problem.rule for problem in error.problems)
    return ""


def run_cell(cell: Cell, work: Path) -> Row:
    """Run a cell's command in a fork of this process.

    Args:
        cell: one that is not refused.
        work: folder for the run.

    Returns:
        The table's row; bytes are a client's in a round, seconds a round's.

    Raises:
        RuntimeError: the command failed; its last lines.
    """
    name = f"{cell.strategy}-{cell.protection}".replace(":", "-")
    child = os.fork()
    if child == 0:
        _become([*cell.arguments, "--name", name, "--set", f"output.folder={work}"], work / f"{name}.log")
    _, status, usage = os.wait4(child, 0)
    if code := os.waitstatus_to_exitcode(status):
        tail = (work / f"{name}.log").read_text(encoding="utf-8", errors="replace")[-600:]
        raise RuntimeError(f"{cell.strategy} under {cell.protection} ended with code {code}: {tail}")
    summary = summarize(load_run(work / name))
    turns, rounds = max(summary.turns, 1), max(summary.rounds, 1)
    return {
        "strategy": cell.strategy,
        "protection": cell.protection,
        "refused": "",
        "accuracy": round(summary.final_accuracy, 4),
        "upload_bytes": round(summary.upload_wire_bytes / turns),
        "download_bytes": round(summary.download_wire_bytes / turns),
        "virtual_s": round(summary.virtual_s / rounds, 4),
        "cpu_s": round((usage.ru_utime + usage.ru_stime) / rounds, 3),
    }


def _become(arguments: list[str], output: Path) -> None:
    from fedsim.cli import app

    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    code = 1
    try:
        app(arguments)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    os._exit(code)


def read_table(path: Path) -> dict[tuple[str, str], dict[str, str]]:
    """Return the table's rows by strategy and protection; none where there is no file."""
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        return {(row["strategy"], row["protection"]): row for row in csv.DictReader(file)}


def write_table(path: Path, rows: Iterable[Row]) -> None:
    """Write the table anew."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def page(rows: dict[tuple[str, str], dict[str, str]]) -> str:
    """Return the page of the documentation, in Markdown."""
    text = (ROOT / "experiments" / "matrix_page.md").read_text(encoding="utf-8")
    tables = {
        "ACCURACY": _grid(rows, "accuracy", lambda value: f"{100 * float(value):.1f}"),
        "UPLOAD": _grid(rows, "upload_bytes", lambda value: f"{int(value) / 1000:,.1f}"),
        "DOWNLOAD": _grid(rows, "download_bytes", lambda value: f"{int(value) / 1000:,.1f}"),
        "CPU": _grid(rows, "cpu_s", lambda value: f"{float(value):.2f}"),
        "VIRTUAL": _grid(rows, "virtual_s", lambda value: f"{float(value):.3f}"),
        "REFUSALS": _refusals(rows),
    }
    for name, table in tables.items():
        text = text.replace(f"@{name}@", table)
    return text


def _grid(rows: dict[tuple[str, str], dict[str, str]], field: str, show: Callable[[str], str]) -> str:
    strategies = list(dict.fromkeys(strategy for strategy, _ in rows))
    protections = list(dict.fromkeys(protection for _, protection in rows))
    lines = ["| | " + " | ".join(protections) + " |", "|---|" + "---|" * len(protections)]
    for strategy in strategies:
        shown = []
        for protection in protections:
            row = rows.get((strategy, protection), {})
            shown.append("refused" if row.get("refused") else show(row[field]) if row.get(field) else "not run")
        lines.append(f"| {strategy} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def _refusals(rows: dict[tuple[str, str], dict[str, str]]) -> str:
    by_rule: dict[tuple[str, str], list[str]] = {}
    for (strategy, protection), row in rows.items():
        if row["refused"]:
            by_rule.setdefault((strategy, row["refused"].replace(protection, "it")), []).append(protection)
    lines = ["| strategy | under | why |", "|---|---|---|"]
    return "\n".join(lines + [f"| {s} | {', '.join(under)} | {why} |" for (s, why), under in by_rule.items()])


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of ``python -m experiments.matrix``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=TABLE, help="table; cells that it has are not run again")
    parser.add_argument("--page", type=Path, default=PAGE, help="page that is made from it")
    parser.add_argument("--strategies", nargs="+", help="only these")
    parser.add_argument("--protections", nargs="+", help="only these")
    given = parser.parse_args(arguments)
    rows: dict[tuple[str, str], Row] = {(c.strategy, c.protection): _known(c, read_table(given.out)) for c in cells()}
    with tempfile.TemporaryDirectory() as work:
        _warm()
        for cell in _wanted(rows, given.strategies, given.protections):
            rows[cell.strategy, cell.protection] = run_cell(cell, Path(work))
            # After every cell, so that nothing is lost where this is stopped.
            write_table(given.out, rows.values())
    write_table(given.out, rows.values())
    given.page.write_text(page(read_table(given.out)), encoding="utf-8")


def _known(cell: Cell, table: dict[tuple[str, str], dict[str, str]]) -> Row:
    row = table.get((cell.strategy, cell.protection), {})
    if cell.refused or not row.get("accuracy"):
        return {"strategy": cell.strategy, "protection": cell.protection, "refused": cell.refused}
    return dict(row)


def _wanted(
    rows: dict[tuple[str, str], Row], strategies: list[str] | None, protections: list[str] | None
) -> list[Cell]:
    return [
        cell
        for cell in cells()
        if not cell.refused
        and not rows[cell.strategy, cell.protection].get("accuracy")
        and (strategies is None or cell.strategy in strategies)
        and (protections is None or cell.protection in protections)
    ]


def _warm() -> None:
    """Load what every cell needs, so that a fork of this process begins with its work."""
    importlib.import_module("fedsim.runner")
    importlib.import_module("fedsim.tasks.data").load_dataset("digits")


if __name__ == "__main__":
    main()
