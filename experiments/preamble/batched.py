"""A federation under PREAMBLE with all clients side by side in one batch: no messages and no share arithmetic.

What stays is what accuracy depends on: training, clipping to the norm, rotation, choice of blocks, clipping
of blocks, rounding to integers, and the exact discrete noise of both aggregators, by the code that a real run uses.
Shares add up exactly (tests/crypto/preamble), so leaving them out changes nothing but the time.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from crypto.base import Tag
from crypto.preamble.noise import NoNoiseForTests
from fedsim.config import FedAvgMConfig, RunConfig, to_run_config
from fedsim.site import Site, secure_plan, site_of
from strategies.preamble import PreambleProtection

State = dict[str, Tensor]


def accuracy(config: RunConfig) -> tuple[float, dict[str, Any]]:
    """Train as :func:`train`; return the accuracy on the test set and the protection's facts."""
    site, state, facts = train(config)
    with torch.no_grad():
        right = functional_call(site.model, state, (site.test_set[0],)).argmax(1) == site.test_set[1]
    return float(right.float().mean()), facts


def train(config: RunConfig) -> tuple[Site, State, dict[str, Any]]:
    """Train as the settings say; return the site, the final weights and the protection's facts.

    The settings must be those of full-batch gradient steps (batch_size at least a client's examples, sgd without
    momentum, constant schedule), all clients in each round, equal numbers of examples, and FedAvgM.

    Raises:
        ValueError: they are not.
    """
    site = site_of(to_run_config(config))
    x, y = _data(site)
    _check(config, x.shape[1])
    noise = _Sum(site) if isinstance(site.protection, PreambleProtection) else None
    state = {name: torch.from_numpy(array.copy()) for name, array in site.initial.arrays.items()}
    velocity: NDArray[np.float64] | float = 0.0
    strategy = config.strategy
    assert isinstance(strategy, FedAvgMConfig)
    for server_round in range(1, config.federation.rounds + 1):
        changes = _changes(site.model, state, x, y, config.training.epochs, config.training.lr)
        total = changes.sum(axis=0) if noise is None else noise(changes, server_round)
        velocity = strategy.server_momentum * velocity + total / len(changes)
        _move(state, strategy.server_lr * velocity)
    return site, state, {} if noise is None else noise.facts


def _data(site: Site) -> tuple[Tensor, Tensor]:
    pairs = [site.train_data(client) for client in range(site.config.federation.num_clients)]
    if len({len(y) for _, y in pairs}) != 1:
        raise ValueError("clients have different numbers of examples: use data.scheme = iid and a divisor of the set")
    return torch.stack([x for x, _ in pairs]), torch.stack([y for _, y in pairs])


def _check(config: RunConfig, examples: int) -> None:
    t, f = config.training, config.federation
    plain = t.optimizer == "sgd" and t.momentum == 0 and t.weight_decay == 0 and t.schedule == "constant"
    whole = t.batch_size >= examples and f.sampled == f.num_clients and config.strategy.name == "fedavgm"
    if not plain or not whole:
        raise ValueError("batched training knows full-batch sgd, all clients in each round and fedavgm; see accuracy()")


def _changes(model: nn.Module, state: State, x: Tensor, y: Tensor, steps: int, lr: float) -> NDArray[np.float64]:
    """Return each client's change of the weights after so many gradient steps, shape ``(clients, D)``."""

    def loss(weights: State, inputs: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(functional_call(model, weights, (inputs,)), labels)

    clients = len(y)
    local = {name: value.expand(clients, *value.shape) for name, value in state.items()}
    gradient = vmap(grad(loss))
    for _ in range(steps):
        slopes = gradient(local, x, y)
        local = {name: value - lr * slopes[name] for name, value in local.items()}
    moved = [(local[name] - value).reshape(clients, -1) for name, value in state.items()]
    return torch.cat(moved, 1).detach().numpy().astype(np.float64)


def _move(state: State, step: NDArray[np.float64]) -> None:
    at = 0
    for name, value in state.items():
        state[name] = value + torch.from_numpy(step[at : at + value.numel()]).reshape(value.shape).float()
        at += value.numel()


class _Sum:
    """The sum of a round as both aggregators open it."""

    def __init__(self, site: Site) -> None:
        assert isinstance(site.protection, PreambleProtection)
        self._protection, plan = site.protection, secure_plan(site)
        self._layout_hash = site.initial.layout.hash
        self._secure = self._protection.secure_sum(plan)
        self.facts = self._protection.facts(plan) | {"upload_bytes": self._secure.budget.upload_bytes}

    def __call__(self, changes: NDArray[np.float64], server_round: int) -> NDArray[np.float64]:
        tag = Tag(round=server_round, layout_hash=self._layout_hash, length=changes.shape[1])
        noise = self._secure.noise() if self._protection.noisy else NoNoiseForTests()
        sampler = self._secure.sampler(tag)
        total = np.zeros(sampler.shape.padded_length, np.int64)
        for change in changes:
            sampler.scatter(sampler.select(self._protection.clip(change)[0]), total)
        for _ in range(2):
            total += noise.draw(total.size)
        return sampler.decode(total)


__all__ = ["accuracy", "train"]
