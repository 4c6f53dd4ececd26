"""Plans survive the wire, and a plan that is not ours is refused by field."""

import pytest

from crypto import WireError
from crypto.base import Plan
from strategies.plan import BufferRule, RoundPlan

PLAN = RoundPlan(
    strategy="fedavg",
    round=3,
    rounds=9,
    names=("a", "b"),
    layout_hash=b"h" * 16,
    payload="weights",
    weighting="examples",
    weight_scale=2.0,
    buffers="average",
    first_partition=-1,
    secure=Plan(length=5, clients=4, bound=8.0),
    extras={"proximal-mu": 0.1, "flag": True},
)


def test_round_trip():
    assert RoundPlan.from_record(PLAN.record()) == PLAN


def test_weights():
    assert PLAN.weight(10) == 5.0
    assert RoundPlan.from_record({**PLAN.record(), "weighting": "uniform"}).weight(10) == 1.0


@pytest.mark.parametrize("key", [k for k in PLAN.record() if not k.startswith("x.")])
def test_a_missing_or_mistyped_field_is_named(key):
    record = PLAN.record()
    record[key] = [1.5]
    with pytest.raises(WireError, match=f"'{key}'"):
        RoundPlan.from_record(record)
    del record[key]
    with pytest.raises(WireError, match=f"'{key}' is None"):
        RoundPlan.from_record(record)


@pytest.mark.parametrize("key", ["payload", "weighting", "buffers"])
def test_an_unknown_choice_is_refused(key):
    with pytest.raises(WireError, match="must be one of"):
        RoundPlan.from_record({**PLAN.record(), key: "other"})


def test_local_buffers_do_not_travel():
    import numpy as np

    from crypto import Layout

    layout = Layout.of({"w": np.zeros(2), "mean": np.zeros(3)})
    assert BufferRule(mode="local", names=frozenset(["mean"])).travelling(layout).names == ("w",)
    assert BufferRule(mode="average", names=frozenset(["mean"])).travelling(layout).names == ("w", "mean")
