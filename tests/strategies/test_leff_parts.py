"""LEFF's parts: importance, windows, students, costs, capacity; against hand calculation and slow references."""

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from crypto import LayoutMismatch
from fedsim.tasks.models import build_model
from strategies._leff_blocks import block_arrays, parts_of, piece_layouts, stack_of, train_only
from strategies._leff_cost import batch_cost, simulated_s
from strategies._leff_importance import importance
from strategies._leff_students import Distillation, compress, evenly_spaced, mismatch, student_sizes, trace
from strategies._leff_windows import (
    Capacity,
    draw_start,
    round_robin,
    scattered,
    window_probabilities,
    window_scores,
)
from strategies.memory import activation_bytes, training_bytes
from strategies.records import NamedArrays
from strategies.state import load_state_arrays, state_arrays
from tests.strategies.leff_world import TOKENS, VOCAB, model, token_task

# ------------------------------------------------------------------ importance


def by_hand(built, batches):
    """Slow: one backward pass a batch, then a loop over all tensors."""
    found = [0.0] * len(built.blocks)
    for x, y in batches:
        twin = copy.deepcopy(built).eval()
        nn.functional.cross_entropy(twin(x), y).backward()
        for i, block in enumerate(twin.blocks):
            for p in block.parameters():
                found[i] += float((p.grad.double() * p.detach().double()).pow(2).sum())
    return np.array(found) / len(batches)


def test_5_importance_is_the_sum_of_squared_products():
    built, batches = model(2).eval(), [token_task(16, s) for s in (0, 1)]
    want = by_hand(built, batches)
    assert np.allclose(importance(built, batches), want, rtol=1e-6, atol=0)
    assert all(p.grad is None for p in built.parameters())


def test_5_a_block_of_zeros_has_importance_zero_and_the_order_of_tensors_does_not_matter():
    built, batches = model(2).eval(), [token_task(16, 0)]
    before = importance(built, batches)
    built.blocks[1]._modules = dict(reversed(built.blocks[1]._modules.items()))
    assert np.allclose(importance(built, batches), before, rtol=1e-9, atol=0)
    with torch.no_grad():
        for p in built.blocks[1].parameters():
            p.zero_()
    assert importance(built, batches)[1] == 0.0


def test_without_labels_the_models_own_answer_stands_in_for_them():
    built, (x, _) = model(2).eval(), token_task(16, 0)
    assert np.array_equal(importance(built, [(x, None)]), importance(built, [(x, built(x).argmax(1))]))
    with pytest.raises(ValueError, match="importance of no batches"):
        importance(built, [])


# ------------------------------------------------------------------ windows


def test_6_window_probabilities_by_hand():
    scores = np.array([1.0, 2.0, 3.0, 4.0])
    assert window_scores(scores, 2).tolist() == [3, 5, 7]
    assert window_probabilities(scores, 2, raw=True) == pytest.approx([0.0159, 0.1173, 0.8668], abs=1e-4)
    assert window_probabilities(scores, 4).tolist() == [1.0]
    one = window_probabilities(scores, 1, raw=True)
    assert one == pytest.approx(np.exp(scores) / np.exp(scores).sum())
    assert window_probabilities(scores, 1, temperature=2.0) == pytest.approx(
        np.exp(scores / 5) / np.exp(scores / 5).sum()
    )
    assert window_probabilities(scores, 2, per_layer=True) == pytest.approx(
        np.exp(np.array([3, 5, 7]) / 5) / np.exp(np.array([3, 5, 7]) / 5).sum()
    )


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=12), st.data())
def test_window_scores_are_sums_of_neighbours_and_probabilities_add_up(values, data):
    length = data.draw(st.integers(1, len(values)))
    scores = np.array(values)
    want = [sum(values[k : k + length]) for k in range(len(values) - length + 1)]
    assert window_scores(scores, length) == pytest.approx(want, abs=1e-6 * (1 + sum(values)))
    for raw in (False, True):
        p = window_probabilities(scores, length, raw=raw)
        assert np.isfinite(p).all() and p.sum() == pytest.approx(1.0) and (p >= 0).all()


def test_7_draws_follow_the_probabilities_and_clients_are_independent():
    p = window_probabilities(np.array([1.0, 2.0, 3.0, 4.0]), 1)
    draws = np.array([draw_start(p, seed=3, server_round=t, client=c) for t in range(1, 201) for c in range(100)])
    assert np.abs(np.bincount(draws, minlength=4) / len(draws) - p).max() < 0.01
    by_client = draws.reshape(200, 100)
    assert (by_client[:, :50] == by_client[:, 50:]).mean() == pytest.approx((p**2).sum(), abs=0.02)
    assert draw_start(p, 3, 5, 7) == draw_start(p, 3, 5, 7)


