"""Runs whose clients train together, against runs whose clients train one by one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsim.cohort import choose_cohort, train_here
from fedsim.config import load_config, to_run_config
from fedsim.measure.runfolder import RunFolder
from fedsim.runner import RunResult, simulate
from fedsim.simulation.together import together
from fedsim.site import site_of
from fedsim.tasks.training import TrainConfig

SMALL = [
    "task.name=digits",
    "model.name=mlp",
    "federation.num_clients=10",
    "federation.rounds=2",
    "output.report=false",
]


def run(folder: Path, *settings: str) -> RunResult:
    return simulate(load_config(None, [*SMALL, f"output.folder={folder}", "engine.name=inline", *settings]))


def arrays(result: RunResult) -> dict[str, Any]:
    assert result.state is not None
    return dict(result.state.arrays)


@pytest.mark.parametrize("protection", ["plain", "bfv"])
def test_together_ends_where_one_by_one_ends(tmp_path: Path, protection: str) -> None:
    if protection == "bfv":
        pytest.importorskip("tenseal", reason="bfv needs tenseal")
    # Rounded to nearest: by chance, two runs of the same kind would differ by a step here and there.
    sealed = [f"protection.name={protection}", *(["protection.rounding=nearest"] if protection == "bfv" else [])]
    alone = run(tmp_path, *sealed)
    both = run(tmp_path, *sealed, "engine.cohort=on")
    for name, array in arrays(alone).items():
        np.testing.assert_allclose(arrays(both)[name], array, atol=2e-4 if protection == "bfv" else 2e-5)


def test_the_cohorts_are_the_chunks_so_that_workers_do_not_matter(tmp_path: Path) -> None:
    inline = run(tmp_path, "engine.cohort=on", "engine.chunk=4")
    ray = run(tmp_path, "engine.cohort=on", "engine.chunk=4", "engine.name=ray", "engine.workers=2")
    assert inline.weights_sha256 == ray.weights_sha256


def test_phases_still_add_up_to_the_round(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    result = run(tmp_path, "engine.cohort=on", "engine.chunk=10")
    rows = pq.read_table(result.folder / "ledger.parquet").to_pylist()
    trained = [row["measured_s"] for row in rows if row["phase"] == "train" and row["round"] == 2]
    assert len(trained) == 10
    # Each has its share: were the wait for the others counted, the sum would be ten times as much.
    assert max(trained) < 0.5 * sum(trained)


def test_flowers_own_strategies_train_together_too(tmp_path: Path) -> None:
    alone = run(tmp_path, "strategy.name=flwr:FedAvg")
    both = run(tmp_path, "strategy.name=flwr:FedAvg", "engine.cohort=on")
    for name, array in arrays(alone).items():
        np.testing.assert_allclose(arrays(both)[name], array, atol=2e-5)


def site(*settings: str) -> Any:
    return site_of(to_run_config(load_config(None, [*SMALL, *settings])))


def test_the_choice_says_why() -> None:
    assert choose_cohort(site()) == (False, "as set")
    assert choose_cohort(site("engine.cohort=on")) == (True, "as set")
    chosen, why = choose_cohort(site("engine.cohort=auto"))
    assert isinstance(chosen, bool) and "of the loop's time" in why


def test_a_trial_leaves_the_model_as_it_was() -> None:
    one = site("engine.cohort=auto", "seed=5")
    before = {name: p.detach().clone() for name, p in one.model.named_parameters()}
    choose_cohort(one)
    assert all(bool((before[name] == p).all()) for name, p in one.model.named_parameters())


def test_a_model_that_cannot_falls_back_with_the_reason() -> None:
    one = site("engine.cohort=on", "seed=6")
    one.__dict__["why_alone"] = "it draws numbers"
    assert choose_cohort(one) == (False, "it draws numbers")
    x, y = one.train_data(0)
    ((result, shared_s),) = together([lambda: train_here(one, one.model, x, y, TrainConfig(), seed=1, round=1)])
    assert result.steps > 0 and shared_s is None


def test_the_record_says_what_was_done_for_a_run_that_resumes(tmp_path: Path) -> None:
    folder = RunFolder.open(run(tmp_path, "engine.cohort=on", "output.name=whole").folder)
    assert folder.record().notes["cohort"] is True
