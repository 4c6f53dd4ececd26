"""Whole runs of FedBuff: as good as FedAvg, faster where clients differ, the same on every engine and after a cut."""

import numpy as np
import pytest

from fedsim.config import load_config, with_values
from fedsim.errors import FedsimError
from fedsim.events import NullObserver
from fedsim.measure.ledger import Ledger
from fedsim.measure.metrics import Metrics
from fedsim.runner import run, simulate

SMALL = [
    "task.name=digits",
    "model.name=mlp",
    "training.lr=0.1",
    "training.momentum=0.9",
    "data.scheme=iid",
    "federation.num_clients=8",
    "federation.rounds=12",
    "output.report=false",
    "engine.name=inline",
    "devices.profile=tiers",
    "devices.tiers={raspberry-pi-zero2 = 1, laptop = 1}",
]


def settings(folder, *more):
    return load_config(
        None, [*SMALL, "strategy.name=fedbuff", "strategy.buffer_size=4", f"output.folder={folder}", *more]
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return simulate(settings(tmp_path_factory.mktemp("whole"), "output.name=whole"))


def virtual_s(folder):
    return list(Metrics.read(folder).series("virtual_round_s", "server").values())


def test_it_learns_and_waits_for_nobody(whole, tmp_path):
    assert whole.metrics["server_accuracy"] > 0.7
    turns = Ledger.read(whole.folder).clients().to_pylist()
    assert [sum(t["round"] == r for t in turns) for r in range(1, 13)] == [4] * 12
    waits = simulate(load_config(None, [*SMALL, f"output.folder={tmp_path}"]))
    # FedAvg waits for a Raspberry Pi Zero each round; here the laptops go on meanwhile.
    assert sum(virtual_s(whole.folder)) < 0.7 * sum(virtual_s(waits.folder))


def test_a_cut_run_goes_on_to_the_same_bits(whole):
    class Cut(NullObserver):
        def round_end(self, event):
            if event.round == 5:
                raise KeyboardInterrupt

    config = with_values(settings(whole.folder.parent), {"output.name": "cut"})
    with pytest.raises(KeyboardInterrupt):
        run(config, Cut())
    resumed = simulate(config, resume=True)
    assert resumed.weights_sha256 == whole.weights_sha256
    assert virtual_s(resumed.folder) == virtual_s(whole.folder)


@pytest.mark.slow
def test_ray_gives_the_same_bits(whole, tmp_path):
    assert simulate(settings(tmp_path, "engine.name=ray")).weights_sha256 == whole.weights_sha256


def test_stale_changes_count_less_under_a_private_sum_too(tmp_path):
    more = ["federation.rounds=6", "federation.weighting=uniform", "protection.noise=off-not-private"]
    private = simulate(settings(tmp_path, "protection.name=preamble", "protection.dense=true", *more, "output.name=p"))
    plain = simulate(settings(tmp_path, *more[:2], "output.name=q"))
    largest = max(np.abs(private.state.arrays[k] - a).max() for k, a in plain.state.arrays.items())
    # PREAMBLE clips each change to its norm; what both agree on is who came when.
    assert np.isfinite(largest) and virtual_s(private.folder) != []
    order = [[(t["round"], t["client"]) for t in Ledger.read(r.folder).clients().to_pylist()] for r in (private, plain)]
    assert len(order[0]) == len(order[1]) == 24


@pytest.mark.parametrize("drill", ["nan", "drop_during"])
def test_a_bad_reply_is_left_out_by_name_while_enough_remain(tmp_path, drill):
    more = ["strategy.buffer_size=2", "federation.num_clients=4", "federation.rounds=6", f"faults.{drill}=[1]"]
    result = simulate(settings(tmp_path, *more))
    turns = Ledger.read(result.folder).clients().to_pylist()
    bad = [turn for turn in turns if turn["outcome"] != "ok"]
    assert bad and {turn["client"] for turn in bad} == {1} and all(turn["reason"] for turn in bad)
    assert [sum(turn["round"] == number for turn in turns) for number in range(1, 7)] == [2] * 6
    with pytest.raises(FedsimError, match="min_replies is 2"):
        simulate(settings(tmp_path / "all", *more, "federation.min_replies=1.0"))