def test_8_raw_sums_of_real_models_are_drawn_uniformly_and_normalised_ones_are_not():
    """Why normalised is the default: sums are about 1e-4, where a softmax sees no difference."""
    small = 1e-4 * np.array([2.0, 1.0, 1.0, 1.0])
    raw, normal = window_probabilities(small, 1, raw=True), window_probabilities(small, 1)
    assert np.ptp(raw) < 1e-3 and np.ptp(normal) > 0.1
    assert np.allclose(normal, window_probabilities(1e10 * small, 1))
    for raw_mode in (False, True):
        assert np.isfinite(window_probabilities(1e10 * small, 2, raw=raw_mode)).all()
        assert window_probabilities(np.zeros(4), 2, raw=raw_mode) == pytest.approx([1 / 3] * 3)


def test_controls_choose_as_they_say():
    assert [round_robin(6, 2, 1, c) for c in range(6)] == [0, 1, 2, 3, 4, 0]
    assert len({scattered(6, 3, 0, t, 0) for t in range(40)}) > 10
    assert all(len(set(scattered(6, 3, 0, t, 0))) == 3 for t in range(40))


def test_capacities_cycle_are_drawn_or_follow_from_memory():
    tiers = Capacity(tiers=(1, 2, 9))
    assert [tiers.blocks(c, 1, 6, float) for c in range(4)] == [1, 2, 6, 1]
    assert Capacity(tiers=(1, 2), redraw=True).blocks(0, 1, 6, float) == 2
    memory = Capacity(kind="memory", memory_bytes=(100.0, 350.0, 1.0))
    assert [memory.blocks(c, 1, 6, lambda n: 100.0 * n) for c in range(3)] == [1, 3, 1]
    half = Capacity(kind="half-normal", seed=1)
    drawn = np.array([half.blocks(c, 1, 12, float) for c in range(4000)])
    want = [0.3829 + 0.0, 0.4835, 0.1212, 0.0121]
    found = [(drawn == k).mean() for k in (1, 2, 3, 4)]
    assert found == pytest.approx(want, abs=0.03) and drawn.max() <= 5
    assert half.blocks(5, 1, 12, float) == half.blocks(5, 9, 12, float)
    assert len({Capacity(kind="half-normal", redraw=True).blocks(5, t, 12, float) for t in range(30)}) > 1


@pytest.mark.parametrize(
    ("options", "message"),
    [({"tiers": (0, 1)}, r"tiers \(0, 1\) must be"), ({"kind": "memory"}, r"memory \(\) must be")],
)
def test_capacities_refuse_what_makes_none(options, message):
    with pytest.raises(ValueError, match=message):
        Capacity(**options)


# ------------------------------------------------------------------ students


@pytest.mark.parametrize("rate", [0.2, 0.5, 0.8, 1.0])
def test_9_students_have_ceil_n_r_blocks_and_each_segment_at_least_one(rate):
    for n in range(1, 13):
        assert student_sizes(n, 0, rate) == (math.ceil(round(n * rate, 9)), 0)
        assert student_sizes(0, n, rate)[1] == math.ceil(round(n * rate, 9))
        for below in range(1, n):
            p, q = student_sizes(below, n - below, rate)
            assert 1 <= p <= below and 1 <= q <= n - below
            assert p + q == max(math.ceil(round(n * rate, 9)), 2)
    assert student_sizes(25, 0, 0.28) == (7, 0) and math.ceil(0.28 * 25) == 8


@pytest.mark.parametrize(
    ("blocks", "kept", "want"), [(4, 2, [0, 3]), (5, 3, [0, 2, 4]), (6, 4, [0, 2, 3, 5]), (5, 1, [2]), (4, 1, [1])]
)
def test_students_begin_as_evenly_spaced_blocks(blocks, kept, want):
    assert evenly_spaced(blocks, kept) == want


class Unread:
    """Labels that must not be looked at."""

    def __getattr__(self, name):
        raise AssertionError("distillation reads no labels")


def teacher(layers=4, name="encoder-tiny"):
    """A stack whose blocks do something: fresh blocks hardly change what goes through them."""
    built = model(layers, name=name).eval()
    with torch.no_grad():
        for p in built.blocks.parameters():
            if p.ndim > 1:
                p.mul_(2.0)
    return built


@pytest.mark.parametrize("name", ["encoder-tiny", "decoder-tiny"])
def test_11_distillation_brings_states_and_maps_nearer_and_leaves_the_teacher_alone(name):
    built = teacher(name=name)
    before = state_arrays(built)
    batches = [(token_task(64, s)[0], Unread()) for s in range(2)]
    traces = trace(built, [x for x, _ in batches])
    raw = compress(built.blocks, 0, 4, 2, traces, Distillation(steps=0))
    student = compress(built.blocks, 0, 4, 2, traces, Distillation(steps=80, lr=3e-3))
    (mse, kl), (less_mse, less_kl) = mismatch(raw, 0, 4, traces), mismatch(student, 0, 4, traces)
    assert less_mse < mse / 3 and less_kl < kl / 2
    assert len(student) == 2 and all(type(b) is type(built.blocks[0]) for b in student)
    assert all(np.array_equal(a, before[n]) for n, a in state_arrays(built).items())
    assert not any(p.requires_grad for p in student.parameters())


