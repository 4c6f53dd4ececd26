"""Charts for the browser: plain Plotly figures whose colours are names that the page resolves for its theme."""

import html
from typing import Any

from plotly.offline import get_plotlyjs

from fedsim.measure._chart import LIGHT, Bars, Chart, Heat, Line, Lines, Spans

_MARKERS_UP_TO = 60
_TICK_EACH_UP_TO = 25
_BARS_APART_UP_TO = 40
#: Letters of all names together that fit below the columns of a chart.
_LETTERS_BELOW = 80


def plotly_js() -> str:
    """Return the source of plotly.js, so that a page works offline."""
    source: str = get_plotlyjs()
    return source


def figure(chart: Chart) -> dict[str, Any]:
    """Return a figure as JSON-ready data; colours are ``c0``, ``c1``, ... of the page's palette.

    Raises:
        TypeError: a kind of chart that has no painter.
    """
    if isinstance(chart, Lines):
        data, layout = _lines(chart)
    elif isinstance(chart, Bars):
        data, layout = _bars(chart)
    elif isinstance(chart, Heat):
        data, layout = _heat(chart)
    elif isinstance(chart, Spans):
        data, layout = _spans(chart)
    else:
        raise TypeError(f"{type(chart).__name__} has no painter; add one here and in the PNG's painter")
    x_axis, y_axis = layout.pop("xaxis", {}), layout.pop("yaxis", {})
    axes = {
        "xaxis": {"title": {"text": _safe(chart.x_label)}} | x_axis,
        "yaxis": {"title": {"text": _safe(chart.y_label)}} | y_axis,
    }
    return {"data": data, "layout": layout | axes}


def _lines(chart: Lines) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    data = []
    for line in chart.lines:
        color = _color(line.color)
        if line.low:
            data.append(_band(line))
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers" if len(line.x) <= _MARKERS_UP_TO else "lines",
                "name": _safe(line.legend or line.label),
                "legendgroup": _safe(line.group),
                "showlegend": bool(line.legend),
                "x": _rounded(line.x),
                "y": _rounded(line.y),
                "line": {"color": color, "width": 2, "dash": line.dash},
                "marker": {"color": color, "size": 5},
                "hovertemplate": "%{y:.4~g}",
            }
        )
    # Where the curves do not share their x values, a label per point says more than one for all.
    shared = chart.x_label == "round"
    layout = {
        "hovermode": "x unified" if shared else "closest",
        "showlegend": len(chart.lines) > 1,
        "yaxis": {"rangemode": "tozero"} if chart.from_zero else {},
        "xaxis": _rounds_axis([x for line in chart.lines for x in line.x]) if shared else {"rangemode": "tozero"},
    }
    if not shared:
        unit = f"%{{y:.4~g}} %<br>%{{x:.4~g}} {_safe(chart.x_label.rsplit('(')[-1].rstrip(')'))}"
        for trace in data:
            trace["hovertemplate"] = unit
    return data, layout


def _band(line: Line) -> dict[str, Any]:
    """Return the area between a curve's bounds: there along the upper, back along the lower."""
    return {
        "type": "scatter",
        "mode": "lines",
        "x": _rounded([*line.x, *line.x[::-1]]),
        "y": _rounded([*line.high, *line.low[::-1]]),
        "fill": "toself",
        "fillcolor": _color(line.color),
        "opacity": 0.18,
        "line": {"width": 0, "color": _color(line.color)},
        "legendgroup": _safe(line.group),
        "showlegend": False,
        "hoverinfo": "skip",
    }


def _spans(chart: Spans) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    layers = dict.fromkeys((span.layer, span.color) for span in chart.spans)
    data = []
    for layer, color in layers:
        own = [span for span in chart.spans if span.layer == layer]
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": _safe(layer),
                "y": [_safe(span.row) for span in own],
                "base": _rounded([span.start for span in own]),
                "x": _rounded([span.end - span.start for span in own]),
                "marker": {"color": _color(color), "line": {"width": 0}},
                "hovertemplate": f"{_safe(layer)}: %{{x:.4~g}}",
            }
        )
    rows = {"type": "category", "categoryorder": "array", "categoryarray": [_safe(row) for row in chart.rows]}
    layout: dict[str, Any] = {
        "barmode": "overlay",
        "bargap": 0.25,
        "hovermode": "closest",
        "showlegend": True,
        "xaxis": {"rangemode": "tozero"},
        "yaxis": rows | {"autorange": "reversed", "showgrid": False},
    }
    if chart.mark is not None:
        line = {"color": _color(6), "width": 1.5, "dash": "dash"}
        place = {"x0": chart.mark, "x1": chart.mark, "y0": 0, "y1": 1, "yref": "paper"}
        layout["shapes"] = [{"type": "line", "line": line} | place]
        note = {"x": chart.mark, "y": 1, "yref": "paper", "showarrow": False, "xanchor": "right", "yanchor": "bottom"}
        layout["annotations"] = [note | {"text": _safe(chart.mark_label)}]
    return data, layout


