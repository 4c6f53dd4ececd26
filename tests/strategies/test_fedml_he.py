"""FedML-HE and FedHE-Top2: what is scored, what is sealed, what stays in the clear."""

import numpy as np
import pytest
import torch
from flwr.app import RecordDict
from torch import nn
from torch.nn import functional

from crypto.base import Plan
from strategies.client import ClientHalf
from strategies.errors import Incompatible
from strategies.fedml_he import FedMLHE, FedMLHEClient, sensitivity, top
from strategies.fedtop import FedTop, TopClient
from strategies.plan import BufferRule, RoundPlan
from strategies.protection import Plain
from strategies.records import NamedArrays, array_record
from strategies.state import buffer_names, load_state_arrays, state_arrays


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 7), nn.Tanh(), nn.Linear(7, 3))


X = [torch.randn(10, 6, generator=torch.Generator().manual_seed(c)) for c in range(3)]
Y = [torch.arange(10) % 3 for _ in range(3)]


def test_a_score_is_the_mean_of_each_examples_absolute_gradient():
    model = mlp()
    names = tuple(state_arrays(model))
    expected = np.zeros(sum(p.numel() for p in model.parameters()))
    for x, y in zip(X[0], Y[0], strict=True):
        model.zero_grad()
        functional.cross_entropy(model(x[None]), y[None]).backward()
        expected += np.concatenate([p.grad.abs().reshape(-1).numpy() for p in model.parameters()]) / 10
    model.zero_grad()
    functional.cross_entropy(model(X[0]), Y[0]).backward()
    batch = np.concatenate([p.grad.abs().reshape(-1).numpy() for p in model.parameters()])
    found = sensitivity(model, X[0], Y[0], names)
    assert np.abs(found - expected).max() < 1e-6
    assert np.abs(found - batch).max() > 1e-3, "the batch's gradient cancels; the score must not"


def test_the_score_is_the_gradients_sensitivity_to_the_label():
    """The paper's definition with soft targets: mean_k |d/dy_k (dl/dw_m)| with l linear in the target."""
    model = nn.Sequential(nn.Linear(2, 2, bias=False))
    x, label = torch.tensor([[0.5, -1.0]]), 1
    target = torch.zeros(1, 2, requires_grad=True)
    loss = -(target * functional.log_softmax(model(x), 1)).sum()
    (gradient,) = torch.autograd.grad(loss, model[0].weight, create_graph=True)
    expected = [
        torch.autograd.grad(g, target, retain_graph=True)[0][0, label].abs().item() for g in gradient.reshape(-1)
    ]
    assert sensitivity(model, x, torch.tensor([label]), ("0.weight",)) == pytest.approx(expected, abs=1e-6)


def test_scoring_in_pieces_gives_the_same(monkeypatch):
    import strategies.fedml_he as module

    model = mlp()
    names = tuple(state_arrays(model))
    whole = sensitivity(model, X[0], Y[0], names)
    monkeypatch.setattr(module, "_HELD", 400)
    assert np.abs(sensitivity(model, X[0], Y[0], names) - whole).max() < 1e-7


@pytest.mark.parametrize(("share", "expected"), [(0.0, ""), (0.1, "1"), (0.4, "12"), (0.6, "123"), (1.0, "01234")])
def test_of_equal_scores_the_first_are_taken(share, expected):
    assert "".join(map(str, np.flatnonzero(top(np.array([0.0, 2.0, 1.0, 1.0, 0.0]), share)))) == expected


class Watched(FedMLHEClient):
    """Scores on the clients' data, as the client app does, and notes the masks and vectors."""

    def __init__(self, *args):
        super().__init__(*args)
        self.seen, self.trained = {}, mlp()
        self.shape(self.trained)

    def receive(self, content, protection, known, buffers, memory):
        state = super().receive(content, protection, known, buffers, memory)
        plan = RoundPlan.from_record(content.config_records["config"])
        self.examining = (state, plan, memory)
        return state

    def look(self, client):
        state, plan, memory = self.examining
        load_state_arrays(self.trained, state.arrays)
        self.examine(self.trained, X[client], Y[client], plan, memory)

    def vectors(self, state, own, change, plan, secret):
        out = super().vectors(state, own, change, plan, secret)
        self.seen.setdefault(plan.round, []).append((state["mask"].copy(), [v.size for v in out]))
        return out


def step(half):
    def update(client, arrays, server_round):
        if isinstance(half, Watched):
            half.look(client)
        model = mlp()
        load_state_arrays(model, arrays)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            functional.cross_entropy(model(X[client]), Y[client]).backward()
            optimizer.step()
        return state_arrays(model)

    return update


def run(toy_grid, toy_handler, half, strategy, rounds=4):
    app = toy_handler(step(half), examples=lambda c: 10 * (c + 1), half=half)
    start = NamedArrays(state_arrays(mlp()))
    strategy.start(toy_grid(3, app), array_record(start), num_rounds=rounds)
    return start


