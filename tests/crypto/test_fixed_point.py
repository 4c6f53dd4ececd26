"""Fixed point: exact sums, counted clipping, unbiased rounding, and plans that would wrap are refused."""

import logging
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crypto.errors import BudgetExceeded, InputError
from crypto.fixed_point import FixedPoint, from_residues, to_residues

FIELD64 = 2**64 - 2**32 + 1
finite = st.floats(-1e6, 1e6, width=32)


def slow_encode(value: float, codec: FixedPoint, word: int) -> int:
    """One coordinate in exact rationals."""
    clipped = max(-Fraction(codec.bound), min(Fraction(codec.bound), Fraction(value)))
    exact = clipped * Fraction(2) ** codec.fraction_bits
    floor = math.floor(exact)
    return floor + (exact - floor > Fraction(word, 2**32))


@given(
    st.lists(st.tuples(finite, st.integers(0, 2**32 - 1)), max_size=20),
    st.floats(1e-3, 1e6),
    st.integers(-10, 30),
)
def test_equals_exact_rationals(pairs, bound, fraction_bits):
    codec = FixedPoint(bound=bound, fraction_bits=fraction_bits)
    values = np.array([v for v, _ in pairs], np.float32)
    words = np.array([w for _, w in pairs], np.uint32)
    encoded = codec.encode_with(values, words)
    assert encoded.values.tolist() == [slow_encode(v, codec, w) for v, w in pairs]
    assert encoded.clipped == sum(abs(v) > bound for v in values.tolist())
    assert np.abs(encoded.values).max(initial=0) <= codec.max_value


@pytest.mark.parametrize("stochastic", [True, False])
@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 140_001])
def test_round_trip_is_within_the_error_bound(size, stochastic):
    codec = FixedPoint(bound=2.0, fraction_bits=12, stochastic=stochastic)
    values = np.random.default_rng(size).uniform(-2, 2, size)
    encoded = codec.encode(values)
    assert encoded.values.dtype == np.int64 and encoded.clipped == 0
    assert np.abs(codec.decode(encoded.values) - values).max(initial=0) <= codec.error_bound(1)


def test_keeps_the_shape_and_the_input():
    values = np.arange(12, dtype=np.float32).reshape(3, 4).T
    before = values.copy()
    encoded = FixedPoint(bound=20, fraction_bits=3).encode(values)
    assert encoded.values.tolist() == (8 * before).astype(int).tolist()
    assert np.array_equal(values, before)


def test_rounding_is_unbiased():
    codec = FixedPoint(bound=1.0, fraction_bits=2)
    for value in (0.3, -0.3, 0.01, -0.9):
        mean = codec.decode(codec.encode(np.full(200_000, value), np.random.default_rng(1).bytes).values).mean()
        fraction = value * 4 - math.floor(value * 4)
        deviation = codec.step * math.sqrt(fraction * (1 - fraction) / 200_000)
        assert abs(mean - value) < 5 * deviation


def test_grid_points_never_move():
    grid = np.arange(-8, 9) / 8
    assert FixedPoint(bound=1.0, fraction_bits=3).encode(grid).values.tolist() == list(range(-8, 9))


def test_randomness_is_fresh_by_default_and_explicit_on_request():
    codec, values = FixedPoint(bound=1.0, fraction_bits=0), np.full(256, 0.5)
    assert not np.array_equal(codec.encode(values).values, codec.encode(values).values)
    twice = [codec.encode(values, np.random.default_rng(7).bytes).values for _ in range(2)]
    assert np.array_equal(*twice)


@pytest.mark.report("U29")
def test_counts_and_reports_clipping(caplog):
    with caplog.at_level(logging.WARNING):
        encoded = FixedPoint(bound=8.0, fraction_bits=10).encode(np.array([8.0, 9.0, 100.0, -7.0]))
    assert encoded.clipped == 2 and encoded.clipped_share == 0.5
    assert encoded.values.tolist() == [8192, 8192, 8192, -7168]
    assert "2 of 4 values (50.0 %) lie outside the bound 8" in caplog.text


