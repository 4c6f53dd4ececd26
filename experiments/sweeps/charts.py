"""What a sweep's report draws."""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from experiments.sweeps.statistics import Cell, mean, word
from fedsim.measure import units
from fedsim.measure.ledger import PHASES
from fedsim.measure.pages import Bars, Chart, Heat, Line, Lines

__all__ = ["accuracy_against", "fairness", "heat_maps", "overhead"]

#: Curves of one picture; more are told apart by nobody.
_MOST_LINES = 8
_MOST_CHARTS = 6
Spent = Literal["virtual_s", "bytes", "round"]
_SPENT = {
    "virtual_s": ("virtual time", units.time_unit, "from device profiles and counted work"),
    "bytes": ("bytes up and down", units.byte_unit, "of all clients, as serialised"),
    "round": ("rounds", lambda largest: (1.0, "rounds"), ""),
}


def accuracy_against(cells: Sequence[Cell], spent: Spent) -> list[Chart]:
    """Return accuracy against what was spent, a curve a method with its interval; one picture for each setting."""
    charts: list[Chart] = []
    panels = _panels(cells)
    for number, (words, members) in enumerate(panels[:_MOST_CHARTS], 1):
        largest = max(max(row[f"curve_{spent}"], default=0.0) for cell in members for row in cell.rows)
        name, unit_of, source = _SPENT[spent]
        size, unit = unit_of(largest)
        lines = [
            _curve(cell, cell.arm or cell.name, spent, size, color) for color, cell in enumerate(members[:_MOST_LINES])
        ]
        seeds = max(len(cell.rows) for cell in members)
        note = f"Mean over {seeds} seeds with 95 % intervals" if seeds > 1 else "One seed"
        left = f" {len(panels) - _MOST_CHARTS} more settings are in the table." if len(panels) > _MOST_CHARTS else ""
        charts.append(
            Lines(
                key=f"accuracy_{spent.removesuffix('_s')}" + (f"_{number}" if len(panels) > 1 else ""),
                group="Learning",
                title=f"Accuracy against {name}" + (f": {words}" if words else ""),
                note=f"{note}{', ' + source if source else ''}.{left if number == 1 else ''}",
                x_label=f"{name} ({unit})",
                y_label="accuracy (%)",
                lines=lines,
                from_zero=False,
            )
        )
    return charts


def _panels(cells: Sequence[Cell]) -> list[tuple[str, list[Cell]]]:
    """Group combinations so that those of one picture differ in the arm alone; without arms, in the first key."""
    arms = len({cell.arm for cell in cells}) > 1
    keys = list(cells[0].values) if cells else []
    compared = _first_telling(cells, keys) if not arms else ""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        other = [word(k, v) for k, v in cell.values.items() if k != compared and v and _varies(cells, k)]
        groups.setdefault(", ".join(other), []).append(cell)
    return list(groups.items())


def _first_telling(cells: Sequence[Cell], keys: Sequence[str]) -> str:
    return next((key for key in keys if len({cell.values[key] for cell in cells}) > 1), "")


def _varies(cells: Sequence[Cell], key: str) -> bool:
    """Whether a key takes several values within one arm."""
    seen: dict[str, set[str]] = {}
    for cell in cells:
        seen.setdefault(cell.arm, set()).add(cell.values[key])
    return any(len(values) > 1 for values in seen.values())


def _curve(cell: Cell, label: str, spent: Spent, size: float, color: int) -> Line:
    rounds = sorted({round for row in cell.rows for round in row["curve_round"]})
    x, y, low, high = [], [], [], []
    for round in rounds:
        places = [(row, row["curve_round"].index(round)) for row in cell.rows if round in row["curve_round"]]
        accuracy = mean([100 * row["curve_accuracy"][at] for row, at in places])
        half = 0.0 if math.isnan(accuracy.half) else accuracy.half
        x.append(float(np.mean([row[f"curve_{spent}"][at] for row, at in places])) / size)
        y.append(accuracy.value)
        low.append(max(0.0, accuracy.value - half))
        high.append(min(100.0, accuracy.value + half))
    band = len(cell.rows) > 1
    return Line(label, x, y, color, "solid", label, label, low if band else [], high if band else [])


