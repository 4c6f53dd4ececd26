"""Accounting: stored rows, other packages, exact special cases, simulation, and monotony."""

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from crypto.errors import BackendUnavailable, InputError
from crypto.preamble.allocation import Losses, losses
from crypto.preamble.privacy import (
    Mechanism,
    central_limit_ratio,
    certified_range,
    gaussian_epsilon,
    gaussian_sigma,
    guarantee,
    noise_ratio,
    overhead_bound,
    poisson_epsilon,
)

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "preamble" / "v1" / "privacy.json").read_text())
LENGTH = 2**23
# Rows of the overhead table that the default run solves.
SPOT_ROWS = (1.0137, 1.0272, 1.0540, 1.0477, 1.3587, 1.0271)


def mechanism(ratio, blocks_per_group, groups, rounds=1):
    return Mechanism(ratio=ratio, blocks_per_group=blocks_per_group, groups=groups, rounds=rounds)


def overhead(epsilon, rounds, log2_payload, log2_block):
    """Solve one cell of the overhead table; also return the closed form's bound on it."""
    groups, t = 2 ** (log2_payload - log2_block), LENGTH // 2**log2_payload
    sensitivity = t * math.sqrt(2**log2_block / LENGTH)
    sigma = gaussian_sigma(epsilon, 1e-6, rounds)
    ratio = noise_ratio(epsilon, 1e-6, blocks_per_group=t, groups=groups, rounds=rounds)
    return ratio * sensitivity / sigma, overhead_bound(sigma / sensitivity)


@pytest.mark.parametrize("ratio, t, k, delta, remove, add, poisson", VECTORS["epsilon"])
def test_equals_the_stored_epsilons(ratio, t, k, delta, remove, add, poisson):
    got = guarantee(mechanism(ratio, t, k), delta)
    assert abs(got.remove - remove) <= 0.0002 and abs(got.add - add) <= 0.0002
    assert got.epsilon == max(got.remove, got.add) and got.delta == delta
    ceiling = poisson_epsilon(mechanism(ratio, t, k), delta)
    # dp-accounting answers on a grid of 1e-4; at t = 1 both are the plain Gaussian.
    assert abs(ceiling - poisson) <= 0.002 and got.epsilon <= ceiling + 1e-4


@pytest.mark.parametrize("ratio, t, k, delta, lower, upper", VECTORS["certified"])
def test_lies_within_the_certified_range(ratio, t, k, delta, lower, upper):
    assert lower <= guarantee(mechanism(ratio, t, k), delta).epsilon <= upper


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "ratio, t, k, delta", [(1.0, 8, 2, 1e-5), pytest.param(1.2887, 64, 4, 1e-6, marks=pytest.mark.slow)]
)
def test_certified_package_agrees(ratio, t, k, delta):
    pytest.importorskip("PLD_accounting", reason="PLD-accounting is not installed")
    lower, upper = certified_range(mechanism(ratio, t, k), delta)
    assert 0.95 * upper <= lower <= guarantee(mechanism(ratio, t, k), delta).epsilon <= upper


@pytest.mark.parametrize("epsilon, delta, sigma", VECTORS["gaussian"])
def test_plain_gaussian_is_exact(epsilon, delta, sigma):
    assert abs(gaussian_sigma(epsilon, delta) - sigma) < 1e-6
    assert abs(gaussian_epsilon(sigma, delta) - epsilon) < 1e-5


@pytest.mark.parametrize("ratio, groups, rounds", [(2.0, 4, 1), (4.224679, 1, 1), (10.0, 2, 8), (0.6, 1, 1)])
def test_one_block_a_group_is_the_plain_gaussian(ratio, groups, rounds):
    got = guarantee(mechanism(ratio, 1, groups, rounds), 1e-6)
    exact = gaussian_epsilon(ratio / math.sqrt(groups * rounds), 1e-6)
    assert 0 <= got.remove - exact <= 1e-4 and 0 <= got.add - exact <= 1e-4


@pytest.mark.parametrize("ratio, t", [(0.1, 4), (0.35, 2), (0.6, 2)])
def test_little_noise_is_bounded_by_the_plain_gaussian(ratio, t):
    got = guarantee(mechanism(ratio, t, 2), 1e-6)
    assert 0 < got.epsilon <= gaussian_epsilon(ratio / math.sqrt(2), 1e-6) < math.inf


def test_rounds_compose_like_groups():
    assert guarantee(mechanism(3.0, 16, 8, rounds=5), 1e-6) == guarantee(mechanism(3.0, 16, 40), 1e-6)


