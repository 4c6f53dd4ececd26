"""DePE: zero start, frozen parts, the gradient of a table, and what averaging tables means (DictPFL, section 4.1)."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from strategies._dict_layers import DictLinear, DictOptions, decompose
from strategies._dict_model import DictModel
from strategies.errors import Incompatible
from strategies.state import buffer_names, state_arrays


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def mlp():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 10))


def cnn():
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(2, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 9, 10),
    )


class Transformer(nn.Module):
    """Torch's own layers, whose fast path in evaluation reads the weights and calls no submodule."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        return self.head(self.encoder(x).mean(1))


CASES = [
    pytest.param(mlp, (6, 24), {}, id="mlp"),
    pytest.param(mlp, (6, 24), {"orient": "auto"}, id="mlp-auto"),
    pytest.param(mlp, (6, 24), {"dict_scale": "u", "train_bias": True}, id="mlp-u"),
    pytest.param(cnn, (6, 2, 8, 8), {"convolutions": True}, id="cnn"),
    pytest.param(Transformer, (6, 4, 16), {}, id="torch-transformer"),
]
RANKS = [pytest.param(r, id=f"rank{r}") for r in (1, 4)]


def shaped(make, **options):
    model = make()
    return model, DictModel(model, DictOptions(**options))


def train(model, x, steps=5, lr=0.05):
    torch.manual_seed(0)
    labels = torch.arange(len(x)) % 5
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), labels).backward()
        optimizer.step()


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize(("make", "shape", "options"), CASES)
def test_the_shaped_model_computes_what_the_start_model_did(make, shape, options, rank):
    x, plain = torch.randn(*shape), make()
    model, _ = shaped(make, rank=rank, **options)
    assert torch.allclose(model(x), plain(x), atol=1e-6)
    with torch.inference_mode():
        assert torch.allclose(model.eval()(x), plain.eval()(x), atol=1e-6)


def test_at_full_rank_too():
    x, plain = torch.randn(6, 24), mlp()
    model, _ = shaped(mlp, ranks=("0=24", "2=16"))
    assert torch.allclose(model(x), plain(x), atol=1e-6)
    assert sum(p.numel() for p in model.parameters()) == 24 * 24 + 16 * 32 + 170


@pytest.mark.parametrize(("make", "shape", "options"), CASES)
def test_evaluation_sees_the_tables_as_training_does(make, shape, options):
    """Torch's transformer layers have a path of their own in evaluation."""
    x = torch.randn(*shape)
    model, _ = shaped(make, rank=2, **options)
    train(model, x)
    trained = model.train()(x).detach()
    with torch.inference_mode():
        assert torch.allclose(model.eval()(x), trained, atol=1e-5)


@pytest.mark.parametrize(("make", "shape", "options"), CASES)
def test_the_plain_model_comes_back_with_the_change_in_its_weights(make, shape, options):
    x, plain = torch.randn(*shape), make()
    model, back = shaped(make, rank=2, **options)
    names = list(state_arrays(plain))
    assert set(back.merged(state_arrays(model))) == set(names)
    train(model, x)
    plain.load_state_dict({n: torch.from_numpy(a) for n, a in back.merged(state_arrays(model)).items()})
    assert torch.allclose(plain(x), model(x), atol=1e-5)


@pytest.mark.parametrize(("make", "shape", "options"), CASES)
def test_only_tables_and_head_train_and_the_rest_keeps_its_bytes(make, shape, options):
    model, _ = shaped(make, rank=2, **options)
    frozen = {n: state_arrays(model)[n] for n in buffer_names(model)}
    dictionaries = {n: b.clone() for n, b in model.named_buffers() if "dictionar" in n}
    train(model, torch.randn(*shape))
    after = state_arrays(model)
    assert frozen and dictionaries
    assert all(np.array_equal(after[n], a) for n, a in frozen.items())
    assert all(torch.equal(dict(model.named_buffers())[n], d) for n, d in dictionaries.items())


def test_the_trainable_count_is_rank_times_inputs_and_the_head():
    model, _ = shaped(mlp, rank=2)
    assert sum(p.numel() for p in model.parameters()) == 2 * 24 + 2 * 32 + (16 * 10 + 10)