def test_11_the_loss_is_that_of_the_paper():
    built = teacher(3)
    x, _ = token_task(8, 0)
    x[0, 3:] = 0
    (traced,) = traces = trace(built, [x])
    student = compress(built.blocks, 1, 3, 1, traces, Distillation(steps=0))
    mse, kl = mismatch(student, 1, 3, traces)
    hidden, logs = student[0].traced(traced.hidden[1], traced.valid)
    squares, divergences = [], []
    for b in range(8):
        for t in range(TOKENS):
            if x[b, t] == 0:
                continue
            squares.append(float(((hidden[b, t] - traced.hidden[3][b, t]) ** 2).mean()))
            for head in range(2):
                a, s = traced.logs[2][b, head, t].exp(), logs[b, head, t].exp()
                divergences.append(sum(float(i * torch.log(i / j)) for i, j in zip(a, s, strict=True) if i > 0))
    assert mse == pytest.approx(np.mean(squares), rel=1e-4) and kl == pytest.approx(np.mean(divergences), rel=1e-3)


def test_a_segment_kept_whole_is_an_exact_copy_and_a_warm_student_goes_on():
    built = teacher()
    traces = trace(built, [token_task(32, 0)[0]])
    copied = compress(built.blocks, 1, 3, 2, traces, Distillation(steps=5))
    assert all(torch.equal(p, q) for p, q in zip(copied.parameters(), built.blocks[1:3].parameters(), strict=True))
    cold = compress(built.blocks, 0, 4, 2, traces, Distillation(steps=10))
    warm = compress(built.blocks, 0, 4, 2, traces, Distillation(steps=10), warm=cold)
    assert mismatch(warm, 0, 4, traces)[0] < mismatch(cold, 0, 4, traces)[0]


def hybrid_error(built, rate, steps):
    """Relative logit error of the model that a client of block 3 of 6 would hold."""
    traces = trace(built, [token_task(64, s)[0] for s in (0, 1)])
    below, above = student_sizes(2, 3, rate)
    how = Distillation(steps=steps, lr=3e-3)
    twin = copy.deepcopy(built)
    twin.blocks = nn.Sequential(
        *compress(built.blocks, 0, 2, below, traces, how),
        built.blocks[2],
        *compress(built.blocks, 3, 6, above, traces, how),
    )
    x, _ = token_task(64, 9)
    with torch.no_grad():
        return float((twin(x) - built(x)).norm() / built(x).norm())


def test_12_fidelity_grows_with_the_rate_and_with_distillation():
    built = teacher(6)
    errors = {rate: hybrid_error(built, rate, 80) for rate in (0.2, 0.5, 0.8, 1.0)}
    assert errors[0.2] > errors[0.5] > errors[0.8] > errors[1.0] == 0.0
    assert all(hybrid_error(built, rate, 0) > 2 * errors[rate] for rate in (0.2, 0.5, 0.8))


# ------------------------------------------------------------------ stacks and names


@pytest.mark.parametrize(("name", "shape"), [("vit-tiny", (1, 8, 8)), ("encoder-tiny", (8,)), ("decoder-tiny", (8,))])
def test_a_shorter_stack_shares_the_embeddings_and_owns_the_rest(name, shape):
    built = build_model(name, input_shape=shape, num_classes=3, seed=0)
    short = stack_of(built, 2)
    parts = parts_of(built.state_dict(), built.stem)
    assert len(short.blocks) == 2 and len(built.blocks) == len(parts.blocks) == 4
    own = dict(short.named_parameters())
    for n, p in built.named_parameters():
        if n in own:
            assert (own[n] is p) == (n in parts.stem)
    assert sum(map(len, parts.blocks)) + len(parts.stem) + len(parts.tail) == len(built.state_dict())
    state = NamedArrays(state_arrays(built))
    moved = block_arrays(state, parts, 3, 1)
    assert set(moved.arrays) <= set(own) and all(n.startswith("blocks.1.") for n in moved.arrays)
    layouts = piece_layouts(state.layout, parts)
    assert sum(each.length for each in layouts.values()) == sum(
        p.numel() for n, p in built.named_parameters() if n not in parts.stem
    )
    with pytest.raises(LayoutMismatch):
        layouts["tail"].only(["blocks.0.norm1.weight"])


