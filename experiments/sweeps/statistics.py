"""Means and confidence intervals over seeds, and what it took to reach an accuracy."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

__all__ = ["Cell", "Mean", "cells_of", "common_target", "mean", "ratio", "to_reach", "word"]

Row = dict[str, Any]
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean over seeds.

    Attributes:
        value: the mean; NaN of nothing.
        half: half of the 95 % confidence interval by Student's t; NaN for fewer than two values.
        count: number of values.
    """

    value: float
    half: float
    count: int


def mean(values: Sequence[float | None]) -> Mean:
    """Return mean and interval of what is known."""
    known = np.array([v for v in values if v is not None and not math.isnan(v)], float)
    if not known.size:
        return Mean(math.nan, math.nan, 0)
    if known.size == 1:
        return Mean(float(known[0]), math.nan, 1)
    quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, known.size - 1))
    return Mean(float(known.mean()), quantile * float(known.std(ddof=1)) / math.sqrt(known.size), known.size)


@dataclass(frozen=True)
class Cell:
    """The seeds of one combination.

    Attributes:
        name: what it is, in words.
        arm: name of its arm.
        values: the varied keys as text.
        rows: finished trials.
    """

    name: str
    arm: str
    values: dict[str, str]
    rows: list[Row]

    def mean(self, column: str) -> Mean:
        """Return a column's mean over the seeds."""
        return mean([row.get(column) for row in self.rows])

    def total_bytes(self) -> Mean:
        """Bytes up and down, the second aggregator's included."""
        return mean([row["upload_bytes"] + row["download_bytes"] + row["helper_bytes"] for row in self.rows])


def cells_of(rows: Sequence[Row]) -> list[Cell]:
    """Return the combinations that have finished trials, in the order of the sweep.

    A combination's name is its arm, and of the other varied keys those that differ between combinations of one arm.
    """
    groups: dict[tuple[str, ...], list[Row]] = {}
    keys = [name.removeprefix("set:") for name in (rows[0] if rows else {}) if name.startswith("set:")]
    for row in rows:
        if row["status"] == "finished":
            place = (row["arm"], *(row[f"set:{key}"] for key in keys))
            groups.setdefault(place, []).append(row)
    telling = [key for key in keys if _tells(rows, key)]
    found = []
    for (arm, *texts), members in groups.items():
        values = dict(zip(keys, texts, strict=True))
        words = [arm] if arm else []
        words += [word(key, values[key]) for key in telling if values[key]]
        found.append(Cell(", ".join(words) or "run", arm, values, members))
    return found


def word(key: str, value: str) -> str:
    """Return a key and its value in short: ``alpha 0.1``, but ``bfv`` alone for a name."""
    last = key.split(".")[-1]
    return value if last == "name" else f"{last} {value}"


def _tells(rows: Sequence[Row], key: str) -> bool:
    """Whether a key differs between trials of one arm, so that the arm's name does not say it."""
    seen: dict[str, set[str]] = {}
    for row in rows:
        seen.setdefault(row["arm"], set()).add(row[f"set:{key}"])
    return any(len(values) > 1 for values in seen.values())


def common_target(cells: Sequence[Cell]) -> float | None:
    """Return the largest multiple of 5 % that every combination reaches on the mean over its seeds."""
    best = [cell.mean("best_accuracy").value for cell in cells]
    steps = math.floor(min((b for b in best if not math.isnan(b)), default=0.0) * 20 + 1e-9)
    return steps / 20 if steps > 0 else None


def to_reach(row: Row, target: float, what: str) -> float | None:
    """Return what a trial had spent when its accuracy first reached the target; None if it never did.

    Args:
        row: a finished trial.
        target: accuracy in (0, 1].
        what: ``round``, ``bytes``, ``virtual_s`` or ``measured_s``.
    """
    for accuracy, spent in zip(row["curve_accuracy"], row[f"curve_{what}"], strict=True):
        if accuracy >= target:
            return float(spent)
    return None


def ratio(cell: Cell, base: Cell | None, column: str) -> Mean:
    """Return the mean over common seeds of a column over the baseline's."""
    if base is None:
        return Mean(math.nan, math.nan, 0)
    other = {row["seed"]: row.get(column) for row in base.rows}
    pairs = [(row.get(column), other.get(row["seed"])) for row in cell.rows]
    return mean([a / b for a, b in pairs if a is not None and b])
