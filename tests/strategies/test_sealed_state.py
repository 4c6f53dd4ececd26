"""A sealed state whose numbers are none is refused, found by damaging good ones."""

import json

import numpy as np
import pytest
from safetensors.numpy import save

from crypto import WireError
from strategies.sealed_state import SealedState


@pytest.mark.parametrize("length", ["1e400", '"x"', "null", "[]"])
def test_a_length_that_is_no_number_is_refused(length):
    notes = json.dumps({"version": "1", "plan": {}, "bytes": {}}).rstrip("}") + '}, "length": ' + length
    notes += ', "weight": 1.0, "count": 1, "first_counts": false}'
    with pytest.raises(WireError, match="no sealed state"):
        SealedState.from_bytes(save({"0": np.zeros(3, np.uint8)}, {"fedsim": notes}))
