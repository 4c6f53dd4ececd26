"""FedLUAR's claims on the toy federation; the slow tests repeat rows of the recorded table."""

import numpy as np
import pytest

from experiments.fedluar.toy import ARMS, accuracy, make_problem, run_arm, train


def test_problem_and_training_follow_from_the_seed():
    one, two = make_problem(3, 0.1), make_problem(3, 0.1)
    x, y = one.clients[0]
    first = train(one.initial, x, y, np.random.default_rng(0))
    again = train(two.initial, x, y, np.random.default_rng(0))
    assert all(np.array_equal(a, again[n]) for n, a in first.items())
    assert all(a.dtype == np.float32 and not np.array_equal(a, one.initial[n]) for n, a in first.items())
    assert min(len(y) for _, y in one.clients) >= 10


def test_an_arm_reports_what_it_cost():
    result = run_arm("luar-2", ARMS["luar-2"], alpha=0.1, seed=0, rounds=4)
    assert result.rounds == 4 and 0 < result.comm < 1 and 0 <= result.accuracy <= 1
    assert sum(result.shares.values()) == pytest.approx(2 * 3 / 4, abs=0.03)


def test_broken_weights_count_as_guessing():
    problem = make_problem(0, 0.1)
    assert accuracy({n: a * np.float32(np.nan) for n, a in problem.initial.items()}, problem.test) == 0.1


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_recycling_beats_dropping_and_stays_near_fedavg():
    """Checks 13 and 14 at delta 2 of 5, four paired seeds."""
    runs = {
        arm: [run_arm(arm, ARMS[arm], alpha=0.1, seed=s) for s in range(4)] for arm in ("fedavg", "luar-2", "drop-2")
    }
    mean = {arm: np.mean([r.accuracy for r in found]) for arm, found in runs.items()}
    comm = {arm: np.mean([r.comm for r in found]) for arm, found in runs.items()}
    assert mean["luar-2"] >= mean["drop-2"] and comm["luar-2"] == pytest.approx(comm["drop-2"], abs=0.02)
    assert mean["luar-2"] >= mean["fedavg"] - 0.03 and comm["luar-2"] < 0.65


def means(*arms):
    runs = {arm: [run_arm(arm, ARMS[arm], alpha=0.1, seed=s) for s in range(4)] for arm in arms}
    longest = {arm: max(r.longest_run for r in found) for arm, found in runs.items()}
    return {arm: np.mean([r.accuracy for r in found]) for arm, found in runs.items()}, longest


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_lowest_scores_alone_recycle_for_ever_and_cost_accuracy():
    """Check 15: without the draw some layer is recycled more than 30 rounds in a row, and accuracy falls."""
    accuracy, longest = means("luar-2", "deterministic-2")
    assert longest["deterministic-2"] > 30
    assert accuracy["deterministic-2"] < accuracy["luar-2"] - 0.05


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_but_one_layer_is_too_much_unless_recycling_is_limited():
    """Check 16."""
    accuracy, longest = means("luar-2", "luar-4", "luar-4-cap-3")
    assert accuracy["luar-4"] < accuracy["luar-2"] - 0.1
    assert accuracy["luar-4-cap-3"] > 0.8 and longest["luar-4-cap-3"] == 3
