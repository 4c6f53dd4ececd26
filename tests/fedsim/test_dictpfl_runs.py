"""Whole runs of DictPFL and its baselines: who ends with the model, from which start, and what is refused."""

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from fedsim.cli import app
from fedsim.config import load_config, to_run_config
from fedsim.events import NullObserver
from fedsim.measure.ledger import Ledger
from fedsim.runner import simulate
from fedsim.site import site_of
from fedsim.tasks.models import build_model
from fedsim.tasks.training import as_inputs, evaluate
from strategies.records import NamedArrays, model_bytes, model_from_bytes
from strategies.state import load_state_arrays, state_arrays

SMALL = ["task.name=digits", "model.name=mlp", "federation.num_clients=3", "federation.rounds=5", "data.scheme=iid"]
QUIET = ["output.report=false", "engine.name=inline"]
STRATEGIES = ["fedavg", "fedtop", "fedml-he", "dictpfl"]


def settings(folder, *more):
    return load_config(None, [*SMALL, *QUIET, f"output.folder={folder}", *more])


@pytest.mark.parametrize("protection", ["plain", "bfv", "ckks", "rlwe"])
def test_the_clients_end_with_the_model_and_the_server_never_has_it(tmp_path, protection):
    config = settings(tmp_path, "strategy.name=dictpfl", f"protection.name={protection}", "strategy.rank=8")
    result = simulate(config)
    plain = build_model("mlp", input_shape=(1, 8, 8), num_classes=10, seed=1)
    assert list(result.state.arrays) == list(state_arrays(plain)), "tables are merged into the weights"
    load_state_arrays(plain, result.state.arrays)
    site = site_of(to_run_config(config))
    found = evaluate(plain, as_inputs(np.array(site.dataset.test_x)), torch.tensor(site.dataset.test_y)).accuracy
    assert found == pytest.approx(result.metrics["client_accuracy"], abs=1e-6)
    assert "server_accuracy" not in result.metrics
    assert model_from_bytes((result.folder / "clients" / "model.safetensors").read_bytes()).layout.length == 17_226
    assert not (result.folder / "model.safetensors").exists()


def test_after_three_rounds_fewer_values_travel(tmp_path):
    ledger = Ledger.read(simulate(settings(tmp_path, "strategy.name=dictpfl", "federation.rounds=8")).folder)
    assert ledger.upload_bytes(8) < 0.8 * ledger.upload_bytes(3)
    assert ledger.upload_bytes(3) == pytest.approx(ledger.upload_bytes(1), rel=0.01)


def test_every_method_begins_with_the_same_weights_and_split(tmp_path):
    trained = {
        n: a + np.float32(0.01)
        for n, a in state_arrays(build_model("mlp", input_shape=(1, 8, 8), num_classes=10, seed=9)).items()
    }
    path = tmp_path / "start.safetensors"
    path.write_bytes(model_bytes(NamedArrays(trained)))
    for strategy in STRATEGIES:
        site = site_of(to_run_config(settings(tmp_path, f"strategy.name={strategy}", f"model.weights={path}")))
        begun = site.half.export(site.initial).arrays
        assert list(begun) == list(trained) and all(np.array_equal(begun[n], trained[n]) for n in trained), strategy
        first = site_of(to_run_config(settings(tmp_path, f"model.weights={path}")))
        assert all(np.array_equal(a, b) for a, b in zip(site.partition.indices, first.partition.indices, strict=True))


def test_start_weights_of_another_head_keep_what_fits(tmp_path):
    other = build_model("mlp", input_shape=(1, 8, 8), num_classes=4, seed=9)
    path = tmp_path / "start.safetensors"
    path.write_bytes(model_bytes(NamedArrays(state_arrays(other))))
    begun = site_of(to_run_config(settings(tmp_path, f"model.weights={path}"))).initial.arrays
    fresh = site_of(to_run_config(settings(tmp_path))).initial.arrays
    assert np.array_equal(begun["1.weight"], state_arrays(other)["1.weight"])
    assert np.array_equal(begun["5.weight"], fresh["5.weight"])


