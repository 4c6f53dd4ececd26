"""Sampling blocks: unbiased, of the predicted variance, and never over the norm that the noise is made for."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crypto import prg
from crypto.errors import BudgetExceeded, InputError
from crypto.preamble.blocks import BlockShape, Sampler, check_capacity, clip_rows, uniform_indices
from crypto.preamble.rotation import Rotation

VECTORS = Path(__file__).parents[2] / "vectors" / "preamble" / "v1" / "blocks.json"


def flat(length, block_size, groups, **options):
    """A sampler without rotation."""
    shape = BlockShape(length=length, block_size=block_size, groups=groups, rotated=False)
    return Sampler(shape=shape, **{"fraction_bits": 20, **options})


def rotated(length, block_size, groups, **options):
    shape = BlockShape(length=length, block_size=block_size, groups=groups)
    rotation = Rotation.from_seed(b"seed of a round!", length)
    return Sampler(shape=shape, rotation=rotation, **{"fraction_bits": 20, **options})


def released(sampler, vector, random_bytes):
    total = np.zeros(sampler.shape.padded_length, np.int64)
    sampler.scatter(sampler.select(vector, random_bytes), total)
    return sampler.decode(total)


def adversarial(length, block_size):
    index = np.arange(length)
    return {
        "zero": np.zeros(length),
        "one coordinate": (index == 5).astype(float),
        "one residue": (index % block_size == 1).astype(float),
        "first block": (index < block_size).astype(float),
        "halves": np.full(length, 0.5),
        "huge": np.full(length, 1e300),
        "float32 max": np.full(length, np.finfo(np.float32).max, np.float32),
        "tiny": np.full(length, 5e-324),
        "mixed": np.where(index % 2, 1e200, -1e-200),
        "random": np.random.default_rng(0).standard_normal(length),
    }


def test_shape_arithmetic():
    shape = BlockShape(length=2**23, block_size=2**11, groups=64)
    assert (shape.payload_length, shape.blocks_per_group, shape.padded_length) == (2**17, 64, 2**23)
    sampler = rotated(2**12, 2**5, 2)
    assert sampler.block_bound == np.sqrt(2**5 / 2**12) and sampler.sensitivity == 64 * sampler.block_bound


@pytest.mark.parametrize("length, size, k", [(1, 1, 1), (240, 4, 6), (241, 4, 6), (7, 3, 2), (1000, 7, 13), (5, 8, 4)])
@pytest.mark.parametrize("is_rotated", [False, True])
def test_pads_to_whole_groups(length, size, k, is_rotated):
    shape = BlockShape(length=length, block_size=size, groups=k, rotated=is_rotated)
    assert shape.padded_length % (size * k) == 0
    assert shape.length <= shape.spread_length <= shape.padded_length < shape.spread_length + size * k


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 5), st.booleans())
@settings(max_examples=60)
def test_sends_one_block_of_each_group_and_nothing_else(length, block_size, groups, is_rotated):
    make = rotated if is_rotated else flat
    sampler = make(length, block_size, groups, fraction_bits=16, clip_factor=10.0)
    vector = np.random.default_rng(length).standard_normal(length)
    selection = sampler.select(vector)
    total = np.zeros(sampler.shape.padded_length, np.int64)
    sampler.scatter(selection, total)
    view = total.reshape(groups, -1, block_size)
    for group, (index, payload) in enumerate(zip(selection.indices, selection.payload, strict=True)):
        assert np.array_equal(view[group, index], payload)
        assert not np.delete(view[group], index, axis=0).any()


@pytest.mark.parametrize("make", [flat, rotated])
def test_one_block_a_group_sends_everything(make):
    """With t = 1 nothing is sampled away; what remains is rounding."""
    sampler = make(32, 4, 8, clip_factor=4.0)
    vector = np.random.default_rng(2).standard_normal(32) / 10
    assert sampler.shape.blocks_per_group == 1
    assert np.allclose(released(sampler, vector, np.random.default_rng(0).bytes), vector, atol=1e-4)


def test_is_unbiased_with_the_predicted_variance():
    sampler = flat(240, 4, 6, clip_factor=20.0)
    rng = np.random.default_rng(11)
    vector = rng.standard_normal(240)
    vector /= np.linalg.norm(vector)
    draws = np.array([released(sampler, vector, rng.bytes) for _ in range(4000)])
    error = np.abs(draws.mean(axis=0) - vector)
    assert np.all(error <= 5 * draws.std(axis=0) / np.sqrt(len(draws)) + 1e-6)
    assert np.isclose(((draws - vector) ** 2).sum(axis=1).mean(), 10 - 1, rtol=0.02)


def test_choices_are_fresh_by_default():
    sampler, vector = flat(2**12, 2, 2**6), np.ones(2**12)
    assert not np.array_equal(sampler.select(vector).indices, sampler.select(vector).indices)


def test_choices_are_uniform_and_independent():
    sampler, vector, coins = flat(80, 2, 4), np.ones(80), np.random.default_rng(8).bytes
    draws = np.array([sampler.select(vector, coins).indices for _ in range(3000)])
    for group in range(4):
        counts = np.bincount(draws[:, group], minlength=10)
        assert ((counts - 300) ** 2 / 300).sum() < 34  # 9 degrees of freedom: p > 1e-4
    pairs = np.bincount(draws[:, 0] * 10 + draws[:, 1], minlength=100)
    assert ((pairs - 30) ** 2 / 30).sum() < 159  # 99 degrees of freedom: p > 1e-4
    following = np.bincount(draws[:-1, 0] * 10 + draws[1:, 0], minlength=100)
    assert ((following - 29.99) ** 2 / 29.99).sum() < 159


def test_choices_do_not_depend_on_the_data():
    sampler = rotated(256, 4, 8)
    chosen = [
        sampler.select(v, np.random.default_rng(3).bytes).indices.tolist()
        for v in (np.zeros(256), np.ones(256), np.arange(256.0))
    ]
    assert chosen[0] == chosen[1] == chosen[2]


@pytest.mark.parametrize("fraction_bits", [4, 6, 10, 16, 24])
@pytest.mark.parametrize("name", adversarial(240, 4))
def test_no_block_exceeds_the_integer_bound(name, fraction_bits):
    rng = np.random.default_rng(fraction_bits)
    vector = adversarial(240, 4)[name]
    for sampler in (
        flat(240, 4, 6, fraction_bits=fraction_bits),
        rotated(240, 16, 3, fraction_bits=fraction_bits, norm_bound=3.0),
    ):
        for _ in range(30):
            payload = sampler.select(vector, rng.bytes).payload
            squares = [sum(int(x) ** 2 for x in block) for block in payload]
            assert max(squares) <= int((2**fraction_bits * sampler.sensitivity) ** 2) == sampler.squared_bound


def test_the_coarse_rule_reaches_the_bound_without_crossing_it():
    """Few fraction bits: conditional rounding keeps blocks within 1 % of the bound, where shrinking loses 4 %."""
    sampler = flat(2**14, 2**11, 1, fraction_bits=10, clip_factor=1.0)
    scale = sampler.integer_bound
    payload = sampler.select(np.ones(2**14), np.random.default_rng(0).bytes).payload
    assert 0.99 * scale < np.sqrt((payload**2).sum()) <= scale
    assert np.sqrt(2**11) / scale > 0.01


def test_rounds_toward_zero_when_every_draw_is_too_long():
    sampler = flat(64, 64, 1, fraction_bits=4)
    payload = sampler.select(np.ones(64), lambda n: bytes(n)).payload  # zero coins round every coordinate up
    assert (payload**2).sum() <= sampler.squared_bound and payload.any()


def test_never_scales_up_and_scales_down_to_the_norm():
    sampler = flat(16, 1, 16, clip_factor=10.0, norm_bound=2.0)
    short, long = np.full(16, 0.1), np.full(16, 1e6)
    coins = np.random.default_rng(0).bytes
    assert np.allclose(released(sampler, short, coins), short, atol=1e-5)
    assert np.isclose(np.linalg.norm(released(sampler, long, coins)), 2.0, atol=1e-4)


def test_counts_clipped_blocks():
    sampler = flat(64, 8, 8)
    spike = np.zeros(64)
    spike[3] = 1.0
    assert sampler.select(spike).clipped == 1
    assert sampler.select(np.full(64, 0.1)).clipped == 0


@given(st.integers(1, 12), st.integers(1, 40))
@settings(max_examples=30)
def test_sum_of_reports_decodes_within_a_step_a_client(clients, length):
    sampler = flat(length, 3, 2, fraction_bits=12, clip_factor=50.0)
    rng = np.random.default_rng(length)
    total, exact = np.zeros(sampler.shape.padded_length, np.int64), np.zeros(sampler.shape.padded_length)
    view = exact.reshape(2, -1, 3)
    for _ in range(clients):
        vector = rng.standard_normal(length)
        vector /= max(1.0, np.linalg.norm(vector))
        selection = sampler.select(vector, rng.bytes)
        sampler.scatter(selection, total)
        blocks = np.pad(vector, (0, exact.size - length)).reshape(view.shape)
        at = np.arange(2), selection.indices
        view[at] += blocks[at] * sampler.shape.blocks_per_group
    assert np.abs(sampler.decode(total) - exact[:length]).max() <= clients * 2.0**-12


def test_capacity_refuses_what_would_wrap():
    sampler = flat(2**10, 2**4, 2**3, fraction_bits=10)
    s = sampler.sensitivity
    largest = int((2**31 - 8 * np.sqrt(2) * 4 * 2**10) / (s * 2**10))
    check_capacity(sampler, clients=largest - 1, sigma=4.0, ring_bits=32)
    with pytest.raises(BudgetExceeded, match=r"10 fraction bits reaches .* but a 32-bit ring holds 2.15e\+09; use"):
        check_capacity(sampler, clients=largest + 1, sigma=4.0, ring_bits=32)
    check_capacity(sampler, clients=largest + 1, sigma=4.0, ring_bits=64)


def test_capacity_refuses_noise_that_is_too_coarse():
    check_capacity(flat(2**10, 2**4, 2**3, fraction_bits=10), clients=1, sigma=0.01, ring_bits=64)
    with pytest.raises(BudgetExceeded, match="noise of 9.22 steps at 10 fraction bits: must be at least 10"):
        check_capacity(flat(2**10, 2**4, 2**3, fraction_bits=10), clients=1, sigma=0.009, ring_bits=64)


def test_equals_the_stored_vectors():
    for case in json.loads(VECTORS.read_text())["cases"]:
        sampler = flat(case["length"], case["block_size"], case["groups"], fraction_bits=case["fraction_bits"])
        coins = prg.Stream(bytes.fromhex(case["seed"]), prg.SAMPLING).bytes
        selection = sampler.select(np.array(case["vector"]), coins)
        assert selection.indices.tolist() == case["indices"] and selection.payload.tolist() == case["payload"]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_refuses_values_that_are_not_finite(bad):
    vector = np.zeros(64)
    vector[17] = bad
    with pytest.raises(InputError, match=r"coordinate 17 is -?(nan|inf) \(1 such values\)"):
        rotated(64, 4, 4).select(vector)


def test_refuses_another_shape_or_type():
    with pytest.raises(InputError, match=r"shape \(63,\): must be floats \(64,\)"):
        flat(64, 4, 4).select(np.zeros(63))
    with pytest.raises(InputError, match="dtype int64"):
        flat(64, 4, 4).select(np.zeros(64, np.int64))
    with pytest.raises(InputError, match=r"total of shape \(63,\): this round's is \(64,\)"):
        flat(64, 4, 4).decode(np.zeros(63, np.int64))


def test_refuses_a_rotation_that_does_not_fit():
    with pytest.raises(InputError, match="give the round's rotation exactly where the shape is rotated"):
        Sampler(shape=BlockShape(length=64, block_size=4, groups=4), fraction_bits=10)
    with pytest.raises(InputError, match="rotation of 32 coordinates"):
        Sampler(
            shape=BlockShape(length=64, block_size=4, groups=4),
            fraction_bits=10,
            rotation=Rotation.from_seed(bytes(16), 32),
        )


def test_refuses_too_many_or_too_few_fraction_bits():
    with pytest.raises(BudgetExceeded, match="squares are exact up to 2\\^31; use fewer fraction bits"):
        flat(64, 4, 4, fraction_bits=34)
    with pytest.raises(BudgetExceeded, match="rounding 64 coordinates may add; use more fraction bits"):
        flat(64, 64, 1, fraction_bits=2)


@pytest.mark.parametrize("field", ["norm_bound", "clip_factor"])
def test_refuses_senseless_bounds(field):
    with pytest.raises(InputError, match="must be finite and positive"):
        flat(64, 4, 4, **{field: 0.0})


def test_refuses_a_senseless_shape():
    with pytest.raises(InputError, match="must be at least 1"):
        BlockShape(length=4, block_size=0, groups=1)


@pytest.mark.parametrize("bound", [1, 2, 3, 5, 64, 100])
def test_uniform_indices_are_uniform(bound):
    draws = uniform_indices(200 * bound, bound, np.random.default_rng(bound).bytes)
    counts = np.bincount(draws, minlength=bound)
    assert counts.size == bound and ((counts - 200) ** 2 / 200).sum() < bound + 5 * np.sqrt(2 * bound) + 5


@pytest.mark.report("U46", "an update of zeros passes clipping unchanged")
def test_clip_rows_leaves_short_rows_alone():
    rows = np.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0], [1e308, 1e308], [5e-324, 0.0]])
    clipped, count = clip_rows(rows, 1.0)
    assert count == 2 and np.array_equal(clipped[[1, 2, 4]], rows[[1, 2, 4]])
    assert np.allclose(np.linalg.norm(clipped[[0, 3]], axis=1), 1.0)
