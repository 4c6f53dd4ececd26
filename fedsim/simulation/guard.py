"""Ends what a run of Flower's engine left behind, however whoever started it has ended.

    python -P -m fedsim.simulation.guard FOLDER

Flower and Ray start processes in sessions of their own, and some lose their parent; killing one process group or one
family misses them. All have the run's private folder in their environment or their command, and by that they are found.
The guard lives as long as its input is open: a pipe that its starter holds, which the system closes when that dies.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

#: How long processes may take to end by themselves once they are asked to.
STOP_S = 10.0
#: Longest time that the whole sweep takes.
SWEEP_S = 60.0
_PAUSE_S = 0.2


@contextmanager
def guarded(folder: Path) -> Iterator[None]:
    """Let all processes of a folder end at the end of the block, or when this process dies; then remove the folder.

    Args:
        folder: private to the processes that work for the block.
    """
    command = [sys.executable, "-P", "-m", "fedsim.simulation.guard", str(folder)]
    # A session of its own: Ctrl-C is for whoever waits, not for the one that cleans up after it.
    guard = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        yield
    finally:
        if guard.stdin is not None:
            guard.stdin.close()
        guard.wait(timeout=2 * SWEEP_S)


def processes_of(folder: Path) -> list[psutil.Process]:
    """Return the processes of this user that name the folder in environment or command, and all their descendants."""
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and _names(process, str(folder)):
                found |= {p.pid: p for p in (process, *process.children(recursive=True))}
        except psutil.Error:
            # It ended meanwhile, or it is another user's.
            continue
    return [p for p in found.values() if p.pid != os.getpid()]


def _names(process: psutil.Process, folder: str) -> bool:
    # A zombie has neither environment nor command.
    words = [*process.environ().values(), *process.cmdline()]
    return any(folder in word for word in words)


def end_all(folder: Path) -> None:
    """End the folder's processes: ask them, then kill what is left or comes new, until there is none."""
    started_s = time.monotonic()
    for process in processes_of(folder):
        _signal(process, gently=True)
    while (left := processes_of(folder)) and time.monotonic() - started_s < SWEEP_S:
        if time.monotonic() - started_s > STOP_S:
            for process in left:
                _signal(process, gently=False)
        time.sleep(_PAUSE_S)


def _signal(process: psutil.Process, gently: bool) -> None:
    try:
        process.terminate() if gently else process.kill()
    except psutil.Error:
        return


def main() -> int:
    """Wait for the end of the input, then clean up."""
    folder = Path(sys.argv[1])
    sys.stdin.read()
    end_all(folder)
    shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())


__all__ = ["end_all", "guarded", "processes_of"]
