"""FedLUAR's layers, scores and draw. "Check N" names the rule of the method that a test stands for."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from strategies._luar_layers import communication, draw, floored, layer_rng, layers_of, score
from strategies.records import NamedArrays
from strategies.state import buffer_names, state_arrays
from tests.text_packages import needs

SAMPLERS = ["score", "uniform", "round_robin", "deterministic"]


class Everything(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.batch_norm = nn.BatchNorm2d(2)
        self.embedding = nn.Embedding(5, 4)
        self.layer_norm = nn.LayerNorm(4)
        self.linear = nn.Linear(4, 3)


def test_layers_are_trainable_kernels():
    """Check 6: convolution, linear and embedding kernels; no bias, norm, buffer or counter."""
    model = Everything()
    state = NamedArrays(state_arrays(model))
    assert list(layers_of(state, buffer_names(model))) == ["conv.weight", "embedding.weight", "linear.weight"]


def test_modules_are_kernels_with_their_biases():
    model = Everything()
    groups = layers_of(NamedArrays(state_arrays(model)), buffer_names(model), "module")
    assert groups == {
        "conv": ("conv.weight", "conv.bias"),
        "embedding": ("embedding.weight",),
        "linear": ("linear.weight", "linear.bias"),
    }


def test_a_kernel_that_is_a_buffer_or_of_integers_is_no_layer():
    state = NamedArrays({"a": np.zeros((2, 2), np.float32), "b": np.zeros((2, 2), np.int64), "c": np.zeros((2, 2))})
    assert list(layers_of(state, {"c"})) == ["a"]


def conv(side, wide, narrow):
    return {"kernel": (side, side, wide, narrow)}


def norm(channels, times=4):
    return {f"norm{i}": (channels,) for i in range(times)}


def paper_architecture(name):
    """Return shapes of all variables of a model of the paper, running statistics included."""
    pieces = []
    if name == "femnist-cnn":
        pieces = [conv(5, 1, 32), {"b": (32,)}, conv(5, 32, 64), {"b": (64,)}]
        pieces += [{"kernel": (3136, 2048), "b": (2048,)}, {"kernel": (2048, 62), "b": (62,)}]
    elif name == "resnet20":
        pieces, wide = [conv(3, 3, 16), norm(16)], 16
        for width in (16, 32, 64):
            for block in range(3):
                pieces += [conv(3, wide, width), norm(width), conv(3, width, width), norm(width)]
                pieces += [conv(1, wide, width), norm(width)] if block == 0 else []
                wide = width
        pieces.append({"kernel": (64, 10), "b": (10,)})
    else:
        pieces, wide = [conv(3, 3, 16)], 16
        for width in (160, 320, 640):
            for block in range(4):
                pieces += [norm(wide), conv(3, wide, width), norm(width), conv(3, width, width)]
                pieces += [conv(1, wide, width), norm(width)] if block == 0 else []
                wide = width
        pieces += [norm(640), {"kernel": (640, 100), "b": (100,)}]
    return {f"{i}.{key}": shape for i, piece in enumerate(pieces) for key, shape in piece.items()}


@pytest.mark.parametrize(
    ("name", "variables", "layers"),
    [("resnet20", 274_362, 23), ("wrn28-10", 36_559_316, 29), ("femnist-cnn", 6_603_710, 4)],
)
def test_papers_architectures_have_their_variables_and_layers(name, variables, layers):
    """Check 22, from shapes."""
    shapes = paper_architecture(name)
    arrays = {n: np.broadcast_to(np.float32(0), s) for n, s in shapes.items()}
    assert sum(a.size for a in arrays.values()) == variables
    assert len(layers_of(NamedArrays(arrays), frozenset())) == layers


@needs("transformers")
def test_distilbert_with_the_papers_head_has_its_variables_and_layers():
    """Check 22, from the published configuration; no weight is made."""
    import transformers

    with torch.device("meta"):
        body = transformers.DistilBertModel(transformers.DistilBertConfig())
        head = nn.Sequential(nn.Linear(768, 2048), nn.ReLU(), nn.Linear(2048, 4))
    shapes = {n: tuple(p.shape) for n, p in nn.ModuleDict({"body": body, "head": head}).named_parameters()}
    arrays = {n: np.broadcast_to(np.float32(0), s) for n, s in shapes.items()}
    assert sum(a.size for a in arrays.values()) == 67_945_988
    assert len(layers_of(NamedArrays(arrays), frozenset())) == 40


def test_score_is_a_ratio_of_plain_norms():
    """Check 5, the formula."""
    assert score([np.array([3.0, 4.0])], [np.array([0.0, 2.0])]) == pytest.approx(5 / (2 + 1e-6), rel=1e-7)
    assert score([np.array([3.0]), np.array([4.0])], [np.zeros(1), np.zeros(1)]) == pytest.approx(5e6)


@pytest.mark.parametrize(
    ("delta", "want"), [(2, (0.8474, 0.6315, 0.3437, 0.1774)), (1, (8 / 15, 4 / 15, 2 / 15, 1 / 15))]
)
def test_draws_follow_the_papers_law(delta, want):
    """Check 7: successive draws without replacement, exact inclusion probabilities."""
    scores, counts, rng = np.array([1.0, 2.0, 4.0, 8.0]), np.zeros(4), layer_rng(3, 1)
    for server_round in range(20_000):
        chosen = draw(scores, delta, "score", server_round=server_round, rng=rng)
        assert len(set(chosen.tolist())) == delta
        counts[chosen] += 1
    np.testing.assert_allclose(counts / 20_000, want, atol=0.015)


def test_draws_agree_with_numpys_choice():
    """The slow obvious reference: `choice` without replacement, whose law the paper's code uses."""
    scores, rng = np.array([0.3, 1.0, 0.5, 2.0, 0.1]), np.random.default_rng(0)
    mine, theirs, own = np.zeros(5), np.zeros(5), layer_rng(0, 1)
    p = (1 / scores) / (1 / scores).sum()
    for server_round in range(3000):
        mine[draw(scores, 3, "score", server_round=server_round, rng=own)] += 1
        theirs[rng.choice(5, 3, replace=False, p=p)] += 1
    np.testing.assert_allclose(mine / 3000, theirs / 3000, atol=0.04)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("scores", [(0, 1, 2), (1e-300, 1, 1), (0, 0, 0), (1e300, 1e-300, 0)])