def test_is_silent_when_little_is_clipped(caplog):
    values = np.zeros(1000)
    values[0] = 9
    assert FixedPoint(bound=8.0, fraction_bits=10).encode(values).clipped == 1
    assert not caplog.records


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_refuses_values_that_are_not_finite(bad):
    values = np.zeros(70_000, np.float32)
    values[66_000] = bad
    with pytest.raises(InputError, match=r"coordinate 66000 is -?(nan|inf) \(1 such values\): values must be finite"):
        FixedPoint(bound=1.0, fraction_bits=8).encode(values)


@pytest.mark.report("U30")
def test_sums_of_1024_clients_at_the_bound_are_exact():
    codec = FixedPoint.fitting(bound=8.0, clients=1024, ring_bits=32)
    codec.check(1024, 32)
    one = to_residues(codec.encode(np.array([8.0, -8.0, 9.0])).values, 2**32)
    total = (one * np.uint64(1024)) % np.uint64(2**32)
    assert (codec.decode(from_residues(total, 2**32)) / 1024).tolist() == [8.0, -8.0, 8.0]


@pytest.mark.report(
    "U30", "bits of value, weight and clients are added up before round 1; 1,024 clients at 8.0 give exactly 8.0"
)
def test_refuses_a_budget_that_wraps():
    codec = FixedPoint(bound=0.999, fraction_bits=12, weight_bits=17)
    assert codec.value_bits == 13
    codec.check(4, 32)
    with pytest.raises(
        BudgetExceeded, match=r"13 value bits \+ 17 weight bits \+ 4 bits for 10 clients = 34 bits, but"
    ):
        codec.check(10, 32)
    assert codec.headroom_bits(10, 32) == -2


def test_what_does_not_fit_is_told_by_what_is_wrong():
    with pytest.raises(BudgetExceeded, match="leave 1 bits of a 8-bit ring.*fewer clients"):
        FixedPoint.fitting(bound=1.0, clients=128, ring_bits=8)
    with pytest.raises(BudgetExceeded, match=r"bound 1e\+30: in 22 bits.*a smaller bound"):
        FixedPoint.fitting(bound=1e30, clients=1, ring_bits=22)


@given(st.floats(1e-6, 1e6), st.integers(1, 10**6), st.integers(8, 64), st.integers(0, 8))
def test_fitting_is_the_finest_that_cannot_wrap(bound, clients, ring_bits, weight_bits):
    plan = dict(bound=bound, clients=clients, ring_bits=ring_bits, weight_bits=weight_bits)
    try:
        codec = FixedPoint.fitting(**plan)
    except BudgetExceeded:
        assert ring_bits - weight_bits - (clients - 1).bit_length() < 2
        return
    codec.check(clients, ring_bits)
    assert 2 * clients * 2**weight_bits * codec.max_value < 2**ring_bits
    if codec.fraction_bits < 40:
        try:
            finer = FixedPoint(bound=bound, fraction_bits=codec.fraction_bits + 1, weight_bits=weight_bits)
        except BudgetExceeded:
            return
        assert finer.required_bits(clients) > ring_bits or finer.max_value > 2**53 - 1


def test_refuses_integers_that_float64_does_not_hold():
    with pytest.raises(BudgetExceeded, match=r"needs integers above 2\^53.*use at most 53 bits"):
        FixedPoint(bound=1.0, fraction_bits=54)


@pytest.mark.parametrize(
    "field, value", [("bound", 0.0), ("bound", np.nan), ("fraction_bits", 65), ("weight_bits", -1)]
)
def test_refuses_senseless_parameters(field, value):
    with pytest.raises(InputError, match="must"):
        FixedPoint(**{"bound": 1.0, "fraction_bits": 8, field: value})


@given(st.lists(st.integers(-(2**62), 2**62), max_size=8), st.sampled_from([2**32, 2**64, FIELD64, 3, 1_000_003]))
def test_residues_equal_python_integers(values, modulus):
    residues = to_residues(np.array(values, np.int64), modulus)
    assert residues.tolist() == [v % modulus for v in values]
    lifted = from_residues(residues, modulus)
    assert lifted.tolist() == [(v + modulus // 2) % modulus - modulus // 2 for v in values]


def test_refuses_a_modulus_beyond_a_word():
    with pytest.raises(InputError, match=r"must lie in \[2, 2\^64\]"):
        to_residues(np.zeros(1, np.int64), 2**65)