@pytest.mark.parametrize(
    ("content", "text"),
    [(b"nonsense", "cannot be read"), (None, "cannot be read"), ({"x": np.zeros(3)}, "none of its 1")],
)
def test_a_bad_file_of_start_weights_is_refused_before_round_1(tmp_path, content, text):
    path = tmp_path / "start.safetensors"
    if content is not None:
        path.write_bytes(model_bytes(NamedArrays(content)) if isinstance(content, dict) else content)
    done = CliRunner().invoke(
        app,
        [
            "run",
            *(x for s in [*SMALL, *QUIET] for x in ("--set", s)),
            "--set",
            f"output.folder={tmp_path}",
            "--set",
            f"model.weights={path}",
        ],
    )
    assert done.exit_code == 2 and text in done.output, done.output


class StopAfter(NullObserver):
    def __init__(self, last):
        self.last = last

    def round_end(self, event):
        if event.round == self.last:
            raise KeyboardInterrupt


@pytest.mark.parametrize("protection", ["plain", "bfv"])
@pytest.mark.parametrize("strategy", ["dictpfl", "fedml-he"])
def test_a_run_that_was_cut_off_goes_on_with_masks_and_residuals(tmp_path, strategy, protection):
    """Without encryption to the same bits; bfv rounds at random, so there it only has to go on and end."""
    own = [f"strategy.name={strategy}", "federation.rounds=7", "federation.clients_per_round=2"]
    whole = simulate(settings(tmp_path, *own, f"protection.name={protection}", "output.name=whole"))
    config = settings(tmp_path, *own, f"protection.name={protection}", "output.name=cut")
    with pytest.raises(KeyboardInterrupt):
        simulate(config, StopAfter(5))
    resumed = simulate(config, resume=True)
    assert protection == "bfv" or resumed.weights_sha256 == whole.weights_sha256
    assert resumed.metrics["client_accuracy"] == pytest.approx(whole.metrics["client_accuracy"], abs=0.05)


@pytest.mark.parametrize("protection", ["openfhe-ckks", "openfhe-threshold", "preamble"])
def test_sums_that_clients_cannot_open_to_the_same_bits_are_refused(protection):
    done = CliRunner().invoke(app, ["run", "--strategy", "dictpfl", "--protection", protection])
    assert done.exit_code == 2 and "use bfv" in done.output


@pytest.mark.parametrize("wrong", ["x", "fc1=", "=3", "fc1=-1"])
def test_a_rank_without_its_layer_is_refused_with_the_settings(wrong):
    done = CliRunner().invoke(app, ["run", "--strategy", "dictpfl", "--set", f'strategy.ranks=["{wrong}"]'])
    assert done.exit_code == 2 and "strategy.ranks" in done.output


def test_a_model_that_cannot_be_decomposed_is_refused_in_words(tmp_path):
    wrong = ["--set", "model.name=logistic", "--set", "task.name=digits", "--set", f"output.folder={tmp_path}"]
    done = CliRunner().invoke(app, ["run", "--strategy", "dictpfl", *wrong])
    assert done.exit_code in (1, 2) and "lower strategy.rank" in done.output and "Traceback" not in done.output


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_rank_8_learns_like_all_weights_and_far_better_than_the_head_alone(tmp_path):
    from experiments.dictpfl.digits import arms, run_arm

    wanted = dict(arms())
    names = ("fedavg", "head", "rank-2", "rank-8", "prune-sent", "prune-sent-no-reactivation")
    mean = {
        name: np.mean([100 * float(run_arm(name, wanted[name], s, tmp_path, 30)["accuracy"]) for s in (1, 2, 3)])
        for name in names
    }
    assert mean["rank-8"] >= mean["fedavg"] - 2
    assert mean["rank-8"] >= mean["head"] + 8
    assert mean["rank-8"] > mean["rank-2"]
    assert mean["prune-sent"] >= mean["rank-8"] - 2
    assert mean["prune-sent"] >= mean["prune-sent-no-reactivation"] + 1


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_workers_change_no_bit(tmp_path):
    common = ["strategy.name=dictpfl", "federation.rounds=5"]
    inline = simulate(settings(tmp_path, *common))
    ray = simulate(settings(tmp_path, *common, "engine.name=ray", "engine.workers=2"))
    assert inline.weights_sha256 == ray.weights_sha256
