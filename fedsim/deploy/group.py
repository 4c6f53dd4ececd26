"""A few processes that live and die together: when one ends, all end, and why is said in one sentence."""

import ctypes
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType

_log = logging.getLogger(__name__)

STOP_S = 15.0
_POLL_S = 0.2
_LONGEST_PAUSE_S = 10.0
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Member:
    """One process of a group.

    Attributes:
        name: what messages call it.
        command: program and arguments.
        environment: all of it.
        again: exit codes after which it is started anew, after 1, 2, 4, 8, 10, 10, ... s.
        tries: how often at most.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    again: Sequence[int] = ()
    tries: int = 1


class _Running:
    def __init__(self, member: Member) -> None:
        self.member, self.started, self.count = member, time.monotonic(), 1
        self.process = self._start()
        self.due_s = 0.0

    def _start(self) -> "subprocess.Popen[bytes]":
        # A member must not outlive a group that was killed.
        return subprocess.Popen(
            list(self.member.command), env=dict(self.member.environment), preexec_fn=die_with(os.getpid())
        )

    def ended(self) -> int | None:
        """Return the exit code of a process that is not to be started again."""
        if self.due_s:
            if time.monotonic() >= self.due_s:
                self.process, self.due_s, self.count = self._start(), 0.0, self.count + 1
            return None
        code = self.process.poll()
        if code is None or code not in self.member.again or self.count >= self.member.tries:
            return code
        pause_s = min(2.0 ** (self.count - 1), _LONGEST_PAUSE_S)
        _log.warning(
            "%s ended with code %d (try %d of %d); next try in %g s",
            self.member.name,
            code,
            self.count,
            self.member.tries,
            pause_s,
        )
        self.due_s = time.monotonic() + pause_s
        return None


def die_with(parent: int) -> Callable[[], None] | None:
    """Return what makes a child process end with its parent, where the system can do that."""
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None, use_errno=True)

    def prepare() -> None:
        library.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    return prepare


def run_group(members: Sequence[Member]) -> int:
    """Run processes until one ends or the group is asked to stop (SIGTERM, Ctrl-C); then stop the others.

    Returns:
        0 if it was asked to stop; else the code of the member that ended, 1 if that was 0.
    """
    asked: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        asked.append(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    running: list[_Running] = []
    try:
        running.extend(_Running(member) for member in members)
        while not asked:
            for each in running:
                if (code := each.ended()) is not None:
                    _log.error("%s ended with code %d; the others are stopped", each.member.name, code)
                    return code if 0 < code < 256 else 1
            time.sleep(_POLL_S)
        return 0
    finally:
        _stop([each.process for each in reversed(running)])
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(processes: "Sequence[subprocess.Popen[bytes]]") -> None:
    for process in processes:
        if process.poll() is None:
            process.terminate()
    end_s = time.monotonic() + STOP_S
    for process in processes:
        try:
            process.wait(timeout=max(0.1, end_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


__all__ = ["Member", "die_with", "run_group"]
