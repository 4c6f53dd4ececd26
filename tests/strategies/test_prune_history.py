"""PrME: traces worked out by hand, and properties of the masks (DictPFL, section 4.2)."""

import hashlib
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies import _prune_history
from strategies._prune_history import History, PruneOptions, small_ones, uniforms

SECRET = bytes(range(32))


def run(raw, options, secret=SECRET):
    """Return each round's mask and state: raw updates arrive where the mask lets them."""
    state, seen = History.fresh(len(raw[0]), options), []
    for server_round, values in enumerate(raw, 1):
        mask = state.mask(options, secret, server_round)
        state = state.after(np.where(mask.active, values, 0.0), mask, options)
        seen.append((mask, state))
    return seen


def letters(flags):
    return "".join(name for name, flag in zip("abcdef", flags, strict=True) if flag)


#: Magnitudes of coordinates a to f over 8 rounds; s = 0.5 of 6 leaves at most 3 below the fourth smallest.
TRACE = [
    [1, 2, 3, 4, 5, 6],  # a b c
    [1, 2, 3, 4, 5, 6],  # a b c
    [1, 9, 3, 4, 5, 6],  # a c d: b was loud, its run begins anew
    [1, 1, 3, 4, 5, 6],  # a and c are left out and count as 0: the fourth smallest is d, so b alone is below
    [7, 1, 7, 2, 9, 8],  # b
    [7, 1, 7, 2, 9, 8],  # b, for the third time
    [7, 7, 7, 1, 2, 3],  # the fourth smallest is d: nobody new
    [7, 7, 7, 1, 2, 3],
]
SENT = ["abcdef", "abcdef", "abcdef", "bdef", "bdef", "bdef", "def", "def"]


@pytest.mark.parametrize("sign", [1, -1])
def test_pruning_follows_the_trace_worked_out_by_hand(sign):
    options = PruneOptions(prune_share=0.5, patience=3, reactivation=False)
    found = [letters(mask.active) for mask, _ in run(sign * np.array(TRACE, float), options)]
    assert found == SENT


def test_nothing_is_pruned_without_a_share_or_before_patience_rounds():
    raw = np.array(TRACE, float) * 1e-9
    assert all(m.active.all() for m, _ in run(raw, PruneOptions(prune_share=0.0, patience=1)))
    seen = run(raw, PruneOptions(prune_share=0.9, patience=8))
    assert all(m.active.all() for m, _ in seen)
    assert not seen[-1][1].mask(PruneOptions(prune_share=0.9, patience=8, reactivation=False), SECRET, 9).active.all()


def scripted(monkeypatch, draws):
    """Let round r draw `draws[r - 1]` for coordinate a and 0.99 for the others."""

    def uniforms(secret, server_round, count):
        u = np.full(count, 0.99)
        u[0] = draws[server_round - 1]
        return u

    monkeypatch.setattr(_prune_history, "uniforms", uniforms)


def test_reactivation_follows_the_trace_worked_out_by_hand(monkeypatch):
    """tau = 2: a is pruned from round 3; reactivated and small in 4, passed over in 5, reactivated and loud in 6."""
    options = PruneOptions(prune_share=0.5, patience=2, beta=0.5, p_init=0.4, population="all")
    raw = np.array([[1, 2, 3, 4, 5, 6]] * 5 + [[9, 2, 3, 4, 5, 6]] + [[1, 2, 3, 4, 5, 6]] * 3, float)
    scripted(monkeypatch, [0.0, 0.0, 0.5, 0.3, 0.3, 0.1, 0.5, 0.5, 0.5])
    seen = run(raw, options)
    sent = ["a" in letters(mask.active) for mask, _ in seen]
    chance = [float(state.chance[0]) for _, state in seen]
    #       round      1     2     3      4     5      6     7     8     9
    assert sent == [True, True, False, True, False, True, True, True, False]
    assert chance == pytest.approx([0.4, 0.4, 0.4, 0.2, 0.2, 0.4, 0.4, 0.4, 0.4])


def test_a_probability_stops_at_1(monkeypatch):
    options = PruneOptions(prune_share=0.5, patience=1, beta=0.5, p_init=0.8)
    raw = np.array([[1, 2, 3, 4, 5, 6], [9, 2, 3, 4, 5, 6]], float)
    scripted(monkeypatch, [0.0, 0.0])
    assert run(raw, options)[-1][1].chance[0] == 1.0


def test_every_round_wears_down_the_probability_of_all_that_is_pruned(monkeypatch):
    options = PruneOptions(prune_share=0.5, patience=1, beta=0.5, p_init=0.8, hrc_update="every_round")
    scripted(monkeypatch, [0.99] * 4)
    raw = np.array([[1, 2, 3, 4, 5, 6]] * 4, float)
    assert [float(s.chance[0]) for _, s in run(raw, options)] == pytest.approx([0.8, 0.4, 0.2, 0.1])


def test_zeros_beyond_the_quantile_do_not_bring_everything_back():
    """80 % exact zeros at s = 0.7: the quantile is 0, and a strict comparison alone would call nothing small."""
    delta = np.zeros(100)
    delta[::5] = np.linspace(1e-3, 1e-2, 20)
    small = small_ones(delta, np.ones(100, np.bool_), PruneOptions(prune_share=0.7))
    assert np.array_equal(small, delta == 0)
    noise = delta + 1e-8 * np.random.default_rng(0).normal(size=100)
    assert np.array_equal(small_ones(np.abs(noise), np.ones(100, np.bool_), PruneOptions(prune_share=0.7)), delta == 0)


