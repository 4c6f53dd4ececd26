"""Cohort training against the loop, in float64, where equal mathematics means equal results."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedsim.tasks.cohort import Member, obstacle, train_cohort
from fedsim.tasks.stacked import _by_autograd, stacked_forward, stacked_gradients
from fedsim.tasks.training import TrainConfig, train


def mlp(frozen: bool = False) -> nn.Module:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 6), nn.GroupNorm(2, 6), nn.Linear(6, 3)).double()
    if frozen:
        model[0].requires_grad_(False)
    return model


def chain() -> nn.Module:
    """Layers that have a stacked form of their own."""
    torch.manual_seed(5)
    inner = nn.Sequential(nn.Linear(7, 6, bias=False), nn.ReLU())
    return nn.Sequential(nn.Flatten(), nn.Linear(5, 7), nn.Tanh(), inner, nn.Linear(6, 3)).double()


def cnn() -> nn.Module:
    torch.manual_seed(4)
    layers = nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 3)
    return nn.Sequential(*layers).double()


def member(model: nn.Module, size: int, seed: int, shape: tuple[int, ...] = (5,)) -> Member:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, *shape, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 3, (size,), generator=generator)
    start = {n: p.detach() + 0.01 * seed for n, p in model.named_parameters() if p.requires_grad}
    return Member(x, y, seed, start)


def alone(model: nn.Module, one: Member, config: TrainConfig, round: int) -> tuple[dict[str, torch.Tensor], float, int]:
    """Train one client by the loop, without the float32 of its inputs."""
    import copy

    from fedsim.tasks import training

    twin = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in twin.named_parameters():
            if name in one.start:
                parameter.copy_(one.start[name])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "as_inputs", lambda x, device=None: x)
        result = train(twin, one.x, one.y, config, seed=one.seed, round=round)
    return {n: p.detach() for n, p in twin.named_parameters() if p.requires_grad}, result.loss, result.steps


CONFIGS = [
    TrainConfig(batch_size=4, lr=0.1, momentum=0.0),
    TrainConfig(batch_size=4, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01, epochs=2),
    TrainConfig(batch_size=3, lr=0.01, optimizer="adamw", weight_decay=0.1, epochs=2),
    TrainConfig(batch_size=4, lr=0.1, clip_norm=0.2, proximal_mu=0.5, epochs=2),
    TrainConfig(batch_size=4, lr=0.1, max_steps=3, epochs=5, schedule="cosine", schedule_rounds=9),
]


@pytest.mark.parametrize("config", CONFIGS, ids=["sgd", "nesterov", "adamw", "clip-prox", "max-steps"])
@pytest.mark.parametrize("sizes", [[8], [8, 8, 8], [1, 9, 4, 17, 2]], ids=["one", "equal", "unequal"])
@pytest.mark.parametrize("build", [mlp, chain])
def test_equals_the_loop(config: TrainConfig, sizes: list[int], build: Callable[[], nn.Module]) -> None:
    model = build()
    members = [member(model, size, seed) for seed, size in enumerate(sizes)]
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    for one, trained in zip(members, train_cohort(model, members, config, round=2), strict=True):
        weights, loss, steps = alone(model, one, config, 2)
        assert trained.result.steps == steps
        assert trained.result.num_examples == len(one.y)
        np.testing.assert_allclose(trained.result.loss, loss, rtol=1e-12)
        for name, value in weights.items():
            torch.testing.assert_close(trained.weights[name], value, rtol=1e-10, atol=1e-12)
    assert all(torch.equal(before[n], p) for n, p in model.named_parameters())


def test_a_changed_rate_is_seen() -> None:
    model = mlp()
    one = member(model, 8, 1)
    weights, _, _ = alone(model, one, TrainConfig(batch_size=4, lr=0.1, momentum=0.0), 1)
    (other,) = train_cohort(model, [one], TrainConfig(batch_size=4, lr=0.101, momentum=0.0), round=1)
    assert max(float((other.weights[n] - w).abs().max()) for n, w in weights.items()) > 1e-5


@settings(max_examples=20, deadline=None)
@given(sizes=st.lists(st.integers(1, 12), min_size=1, max_size=5), batch=st.integers(1, 6))
def test_convolutions_and_any_sizes_equal_the_loop(sizes: list[int], batch: int) -> None:
    model, config = cnn(), TrainConfig(batch_size=batch, lr=0.05, momentum=0.5)
    members = [member(model, size, seed, (1, 6, 6)) for seed, size in enumerate(sizes)]
    for one, trained in zip(members, train_cohort(model, members, config, round=1), strict=True):
        weights, _, _ = alone(model, one, config, 1)
        for name, value in weights.items():
            torch.testing.assert_close(trained.weights[name], value, rtol=1e-9, atol=1e-11)


def test_frozen_parameters_are_left_alone() -> None:
    model = mlp(frozen=True)
    (trained,) = train_cohort(model, [member(model, 8, 0)], CONFIGS[0], round=1)
    assert set(trained.weights) == {n for n, p in model.named_parameters() if p.requires_grad}
    weights, _, _ = alone(model, member(model, 8, 0), CONFIGS[0], 1)
    torch.testing.assert_close(trained.weights["4.weight"], weights["4.weight"])


def test_order_of_members_does_not_matter() -> None:
    model = mlp()
    members = [member(model, size, seed) for seed, size in enumerate([3, 9, 6])]
    forward = train_cohort(model, members, CONFIGS[1], round=1)
    backward = train_cohort(model, members[::-1], CONFIGS[1], round=1)[::-1]
    for a, b in zip(forward, backward, strict=True):
        torch.testing.assert_close(a.weights, b.weights, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (nn.BatchNorm1d(4), "keeps statistics"),
        (nn.Dropout(0.1), "draws numbers"),
        (nn.LSTM(4, 4), "no batched form"),
    ],
)
def test_names_what_stands_in_the_way(layer: nn.Module, words: str) -> None:
    assert words in (obstacle(nn.Sequential(nn.Linear(4, 4), layer)) or "")


def test_dropout_of_zero_is_no_obstacle() -> None:
    assert obstacle(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.0))) is None


def test_counts_flops_of_all_rows_seen() -> None:
    model = mlp()
    (trained,) = train_cohort(
        model, [member(model, 9, 0)], TrainConfig(batch_size=4, epochs=2), round=1, flops_per_example=7
    )
    assert trained.result.forward_backward_flops == 7 * 18


def test_a_layer_that_is_more_than_its_class_says_is_called() -> None:
    model, x = chain(), torch.randn(2, 4, 5, dtype=torch.float64)
    weights = {n: torch.stack([p.detach(), 2 * p.detach()]) for n, p in model.named_parameters()}
    plain = stacked_forward(model)(weights, x)
    torch.testing.assert_close(plain[0], model(x[0]), rtol=1e-12, atol=1e-12)
    model[1].register_forward_hook(lambda module, inputs, output: output + 1.0)
    torch.testing.assert_close(stacked_forward(model)(weights, x)[0], model(x[0]), rtol=1e-12, atol=1e-12)
    assert not torch.allclose(plain[0], model(x[0]))


@pytest.mark.parametrize("unequal", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
def test_gradients_by_hand_are_autograds(unequal: bool, frozen: bool) -> None:
    torch.manual_seed(6)
    inner = nn.Sequential(nn.Linear(7, 6, bias=False), nn.ReLU())
    model = nn.Sequential(nn.ReLU(), nn.Flatten(), nn.Linear(5, 7), nn.ReLU(), inner, nn.Linear(6, 3)).double()
    weights = {n: torch.stack([p.detach(), 2 * p.detach()]).requires_grad_() for n, p in model.named_parameters()}
    names = [n for n in weights if not frozen or not n.startswith("4")]
    x, y = torch.randn(2, 4, 5, dtype=torch.float64), torch.randint(0, 3, (2, 4))
    share = torch.rand(2, 4, dtype=torch.float64) if unequal else None
    losses, found = stacked_gradients(model)(weights, x, y, share, names)
    wanted_losses, wanted = _by_autograd(stacked_forward(model))(weights, x, y, share, names)
    torch.testing.assert_close(losses, wanted_losses, rtol=1e-12, atol=1e-12)
    assert list(found) == list(wanted) == names
    for name in names:
        torch.testing.assert_close(found[name], wanted[name], rtol=1e-12, atol=1e-12)
    assert stacked_gradients(model).__qualname__ != _by_autograd(stacked_forward(model)).__qualname__


def test_many_examples_are_gathered_step_by_step_to_the_same_end(monkeypatch: pytest.MonkeyPatch) -> None:
    model, config = chain(), TrainConfig(batch_size=4, lr=0.1, epochs=2)
    members = [member(model, size, seed) for seed, size in enumerate([9, 4, 1])]
    at_once = train_cohort(model, members, config, round=1)
    monkeypatch.setattr("fedsim.tasks.cohort._AT_ONCE", 0)
    for one, other in zip(at_once, train_cohort(model, members, config, round=1), strict=True):
        assert all(torch.equal(one.weights[n], other.weights[n]) for n in one.weights)