def test_every_change_lies_in_the_span_of_the_dictionary():
    x, start = torch.randn(12, 24), mlp()
    model, back = shaped(mlp, rank=3)
    train(model, x, steps=20)
    merged = back.merged(state_arrays(model))
    for name in ("0.weight", "2.weight"):
        change = merged[name].astype(np.float64) - state_arrays(start)[name]
        left = np.linalg.svd(state_arrays(start)[name].astype(np.float64))[0][:, :3]
        assert np.linalg.norm(change - left @ (left.T @ change)) / np.linalg.norm(change) <= 1e-5


@pytest.mark.parametrize("orient", ["literal", "auto"])
def test_the_tables_gradient_is_the_dictionarys_view_of_the_weights_gradient(orient):
    x, plain = torch.randn(8, 24), mlp()
    model, _ = shaped(mlp, rank=4, orient=orient)
    labels = torch.arange(8) % 10
    functional.cross_entropy(model(x), labels).backward()
    functional.cross_entropy(plain(x), labels).backward()
    for at in (0, 2):
        layer, gradient = model[at], plain[at].weight.grad
        expected = layer.dictionary.T @ (gradient.T if layer.transposed else gradient)
        assert torch.allclose(layer.table.grad, expected, rtol=1e-5, atol=1e-7)
        assert layer.table.grad.abs().max() > 0


def test_the_tables_gradient_agrees_with_finite_differences():
    torch.set_default_dtype(torch.float64)
    try:
        model, _ = shaped(mlp, rank=4)
        model.double()
        x, labels = torch.randn(8, 24), torch.arange(8) % 10
        functional.cross_entropy(model(x), labels).backward()
        table = model[0].table
        for row, column in [(0, 0), (1, 5), (2, 11), (3, 23), (0, 17)]:
            values = []
            for step in (1e-5, -1e-5):
                with torch.no_grad():
                    table[row, column] += step
                    values.append(functional.cross_entropy(model(x), labels).item())
                    table[row, column] -= step
            assert (values[0] - values[1]) / 2e-5 == pytest.approx(table.grad[row, column].item(), rel=1e-4, abs=1e-9)
    finally:
        torch.set_default_dtype(torch.float32)


def descend(scale, rank, steps=30):
    """Return how far table steps end from weight steps on a least-squares loss, in float64, n = 6, m = 9."""
    rng = np.random.default_rng(1)
    w0, x, y = rng.normal(size=(6, 9)), rng.normal(size=(9, 20)), rng.normal(size=(6, 20))
    left, values, _ = np.linalg.svd(w0, full_matrices=False)
    d = (left * values if scale == "us" else left)[:, :rank]
    w, table = w0.copy(), np.zeros((rank, 9))
    for _ in range(steps):
        gradient = lambda at: (at @ x - y) @ x.T / 20  # noqa: E731
        w -= 0.05 * gradient(w)
        table -= 0.05 * d.T @ gradient(w0 + d @ table)
    return float(np.abs(w - (w0 + d @ table)).max())


def test_full_rank_equals_fedavg_only_with_an_orthonormal_dictionary():
    assert descend("u", 6) < 1e-12
    assert descend("us", 6) > 0.1, "with D = U Sigma each direction has a rate of its own: they must differ"
    assert descend("u", 3) > 0.01


def test_training_at_full_rank_follows_the_weights_own_steps():
    """Biases of the decomposed layers frozen on both sides, D = U square orthogonal (n <= m)."""

    def wide():
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(24, 16), nn.Tanh(), nn.Linear(16, 10))

    x, plain = torch.randn(12, 24), wide()
    plain[0].bias.requires_grad_(False)
    model, back = shaped(wide, ranks=("0=16",), dict_scale="u")
    train(model, x, steps=30)
    torch.manual_seed(0)
    optimizer = torch.optim.SGD([p for p in plain.parameters() if p.requires_grad], lr=0.05)
    for _ in range(30):
        optimizer.zero_grad()
        functional.cross_entropy(plain(x), torch.arange(12) % 5).backward()
        optimizer.step()
    merged, expected = back.merged(state_arrays(model)), state_arrays(plain)
    assert max(np.abs(merged[n] - expected[n]).max() for n in expected) < 1e-4


