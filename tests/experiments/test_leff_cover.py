"""Who stands behind a block's mean."""

import numpy as np
import pytest

from experiments.leff.cover import cover, distance, main

COUNTS = np.array([[10, 0], [0, 10], [10, 10]])


def test_the_distance_is_that_of_class_shares_weighted_by_examples():
    assert distance(COUNTS, [0]) == pytest.approx(0.5)
    assert distance(COUNTS, [0, 2]) == pytest.approx(abs(20 / 30 - 0.5))
    assert distance(COUNTS, [0, 1, 2]) == 0


def test_full_windows_have_every_client_behind_each_block():
    found = cover(COUNTS, [4, 4, 4], 4, 5, 0)
    assert (found.clients, found.distance, found.far) == (3, 0, 0)


def test_short_windows_have_few_clients_and_blocks_of_one_class():
    found = cover(COUNTS, [1, 1, 4], 4, 200, 0)
    assert found.clients == pytest.approx(1.5)
    # Beside client 2 a block has client 0, 1, both or neither.
    assert found.distance == pytest.approx(2 * (3 / 16) * (20 / 30 - 0.5), abs=0.01) and found.far == 0
    assert cover(COUNTS[:2], [1, 1], 1, 3, 0).clients == 2
    assert cover(COUNTS[:2], [1, 1], 8, 200, 0).far > 0.8


def test_a_runs_settings_are_read(monkeypatch, capsys):
    words = ["cover", "experiments/configs/papers/leff_digits.toml", "--seeds", "1", "2"]
    monkeypatch.setattr("sys.argv", words)
    main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["seed 1", "seed 2"] and "2.50 clients a block" in lines[0]
