"""The comparison of blocks with the dense Gaussian mechanism: it runs, resumes, and counts what it says."""

from dataclasses import replace
from math import isnan, sqrt
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from crypto.preamble.blocks import Sampler, Selection
from experiments.preamble.batched import accuracy, train
from experiments.preamble.utility import Row, interval, main, read, summary, write
from fedsim.config import load_config, with_values
from fedsim.runner import simulate

TINY = """
[task]
name = "digits"
[model]
name = "logistic"
[data]
scheme = "iid"
[training]
max_steps = 1
[federation]
num_clients = 4
rounds = 1
[protection]
name = "preamble"
epsilon = 8.0
word_bits = 32
[engine]
name = "inline"
[output]
report = false
"""

ROW = Row("dense", 1, 0.5, 1.5, 8.0, 1e-6, 1.0, 1.0, 8000, 7000, "100 x 1 of 1")


def test_runs_every_arm_once_and_adds_to_the_table(tmp_path: Path) -> None:
    config, out, said = tmp_path / "tiny.toml", tmp_path / "out.csv", list[str]()
    config.write_text(TINY)
    common = [str(config), "--seeds", "1", "--work", str(tmp_path / "runs"), "--out", str(out), "--saving", "1.5"]
    main([*common, "--arms", "dense"], said.append)
    first = read(out)
    main(common, said.append)
    rows = {row.arm: row for row in read(out)}
    assert list(rows) == ["dense", "blocks", "clear"] and rows["dense"] == first[0]
    assert rows["dense"].epsilon_run == pytest.approx(rows["blocks"].epsilon_run, rel=1e-2)
    assert rows["dense"].report_bytes > 4 * 650 and rows["blocks"].report_bytes <= 4 * 650 / 1.5
    assert (rows["clear"].delta, rows["clear"].blocks) == (0.0, "")
    assert not any((tmp_path / "runs").iterdir())
    assert said[-1].startswith("blocks - dense:")


def test_the_summary_pairs_seeds_and_gives_students_interval(tmp_path: Path) -> None:
    blocks = replace(ROW, arm="blocks", report_bytes=1000)
    rows = [replace(ROW, seed=s, accuracy=a) for s, a in ((1, 0.5), (2, 0.6), (3, 0.7))]
    rows += [replace(blocks, seed=s, accuracy=a) for s, a in ((1, 0.49), (2, 0.58), (3, 0.70))]
    write(tmp_path / "t.csv", reversed(rows))
    assert read(tmp_path / "t.csv") == rows
    assert interval([1.0, 2.0, 3.0]) == (2.0, pytest.approx(4.302653 / sqrt(3)))
    assert isnan(interval([1.0])[1])
    lines = summary(rows)
    assert lines[-1].startswith("blocks - dense: -1.00 +- 2.48 points, paired, at 8.00 times fewer bytes")
    assert "60.00 +-" in lines[0] and "epsilon 1.500 a round, 8.000 in all" in lines[0]


FULL_BATCH = """
[task]
name = "digits"
[model]
name = "logistic"
[data]
scheme = "iid"
[training]
epochs = 3
batch_size = 1000
lr = 0.1
momentum = 0.0
[federation]
num_clients = CLIENTS
rounds = 2
weighting = "uniform"
[strategy]
name = "fedavgm"
[engine]
name = "inline"
[output]
report = false
"""


def test_batched_training_is_a_real_run_without_messages(tmp_path: Path) -> None:
    config = tmp_path / "full.toml"
    config.write_text(FULL_BATCH.replace("CLIENTS", "2"))
    real = simulate(load_config(config, [f"output.folder={tmp_path / 'runs'}"]))
    found, facts = accuracy(load_config(config))
    assert found == pytest.approx(real.metrics["server_accuracy"], abs=0.003) and facts == {}
    quiet = ["protection.name=preamble", "protection.noise=off-not-private", "protection.clip_norm=100"]
    silent, facts = accuracy(load_config(config, [*quiet, "protection.block_size=1024", "protection.blocks=1"]))
    assert silent == pytest.approx(found, abs=0.003) and facts["private"] is False


class Coins:
    """Each selection's private coins from a generator of its own, numbered in the order of clients."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, first: int) -> None:
        self.count, select = first, Sampler.select

        def seeded(sampler: Sampler, vector: NDArray[np.floating], random_bytes: object = None) -> Selection:
            self.count += 1
            return select(sampler, vector, np.random.default_rng(self.count).bytes)

        monkeypatch.setattr(Sampler, "select", seeded)


@pytest.mark.parametrize("dense", ["false", "true"])
def test_batched_sums_are_those_of_shares_and_messages_given_the_same_coins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dense: str
) -> None:
    config = tmp_path / "full.toml"
    config.write_text(FULL_BATCH.replace("CLIENTS", "2"))
    blocks = ["protection.block_size=32", "protection.blocks=4"] if dense == "false" else []
    more = ["protection.name=preamble", "protection.noise=off-not-private", "protection.clip_norm=0.3", *blocks]
    chosen = load_config(config, [*more, f"protection.dense={dense}", "federation.rounds=1"])
    with monkeypatch.context() as patch:
        Coins(patch, 0)
        real = simulate(with_values(chosen, {"output.folder": str(tmp_path / "runs")}))
    found = []
    for first in (0, 100):
        with monkeypatch.context() as patch:
            Coins(patch, first)
            found.append(train(chosen)[1])
    assert real.state is not None
    away = {name: [np.abs(found[i][name].numpy() - a).max() for i in (0, 1)] for name, a in real.state.arrays.items()}
    assert max(same for same, _ in away.values()) < 1e-6
    # Other coins choose other blocks; without blocks they round the last bit alone.
    assert (max(other for _, other in away.values()) > 1e-3) == (dense == "false")


@pytest.mark.parametrize("change", ["training.momentum=0.9", "training.batch_size=8", "strategy.name=fedavg"])
def test_batched_training_refuses_what_it_does_not_know(tmp_path: Path, change: str) -> None:
    config = tmp_path / "full.toml"
    config.write_text(FULL_BATCH.replace("CLIENTS", "2"))
    with pytest.raises(ValueError, match="full-batch sgd"):
        accuracy(load_config(config, [change]))
    config.write_text(FULL_BATCH.replace("CLIENTS", "4"))
    with pytest.raises(ValueError, match="different numbers of examples"):
        accuracy(load_config(config))