def heat_maps(cells: Sequence[Cell], axes: Sequence[str]) -> list[Chart]:
    """Return the final accuracy over two varied keys, one picture a method."""
    if len(axes) != 2 or not cells or any(axis not in cells[0].values for axis in axes):
        return []
    by_arm: dict[str, list[Cell]] = {}
    for cell in cells:
        by_arm.setdefault(cell.arm, []).append(cell)
    charts: list[Chart] = []
    for number, (arm, members) in enumerate(list(by_arm.items())[:_MOST_CHARTS], 1):
        x, y = (_ordered({cell.values[axis] for cell in members}) for axis in axes)
        table = [[_cell(members, axes, (column, row)) for column in x] for row in y]
        charts.append(
            Heat(
                key=f"heat_{number}",
                group="Learning",
                title=f"Final accuracy{': ' + arm if arm else ''}",
                note="Mean over seeds and all else that varies.",
                x_label=axes[0],
                y_label=axes[1],
                x=x,
                y=y,
                z=table,
                z_label="%",
            )
        )
    return charts


def _ordered(values: set[str]) -> list[str]:
    def place(text: str) -> tuple[int, float, str]:
        try:
            return 0, float(text), text
        except ValueError:
            return 1, 0.0, text

    return sorted(values, key=place)


def _cell(cells: Sequence[Cell], axes: Sequence[str], point: tuple[str, str]) -> float | None:
    here = [c for c in cells if tuple(c.values[axis] for axis in axes) == point]
    value = mean([row["final_accuracy"] for cell in here for row in cell.rows]).value
    return None if math.isnan(value) else round(100 * value, 2)


def fairness(cells: Sequence[Cell]) -> list[Chart]:
    """Return the accuracy of each tier of devices, side by side for each combination."""
    known = [cell for cell in cells if any(row.get("tiers") for row in cell.rows)][:16]
    tiers = sorted({tier for cell in known for row in cell.rows for tier in row["tiers"]})
    if len(tiers) < 2:
        return []

    def of(cell: Cell, tier: str) -> float:
        pairs = [dict(zip(row["tiers"], row["tier_accuracy"], strict=True)).get(tier) for row in cell.rows]
        value = mean(pairs).value
        return 0.0 if math.isnan(value) else 100 * value

    layers = [(tier, [of(cell, tier) for cell in known], color) for color, tier in enumerate(tiers)]
    return [
        Bars(
            key="fairness",
            group="Clients",
            title="Accuracy of each tier of devices",
            note="Of the final model: each class's accuracy on the test set, weighted by the clients' own labels.",
            x_label="",
            y_label="accuracy (%)",
            x=[cell.name for cell in known],
            layers=layers,
            stacked=False,
        )
    ]


def overhead(cells: Sequence[Cell], virtual: bool) -> list[Chart]:
    """Return the seconds of a round by phase, over all parties, stacked for each combination."""
    kind = "virtual" if virtual else "measured"
    shown = [cell for cell in cells if cell.rows][:24]
    layers = []
    for color, phase in enumerate(PHASES):
        values = [cell.mean(f"{kind}_{phase}_s").value for cell in shown]
        if any(value > 0 for value in values):
            layers.append((phase, values, color))
    if not layers:
        return []
    size, unit = units.time_unit(max(sum(column) for column in zip(*(values for _, values, _ in layers), strict=True)))
    source = "on the clients' devices" if virtual else "on this host's clock, which other load slows"
    return [
        Bars(
            key=f"overhead_{kind}",
            group="Time",
            title=f"Where a round's time goes, {kind}",
            note=f"Seconds of all clients and aggregators in a round, added up (work, not duration), {source}.",
            x_label="",
            y_label=f"time ({unit})",
            x=[cell.name for cell in shown],
            layers=[(phase, [value / size for value in values], color) for phase, values, color in layers],
        )
    ]
