"""Distances between label laws, at the ends of their ranges and by hand."""

import numpy as np
import pytest

from fedsim.tasks.errors import BadOption
from fedsim.tasks.heterogeneity import jensen_shannon, label_emd, local_accuracy, similarity
from fedsim.tasks.partition import partition
from fedsim.tasks.training import EvalResult


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


def test_a_clients_accuracy_is_that_of_its_own_labels() -> None:
    """By hand: classes are right to 1, 1/2 and 0; the class without test examples is left out."""
    result = EvalResult(1.0, 0.5, 8, 4, class_correct=(2, 2, 0, 0), class_total=(2, 4, 2, 0))
    histogram = np.array([[4, 0, 0, 9], [0, 2, 2, 0], [0, 0, 3, 0], [0, 0, 0, 0]])
    found = local_accuracy(result, histogram, ["slow", "fast", "slow", "fast"])
    assert found["accuracy_tier_slow"] == 0.5 and found["accuracy_tier_fast"] == 0.25
    assert found["accuracy_worst_decile"] == 0.0
    assert found["accuracy_clients_std"] == pytest.approx(np.std([1.0, 0.25, 0.0]))
    assert set(local_accuracy(result, histogram, ["one"] * 4)) == {"accuracy_clients_std", "accuracy_worst_decile"}


def test_similarity_is_the_cosine_of_counts() -> None:
    table = similarity(np.array([[3, 4], [6, 8], [0, 5], [0, 0]]))
    assert table[0, 1] == pytest.approx(1.0) and table[0, 2] == pytest.approx(0.8)
    assert np.isnan(table[3]).all() and np.isnan(table[:, 3]).all()