def test_zero_and_extreme_scores_are_drawn_without_a_fault(sampler, scores):
    """Check 8."""
    for server_round in range(1, 50):
        chosen = draw(np.array(scores, float), 2, sampler, server_round=server_round, rng=layer_rng(1, server_round))
        assert len(set(chosen.tolist())) == 2 and set(chosen.tolist()) <= {0, 1, 2}


@given(
    scores=st.lists(st.floats(0, 1e308), min_size=1, max_size=12),
    sampler=st.sampled_from(SAMPLERS),
    seed=st.integers(0, 2**63 - 1),
    server_round=st.integers(1, 10_000),
    data=st.data(),
)
def test_any_scores_give_so_many_distinct_layers(scores, sampler, seed, server_round, data):
    delta = data.draw(st.integers(0, len(scores) - 1))
    chosen = draw(np.array(scores), delta, sampler, server_round=server_round, rng=layer_rng(seed, server_round))
    assert len(set(chosen.tolist())) == len(chosen) == delta
    assert all(0 <= i < len(scores) for i in chosen)
    again = draw(np.array(scores), delta, sampler, server_round=server_round, rng=layer_rng(seed, server_round))
    np.testing.assert_array_equal(chosen, again)


def test_floor_keeps_scores_above_a_millionth_of_the_median():
    np.testing.assert_array_equal(floored(np.array([0.0, 1.0, 2.0])), [1e-6, 1.0, 2.0])
    np.testing.assert_array_equal(floored(np.zeros(2)), [1e-30, 1e-30])


def test_uniform_control_spares_delta_of_l_of_the_bytes():
    """Check 10: over 300 rounds, layers of unequal sizes."""
    sizes = {str(i): 4 * (i + 1) ** 3 for i in range(5)}
    uploads = dict.fromkeys(sizes, 300)
    for server_round in range(300):
        for i in draw(np.ones(5), 2, "uniform", server_round=server_round, rng=layer_rng(5, server_round)):
            uploads[str(i)] -= 1
    assert communication(sizes, uploads, 300) == pytest.approx(1 - 2 / 5, abs=0.03)


def test_round_robin_visits_all_layers_alike():
    counts = np.zeros(5, int)
    for server_round in range(1, 11):
        counts[draw(np.ones(5), 2, "round_robin", server_round=server_round, rng=layer_rng(0, 1))] += 1
    np.testing.assert_array_equal(counts, 4)


def test_deterministic_takes_the_lowest_scores():
    scores = np.array([3.0, 1.0, 2.0, 9.0])
    chosen = draw(scores, 2, "deterministic", server_round=1, rng=layer_rng(0, 1))
    np.testing.assert_array_equal(chosen, [1, 2])


def test_communication_counts_bytes():
    assert communication({"a": 30, "b": 10}, {"a": 1}, 4) == (30 + 40) / 160
    assert communication({"a": 30}, {}, 0) == 1.0
