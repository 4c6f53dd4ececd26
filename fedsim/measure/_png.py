"""Charts as PNG files, painted by matplotlib without a screen and without pyplot's global state."""

import textwrap
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedsim.measure._chart import HEAT_LIGHT, LIGHT, Bars, Chart, Heat, Lines, Spans
from fedsim.measure._files import atomic

_DASHES = {"solid": "-", "dash": "--", "dot": ":"}
_INCHES = (7.2, 4.5)
_DPI = 130
_BARS_APART_UP_TO = 40
_NOTE_LETTERS = 125
_INK = "#1f2933"
_HEAT = LinearSegmentedColormap.from_list("heat", HEAT_LIGHT)
_NAMES_UPRIGHT_UP_TO = 60


def write_png(chart: Chart, path: Path) -> None:
    """Paint a chart into a file, atomically.

    Raises:
        TypeError: a kind of chart that has no painter.
    """
    figure = Figure(figsize=_INCHES, dpi=_DPI)
    axes = figure.add_subplot()
    if isinstance(chart, Lines):
        _lines(chart, axes)
    elif isinstance(chart, Bars):
        _bars(chart, axes)
    elif isinstance(chart, Heat):
        _heat(chart, axes, figure)
    elif isinstance(chart, Spans):
        _spans(chart, axes)
    else:
        raise TypeError(f"{type(chart).__name__} has no painter; add one here and in the browser's painter")
    axes.set_title(_safe(chart.title), loc="left", fontsize=12, fontweight="bold", color=_INK)
    axes.set_xlabel(_safe(chart.x_label), color=_INK)
    axes.set_ylabel(_safe(chart.y_label), color=_INK)
    figure.subplots_adjust(left=0.1, right=0.84 if isinstance(chart, Bars | Spans) else 0.98, top=0.91, bottom=0.18)
    figure.text(0.1, 0.015, _safe(textwrap.fill(chart.note, _NOTE_LETTERS)), fontsize=7.5, color="#5b6675")
    if any(label.get_rotation() for label in axes.get_xticklabels()):
        figure.subplots_adjust(bottom=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    with atomic(path) as file:
        figure.savefig(file, format="png", metadata={"Software": "fedsim"}, pil_kwargs={"compress_level": 4})


def _lines(chart: Lines, axes: Axes) -> None:
    handles = []
    for line in chart.lines:
        marker = "o" if len(line.x) <= 60 else ""
        color, style = LIGHT[line.color % len(LIGHT)], _DASHES[line.dash]
        if line.low:
            axes.fill_between(line.x, line.low, line.high, color=color, alpha=0.18, linewidth=0)
        handles += axes.plot(line.x, line.y, color=color, linestyle=style, marker=marker, markersize=3, linewidth=1.8)
    axes.grid(color="#e5e7eb", linewidth=0.8)
    axes.set_axisbelow(True)
    if chart.from_zero:
        axes.set_ylim(bottom=0)
    if chart.x_label == "round":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if len(handles) > 1:
        named = [(handle, line.legend) for handle, line in zip(handles, chart.lines, strict=True) if line.legend]
        axes.legend([handle for handle, _ in named], [_safe(name) for _, name in named], frameon=False, fontsize=8)


def _bars(chart: Bars, axes: Axes) -> None:
    x = np.arange(len(chart.x)) if _named(chart.x) else np.array(chart.x, float)
    floor = np.zeros(len(x))
    handles: list[Any] = []
    count = 1 if chart.stacked else len(chart.layers)
    for number, (_, heights, index) in enumerate(chart.layers):
        if not chart.stacked:
            place, color = x + 0.85 * ((number + 0.5) / count - 0.5), LIGHT[index % len(LIGHT)]
            handles.append(axes.bar(place, heights, color=color, width=0.85 / count))
            continue
        top, color = floor + np.array(heights, float), LIGHT[index % len(LIGHT)]
        if len(x) <= _BARS_APART_UP_TO:
            handles.append(axes.bar(x, heights, bottom=floor, color=color, width=0.85))
        else:
            # One area a layer: hundreds of rectangles a layer take seconds.
            edges = np.append(x - 0.5, x[-1] + 0.5)
            handles.append(axes.stairs(top, edges, baseline=floor, fill=True, color=color))
        floor = top
    axes.grid(axis="y", color="#e5e7eb", linewidth=0.8)
    axes.set_axisbelow(True)
    _name_columns(chart.x, axes)
    if len(handles) > 1:
        labels = [_safe(label) for label, _, _ in chart.layers]
        axes.legend(handles, labels, frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _heat(chart: Heat, axes: Axes, figure: Figure) -> None:
    cells = np.array([[np.nan if cell is None else cell for cell in row] for row in chart.z], float)
    columns = range(len(chart.x)) if _named(chart.x) else chart.x
    rows = range(len(chart.y)) if _named(chart.y) else chart.y
    extent = (*_edges([float(x) for x in columns]), *_edges([float(y) for y in rows]))
    image = axes.imshow(cells, aspect="auto", origin="lower", interpolation="nearest", cmap=_HEAT, extent=extent)
    _name_columns(chart.x, axes)
    if _named(chart.y):
        axes.set_yticks(range(len(chart.y)), [_safe(str(y)) for y in chart.y], fontsize=8)
    else:
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    bar = figure.colorbar(image, ax=axes, pad=0.02)
    bar.set_label(_safe(chart.z_label))
    bar.outline.set_visible(False)


def _spans(chart: Spans, axes: Axes) -> None:
    places = {row: number for number, row in enumerate(chart.rows)}
    handles: dict[str, Any] = {}
    for span in chart.spans:
        color = LIGHT[span.color % len(LIGHT)]
        bar = axes.barh(places[span.row], span.end - span.start, left=span.start, color=color, height=0.75)
        handles.setdefault(span.layer, bar)
    axes.set_yticks(range(len(chart.rows)), [_safe(row) for row in chart.rows], fontsize=8 if len(places) <= 25 else 5)
    axes.invert_yaxis()
    axes.grid(axis="x", color="#e5e7eb", linewidth=0.8)
    axes.set_axisbelow(True)
    if chart.mark is not None:
        axes.axvline(chart.mark, color=_INK, linestyle="--", linewidth=1)
        axes.annotate(
            _safe(chart.mark_label), (chart.mark, 1.0), xycoords=("data", "axes fraction"), fontsize=7.5, ha="right"
        )
    axes.legend(
        list(handles.values()),
        [_safe(name) for name in handles],
        frameon=False,
        fontsize=8,
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
    )


def _edges(centres: list[float]) -> tuple[float, float]:
    """Return the outer edges of equally wide cells."""
    half = (centres[-1] - centres[0]) / (len(centres) - 1) / 2 if len(centres) > 1 else 0.5
    return centres[0] - half, centres[-1] + half


def _named(x: list[str] | list[int]) -> bool:
    return bool(x) and isinstance(x[0], str)


def _name_columns(x: list[str] | list[int], axes: Axes) -> None:
    if not _named(x):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        return
    names = [_safe(str(name)) for name in x]
    tilt = 35 if sum(map(len, names)) > _NAMES_UPRIGHT_UP_TO else 0
    axes.set_xticks(range(len(names)), names, rotation=tilt, ha="right" if tilt else "center", fontsize=8)


def _safe(text: str) -> str:
    """Escape text for matplotlib, which reads mathematics between dollars."""
    return text.replace("$", r"\$")
