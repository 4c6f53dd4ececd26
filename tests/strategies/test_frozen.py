"""Who holds what never changes is part of a checkpoint."""

import numpy as np

from strategies.frozen import HELD, FrozenOnce
from strategies.records import NamedArrays

ARRAYS = NamedArrays({"stem": np.zeros(3, np.float32)})


def test_a_client_that_holds_the_arrays_is_not_sent_them_again_after_a_checkpoint():
    notes = FrozenOnce(ARRAYS)
    assert notes.held() == {}
    large = 2**64 - 1
    assert notes.missing(large) and notes.missing(5) and notes.missing(7)
    notes.delivered([large, 5])
    kept = notes.held()
    assert kept[HELD].dtype == np.uint64 and kept[HELD].tolist() == [5, large]
    again = FrozenOnce.resumed(ARRAYS, kept)
    assert not again.missing(5) and not again.missing(large) and again.missing(7)


def test_without_a_checkpoint_all_are_sent_them():
    assert FrozenOnce.resumed(ARRAYS, {}).missing(5)