def test_agrees_with_simulation():
    """Monte Carlo of both divergences at t = 8, k = 2, r = 1."""
    t, k, samples, rng = 8, 2, 200_000, np.random.default_rng(17)

    def loss_under_q(tilted):
        total = np.zeros(samples)
        for _ in range(k):
            x = rng.standard_normal((samples, t))
            if tilted:
                x[:, 0] += 1.0  # by symmetry the chosen position may be the first
            total += np.log(np.exp(x - 0.5).mean(axis=1))
        return total

    remove, add = losses(1.0, t, k, 1e-10)
    for got, drawn in ((remove, loss_under_q(True)), (add, -loss_under_q(False))):
        for epsilon in (0.1, 0.5, 1.0):
            parts = np.maximum(-np.expm1(epsilon - drawn), 0)
            assert abs(got.delta(epsilon) - parts.mean()) < 5 * parts.std() / math.sqrt(samples)


def test_epsilon_inverts_delta():
    law = Losses(np.array([-1.0, 0.5, 1.0, 2.0]), np.array([0.2, 0.5, 0.2, 0.1]), 0.0)
    for delta in (0.5, 0.3, 0.1, 0.01, 1e-6):
        epsilon = law.epsilon(delta)
        assert law.delta(epsilon) == pytest.approx(delta) or (epsilon == 0 and law.delta(0) <= delta)
    assert law.epsilon(0.9) == 0.0
    assert Losses(law.values, law.mass, 0.1).epsilon(0.05) == math.inf


def test_more_noise_fewer_groups_and_larger_delta_cost_less():
    base = guarantee(mechanism(1.5, 16, 8), 1e-6).epsilon
    assert guarantee(mechanism(1.8, 16, 8), 1e-6).epsilon < base
    assert guarantee(mechanism(1.5, 16, 7), 1e-6).epsilon < base
    assert guarantee(mechanism(1.5, 32, 8), 1e-6).epsilon < base
    assert guarantee(mechanism(1.5, 16, 8), 1e-5).epsilon < base


@pytest.mark.parametrize(
    "row", [pytest.param(row, marks=() if row[-1] in SPOT_ROWS else pytest.mark.slow) for row in VECTORS["overhead"]]
)
def test_equals_the_overhead_table(row):
    *cell, expected = row
    got, bound = overhead(*cell)
    assert abs(got - expected) <= 0.001
    assert got <= bound + 2e-4


def test_solver_returns_a_safe_and_tight_ratio():
    for epsilon, t, k, rounds in [(1.0, 64, 4, 1), (6.0, 8, 2, 3), (30.0, 2, 1, 1)]:
        ratio = noise_ratio(epsilon, 1e-6, blocks_per_group=t, groups=k, rounds=rounds)
        got = guarantee(mechanism(ratio, t, k, rounds), 1e-6).epsilon
        assert epsilon * (1 - 2e-4) <= got <= epsilon


def test_central_limit_is_reached():
    ratio = noise_ratio(1.0, 1e-6, blocks_per_group=4, groups=4096)
    limit = central_limit_ratio(gaussian_sigma(1.0, 1e-6), blocks_per_group=4, groups=4096)
    assert abs(ratio / limit - 1) < 3e-4


@pytest.mark.parametrize("call", [poisson_epsilon, certified_range])
def test_names_the_missing_package(call, monkeypatch):
    for name in ("dp_accounting", "dp_accounting.pld", "PLD_accounting"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(BackendUnavailable, match="does not load .*install"):
        call(mechanism(1.0, 2, 2), 1e-6)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-6, math.nan])
def test_refuses_a_senseless_delta(delta):
    for call in (
        lambda: guarantee(mechanism(1.0, 2, 2), delta),
        lambda: gaussian_epsilon(1.0, delta),
        lambda: gaussian_sigma(1.0, delta),
    ):
        with pytest.raises(InputError, match=r"must lie in \(0, 1\)"):
            call()


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.inf, 501.0])
def test_refuses_a_senseless_epsilon(epsilon):
    with pytest.raises(InputError, match=r"must lie in \(0, 500\]"):
        noise_ratio(epsilon, 1e-6, blocks_per_group=2, groups=2)


@pytest.mark.parametrize("ratio", [0.0, -1.0, math.nan, math.inf])
def test_refuses_senseless_noise(ratio):
    with pytest.raises(InputError, match="must be finite and positive; without noise no privacy"):
        mechanism(ratio, 2, 2)


def test_refuses_senseless_counts():
    with pytest.raises(InputError, match="must be at least 1"):
        mechanism(1.0, 0, 1)
