"""What a watched run shows."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from fedsim.config import RunConfig
from fedsim.events import NullObserver, Observer, RoundEnd
from fedsim.progress import JsonProgress, LiveProgress, PlainProgress, duration, left_s, size, watching


def round_end(number: int = 3, failures: tuple[str, ...] = (), **metrics: float) -> RoundEnd:
    return RoundEnd(
        round=number,
        rounds=10,
        metrics=metrics or {"accuracy": 0.8125, "loss": 0.5, "other": 1.0},
        upload_bytes=12_345_678,
        download_bytes=999,
        seconds=1.25,
        sampled=20,
        replied=20 - len(failures),
        failures=failures,
    )


def play(observer: Observer) -> None:
    observer.started(RunConfig(), Path("runs/x"))
    observer.note("[bold]careful")
    observer.round_end(round_end(failures=("client 4: [red]NaN",)))
    observer.finished({"accuracy": 0.9, "report": Path("runs/x/report.html")})


def test_plain_lines() -> None:
    stream = io.StringIO()
    play(PlainProgress(stream))
    assert stream.getvalue().splitlines() == [
        "fashion-mnist, cnn, 20 clients (dirichlet 0.3), fedavg, plain, 10 rounds",
        "folder runs/x",
        "note: [bold]careful",
        "round 3/10  accuracy 0.8125  loss 0.5000  up 12.3 MB  down 999 B  19/20 replies  1.2 s  left 2.9 s",
        "  left out: client 4: [red]NaN",
        "accuracy: 0.9000",
        "report: runs/x/report.html",
    ]


def test_only_the_first_failures_are_shown() -> None:
    stream = io.StringIO()
    PlainProgress(stream).round_end(round_end(failures=tuple(f"client {i}" for i in range(9))))
    assert stream.getvalue().count("left out") == 4
    assert stream.getvalue().endswith("left out: and 6 more\n")


def test_the_last_round_has_no_time_left() -> None:
    stream = io.StringIO()
    PlainProgress(stream).round_end(round_end(number=10))
    assert not stream.getvalue().rstrip().endswith("left 0.0 s")


def test_json_lines_are_json_and_nan_is_null() -> None:
    stream = io.StringIO()
    observer = JsonProgress(stream)
    play(observer)
    observer.round_end(round_end(accuracy=float("nan"), loss=float("inf")))
    events = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [event["event"] for event in events] == ["started", "note", "round_end", "finished", "round_end"]
    assert events[0]["config"]["federation.rounds"] == 10
    assert events[2]["failures"] == ["client 4: [red]NaN"]
    assert events[3]["summary"] == {"accuracy": 0.9, "report": "runs/x/report.html"}
    assert events[4]["metrics"] == {"accuracy": None, "loss": None}


def test_live_display_shows_rounds_and_failures() -> None:
    stream = io.StringIO()
    with LiveProgress(Console(file=stream, force_terminal=True, width=150, color_system=None)) as live:
        play(live)
    text = stream.getvalue()
    assert "round 3/10" in text
    assert "accuracy 0.8125" in text
    assert "left out: client 4: [red]NaN" in text
    assert "[bold]careful" in text


def test_live_display_survives_a_run_that_never_starts() -> None:
    stream = io.StringIO()
    with pytest.raises(RuntimeError), LiveProgress(Console(file=stream, force_terminal=True)):
        raise RuntimeError
    assert stream.getvalue().endswith("\x1b[?25h"), "the cursor is shown again"


def test_the_stream_decides() -> None:
    stream = io.StringIO()
    kinds = []
    for flags in ({}, {"quiet": True}, {"as_json": True}, {"as_json": True, "quiet": True}):
        with watching(stream, **flags) as observer:
            kinds.append(type(observer))
    assert kinds == [PlainProgress, NullObserver, JsonProgress, JsonProgress]


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (2_500_000, "2.5 MB"), (3e9, "3.0 GB"), (4e15, "4000.0 TB")],
)
def test_sizes_are_decimal(count: float, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0 s"), (59.94, "59.9 s"), (59.96, "1 min 0 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_time_left_is_the_mean_of_what_was() -> None:
    assert left_s(round_end(number=2), 10.0) == 40.0
    assert left_s(round_end(number=0), 10.0) == 100.0
