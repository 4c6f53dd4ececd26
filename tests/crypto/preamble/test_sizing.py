"""Sizing: byte formulas, choices within the budget, and predictions that a simulated federation meets."""

import math

import numpy as np
import pytest

from crypto.errors import BudgetExceeded, InputError
from crypto.preamble.blocks import BlockShape, Sampler, check_capacity
from crypto.preamble.noise import DiscreteGaussian
from crypto.preamble.rotation import Rotation
from crypto.preamble.sizing import evaluate, predict_error, report_bytes, sensitivity, size


@pytest.mark.parametrize(
    "log2_payload, log2_block, public",
    [(17, 0, 13_893_632), (17, 4, 1_851_392), (17, 8, 1_098_752), (17, 11, 1_054_848), (17, 13, 1_050_144)]
    + [(16, 10, 531_584), (15, 8, 278_784), (18, 12, 2_102_400)],
)
def test_report_bytes_equal_the_stated_sizes(log2_payload, log2_block, public):
    k = 2 ** (log2_payload - log2_block)
    shape = BlockShape(length=2**23, block_size=2**log2_block, groups=k)
    assert report_bytes(shape, 64, verified=False) == 16 + public + 32
    assert report_bytes(shape, 64, verified=True) == 16 + public + 64 * k + 32


def test_one_block_a_group_needs_no_tree():
    shape = BlockShape(length=64, block_size=8, groups=8)
    assert report_bytes(shape, 32, verified=False) == 16 + 64 * 4 + 32


def test_sensitivity_is_the_samplers():
    shape = BlockShape(length=1000, block_size=48, groups=3)
    sampler = Sampler(
        shape=shape, fraction_bits=12, norm_bound=2.5, clip_factor=1.1, rotation=Rotation.from_seed(bytes(16), 1000)
    )
    assert sensitivity(shape, 1.1, 2.5) == pytest.approx(sampler.sensitivity)


def test_total_ratio_equals_the_stated_rows():
    """C = 2^17, B = 2^11, D = 2^23, epsilon 1, noise of one party: 1.016 at n = 1e4, 1.034 at 1e5, 1.204 at 1e6."""
    shape = BlockShape(length=2**23, block_size=2**11, groups=64)
    for clients, expected in ((10**4, 1.016), (10**5, 1.034), (10**6, 1.204)):
        choice = evaluate(shape, clients, 1.0, 1e-6, 1, parties=1)
        assert abs(choice.error_ratio - expected) <= 0.001
        assert abs(choice.noise_ratio - 1.0137) <= 0.001


@pytest.mark.parametrize("rounds, budget", [(1, 1_200_000), (100, 70_000)])
def test_choice_keeps_its_promises(rounds, budget):
    choice = size(2**23, 10_000, 1.0, 1e-6, rounds, budget)
    assert choice.upload_bytes <= budget and choice.upload_bytes == report_bytes(choice.shape, 64, True)
    assert choice.guarantee.epsilon <= 1.0 and choice.guarantee.delta == 1e-6
    assert 1.0 <= choice.noise_ratio <= choice.error_ratio < 1.05
    assert choice.dense_bytes == 2**26 + 32


def test_larger_budgets_never_err_more():
    errors = [size(2**18, 1000, 2.0, 1e-6, 10, budget).error_ratio for budget in (12_000, 40_000, 400_000)]
    assert errors[0] >= errors[1] - 1e-3 and errors[1] >= errors[2] - 1e-3


def test_norm_bound_only_scales():
    one, three = (size(2**14, 100, 4.0, 1e-6, 1, 20_000, norm_bound=c) for c in (1.0, 3.0))
    assert one.shape == three.shape and three.sigma == pytest.approx(3 * one.sigma)
    assert three.noise_ratio == pytest.approx(one.noise_ratio)


def test_clipping_bound_falls_with_the_clip_factor():
    shape = BlockShape(length=2**14, block_size=2**8, groups=8)
    bounds = [predict_error(shape, 100, 1.0, c, 1.0, 2).clipping_bound for c in (0.9, 1.0, 1.05, 1.2)]
    assert bounds == sorted(bounds, reverse=True)


def test_refuses_a_budget_below_the_smallest_report():
    with pytest.raises(BudgetExceeded, match=r"100 bytes a report .* raise the budget or lower epsilon"):
        size(2**14, 1000, 4.0, 1e-6, 1, 100)


def test_refuses_senseless_counts():
    with pytest.raises(InputError, match="each must be at least 1"):
        size(2**14, 0, 4.0, 1e-6, 1, 10**6)
    with pytest.raises(InputError, match="must be 32 or 64"):
        size(2**14, 10, 4.0, 1e-6, 1, 10**6, word_bits=16)


@pytest.mark.parametrize("word_bits, fraction_bits", [(64, 20), (32, 14)])
def test_simulated_federation_meets_the_prediction(word_bits, fraction_bits):
    """n = 1000, D = 2^14, without share arithmetic: total squared error, and its ratio to the dense mechanism's."""
    length, clients = 2**14, 1000
    choice = size(length, clients, 4.0, 1e-6, 1, 20_000, word_bits=word_bits)
    sampler = Sampler(
        shape=choice.shape, fraction_bits=fraction_bits, rotation=Rotation.from_seed(b"public per round", length)
    )
    check_capacity(sampler, clients=clients, sigma=choice.sigma, ring_bits=word_bits)
    noise = DiscreteGaussian.of(choice.sigma, fraction_bits)
    rng = np.random.default_rng(2)
    common = rng.standard_normal(length)
    total, exact = np.zeros(sampler.shape.padded_length, np.int64), np.zeros(length)
    for _ in range(clients):
        vector = 0.3 * common + rng.standard_normal(length)
        vector /= np.linalg.norm(vector)
        exact += vector
        sampler.scatter(sampler.select(vector, rng.bytes), total)
    for server in (b"leader's seed...", b"helper's seed..."):
        total += noise.draw_with(server, total.size)
    error = float(((sampler.decode(total) - exact) ** 2).sum())
    assert abs(error / choice.error.total - 1) <= 0.05

    dense = DiscreteGaussian.of(choice.gaussian_sigma, fraction_bits)
    plain = (dense.draw_with(bytes(16), length) + dense.draw_with(bytes(15) + b"\1", length)) * 2.0**-fraction_bits
    measured = math.sqrt(error / float((plain**2).sum()))
    assert abs(measured / choice.error_ratio - 1) <= 0.03
