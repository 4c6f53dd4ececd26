"""Runs and rounds leave nothing behind: memory, processes, open files, threads, temporary folders."""

import gc
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest

from fedsim.config import load_config
from fedsim.events import NullObserver
from fedsim.runner import run, simulate

TINY = [
    "task.name=digits",
    "model.name=mlp",
    "model.options.hidden=[16]",
    "federation.num_clients=4",
    "federation.rounds=2",
    "output.report=false",
]
PREAMBLE = ["protection.epsilon=50", "protection.clip_norm=1.0", "protection.byte_budget=20000"]
PROTECTIONS = ["plain", "bfv", "preamble"]


def settings(folder, name, *more):
    return load_config(None, [*TINY, f"output.folder={folder}", f"output.name={name}", *more])


def rss_bytes() -> int:
    gc.collect()
    return psutil.Process().memory_info().rss


def held() -> tuple[set[int], int, int, set[str]]:
    """Return child processes, open files, threads and our temporary folders."""
    gc.collect()
    me = psutil.Process()
    ours = {p.name for p in Path(tempfile.gettempdir()).iterdir() if p.name.startswith(("fedsim-", "fs-"))}
    return {p.pid for p in me.children(recursive=True)}, me.num_fds(), threading.active_count(), ours


def runs(folder: Path, engines: list[str], count: int) -> list[int]:
    """Run one after the other in this process; return the memory after each."""
    sizes = []
    for number in range(count):
        engine, protection = engines[number % len(engines)], PROTECTIONS[number % len(PROTECTIONS)]
        more = [f"engine.name={engine}", "engine.workers=1", f"protection.name={protection}"]
        if protection == "preamble":
            more += PREAMBLE
        simulate(settings(folder, f"r{number}", *more))
        sizes.append(rss_bytes())
    return sizes


@pytest.fixture(autouse=True)
def own_temporary_folder(monkeypatch):
    """Other programs use the system's; Ray needs a short path."""
    with tempfile.TemporaryDirectory(prefix="soak", dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.fixture
def warm(tmp_path):
    pytest.importorskip("tenseal", reason="tenseal is not installed: pip install 'fedsim[tenseal]'")
    runs(tmp_path / "warm", ["inline"], 3)


@pytest.mark.report(
    "U61", "20 runs in one process: run 20 takes at most 1.1 times the memory of run 3, nothing is left"
)
def test_nothing_is_left_of_runs_in_one_process(tmp_path, warm):
    before = held()
    sizes = runs(tmp_path, ["inline"], 6)
    after = held()
    assert after[0] <= before[0] and after[1] <= before[1] and after[2] <= before[2] and after[3] <= before[3]
    assert sizes[-1] <= 1.1 * sizes[2]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.report("U61")
@pytest.mark.parametrize("engine", ["inline", "ray"])
def test_nothing_is_left_of_twenty_runs(tmp_path, warm, engine):
    if engine == "ray":
        runs(tmp_path / "first", ["ray"], 1)  # Ray's client libraries keep a few files and threads from then on
    before = held()
    sizes = runs(tmp_path, [engine], 20)
    after = held()
    assert after[0] <= before[0] and after[3] <= before[3]
    # Ray's driver keeps the log of each session open for as long as the process lives.
    assert after[1] <= before[1] + 2 + 20 * (engine == "ray") and after[2] <= before[2] + 2
    assert sizes[19] <= 1.1 * sizes[2]


ROUNDS = """
import gc, sys
import psutil
from fedsim.config import load_config
from fedsim.events import NullObserver
from fedsim.runner import run

class Watch(NullObserver):
    def round_end(self, event):
        if event.round % 10 == 0:
            gc.collect()
            print(event.round, psutil.Process().memory_info().rss, flush=True)

run(load_config(None, sys.argv[1:]), Watch())
"""


def slope(folder: Path, rounds: int, skip: int, window: int) -> float:
    """Return by how many bytes a round the memory of a run's process rises after the first `skip` rounds.

    The median over windows of rounds: what grows does so in all, while a table that is made anew in one, such as
    the interpreter's own of interned names (4 MB), is no growth.
    """
    words = [*TINY, f"federation.rounds={rounds}", "federation.evaluate_every=50", "engine.name=inline"]
    words += [f"output.folder={folder}", "output.name=long", "federation.num_clients=2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", ROUNDS, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    sizes = dict(map(int, line.split()) for line in done.stdout.splitlines())
    rises = [(sizes[at + window] - sizes[at]) / window for at in range(skip, rounds, window)]
    return float(np.median(rises))


@pytest.mark.report("U70", "over 500 rounds the memory rises by less than 1 kB a round")
def test_memory_does_not_rise_from_round_to_round(tmp_path):
    assert slope(tmp_path, 120, 40, window=20) < 8192


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.report("U70")
def test_memory_does_not_rise_over_500_rounds(tmp_path):
    assert slope(tmp_path, 500, 100, window=50) < 1024


@pytest.mark.report("D16")
def test_an_interrupted_run_leaves_nothing_either(tmp_path, warm):
    class Interrupting(NullObserver):
        def round_end(self, event):
            raise KeyboardInterrupt

    before = held()
    for protection in ("plain", "preamble"):
        more = PREAMBLE if protection == "preamble" else []
        with pytest.raises(KeyboardInterrupt):
            run(
                settings(tmp_path, protection, "engine.name=inline", f"protection.name={protection}", *more),
                Interrupting(),
            )
    after = held()
    assert after[0] <= before[0] and after[1] <= before[1] and after[3] <= before[3]
