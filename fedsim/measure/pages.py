"""Pages of tables and charts for those outside of this package: one HTML file, and a PNG copy of each figure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedsim.measure._chart import Bars, Chart, Heat, Line, Lines, Span, Spans
from fedsim.measure._client_charts import timeline
from fedsim.measure._files import write_text
from fedsim.measure._page import render
from fedsim.measure._png import write_png
from fedsim.measure.errors import ReportError

__all__ = [
    "Bars",
    "Chart",
    "Heat",
    "Line",
    "Lines",
    "Section",
    "Span",
    "Spans",
    "Table",
    "timeline",
    "write_page",
    "write_png",
]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text.

    Attributes:
        columns: their names.
        rows: cells, one for each column.
        words: so many columns from the left hold words, the others numbers.
    """

    columns: list[str]
    rows: list[list[str]]
    words: int = 1


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page: a title, a sentence, tables, charts."""

    title: str
    text: str = ""
    tables: list[Table] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)


def write_page(
    path: Path,
    title: str,
    sections: Sequence[Section],
    *,
    kicker: str = "report",
    chips: Sequence[str] = (),
    tiles: Sequence[tuple[str, str]] = (),
    footer: str = "",
    png: bool = True,
) -> Path:
    """Write a page and, beside it in ``figures/``, its figures.

    Args:
        path: the HTML file.
        title: of the page.
        sections: in order.
        kicker: what kind of page it is.
        chips: words under the title.
        tiles: (label, value), large.
        footer: last words.
        png: write the PNG copies.

    Raises:
        ReportError: the file cannot be written.
    """
    charts = [chart for section in sections for chart in section.charts]
    try:
        if png:
            for chart in charts:
                write_png(chart, path.parent / "figures" / f"{chart.key}.png")
        text = render(
            "page.html",
            charts,
            title=title,
            kicker=kicker,
            chips=list(chips),
            tiles=list(tiles),
            sections=list(sections),
            footer=footer,
            png=png,
        )
        write_text(path, text)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ReportError(f"{path} cannot be written ({reason}): name another file or make room") from error
    return path