def test_what_was_not_sent_counts_as_small_without_a_comparison():
    options = PruneOptions(prune_share=0.5, noise_floor=0.0, population="transmitted")
    active = np.array([True, True, False, False])
    assert small_ones(np.array([0.0, 1.0, 0.0, 0.0]), active, options).tolist() == [True, False, True, True]


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 80),
    st.floats(0, 0.99),
    st.integers(1, 4),
    st.sampled_from(["all", "transmitted"]),
    st.integers(0, 2**32 - 1),
)
def test_masks_equal_those_of_a_slow_reference(count, share, patience, population, seed):
    options = PruneOptions(prune_share=share, patience=patience, population=population, noise_floor=1e-3)
    rng = np.random.default_rng(seed)
    raw = np.round(rng.normal(size=(7, count)), 1)
    window, chance = [], [0.2] * count
    for server_round, (mask, _) in enumerate(run(raw, options), 1):
        u = uniforms(SECRET, server_round, count)
        enough = len(window) >= patience
        pruned = [share > 0 and enough and all(w[i] for w in window[-patience:]) for i in range(count)]
        active = [not p or u[i] < chance[i] for i, p in enumerate(pruned)]
        assert mask.active.tolist() == active
        delta = [abs(raw[server_round - 1][i]) if active[i] else 0.0 for i in range(count)]
        ranked = sorted(d for i, d in enumerate(delta) if population == "all" or active[i])
        bound = ranked[int(np.floor(share * len(ranked)))] if ranked else 0.0
        small = [not active[i] or d < bound or d <= 1e-3 for i, d in enumerate(delta)]
        for i in range(count):
            if pruned[i] and active[i]:
                chance[i] = chance[i] * 0.2 if small[i] else min(chance[i] / 0.2, 1.0)
        window.append(small)


def shares(**options):
    """Return the share that is sent in each of 40 rounds of noise whose scale differs from coordinate to coordinate."""
    rng = np.random.default_rng(7)
    scale = np.exp(1.5 * rng.normal(size=3000))
    raw = scale * rng.normal(size=(40, 3000))
    return np.array([m.active.mean() for m, _ in run(raw, PruneOptions(**options))])


def test_of_all_coordinates_at_least_one_minus_the_share_is_sent_and_soon_little_more():
    found = shares(prune_share=0.7)
    assert (found >= 0.3 - 1 / 3000).all()
    assert found[8] <= 0.3 + 0.25, "by round 3 tau"


@pytest.mark.parametrize("population", ["all", "transmitted"])
def test_the_sent_share_grows_with_patience_and_probability_and_falls_with_the_share(population):
    def mean(**options):
        return float(shares(population=population, **options).mean())

    assert all(np.diff([mean(patience=t) for t in (1, 3, 5, 10)]) >= 0)
    assert all(np.diff([mean(beta=b) for b in (0.2, 0.5, 0.8)]) >= 0)
    assert all(np.diff([mean(prune_share=s) for s in (0.0, 0.2, 0.5, 0.7, 0.9)]) <= 0)


def test_a_share_of_what_was_sent_prunes_below_the_floor():
    assert shares(population="transmitted")[-1] < 0.3 < shares(population="all")[-1]


def test_uniforms_are_the_same_on_every_machine_and_differ_by_key_and_round():
    """A stored vector: masks of clients with different numpy versions must agree."""
    found = uniforms(SECRET, 5, 3)
    assert found.tolist() == [0.08192923966015364, 0.8516138221279728, 0.11496788822075488]
    assert np.array_equal(uniforms(SECRET, 5, 2), found[:2])
    assert not np.any(uniforms(SECRET, 6, 3) == found) and not np.any(uniforms(bytes(32), 5, 3) == found)
    many = uniforms(SECRET, 1, 100_000)
    assert (many >= 0).all() and (many < 1).all() and abs(many.mean() - 0.5) < 0.005


def test_processes_that_share_only_the_totals_find_the_same_masks(tmp_path):
    """30 rounds: each process reads the opened totals and derives everything else."""
    raw = np.random.default_rng(3).normal(size=(30, 500)) * np.exp(np.random.default_rng(4).normal(size=500))
    np.save(tmp_path / "totals.npy", raw)
    code = f"""
import hashlib, numpy as np
from strategies._prune_history import History, PruneOptions
raw, options = np.load({str(tmp_path / "totals.npy")!r}), PruneOptions()
state, digest = History.fresh(500, options), hashlib.sha256()
for r, values in enumerate(raw, 1):
    mask = state.mask(options, bytes(range(32)), r)
    state = state.after(np.where(mask.active, values, 0.0), mask, options)
    digest.update(mask.active.tobytes() + state.chance.tobytes() + state.quiet.tobytes())
print(digest.hexdigest())
"""
    found = {subprocess.check_output([sys.executable, "-c", code]) for _ in range(2)}
    digest = hashlib.sha256()
    for mask, state in run(raw, PruneOptions()):
        digest.update(mask.active.tobytes() + state.chance.tobytes() + state.quiet.tobytes())
    assert found == {digest.hexdigest().encode() + b"\n"}


@pytest.mark.parametrize(
    "options",
    [{"prune_share": 1.0}, {"prune_share": -0.1}, {"patience": 0}, {"beta": 0.0}, {"beta": 1.0}, {"p_init": 1.5}]
    + [{"noise_floor": float("nan")}, {"noise_floor": -1.0}, {"prune_share": float("nan")}],
)
def test_refuses_options_out_of_range(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        PruneOptions(**options)
