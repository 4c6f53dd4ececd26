"""Local training: the obvious loop as reference, seeds, FedProx, batch normalisation, empty clients."""

import math
import time
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedsim.tasks import training
from fedsim.tasks.data import load_dataset
from fedsim.tasks.errors import BadOption, EmptyClient
from fedsim.tasks.flops import flops_per_example
from fedsim.tasks.models import build_model
from fedsim.tasks.training import (
    TrainConfig,
    as_inputs,
    client_seed,
    evaluate,
    learning_rate,
    make_optimizer,
    train,
)
from strategies.state import state_arrays

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((21, 6)).astype(np.float32), RNG.integers(0, 3, 21)


def _model(name: str = "mlp", **options: object) -> nn.Module:
    return build_model(name, input_shape=(6,), num_classes=3, seed=0, **options)


def _weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize(
    "config",
    [
        TrainConfig(epochs=2, batch_size=8, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
        TrainConfig(epochs=1, batch_size=5, lr=0.01, optimizer="adamw", clip_norm=0.1, proximal_mu=0.5),
    ],
)
def test_training_equals_the_obvious_loop(config: TrainConfig) -> None:
    model, twin = _model(), _model()
    start = [p.detach().clone() for p in twin.parameters()]
    result = train(model, X, Y, config, seed=7, round=1)
    torch.manual_seed(7)
    if config.optimizer == "sgd":
        optimizer: torch.optim.Optimizer = torch.optim.SGD(
            twin.parameters(), lr=config.lr, momentum=0.9, nesterov=True, weight_decay=0.01
        )
    else:
        optimizer = torch.optim.AdamW(twin.parameters(), lr=config.lr, weight_decay=0.0)
    x, y, losses = torch.tensor(X), torch.tensor(Y), []
    for _ in range(config.epochs):
        for rows in torch.randperm(len(x)).split(config.batch_size):
            optimizer.zero_grad()
            loss = functional.cross_entropy(twin(x[rows]), y[rows])
            losses += [loss.item()] * len(rows)
            distance = sum(((p - s) ** 2).sum() for p, s in zip(twin.parameters(), start, strict=True))
            (loss + config.proximal_mu / 2 * distance).backward()
            if config.clip_norm:
                nn.utils.clip_grad_norm_(twin.parameters(), config.clip_norm)
            optimizer.step()
    assert torch.allclose(_weights(model), _weights(twin), atol=1e-6)
    assert result.loss == pytest.approx(np.mean(losses), rel=1e-5)
    assert result.num_examples == 21 and result.steps == config.epochs * math.ceil(21 / config.batch_size)


def test_a_seed_decides_every_bit_and_the_global_generator_is_left_alone() -> None:
    ends = []
    for seed in (1, 1, 2):
        torch.manual_seed(len(ends))
        before = torch.get_rng_state()
        model = nn.Sequential(_model(hidden=(8,)), nn.Dropout(0.5))
        train(model, X, Y, TrainConfig(batch_size=4), seed=seed, round=1)
        assert torch.equal(torch.get_rng_state(), before)
        ends.append(_weights(model))
    assert torch.equal(ends[0], ends[1]) and not torch.equal(ends[0], ends[2])


def test_client_seeds_are_distinct_and_fixed() -> None:
    seeds = {client_seed(s, r, c) for s in range(8) for r in range(8) for c in range(8)}
    assert len(seeds) == 512 and all(0 <= s < 2**63 for s in seeds)
    assert client_seed(0, 1, 2) != client_seed(0, 2, 1) != client_seed(2, 1, 0)
    assert client_seed(7, 1, 3) == CLIENT_SEED_7_1_3
    with pytest.raises(BadOption, match=r"round -1 must lie in \[0, 2\^32\)"):
        client_seed(0, -1, 0)


#: Written down once: a change would silently change every run of every user.
CLIENT_SEED_7_1_3 = 2875617297067602867


@pytest.mark.report("U75", "the client is left out by name")
def test_an_empty_client_is_refused_by_name() -> None:
    for call in (
        lambda: train(_model(), X[:0], Y[:0], TrainConfig(), seed=0, round=1),
        lambda: evaluate(_model(), X[:0], Y[:0]),
    ):
        with pytest.raises(EmptyClient, match="0 examples.*leave this client out"):
            call()


def test_refuses_labels_that_do_not_match_and_models_that_cannot_train() -> None:
    with pytest.raises(BadOption, match="21 examples, 20 labels"):
        train(_model(), X, Y[:20], TrainConfig(), seed=0, round=1)
    with pytest.raises(BadOption, match="unfreeze a layer"):
        train(_model().requires_grad_(False), X, Y, TrainConfig(), seed=0, round=1)


def test_read_only_data_is_not_modified_and_bytes_become_minus_one_to_one() -> None:
    x = np.array([[0, 255, 51]], np.uint8)
    x.flags.writeable = False
    assert torch.allclose(as_inputs(x), torch.tensor([[-1.0, 1.0, -0.6]]))
    assert x.tolist() == [[0, 255, 51]]


def _normed() -> nn.Module:
    return nn.Sequential(_model(hidden=(5,)), nn.BatchNorm1d(3))


def test_a_last_batch_of_one_is_left_out_under_batch_norm() -> None:
    result = train(_normed(), X, Y, TrainConfig(epochs=2, batch_size=5), seed=0, round=1)
    assert result.steps == 8 and result.num_examples == 21 and math.isfinite(result.loss)
    assert train(_model(), X, Y, TrainConfig(epochs=2, batch_size=5), seed=0, round=1).steps == 10


def test_a_client_of_one_trains_under_batch_norm_with_running_statistics() -> None:
    model = _normed()
    before, statistics = _weights(model), model[1].running_mean.clone()
    result = train(model, X[:1], Y[:1], TrainConfig(), seed=0, round=1)
    assert result.steps == 1 and not torch.equal(_weights(model), before)
    assert torch.equal(model[1].running_mean, statistics) and model[1].training


def test_modes_are_restored() -> None:
    model = _normed()
    model[0].eval()
    train(model, X, Y, TrainConfig(), seed=0, round=1)
    evaluate(model, X, Y)
    assert not model[0].training and model[1].training


def test_proximal_term_pulls_towards_the_given_centre() -> None:
    centre = {name: np.zeros_like(array) for name, array in state_arrays(_model()).items()}
    lengths = []
    for mu in (0.0, 1.0, 10.0):
        model = _model()
        config = TrainConfig(epochs=5, lr=0.02, momentum=0.0, proximal_mu=mu)
        train(model, X, Y, config, seed=0, round=1, global_weights=centre)
        lengths.append(float(_weights(model).norm()))
    assert lengths[0] > lengths[1] > lengths[2]
    with pytest.raises(BadOption, match="global_weights lack parameter '1.weight'"):
        train(_model(), X, Y, TrainConfig(proximal_mu=1.0), seed=0, round=1, global_weights={})


def test_frozen_parameters_stay() -> None:
    model = _model()
    model[1].weight.requires_grad_(False)
    frozen = model[1].weight.clone()
    train(model, X, Y, TrainConfig(proximal_mu=0.1, clip_norm=1.0), seed=0, round=1)
    assert torch.equal(model[1].weight, frozen)


def test_max_steps_stops() -> None:
    assert train(_model(), X, Y, TrainConfig(epochs=9, batch_size=4, max_steps=7), seed=0, round=1).steps == 7


def test_schedules_by_hand() -> None:
    def rates(schedule: str, rounds: list[int]) -> list[float]:
        config = TrainConfig(lr=1.0, schedule=schedule, schedule_rounds=8)  # type: ignore[arg-type]
        return [learning_rate(config, r) for r in rounds]

    assert rates("constant", [0, 1, 99]) == [1, 1, 1]
    assert rates("cosine", [1, 5, 9, 50]) == pytest.approx([1, 0.5, 0.01, 0.01])
    assert rates("step", [1, 4, 5, 7, 9]) == pytest.approx([1, 1, 0.1, 0.01, 0.01])
    assert rates("inverse-sqrt", [1, 2, 4]) == pytest.approx([1, 2**-0.5, 0.5])


def test_a_bad_config_names_every_problem() -> None:
    with pytest.raises(BadOption) as caught:
        TrainConfig(epochs=0, lr=math.nan, momentum=1.0, optimizer="adam", schedule="cosine")  # type: ignore[arg-type]
    for part in ("epochs 0", "lr nan", "momentum 1.0", "optimizer 'adam' is unknown", "needs schedule_rounds"):
        assert part in str(caught.value)


@pytest.mark.parametrize("batch_size", [1, 4, 21, 99])
def test_evaluation_does_not_depend_on_the_batch_size(batch_size: int) -> None:
    model = _model()
    logits = model(torch.tensor(X))
    result = evaluate(model, X, Y, batch_size)
    assert result.loss == pytest.approx(functional.cross_entropy(logits, torch.tensor(Y)).item(), rel=1e-5)
    assert result.correct == int((logits.argmax(1) == torch.tensor(Y)).sum()) and result.num_examples == 21
    assert result.accuracy == result.correct / 21


def test_flops_by_hand_and_frozen_layers_cost_less() -> None:
    model = build_model("mlp", input_shape=(6,), num_classes=3, seed=0, hidden=(4,))
    # Forward 2*(6*4 + 4*3); backward: weights the same again, inputs of the second layer 2*4*3.
    assert flops_per_example(model, (6,)) == 2 * (24 + 12) * 2 + 24
    model[1].weight.requires_grad_(False)
    assert flops_per_example(model, (6,)) < 2 * (24 + 12) * 2 + 24
    result = train(_model(), X, Y, TrainConfig(epochs=2), seed=0, round=1, flops_per_example=10)
    assert result.forward_backward_flops == 420


@pytest.mark.parametrize(("name", "kind", "least"), [("digits", "cnn", 0.9), ("breast-cancer", "logistic", 0.93)])
def test_real_data_is_learnt(name: str, kind: str, least: float) -> None:
    data = load_dataset(name)
    model = build_model(kind, input_shape=data.input_shape, num_classes=data.num_classes, seed=0)
    train(model, data.train_x, data.train_y, TrainConfig(epochs=5), seed=0, round=1)
    assert evaluate(model, data.test_x, data.test_y).accuracy > least


@pytest.mark.slow
def test_an_epoch_costs_little_more_than_the_bare_loop() -> None:
    data = load_dataset("fashion-mnist")
    x, y = as_inputs(data.train_x[:250]), torch.tensor(data.train_y[:250])
    model = build_model("cnn", input_shape=data.input_shape, num_classes=10, seed=0)

    def bare() -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
        for rows in torch.randperm(250).split(32):
            optimizer.zero_grad()
            functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()

    def ours() -> None:
        train(model, x, y, TrainConfig(lr=1e-4), seed=0, round=1)

    def seconds(function: object) -> float:
        start = time.process_time()
        function()  # type: ignore[operator]
        return time.process_time() - start

    pairs = [(seconds(ours), seconds(bare)) for _ in range(25)]
    best_ours, best_bare = (min(times) for times in zip(*pairs, strict=True))
    assert best_ours < 1.05 * best_bare


@pytest.mark.parametrize(
    "options",
    [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}, {"optimizer": "adamw"}],
)
def test_steps_equal_torchs_optimiser_to_the_bit(options: dict[str, Any]) -> None:
    config = TrainConfig(epochs=2, batch_size=8, lr=0.1, **({"momentum": 0.0} | options))
    model, twin = _model(), _model()
    train(model, X, Y, config, seed=7, round=1)
    torch.manual_seed(7)
    optimizer = make_optimizer(list(twin.parameters()), config, config.lr)
    for _ in range(config.epochs):
        for rows in torch.randperm(len(X)).split(config.batch_size):
            optimizer.zero_grad()
            functional.cross_entropy(twin(torch.tensor(X)[rows]), torch.tensor(Y)[rows]).backward()
            optimizer.step()
    assert torch.equal(_weights(model), _weights(twin))