def _bars(chart: Bars) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    named = bool(chart.x) and isinstance(chart.x[0], str)
    data = [
        {
            "type": "bar",
            "name": _safe(label),
            "x": [_safe(str(x)) for x in chart.x] if named else chart.x,
            "y": _rounded(heights),
            "marker": {"color": _color(color), "line": {"width": 0}},
            "hovertemplate": "%{y:.4~g}",
        }
        for label, heights, color in chart.layers
    ]
    axis: dict[str, Any] = {"type": "category"} if named else _rounds_axis([float(x) for x in chart.x])
    layout = {
        "barmode": "stack" if chart.stacked else "group",
        "bargap": 0.15 if len(chart.x) <= _BARS_APART_UP_TO else 0,
        "hovermode": "x unified",
        "xaxis": axis,
        "showlegend": len(data) > 1,
        "legend": {"traceorder": "normal"},
    }
    if named and sum(len(str(x)) for x in chart.x) > _LETTERS_BELOW:
        return _lying(data, layout, chart)
    return data, layout


def _lying(
    data: list[dict[str, Any]], layout: dict[str, Any], chart: Bars
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Turn columns into rows: long names below columns would take the place of the columns."""
    rows = [
        trace | {"orientation": "h", "x": trace["y"], "y": trace["x"], "hovertemplate": "%{x:.4~g}"} for trace in data
    ]
    axes = {
        "xaxis": {"title": {"text": _safe(chart.y_label)}},
        "yaxis": {"title": {"text": ""}, "type": "category", "autorange": "reversed", "dtick": 1},
    }
    height = 130 + len(chart.x) * (18 if chart.stacked else max(18, 8 * len(data)))
    return rows, layout | axes | {"hovermode": "y unified", "height": max(340, height)}


def _heat(chart: Heat) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    named = bool(chart.x) and isinstance(chart.x[0], str)
    x_name, y_name = _safe(chart.x_label), _safe(chart.y_label)
    trace = {
        "type": "heatmap",
        "x": [_safe(str(x)) for x in chart.x] if named else chart.x,
        "y": [_safe(str(y)) for y in chart.y] if _is_named(chart.y) else chart.y,
        "z": chart.z,
        "colorscale": "heat",
        "hoverongaps": False,
        "xgap": 1 if len(chart.x) <= _BARS_APART_UP_TO else 0,
        "ygap": 1 if len(chart.y) <= _BARS_APART_UP_TO else 0,
        "colorbar": {"title": {"text": _safe(chart.z_label), "side": "top"}, "thickness": 12, "outlinewidth": 0},
        "hovertemplate": f"{x_name} %{{x}}, {y_name} %{{y}}: %{{z:.4~g}}<extra></extra>",
    }
    rows = _rows_axis(chart.y)
    axis: dict[str, Any] = {"type": "category"} if named else _rounds_axis([float(x) for x in chart.x])
    return [trace], {"xaxis": axis | {"showgrid": False}, "yaxis": rows | {"showgrid": False, "zeroline": False}}


def _rounds_axis(x: list[float]) -> dict[str, Any]:
    return {"dtick": 1} if x and max(x) - min(x) <= 12 else {"nticks": 12}


def _is_named(values: list[str] | list[int]) -> bool:
    return bool(values) and isinstance(values[0], str)


def _rows_axis(values: list[str] | list[int]) -> dict[str, Any]:
    if _is_named(values):
        return {"type": "category"}
    numbers = [int(value) for value in values]
    return {"dtick": 1} if len(numbers) <= _TICK_EACH_UP_TO and _consecutive(numbers) else {}


def _consecutive(values: list[int]) -> bool:
    return values == list(range(values[0], values[0] + len(values)))


def _color(index: int) -> str:
    return f"c{index % len(LIGHT)}"


def _rounded(values: list[float]) -> list[float]:
    return [float(f"{value:.6g}") for value in values]


def _safe(text: str) -> str:
    """Escape text for Plotly, which reads a little HTML in labels."""
    return html.escape(text, quote=False)
