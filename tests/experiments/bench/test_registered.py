"""Rounds of a few sampled clients among more registered ones are measured, and too few rounds refused."""

from pathlib import Path

import numpy as np
import pytest

from experiments.bench import registered
from experiments.bench.registered import EXAMPLES, Cost, main, measure, write_data


def test_there_are_as_many_examples_as_clients_need(tmp_path: Path) -> None:
    write_data(300, tmp_path / "data.npz")
    with np.load(tmp_path / "data.npz") as file:
        assert file["x"].shape == (round(300 * EXAMPLES * 1.02), 8) and set(file["y"]) == {0, 1}
        assert len(file["y"]) * 0.99 >= 300 * EXAMPLES


def test_a_few_rounds_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registered, "SAMPLED", 3)
    found = measure(200, registered.LEAST_ROUNDS)
    assert found.clients == 200 and 0 < found.least_ms <= found.median_ms and found.start_s > 0 and found.peak_mb > 50


def test_too_few_rounds_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--rounds", "4"])
    assert "--rounds 4: the first two warm up" in capsys.readouterr().err


def test_the_table_gives_ratios_to_the_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    costs = iter([Cost(1000, 2.0, 2.5, 1.0, 100.0), Cost(10_000, 3.0, 3.5, 2.0, 150.0)])
    monkeypatch.setattr(registered, "run_apart", lambda *_: vars(next(costs)))
    main(["--clients", "1000", "10000", "--rounds", "9"])
    assert "10,000     3.000      3.500   1.50" in capsys.readouterr().out
