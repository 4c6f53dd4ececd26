"""Charts for those outside of this package: kinds, and a painter for PNG files."""

from fedsim.measure._chart import Bars, Chart, Heat, Line, Lines, Span, Spans
from fedsim.measure._png import write_png

__all__ = ["Bars", "Chart", "Heat", "Line", "Lines", "Span", "Spans", "write_png"]
