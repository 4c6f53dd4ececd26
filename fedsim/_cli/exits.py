"""Turns errors into messages and exit codes, and SIGTERM and SIGHUP into the same as Ctrl-C."""

import json
import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TextIO

import typer

from fedsim.errors import FAILED, INTERRUPTED, exit_code_of


@contextmanager
def exits(json_stream: TextIO | None = None) -> Iterator[None]:
    """End the program with the code of an expected error and its message; let unforeseen ones keep their traceback.

    Args:
        json_stream: where to write ``{"event": "failed", "exit_code": ..., "error": ...}`` as well, if anywhere.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise _end("interrupted", INTERRUPTED, json_stream) from None
    except Exception as error:
        code, text = exit_code_of(error), str(error)
        if code is None and isinstance(error, OSError) and error.filename is not None:
            # The world's fault, not the program's: a folder where a file must be, a right that is missing.
            code = FAILED
            text = (
                f"{error.filename}: {error.strerror or error}; it must be there, of the right kind and open to this "
                "user: correct that and call again"
            )
        if code is None:
            raise
        raise _end(f"error: {text}", code, json_stream) from None


@contextmanager
def writing(path: Path, option: str = "--out") -> Iterator[None]:
    """Refuse, in the terms of an option, a path at which nothing can be written.

    Raises:
        ConfigError: an :class:`OSError` came out of the block.
    """
    from fedsim.errors import ConfigError, Problem

    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError([Problem(option, str(path), f"cannot be written ({reason})", "name another path")]) from None


def _end(message: str, code: int, json_stream: TextIO | None) -> typer.Exit:
    typer.echo(message, err=True)
    if json_stream is not None:
        typer.echo(json.dumps({"event": "failed", "exit_code": code, "error": message}), file=json_stream)
    return typer.Exit(code)


@contextmanager
def hushed(wanted: bool) -> Iterator[None]:
    """Keep warnings and less of all libraries' logs from the terminal, if wanted; errors go through."""
    before = logging.root.manager.disable
    if wanted:
        logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


@contextmanager
def stoppable() -> Iterator[None]:
    """Let SIGTERM, and SIGHUP where it is not ignored, stop a run as Ctrl-C does, so that it closes its folder."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    # Under nohup the end of a terminal is to be ignored, and stays so.
    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
