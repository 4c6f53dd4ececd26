"""Numbers as people read them: bytes in kB and MB (powers of 1000), seconds, percent."""

import math

_BYTE_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
_TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
MISSING = "–"


def byte_unit(largest_bytes: float) -> tuple[float, str]:
    """Return (divisor, unit) in which values up to `largest_bytes` are axis-sized numbers."""
    return next(((size, unit) for size, unit in _BYTE_UNITS if largest_bytes >= size), (1.0, "B"))


def time_unit(largest_s: float) -> tuple[float, str]:
    """Return (divisor, unit) for an axis of seconds: h from 3 hours, min from 5 minutes, then s, ms, µs."""
    if largest_s >= 3 * 3600:
        return 3600.0, "h"
    if largest_s >= 300:
        return 60.0, "min"
    return next(((size, unit) for size, unit in _TIME_UNITS if largest_s >= size), (1.0, "s"))


def show_bytes(value_bytes: float | None) -> str:
    """Return for example "12.3 MB"; a dash for None."""
    if value_bytes is None or math.isnan(value_bytes):
        return MISSING
    size, unit = byte_unit(value_bytes)
    return f"{value_bytes:.0f} B" if unit == "B" else f"{_digits(value_bytes / size)} {unit}"


def show_s(value_s: float | None) -> str:
    """Return for example "1 h 02 min", "3 min 05 s", "4.21 s" or "12 ms"; a dash for None or NaN."""
    if value_s is None or math.isnan(value_s):
        return MISSING
    whole = round(value_s)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    if whole >= 120:
        return f"{whole // 60} min {whole % 60:02d} s"
    size, unit = time_unit(value_s)
    return f"{_digits(value_s / size)} {unit}"


def show_percent(share: float | None) -> str:
    """Return for example "84.3 %"; a dash for None or NaN."""
    return MISSING if share is None or math.isnan(share) else f"{100 * share:.1f} %"


def show_number(value: float | None) -> str:
    """Return a number with 4 significant digits and thousands set off; a dash for None or NaN."""
    if value is None or math.isnan(value):
        return MISSING
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}".replace(",", " ")
    return f"{value:.4g}"


def _digits(value: float) -> str:
    """Three significant digits, none lost before the point."""
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
