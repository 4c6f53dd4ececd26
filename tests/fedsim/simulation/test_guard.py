"""The guard of a run's folder, with processes as Flower and Ray leave them: orphans in sessions of their own."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedsim.simulation import guard
from fedsim.simulation.guard import end_all, guarded, processes_of

#: Says when it is there; with a further argument it ignores SIGTERM.
ORPHAN = """
import signal, sys, time
if len(sys.argv) > 2:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(1, flush=True)
time.sleep(300)
"""
#: Holds a guarded folder until it is killed.
STARTER = """
import sys, time
from pathlib import Path
from fedsim.simulation.guard import guarded
with guarded(Path(sys.argv[1])):
    print(1, flush=True)
    time.sleep(300)
"""


def orphan(folder: Path, by: str, *more: str) -> None:
    """Leave a process that has neither parent nor group of ours, found by its environment or its command."""
    mark = {"FLWR_HOME": str(folder / "x")} if by == "environment" else {}
    command = ["setsid", "--fork", sys.executable, "-c", ORPHAN, str(folder) if by == "command" else "-", *more]
    with subprocess.Popen(command, env=os.environ | mark, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None and parent.stdout.readline() == b"1\n"


def gone(folder: Path, limit_s: float = 60.0) -> bool:
    end_s = time.monotonic() + limit_s
    while (folder.exists() or processes_of(folder)) and time.monotonic() < end_s:
        time.sleep(0.05)
    return not folder.exists() and not processes_of(folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "private"
    made.mkdir()
    return made


@pytest.mark.parametrize("by", ["environment", "command"])
def test_orphans_are_found_and_end(folder: Path, by: str) -> None:
    orphan(folder, by)
    assert len(processes_of(folder)) == 1 and not processes_of(folder.with_name("other"))
    end_all(folder)
    assert not processes_of(folder)


def test_who_does_not_end_when_asked_is_killed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "STOP_S", 0.5)
    orphan(folder, "environment", "stubborn")
    end_all(folder)
    assert not processes_of(folder)


def test_after_the_block_neither_processes_nor_folder_are_left(folder: Path) -> None:
    with pytest.raises(KeyError), guarded(folder):
        orphan(folder, "environment")
        raise KeyError
    assert not processes_of(folder) and not folder.exists()


def test_a_starter_that_is_killed_leaves_nothing_either(folder: Path) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", STARTER, folder], stdout=subprocess.PIPE, env=environment) as starter:
        assert starter.stdout is not None and starter.stdout.readline() == b"1\n"
        orphan(folder, "environment")
        starter.kill()
    assert gone(folder)