def test_a_run_equals_fedavg_and_all_clients_use_one_mask(toy_grid, toy_handler):
    from strategies.fedavg import FedAvg

    half, strategy = Watched(0.25), FedMLHE()
    start = run(toy_grid, toy_handler, half, strategy)
    final = FedMLHEClient(0.25)
    final.shape(mlp())
    found = final.receive(strategy.message_content(4), Plain(), start, frozenset(), RecordDict())
    averaged = FedAvg()
    run(toy_grid, toy_handler, ClientHalf(), averaged)
    for name, array in averaged.state.arrays.items():
        assert np.abs(found.arrays[name] - array).max() < 1e-6
    total = sum(a.size for a in start.arrays.values())
    hidden = int(np.ceil(0.25 * total))
    for server_round, notes in half.seen.items():
        masks = [mask for mask, _ in notes]
        assert all(np.array_equal(masks[0], m) for m in masks)
        assert masks[0].sum() == (total if server_round == 1 else hidden)
        assert notes[0][1] == ([2 * total, 0] if server_round == 1 else [hidden, total - hidden])
    maps = [sensitivity(mlp(), x, y, tuple(start.arrays)) for x, y in zip(X, Y, strict=True)]
    assert np.array_equal(half.seen[2][0][0], top(np.average(maps, axis=0, weights=[1, 2, 3]), 0.25))


def test_rescoring_changes_the_mask(toy_grid, toy_handler):
    half = Watched(0.25)
    run(toy_grid, toy_handler, half, FedMLHE(every=2), rounds=5)
    masks = {r: notes[0][0] for r, notes in half.seen.items()}
    assert np.array_equal(masks[2], masks[3]) and not np.array_equal(masks[3], masks[4])
    assert [notes[0][1][0] > 2 * 25 for notes in half.seen.values()] == [True, False, True, False, True]


def test_a_clear_part_that_cannot_be_added_leaves_the_sum_alone(toy_grid, toy_handler):
    """The sealed part is good, the clear one damaged: neither counts."""
    half, strategy = Watched(0.25), FedMLHE()
    app = toy_handler(step(half), examples=lambda c: 10, half=half)

    def damaging(message, context):
        reply = app(message, context)
        if message.metadata.message_type == "train" and context.node_config["partition-id"] == 1:
            from flwr.app import Array, ArrayRecord

            parts = {k: v for k, v in reply.content["sealed"].items()}
            parts["1"] = Array(dtype="uint8", shape=(3,), stype=parts["1"].stype, data=b"abc")
            reply.content["sealed"] = ArrayRecord(parts)
        return reply

    strategy.start(toy_grid(3, damaging), array_record(NamedArrays(state_arrays(mlp()))), num_rounds=2)
    assert all(heard.weight == 20.0 for heard in strategy.heard.values())


def test_a_scoring_round_without_a_map_is_an_error():
    half = FedMLHEClient()
    half.shape(mlp())
    start = NamedArrays(state_arrays(mlp()))
    plan = RoundPlan(
        strategy="fedml-he", round=1, rounds=1, names=("x",), layout_hash=bytes(16), payload="delta",
        weighting="examples", weight_scale=1.0, buffers="average", first_partition=-1,
        secure=Plan(length=8, clients=3, bound=1.0), extras={"score": True},
    )  # fmt: skip
    with pytest.raises(ValueError, match="no map"):
        half.vectors(half.first(start), {}, start, plan, b"")


@pytest.mark.parametrize("make", [lambda: FedMLHE(every=-1), lambda: FedMLHEClient(1.5), lambda: FedTop(layers=0)])
def test_refuses_options_out_of_range(make):
    with pytest.raises(ValueError, match="must"):
        make()


@pytest.mark.parametrize("half", [FedMLHEClient(), TopClient()])
def test_refuses_batch_norm(half):
    with pytest.raises(Incompatible, match="BatchNorm1d"):
        half.shape(nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)))


def test_the_last_two_layers_alone_train_and_travel(toy_grid, toy_handler):
    model, half = mlp(), TopClient(2)
    half.shape(model)
    frozen = buffer_names(model)
    assert frozen == {"0.weight", "0.bias"}
    assert [n for n, _ in model.named_parameters()] == ["2.weight", "2.bias", "4.weight", "4.bias"]
    strategy = FedTop(buffers=BufferRule(names=frozen))

    def update(client, arrays, server_round):
        load_state_arrays(model, arrays)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        functional.cross_entropy(model(X[client]), Y[client]).backward()
        optimizer.step()
        return state_arrays(model)

    start = NamedArrays(state_arrays(model))
    app = toy_handler(update, half=half, buffer_names=frozen)
    strategy.start(toy_grid(3, app), array_record(start), num_rounds=2)
    after = strategy.state.arrays
    assert {n for n in after if not np.array_equal(after[n], start.arrays[n])} == set(after) - frozen
    assert strategy.longest(start.layout).length == 8 * 7 + 7 + 7 * 3 + 3


def test_more_layers_than_there_are_is_refused():
    with pytest.raises(Incompatible, match="the model has 3 layers with weights"):
        TopClient(4).shape(mlp())
