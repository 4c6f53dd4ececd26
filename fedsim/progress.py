"""Shows a run: a live display on a terminal, plain lines elsewhere, JSON lines for programs."""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from fedsim.config import RunConfig, to_run_config
from fedsim.events import NullObserver, Observer, RoundEnd
from fedsim.measure.units import show_s

#: Failures that are shown of a round; the run's folder has them all.
SHOWN_FAILURES = 3


@contextmanager
def watching(stream: TextIO, *, as_json: bool = False, quiet: bool = False) -> Iterator[Observer]:
    """Yield the observer that fits the stream, and clean up the terminal afterwards.

    Args:
        stream: where to write.
        as_json: one JSON object a line.
        quiet: nothing at all; `as_json` wins.
    """
    console = Console(file=stream, highlight=False)
    if as_json:
        yield JsonProgress(stream)
    elif quiet:
        yield NullObserver()
    elif console.is_terminal:
        with LiveProgress(console) as live:
            yield live
    else:
        yield PlainProgress(stream)


class JsonProgress:
    """One JSON object a line: ``{"event": "started" | "round_end" | "note" | "finished", ...}``."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def started(self, config: RunConfig, folder: Path) -> None:
        """See :meth:`fedsim.events.Observer.started`."""
        self._write("started", folder=str(folder), config=to_run_config(config))

    def round_end(self, event: RoundEnd) -> None:
        """See :meth:`fedsim.events.Observer.round_end`."""
        fields = {name: getattr(event, name) for name in RoundEnd.__slots__}
        self._write("round_end", **fields)

    def note(self, text: str) -> None:
        """See :meth:`fedsim.events.Observer.note`."""
        self._write("note", text=text)

    def finished(self, summary: Mapping[str, Any]) -> None:
        """See :meth:`fedsim.events.Observer.finished`."""
        self._write("finished", summary=summary)

    def _write(self, kind: str, **fields: Any) -> None:
        line = json.dumps({"event": kind} | {key: _plain(value) for key, value in fields.items()}, allow_nan=False)
        self._stream.write(line + "\n")
        self._stream.flush()


class PlainProgress:
    """One line a round, for logs."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._seconds = stream, 0.0

    def started(self, config: RunConfig, folder: Path) -> None:
        """See :meth:`fedsim.events.Observer.started`."""
        self._write(headline(config))
        self._write(f"folder {folder}")

    def round_end(self, event: RoundEnd) -> None:
        """See :meth:`fedsim.events.Observer.round_end`."""
        self._seconds += event.seconds
        left = f"  left {duration(left_s(event, self._seconds))}" if event.round < event.rounds else ""
        self._write(f"round {event.round}/{event.rounds}  {describe(event)}{left}")
        for failure in shown_failures(event):
            self._write(f"  left out: {failure}")

    def note(self, text: str) -> None:
        """See :meth:`fedsim.events.Observer.note`."""
        self._write(f"note: {text}")

    def finished(self, summary: Mapping[str, Any]) -> None:
        """See :meth:`fedsim.events.Observer.finished`."""
        for key, value in summary.items():
            self._write(f"{key}: {_text(value)}")

    def _write(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()


class LiveProgress:
    """A bar of rounds with accuracy, bytes and time left; failures and notes scroll above it."""

    def __init__(self, console: Console) -> None:
        self._console, self._seconds = console, 0.0
        self._bar = Progress(
            TextColumn("round {task.completed:.0f}/{task.total:.0f}"),
            BarColumn(),
            TextColumn("{task.fields[state]}"),
            TextColumn("{task.fields[left]}", style="cyan"),
            console=console,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> "LiveProgress":
        self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._bar.stop()

    def started(self, config: RunConfig, folder: Path) -> None:
        """See :meth:`fedsim.events.Observer.started`."""
        self._console.print(f"[bold]{escape(headline(config))}[/bold]")
        self._console.print(f"folder {escape(str(folder))}")
        self._task = self._bar.add_task("rounds", total=config.federation.rounds, state="starting", left="")

    def round_end(self, event: RoundEnd) -> None:
        """See :meth:`fedsim.events.Observer.round_end`."""
        self._seconds += event.seconds
        if self._task is None:
            self._task = self._bar.add_task("rounds", total=event.rounds, state="", left="")
        left = f"{duration(left_s(event, self._seconds))} left" if event.round < event.rounds else ""
        self._bar.update(
            self._task, completed=event.round, total=event.rounds, state=escape(describe(event)), left=left
        )
        for failure in shown_failures(event):
            self._console.print(f"[yellow]round {event.round}: left out: {escape(failure)}[/yellow]")

    def note(self, text: str) -> None:
        """See :meth:`fedsim.events.Observer.note`."""
        self._console.print(f"[yellow]note:[/yellow] {escape(text)}")

    def finished(self, summary: Mapping[str, Any]) -> None:
        """See :meth:`fedsim.events.Observer.finished`."""
        self._bar.stop()
        for key, value in summary.items():
            self._console.print(f"[bold]{escape(key)}[/bold]  {escape(_text(value))}")


def headline(config: RunConfig) -> str:
    """Say in one line what a run is."""
    federation, data = config.federation, config.data
    alpha = f" {data.alpha}" if "dirichlet" in data.scheme or data.scheme == "quantity-skew" else ""
    return (
        f"{config.task.name}, {config.model.name}, {federation.num_clients} clients ({data.scheme}{alpha}), "
        f"{config.strategy.name}, {config.protection.name}, {federation.rounds} rounds"
    )


def describe(event: RoundEnd) -> str:
    """Say in one line how a round went: accuracies and losses, bytes, replies, seconds."""
    metrics = [f"{key} {value:.4f}" for key, value in event.metrics.items() if "accuracy" in key or "loss" in key]
    return "  ".join(
        [
            *metrics,
            f"up {size(event.upload_bytes)}",
            f"down {size(event.download_bytes)}",
            f"{event.replied}/{event.sampled} replies",
            duration(event.seconds),
            *([] if math.isnan(event.virtual_s) else [f"virtual {show_s(event.virtual_s)}"]),
        ]
    )


def shown_failures(event: RoundEnd) -> list[str]:
    """Return the first failures of a round, and how many more there are."""
    more = len(event.failures) - SHOWN_FAILURES
    return [*event.failures[:SHOWN_FAILURES], *([f"and {more} more"] if more > 0 else [])]


def left_s(event: RoundEnd, spent_s: float) -> float:
    """Estimate the seconds that the remaining rounds take, from the mean so far."""
    return spent_s / max(event.round, 1) * (event.rounds - event.round)


def size(count: float) -> str:
    """Write a number of bytes with a decimal unit: ``12.3 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def duration(seconds: float) -> str:
    """Write seconds as a person would: ``0.4 s``, ``3 min 20 s``, ``2 h 5 min``."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def _text(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def _plain(value: Any) -> Any:
    """Turn a value into what JSON can carry; NaN and infinity become null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    try:
        number = float(value)
    except (TypeError, ValueError):
        return str(value)
    return number if math.isfinite(number) else None