@pytest.mark.parametrize("sizes", [(1, 1, 1), (5, 1, 2)])
def test_the_mean_of_weights_is_the_weight_of_the_mean_table(sizes):
    rng = np.random.default_rng(0)
    model, back = shaped(mlp, rank=3)
    state, share = state_arrays(model), np.array(sizes) / sum(sizes)
    tables = [rng.normal(size=state["0.table"].shape).astype(np.float32) for _ in sizes]
    each = [back.merged({**state, "0.table": t})["0.weight"] for t in tables]
    mean = back.merged({**state, "0.table": np.tensordot(share, tables, 1).astype(np.float32)})["0.weight"]
    assert np.abs(np.tensordot(share, each, 1) - mean).max() < 1e-6


def test_the_dictionarys_sign_is_fixed_and_its_span_is_the_largest():
    weight = torch.randn(20, 30, dtype=torch.float64)
    d = decompose(weight, 5)
    assert torch.allclose(d, decompose(weight.clone(), 5))
    assert all(column[column.abs().argmax()] > 0 for column in d.T)
    left, values, _ = np.linalg.svd(weight.numpy())
    assert np.abs(np.abs(left[:, :5].T @ (d.double().numpy() / values[:5])) - np.eye(5)).max() < 1e-6
    assert torch.allclose(decompose(weight, 5, "u") * torch.tensor(values[:5]).float(), d, atol=1e-5)


def test_threads_change_no_bit_of_a_dictionary():
    weight, before = torch.randn(150, 200), torch.get_num_threads()
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        found.append(decompose(weight, 8))
        assert torch.get_num_threads() == threads
    torch.set_num_threads(before)
    assert torch.equal(*found)


def test_the_digest_tells_start_weights_and_dictionaries_apart():
    _, one = shaped(mlp)
    _, same = shaped(mlp)
    assert one.digest == same.digest
    assert one.digest != shaped(mlp, rank=2)[1].digest, "another dictionary"
    other = mlp()
    with torch.no_grad():
        other[0].bias[0] += 1e-6
    assert one.digest != DictModel(other, DictOptions()).digest


def test_layers_of_other_kinds_and_too_small_ones_stay_frozen():
    class Odd(nn.Linear):
        pass

    model = nn.Sequential(Odd(24, 32), nn.Linear(32, 7), nn.Linear(7, 20), nn.Linear(20, 4))
    DictModel(model, DictOptions(rank=4))
    assert [type(m) for m in model[:3]] == [Odd, nn.Linear, DictLinear]
    assert [n for n, _ in model.named_parameters()] == ["2.table", "3.weight", "3.bias"]


def test_a_rank_of_0_freezes_a_layer():
    model, _ = shaped(mlp, ranks=("0=0",))
    assert [n for n, _ in model.named_parameters()] == ["2.table", "4.weight", "4.bias"]


def test_one_layer_used_twice_stays_one():
    torch.manual_seed(0)
    shared = nn.Linear(16, 16)
    model = nn.Sequential(shared, nn.ReLU(), shared, nn.Linear(16, 3))
    DictModel(model, DictOptions())
    assert model[0] is model[2] and isinstance(model[0], DictLinear)


@pytest.mark.parametrize(
    ("make", "options", "text"),
    [
        (lambda: nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)), {}, "BatchNorm1d"),
        (lambda: nn.Sequential(nn.Conv2d(1, 2, 3)), {}, "no linear layer"),
        (lambda: nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 4)), {}, "no layer has 2 times as many outputs"),
        (mlp, {"ranks": ("9=3",)}, r"ranks for \['9'\]"),
    ],
)
def test_refuses_models_that_it_cannot_shape(make, options, text):
    with pytest.raises(Incompatible, match=text):
        DictModel(make(), DictOptions(**options))


def test_refuses_a_tied_head():
    model = nn.ModuleDict({"words": nn.Embedding(10, 16), "fc": nn.Linear(16, 16), "head": nn.Linear(16, 10)})
    model["head"].weight = model["words"].weight
    with pytest.raises(Incompatible, match="untie"):
        DictModel(model, DictOptions())


@pytest.mark.parametrize("options", [{"rank": 0}, {"ranks": ("fc1",)}, {"ranks": ("=3",)}, {"ranks": ("fc1=-1",)}])
def test_refuses_ranks_that_are_none(options):
    with pytest.raises(ValueError, match="rank"):
        DictOptions(**options)


def test_a_shaped_model_can_be_copied():
    model, _ = shaped(mlp)
    twin = copy.deepcopy(model)
    train(twin, torch.randn(6, 24))
    assert not torch.equal(twin[0].table, model[0].table) and torch.equal(twin[0].base, model[0].base)
