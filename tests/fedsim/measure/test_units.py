import math

import pytest

from fedsim.measure.units import byte_unit, show_bytes, show_number, show_percent, show_s, time_unit


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (12_345_678, "12.3 MB"),
        (9.999e9, "10.0 GB"),
        (None, "–"),
        (2e15, "2000 TB"),
    ],
)
def test_bytes_have_three_digits_and_a_unit(value: float | None, words: str) -> None:
    assert show_bytes(value) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0.0, "0.00 s"),
        (0.0123, "12.3 ms"),
        (4.2049, "4.20 s"),
        (119.4, "119 s"),
        (185, "3 min 05 s"),
        (3725, "1 h 02 min"),
    ]
    + [(math.nan, "–"), (2e-6, "2.00 µs"), (3599.7, "1 h 00 min")],
)
def test_seconds_grow_into_minutes_and_hours(value: float, words: str) -> None:
    assert show_s(value) == words


def test_percent_and_numbers() -> None:
    assert (show_percent(0.8434), show_percent(math.nan)) == ("84.3 %", "–")
    assert (show_number(1234567), show_number(0.123456), show_number(None)) == ("1 234 567", "0.1235", "–")


def test_axis_units_fit_the_largest_value() -> None:
    assert [byte_unit(value)[1] for value in (0, 5, 5e3, 5e6, 5e9)] == ["B", "B", "kB", "MB", "GB"]
    assert [time_unit(value)[1] for value in (0, 1e-5, 0.01, 3, 301, 11_000)] == ["s", "µs", "ms", "s", "min", "h"]
