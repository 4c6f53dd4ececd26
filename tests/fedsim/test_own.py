"""A strategy, a data set and a model of one's own, by `module:thing`, without a line in this package."""

import sys
from pathlib import Path

import numpy as np
import pytest

from fedsim.config import ConfigError, load_config
from fedsim.own import OwnNameError, is_own, own_thing
from fedsim.runner import simulate

SOURCE = '''
"""A strategy, a data set and a model."""
import numpy as np
from torch import nn
from fedsim.tasks.data import Dataset
from strategies.fedavg import FedAvg, FedAvgM

class Step(FedAvg):
    name = "step"
    def __init__(self, *, share=1.0, **common):
        super().__init__(**common)
        self.share = share
    def apply(self, mean, server_round):
        x = self.state.arrays
        super().apply({n: x[n] + self.share * (v - x[n]) for n, v in mean.items()}, server_round)

class Same(FedAvg):
    name = "same"

class Reads(FedAvgM):
    name = "reads"

def blobs(rows=200):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, rows)
    x = (rng.normal(size=(rows, 4)) + 3 * y[:, None]).astype("float32")
    half = rows // 2
    return Dataset("blobs", x[:half], y[:half], x[half:], y[half:], 2, "tabular", (4,), "drawn", "none")

def linear(input_shape, num_classes, *, bias=True):
    return nn.Linear(input_shape[0], num_classes, bias=bias)

def nothing():
    return 5
'''


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    # Every test has its own folder, which stays on the path only as long as the test runs.
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    yield tmp_path
    sys.modules.pop("mine", None)


def settings(folder: Path, *more: str, name: str = "run") -> list[str]:
    given = ["task.name=mine:blobs", "model.name=mine:linear", "federation.num_clients=4", "federation.rounds=2"]
    return [*given, "training.lr=0.1", "engine.name=inline", f"output.folder={folder}", f"output.name={name}", *more]


def test_a_name_of_ones_own_has_a_colon_and_is_not_flowers() -> None:
    assert is_own("mine:Step") and is_own("a.b:c")
    assert not any(map(is_own, ("fedavg", "flwr:Krum", "a:", ":b", "a b:c", "a:b-c")))


def test_own_strategy_data_and_model_run_together(here: Path) -> None:
    result = simulate(load_config(None, settings(here, "strategy.name=mine:Step", "strategy.options.share=0.5")))
    assert result.metrics["server_accuracy"] > 0.8
    assert result.state is not None and set(result.state.arrays) == {"weight", "bias"}


def test_a_whole_step_of_ones_own_is_fedavg(here: Path) -> None:
    shas = [
        simulate(load_config(None, settings(here, f"strategy.name={name}", name=tag))).weights_sha256
        for tag, name in (("a", "fedavg"), ("b", "mine:Same"))
    ]
    assert shas[0] == shas[1]


def test_options_reach_the_functions_and_wrong_ones_are_refused(here: Path) -> None:
    result = simulate(load_config(None, settings(here, "model.options.bias=false", "task.options.rows=80")))
    assert result.state is not None and set(result.state.arrays) == {"weight"}
    with pytest.raises(ValueError, match="no option 'row'"):
        simulate(load_config(None, settings(here, "task.options.row=80", name="b")))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("none:Step", "module 'none' of 'none:Step' does not load"),
        ("mine:Stepp", "module 'mine' has no 'Stepp'"),
        ("mine:linear", "must be a class on strategies.base.FederatedStrategy"),
    ],
)
def test_a_name_that_leads_nowhere_is_refused_before_anything_starts(here: Path, name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_config(None, [f"strategy.name={name}"])


def test_a_server_step_is_refused_where_no_server_sees_the_sum(here: Path) -> None:
    for name in ("mine:Step", "mine:Reads"):
        with pytest.raises(ConfigError, match="has a server step on the mean, but under bfv only the clients"):
            load_config(None, [f"strategy.name={name}", "protection.name=bfv"])
    assert load_config(None, ["strategy.name=mine:Same", "protection.name=bfv"]).protection.name == "bfv"


def test_a_data_set_of_ones_own_must_be_one(here: Path) -> None:
    with pytest.raises(ValueError, match="'mine:nothing' gave int: must be a fedsim.tasks.data.Dataset"):
        simulate(load_config(None, settings(here, "task.name=mine:nothing")))


def test_own_things_are_found_in_installed_modules_too() -> None:
    assert own_thing("numpy.linalg:norm") is np.linalg.norm
    with pytest.raises(OwnNameError, match="has no 'nor': it has"):
        own_thing("numpy.linalg:nor")


@pytest.mark.slow
def test_workers_of_ray_and_of_flowers_engine_find_them(here: Path) -> None:
    shas = {}
    for engine in ("inline", "ray", "flower"):
        given = settings(here, "strategy.name=mine:Step", name=engine)
        config = load_config(None, [text.replace("engine.name=inline", f"engine.name={engine}") for text in given])
        shas[engine] = simulate(config).weights_sha256
    assert len(set(shas.values())) == 1, shas