class _Twice(nn.Module):
    """Two parameters to which autograd gives one gradient, beside a model."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.a, self.b = _model(), nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.inner(x)
        return logits + (self.a + self.b)


@pytest.mark.parametrize("options", [{"clip_norm": 0.01}, {"proximal_mu": 0.7}])
def test_parameters_that_share_a_gradient_each_get_it_once(options: dict[str, Any]) -> None:
    model, twin, config = _Twice(), _Twice(), TrainConfig(batch_size=21, momentum=0.0, lr=0.1, **options)
    train(model, X, Y, config, seed=7, round=1)
    functional.cross_entropy(twin(torch.tensor(X)), torch.tensor(Y)).backward()
    if config.clip_norm:
        nn.utils.clip_grad_norm_(twin.parameters(), config.clip_norm)
    torch.optim.SGD(twin.parameters(), lr=0.1).step()
    assert torch.allclose(_weights(model), _weights(twin), atol=1e-6)
    assert torch.equal(model.a, model.b) and model.a.abs().max() > 0


def _trained(config: TrainConfig) -> tuple[nn.Module, float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    x, y = torch.randn(40, 6), torch.randint(0, 3, (40,))
    return model, train(model, x, y, config, seed=1, round=1).loss


def test_bf16_rounds_what_passes_and_keeps_weights_in_float32() -> None:
    whole, half = (TrainConfig(batch_size=8, epochs=3, precision=p) for p in ("float32", "bf16"))
    (exact, loss), (rounded, near), (again, same) = _trained(whole), _trained(half), _trained(half)
    assert near == same and near == pytest.approx(loss, rel=0.05) and near != loss
    for one, two, three in zip(exact.parameters(), rounded.parameters(), again.parameters(), strict=True):
        assert two.dtype == torch.float32 and torch.equal(two, three) and not torch.equal(one, two)
        torch.testing.assert_close(one, two, rtol=0.05, atol=0.02)


def test_refuses_an_unknown_precision() -> None:
    with pytest.raises(BadOption, match="precision 'fp8' is unknown: choose one of float32, bf16"):
        TrainConfig(precision="fp8")  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_compiled_model_trains_to_the_same_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    compile_ = torch.compile
    monkeypatch.setattr(training, "_BACKEND", "aot_eager")
    monkeypatch.setattr(torch, "compile", lambda m, backend: compiled.append(backend) or compile_(m, backend=backend))
    (plain, loss), (other, near) = (
        _trained(TrainConfig(batch_size=8)),
        _trained(TrainConfig(batch_size=8, compile=True)),
    )
    assert compiled == ["aot_eager"] and near == pytest.approx(loss, rel=1e-5)
    for one, two in zip(plain.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)
