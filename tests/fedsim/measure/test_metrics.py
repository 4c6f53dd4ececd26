import math
from pathlib import Path

import numpy as np
import pytest
import torch

from fedsim.measure.errors import LedgerError
from fedsim.measure.metrics import Metrics


def test_files_give_back_every_number(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path)
    metrics.add(0, "server", "accuracy", 0.1)
    metrics.extend(1, "server", {"accuracy": 1 / 3, "loss": math.nan})
    metrics.add(1, "client", "accuracy", math.inf)
    metrics.flush()
    assert Metrics.read(tmp_path).table()["round"].to_pylist() == [0, 1, 1, 1]
    metrics.write()
    (tmp_path / "metrics.csv").unlink()
    again = Metrics.read(tmp_path)
    assert again.series("accuracy", "server") == {0: 0.1, 1: 1 / 3}
    assert again.series("accuracy", "client") == {1: math.inf}
    assert again.series("loss", "server") == {}


@pytest.mark.report(
    "U49", "numpy scalars, 0-d arrays and torch scalars are taken; lists are refused with the metric's name"
)
@pytest.mark.parametrize("value", [np.float32(0.5), np.array(0.5), torch.tensor(0.5), 0.5, np.array([0.5])[0]])
def test_takes_every_kind_of_single_number(value: float) -> None:
    metrics = Metrics()
    metrics.add(1, "server", "accuracy", value)
    assert metrics.series("accuracy", "server") == {1: 0.5}


@pytest.mark.report("U49")
@pytest.mark.parametrize("value", [[0.5], "0.5", None, torch.ones(2)])
def test_refuses_what_is_no_single_number_and_names_it(value: object) -> None:
    metrics = Metrics()
    with pytest.raises(LedgerError, match="metric 'f1'"):
        metrics.extend(1, "server", {"accuracy": 1.0, "f1": value})  # type: ignore[dict-item]
    assert metrics.table().num_rows == 0


def test_refuses_an_unknown_side() -> None:
    with pytest.raises(LedgerError, match="server or client"):
        Metrics().add(1, "edge", "accuracy", 1.0)  # type: ignore[arg-type]


def test_a_resumed_run_forgets_later_rounds(tmp_path: Path) -> None:
    first = Metrics(tmp_path)
    for round in range(5):
        first.add(round, "server", "accuracy", round)
    first.flush()
    assert Metrics(tmp_path, keep_rounds=2).series("accuracy", "server") == {0: 0.0, 1: 1.0, 2: 2.0}


def test_the_last_value_of_a_round_counts() -> None:
    metrics = Metrics()
    metrics.add(2, "server", "loss", 5)
    metrics.add(1, "server", "loss", 4)
    metrics.add(2, "server", "loss", 3)
    assert list(metrics.series("loss", "server").items()) == [(1, 4.0), (2, 3.0)]
