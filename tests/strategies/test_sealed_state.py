"""A sealed state whose numbers are none is refused, found by damaging good ones."""

import numpy as np
import pytest

from crypto import WireError
from crypto.base import Plan
from crypto.packing import Layout
from strategies.plan import RoundPlan
from strategies.sealed_state import SealedState


def example():
    layout = Layout.of({"w": np.zeros(3, np.float32)})
    plan = RoundPlan(
        strategy="fedavg",
        round=3,
        rounds=9,
        names=layout.names,
        layout_hash=layout.hash,
        payload="weights",
        weighting="examples",
        weight_scale=10.0,
        buffers="average",
        first_partition=-1,
        secure=Plan(length=3, clients=4, bound=1.0),
        extras={},
    )
    return SealedState([b"total"], plan, 98765, 12.5, 3, True).to_bytes()


@pytest.mark.parametrize("length", [b"1e400", b"null ", b"[]   ", b"{}   "])
def test_a_length_that_is_no_number_is_refused(length):
    good = example()
    assert SealedState.from_bytes(good).length == 98765 and good.count(b"98765") == 1
    with pytest.raises(WireError, match="no sealed state"):
        SealedState.from_bytes(good.replace(b"98765", length))
