"""Distances between label laws, at the ends of their ranges and by hand."""

import numpy as np
import pytest

from fedsim.tasks.errors import BadOption
from fedsim.tasks.heterogeneity import jensen_shannon, label_emd
from fedsim.tasks.partition import partition


def test_equal_laws_have_distance_zero_whatever_the_sizes() -> None:
    histogram = np.array([[1, 2], [10, 20], [0, 0]])
    assert label_emd(histogram) == pytest.approx(0) and jensen_shannon(histogram) == pytest.approx(0, abs=1e-7)


def test_one_class_a_client_by_hand() -> None:
    histogram = np.diag([50, 50])
    assert label_emd(histogram) == pytest.approx(1.0)
    # p = (1, 0), common = (1/2, 1/2), middle = (3/4, 1/4).
    divergence = (np.log2(4 / 3) + 0.5 * np.log2(2 / 3) + 0.5 * np.log2(2)) / 2
    assert jensen_shannon(histogram) == pytest.approx(np.sqrt(divergence))


def test_clients_weigh_by_size() -> None:
    histogram = np.array([[90, 0], [0, 10]])
    assert label_emd(histogram) == pytest.approx(0.9 * 0.2 + 0.1 * 1.8)


def test_distance_falls_as_alpha_grows() -> None:
    labels = np.repeat(np.arange(10), 500)
    tables = [partition(labels, 20, "dirichlet", alpha=a, seed=0).label_histogram for a in (0.01, 0.3, 100.0)]
    assert label_emd(tables[0]) > label_emd(tables[1]) > label_emd(tables[2])
    assert jensen_shannon(tables[0]) > jensen_shannon(tables[1]) > jensen_shannon(tables[2])


def test_refuses_a_table_without_counts() -> None:
    for bad in (np.zeros((2, 2)), np.ones(3), np.array([[-1, 5]])):
        with pytest.raises(BadOption, match="positive sum"):
            label_emd(bad)
