"""Cuckoo placement: exact sums, honest failure rates, and places that a matching oracle confirms."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_bipartite_matching

from crypto.errors import InputError
from crypto.preamble import dpf
from crypto.preamble.cuckoo import Cuckoo, uniform_subset
from crypto.preamble.dpf import Group, Report


def fits(cuckoo: Cuckoo, chosen: np.ndarray) -> bool:
    """Return whether a placement exists, by scipy's matching."""
    bins = cuckoo.places[chosen] // cuckoo.bin_blocks
    rows = np.repeat(np.arange(len(chosen)), 3)
    graph = csr_matrix((np.ones(rows.size), (rows, bins.reshape(-1))), shape=(len(chosen), cuckoo.bins))
    return bool((maximum_bipartite_matching(graph, perm_type="column") >= 0).all())


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32), blocks=st.integers(1, 60), bins=st.integers(1, 20), data=st.data())
def test_places_are_valid_and_found_exactly_when_they_exist(
    seed: int, blocks: int, bins: int, data: st.DataObject
) -> None:
    cuckoo = Cuckoo.from_seed(seed.to_bytes(16, "little"), blocks, bins)
    count = data.draw(st.integers(1, min(blocks, bins)))
    chosen = uniform_subset(blocks, count, np.random.default_rng(seed).bytes)
    places = cuckoo.place(chosen)
    assert (places is not None) == fits(cuckoo, chosen)
    if places is not None:
        assert len(set((places // cuckoo.bin_blocks).tolist())) == count
        assert all(p in cuckoo.places[c] for p, c in zip(places, chosen, strict=True))


@pytest.mark.parametrize("group", Group)
def test_the_gathered_total_is_the_sum_of_the_chosen_blocks(group: Group) -> None:
    rng = np.random.default_rng(1)
    cuckoo = Cuckoo.from_seed(rng.bytes(16), 50, 12)
    shape = cuckoo.shape(group, 6)
    totals, sent = [dpf.empty_total(shape) for _ in range(2)], np.zeros((50, 6), object)
    for _ in range(4):
        chosen, places = cuckoo.draw(8, rng.bytes)
        payload = rng.integers(0, group.order, (8, 6), dtype=np.uint64).astype(group.dtype)
        sent[chosen] = (sent[chosen] + payload.astype(object)) % group.order
        indices, content = cuckoo.fill(places, payload, rng.bytes)
        nonce, seeds = rng.bytes(16), (rng.bytes(16), rng.bytes(16))
        body = dpf.shard(shape, bytes(16), nonce, seeds, indices, content)
        reports = [Report(shape, bytes(16), nonce, s, body) for s in seeds]
        assert dpf.prove(shape, 0, [reports[0]]) == dpf.prove(shape, 1, [reports[1]])
        for server in range(2):
            dpf.accumulate(shape, server, [reports[server]], totals[server])
    assert np.array_equal(cuckoo.gather(group, dpf.unshard(shape, *totals)), sent.astype(group.dtype))


def failures(count: int, bins: int, trials: int, seed: int, tables: int = 1) -> int:
    """Return how many random sets do not fit, over some tables: sets of one table that share an obstacle fail alike."""
    rng, found = np.random.default_rng(seed), 0
    for _ in range(tables):
        cuckoo = Cuckoo.from_seed(rng.bytes(16), 4096, bins)
        found += sum(cuckoo.place(rng.choice(4096, count, replace=False)) is None for _ in range(trials // tables))
    return found


def test_failure_rate_at_a_quarter_more_bins() -> None:
    trials = 6000
    rate = failures(32, 40, trials, 2) / trials
    assert 2**-7.8 <= rate <= 2**-6.8


def test_no_failure_at_half_more_bins() -> None:
    assert failures(64, 96, 3000, 3) == 0


@pytest.mark.slow
def test_no_failure_at_half_more_bins_in_a_hundred_thousand() -> None:
    assert failures(64, 96, 100_000, 4, tables=1000) == 0


def test_a_set_that_does_not_fit_is_drawn_again_without_a_trace() -> None:
    rng = np.random.default_rng(5)
    cuckoo = Cuckoo.from_seed(bytes(16), 12, 6)
    drawn = [cuckoo.draw(6, rng.bytes) for _ in range(60)]
    assert any(not fits(cuckoo, uniform_subset(12, 6, rng.bytes)) for _ in range(200))
    shapes = {(c.shape, p.shape, tuple(sorted((p // cuckoo.bin_blocks).tolist()))) for c, p in drawn}
    assert shapes == {((6,), (6,), (0, 1, 2, 3, 4, 5))}


def test_subsets_are_uniform() -> None:
    rng = np.random.default_rng(6)
    counts = np.bincount(np.concatenate([uniform_subset(10, 3, rng.bytes) for _ in range(5000)]), minlength=10)
    assert abs(counts - 1500).max() < 5 * np.sqrt(5000 * 0.3 * 0.7)


def test_refuses_what_cannot_fit() -> None:
    cuckoo = Cuckoo.from_seed(bytes(16), 5, 3)
    for count in (0, 4):
        with pytest.raises(InputError, match="must be at least 1 and fit both"):
            cuckoo.draw(count, np.random.default_rng(0).bytes)
    with pytest.raises(InputError, match="both must be at least 1"):
        Cuckoo.from_seed(bytes(16), 0, 3)
