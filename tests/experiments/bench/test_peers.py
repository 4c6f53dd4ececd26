"""The task file gives every peer the same work; the table and the picture show it."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from experiments.bench import peers
from experiments.bench.peers.__main__ import draw, pinned, run_peer, write_task
from experiments.bench.training import Cost, site_for, table


@pytest.fixture
def task_module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(peers.__file__).parent))
    return importlib.import_module("task")


def test_a_peer_reads_what_the_product_trains(tmp_path: Path, task_module: ModuleType) -> None:
    write_task("trivial", 3, tmp_path / "task.npz")
    task, site = task_module.load(tmp_path / "task.npz"), site_for("trivial", 3)
    assert len(task.clients) == 1000 and task.sampled == 100 and task.rounds == 3 and task.lr == 0.1
    for (x, y), client in zip(task.clients, range(1000), strict=False):
        own = site.train_data(client)
        assert torch.equal(x, own[0]) and torch.equal(y, own[1])
    assert task.accuracy(task.model) == 0.0
    assert [p.shape for p in task.model.parameters()] == [p.shape for p in site.model.parameters()]


def test_the_loop_runs_apart(tmp_path: Path) -> None:
    write_task("trivial", 2, tmp_path / "task.npz")
    found = run_peer("loop", Path(sys.executable), tmp_path / "task.npz")
    assert found.engine == "plain loop" and found.accuracy == 1.0 and found.peak_mb > 50 and found.cpu_ms >= 0


def test_only_named_packages_are_pinned() -> None:
    assert pinned("# torch\nnumpy==2.4.6\nscipy==1\nTorch==2.13.0\n", ("torch", "numpy")) == [
        "numpy==2.4.6",
        "Torch==2.13.0",
    ]


def test_the_table_says_what_each_takes_over_the_loop() -> None:
    costs = [Cost("plain loop", 1.0, 2.0, 0.1, 0.5, 100.0), Cost("inline", 2.0, 5.0, 0.1, 0.5, 200.0)]
    assert table(costs).splitlines()[2].split() == "inline 2.000 5.000 2.00 2.50 3.000 0.1 200 0.5000".split()


def test_the_picture_is_a_png(tmp_path: Path) -> None:
    costs = [Cost("plain loop", 1.0, 2.0, 0.1, 0.5, 100.0), Cost("inline", 2.0, 5.0, 0.1, 0.5, 200.0)]
    draw({"digits": costs, "cnn": costs}, tmp_path / "peers.png")
    assert (tmp_path / "peers.png").read_bytes().startswith(b"\x89PNG")
