"""Kinds of charts, as data that the browser's and the PNG's painter both read."""

from dataclasses import dataclass, field
from typing import Literal

Dash = Literal["solid", "dash"]
Group = Literal["Learning", "Communication", "Time", "Clients"]
#: Okabe and Ito (2008), told apart by colour-blind readers; one set for light and one for dark paper.
LIGHT = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6B7280", "#8C6D1F")
DARK = ("#4EA3DD", "#F0853C", "#2FC497", "#DE9CC1", "#F2B636", "#8CCBF2", "#9AA3B0", "#C9A94E")
#: One hue from few to many, away from the paper's colour so that the least still shows.
HEAT_LIGHT = ("#e3eef7", "#9cc8e6", "#4b95c9", "#1d639c", "#0b2f55")
HEAT_DARK = ("#203247", "#27608f", "#3f95cf", "#8cc8f0", "#e9f5ff")


@dataclass(frozen=True, slots=True)
class Line:
    """One curve.

    Args:
        label: what it is, in full.
        x: places, ascending in time.
        y: heights, one for each of `x`.
        color: counts into the palette.
        dash: tells the curves of one run apart where colours tell runs apart.
        legend: its entry in the legend, or nothing where another curve of its `group` speaks for it.
        group: curves that are switched on and off together.
        low, high: a band around the curve, such as a confidence interval; empty for none.
    """

    label: str
    x: list[float]
    y: list[float]
    color: int
    dash: Dash
    legend: str
    group: str
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)


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
    """Curves over a number; `from_zero` where a small change must not look large."""

    lines: list[Line]
    from_zero: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars(Chart):
    """Bars, stacked or side by side: `layers` are (label, heights, color), one height for each of `x`."""

    x: list[str] | list[int]
    layers: list[tuple[str, list[float], int]]
    stacked: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Heat(Chart):
    """A table of cells; None is left blank."""

    x: list[str] | list[int]
    y: list[str] | list[int]
    z: list[list[float | None]]
    z_label: str


@dataclass(frozen=True, slots=True)
class Span:
    """One piece of time in a row.

    Args:
        row: which one, by name.
        layer: what it is, the legend's word.
        start, end: in the axis's unit.
        color: counts into the palette.
    """

    row: str
    layer: str
    start: float
    end: float
    color: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans(Chart):
    """A timeline: rows from top to bottom, and a line across at `mark`."""

    rows: list[str]
    spans: list[Span]
    mark: float | None = None
    mark_label: str = ""
