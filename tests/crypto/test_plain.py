"""The reference secure sum keeps the law of :mod:`crypto.base`."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crypto import EmptySum, InputError, LayoutMismatch, ReplayError, WireError, wire
from crypto.base import Plan, Tag
from crypto.plain import PlainSum


def tag_of(length, round=1):
    return Tag(round=round, layout_hash=b"h" * 16, length=length)


@given(st.integers(1, 40), st.integers(1, 30), st.integers(0, 10), st.floats(1e-3, 1e6))
@settings(max_examples=60, deadline=None)
def test_law_for_any_grouping(length, clients, split, bound):
    rng = np.random.default_rng(length * 1000 + clients)
    vectors = rng.uniform(-bound, bound, (clients, length))
    scheme, tag = PlainSum(Plan(length=length, clients=clients, bound=bound)), tag_of(length)
    parts = [scheme.sealer().seal(v, tag)[0] for v in vectors]
    left, right = scheme.adder(tag), scheme.adder(tag)
    for i, part in enumerate(parts):
        (left if i < split else right).add(part)
    total = left
    if right.count:
        total = scheme.adder(tag)
        for side in (left, right):
            if side.count:
                total.merge(side.total())
    assert total.count == clients
    got = scheme.opener().open([total.total()], tag)
    assert np.abs(got - vectors.sum(0)).max() <= scheme.budget.error_bound


def test_budget_is_the_size_on_the_wire():
    scheme, tag = PlainSum(Plan(length=9, clients=2, bound=1.0)), tag_of(9)
    part = scheme.sealer().seal(np.ones(9, np.float32), tag)[0]
    adder = scheme.adder(tag)
    adder.add(part)
    assert len(part) == scheme.budget.upload_bytes
    assert len(adder.total()) == scheme.budget.download_bytes


def test_seal_refuses_nan_other_lengths_and_integers():
    sealer, tag = PlainSum(Plan(length=2, clients=1, bound=1.0)).sealer(), tag_of(2)
    with pytest.raises(InputError, match="coordinate 1 is nan"):
        sealer.seal(np.array([1, np.nan], np.float32), tag)
    with pytest.raises(InputError, match=r"shape \(3,\)"):
        sealer.seal(np.zeros(3, np.float32), tag)
    with pytest.raises(InputError, match="dtype int64"):
        sealer.seal(np.zeros(2, np.int64), tag)
    with pytest.raises(InputError, match="coordinate 0 is inf"):
        sealer.seal(np.array([1e300, 0.0]), tag)


def test_add_refuses_other_rounds_lengths_and_nan_and_keeps_the_sum():
    scheme, tag = PlainSum(Plan(length=2, clients=3, bound=1.0)), tag_of(2)
    adder = scheme.adder(tag)
    adder.add(scheme.sealer().seal(np.ones(2, np.float32), tag)[0])
    forged = wire.encode(
        wire.Header(scheme="plain", params_hash=bytes(16), key_id=wire.NO_KEY, tag=tag),
        wire.PART,
        1,
        np.array([np.inf, -np.inf], "<f4").tobytes(),
    )
    for bad, error in [
        (scheme.sealer().seal(np.ones(2, np.float32), tag_of(2, round=0))[0], ReplayError),
        (scheme.sealer().seal(np.ones(3, np.float32), tag_of(3))[0], WireError),
        (
            scheme.sealer().seal(np.ones(2, np.float32), Tag(round=1, layout_hash=b"x" * 16, length=2))[0],
            LayoutMismatch,
        ),
        (forged, WireError),
    ]:
        with pytest.raises(error):
            adder.add(bad)
    np.testing.assert_array_equal(scheme.opener().open([adder.total()], tag), [1, 1])
    assert adder.count == 1


def test_total_of_nothing_is_refused():
    with pytest.raises(EmptySum):
        PlainSum(Plan(length=1, clients=1, bound=1.0)).adder(tag_of(1)).total()


@pytest.mark.parametrize("values", [{"length": 0}, {"clients": 0}, {"bound": 0.0}, {"bound": float("nan")}])
def test_plans_refuse_impossible_values(values):
    with pytest.raises(ValueError, match="must be"):
        Plan(**{"length": 1, "clients": 1, "bound": 1.0, **values})