def test_a_stack_holds_what_is_loaded():
    built = model(4).eval()
    short = stack_of(built, 1).eval()
    arrays = {n: a for n, a in state_arrays(built).items() if not n.startswith(("blocks.1", "blocks.2", "blocks.3"))}
    load_state_arrays(short, arrays)
    x, _ = token_task(4, 0)
    hidden, valid = built.embed(x)
    assert torch.equal(short(x), built.tail(built.blocks[0](hidden, valid), valid))


# ------------------------------------------------------------------ costs


@pytest.mark.parametrize(("below", "window", "above"), [(0, 1, 2), (1, 1, 1), (2, 2, 0), (0, 3, 0), (1, 2, 3)])
def test_16_costs_are_the_counted_passes_of_blocks(below, window, above):
    built = stack_of(model(2), below + window + above)
    trained = range(below, below + window)
    names = [n for n, _ in built.named_parameters() if n.startswith(tuple(f"blocks.{j}." for j in trained))]
    train_only(built, [*names, "norm.weight", "norm.bias", "head.weight", "head.bias"])
    forward, backward = [], []

    def watch(j, out):
        forward.append(j)
        if out.requires_grad:
            out.register_hook(lambda _: backward.append(j))

    for j, block in enumerate(built.blocks):
        block.register_forward_hook(lambda _, __, out, j=j: watch(j, out))
    x, y = token_task(4, 0)
    nn.functional.cross_entropy(built(x), y).backward()
    weights = [j for j, b in enumerate(built.blocks) if any(p.grad is not None for p in b.parameters())]
    cost = batch_cost(below, window, above)
    assert (len(forward), len(backward), len(weights)) == (
        cost.forward,
        cost.activation_gradients,
        cost.weight_gradients,
    )
    assert weights == list(trained)


def test_16_costs_relative_to_full_training_are_those_of_the_brief():
    """docs/leff.md: 12 blocks, one or four trained, window at the top and at the bottom."""
    full = 3 * 12
    found = {}
    for rate in (1.0, 0.5, 0.25):
        for window in (1, 4):
            above = student_sizes(0, 12 - window, rate)[1]
            found[rate, window] = (
                round(batch_cost(above, window, 0).units / full, 2),
                round(batch_cost(0, window, above).units / full, 2),
            )
    assert found[1.0, 1] == (0.39, 0.69) and found[1.0, 4] == (0.56, 0.78)
    assert found[0.5, 1] == (0.25, 0.42) and found[0.5, 4] == (0.44, 0.56)
    assert found[0.25, 1] == (0.17, 0.25) and found[0.25, 4] == (0.39, 0.44)


def test_16_unequal_tiers_are_twice_as_fast_as_full_training_and_closer_together():
    """Tiers 1, 1, 2, 2, 3, 6 of 6 blocks, speed in proportion, half the other blocks kept, the dearest windows."""
    tiers = (1, 1, 2, 2, 3, 6)
    full = [simulated_s(18, 10, tier, 0, 0, 1, 1) for tier in tiers]
    leff = []
    for tier in tiers:
        above = student_sizes(0, 6 - tier, 0.5)[1]
        leff.append(simulated_s(batch_cost(0, tier, above).units, 10, tier, 0, 0, 1, 1))
    assert max(full) >= 2 * max(leff) and max(full) / min(full) > max(leff) / min(leff)


def measured_peak(built, x, y):
    """Peak bytes of two training steps, from the allocations that torch's profiler sees."""
    from torch.profiler import ProfilerActivity, profile

    held = sum(p.nbytes for p in built.parameters())
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        optimizer = torch.optim.AdamW([p for p in built.parameters() if p.requires_grad], lr=1e-3)
        for _ in range(2):
            optimizer.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(built(x), y).backward()
            optimizer.step()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda e: e.start_ns())
    return held + int(np.cumsum([e.nbytes() for e in events]).max())


@pytest.mark.parametrize(("below", "window", "above"), [(0, 1, 2), (2, 1, 1), (0, 6, 0)])
def test_counted_memory_is_near_the_measured_peak(below, window, above):
    built = stack_of(model(2, dim=64, vocab=VOCAB), below + window + above)
    names = [f"blocks.{j}." for j in range(below, below + window)]
    train_only(built, [n for n, _ in built.named_parameters() if n.startswith((*names, "norm.", "head."))])
    x, y = token_task(64, 0)
    counted, measured = training_bytes(built, x[:1], 64, moments=2), measured_peak(built, x, y)
    assert 0.7 < counted / measured < 1.15, (counted, measured)


def test_activations_below_the_window_are_not_kept():
    built = stack_of(model(2), 6)
    x, _ = token_task(1, 0)
    kept = []
    for at in (0, 5):
        train_only(built, [n for n, _ in built.named_parameters() if n.startswith((f"blocks.{at}.", "head."))])
        kept.append(activation_bytes(built, x))
    assert kept[1] < kept[0] / 3
