"""Training many clients of a small model at once: their weights stacked, one batched call where there were many.

The mathematics is that of :func:`fedsim.tasks.training.train` for each client, batch by batch and in the same order of
examples; only the kernels differ, so that results agree up to rounding (in float64 to about 1e-15 a step). What is
saved is the cost of a call (Python, autograd, dispatch), which rules where layers are small; large layers gain nothing.

The forward pass is vectorised over the clients by ``torch.func``; the backward pass is ordinary autograd on the sum of
the clients' losses, whose gradient in each client's weights is that of the client's own loss.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from fedsim.tasks.training import TrainConfig, TrainResult, learning_rate, make_optimizer

__all__ = ["Member", "Trained", "obstacle", "train_cohort"]

#: Layers that draw numbers of their own in training, beside dropout.
_RANDOM = (nn.RReLU, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)


@dataclass(frozen=True, slots=True)
class Member:
    """One client of a cohort.

    Attributes:
        x: examples, float, shape ``(n, ...)``, n at least 1, on the model's device.
        y: labels, shape ``(n,)``, int64.
        seed: of this client in this round, see :func:`fedsim.tasks.training.client_seed`; decides the order.
        start: the weights that it starts from, by parameter name, for all that train.
    """

    x: Tensor
    y: Tensor
    seed: int
    start: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Trained:
    """What one client's training gave.

    Attributes:
        weights: the parameters that train, by name; views of the cohort's.
        result: as :func:`fedsim.tasks.training.train` has it.
    """

    weights: dict[str, Tensor]
    result: TrainResult


def obstacle(model: nn.Module) -> str | None:
    """Return why clients of this model must train one by one, or ``None`` if they can train together."""
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and module.track_running_stats:
            return f"{name} ({type(module).__name__}) keeps statistics of each client's batches"
        if isinstance(module, _DropoutNd) and module.p > 0 or isinstance(module, _RANDOM):
            return f"{name} ({type(module).__name__}) draws numbers for each client"
        if isinstance(module, nn.RNNBase | nn.MultiheadAttention):
            return f"{name} ({type(module).__name__}) has no batched form"
    if next(model.buffers(), None) is not None:
        return "it has buffers, which a client may change"
    return None


def train_cohort(
    model: nn.Module,
    members: Sequence[Member],
    config: TrainConfig,
    *,
    round: int,
    flops_per_example: int | None = None,
) -> list[Trained]:
    """Train clients together, each from its own start on its own examples.

    Args:
        model: gives the structure, and the values of what does not train; not modified.
        members: the clients; any sizes, equal ones are fastest.
        config: see :class:`~fedsim.tasks.training.TrainConfig`.
        round: server round, for the schedule.
        flops_per_example: to fill the results' field.

    Returns:
        The members' results, in their order.
    """
    orders = [_batches(member, config) for member in members]
    # Longest first: those that still train are then always a prefix of the stack.
    ranking = sorted(range(len(members)), key=lambda i: -len(orders[i]))
    stack = _Stack(model, [members[i] for i in ranking], config, learning_rate(config, round))
    plans = [orders[i] for i in ranking]
    losses: list[Tensor] = []
    for step in range(len(plans[0])):
        active = sum(len(plan) > step for plan in plans)
        losses.append(stack.step([plan[step] for plan in plans[:active]]))
    results: dict[int, Trained] = {}
    for place, i in enumerate(ranking):
        rows = [len(batch) for batch in orders[i]]
        seen = sum(rows)
        total = sum(float(losses[s][place]) * n for s, n in enumerate(rows))
        flops = None if flops_per_example is None else flops_per_example * seen
        result = TrainResult(len(members[i].y), total / seen if seen else math.nan, len(rows), flops)
        results[i] = Trained(stack.weights(place), result)
    return [results[i] for i in range(len(members))]


def _batches(member: Member, config: TrainConfig) -> list[Tensor]:
    """Return the rows of each step, as :func:`fedsim.tasks.training.train` draws them."""
    generator = torch.Generator().manual_seed(member.seed)
    batches: list[Tensor] = []
    for _ in range(config.epochs):
        order = torch.randperm(len(member.y), generator=generator)
        batches += torch.split(order, config.batch_size)
        if config.max_steps and len(batches) >= config.max_steps:
            return batches[: config.max_steps]
    return batches


class _Stack:
    """The clients' weights, examples and optimiser, clients along the first axis."""

    def __init__(self, model: nn.Module, members: Sequence[Member], config: TrainConfig, lr: float) -> None:
        self._model, self._config, self._lr = model, config, lr
        trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self._fixed = {name: p.detach() for name, p in model.named_parameters() if not p.requires_grad}
        self._whole = {name: torch.stack([m.start[name] for m in members]) for name, _ in trained}
        self._anchor = {name: w.clone() for name, w in self._whole.items()} if config.proximal_mu else None
        self._members = members
        self._active = len(members)
        self._current = self._prefix()
        self._optimizer = make_optimizer(list(self._current.values()), config, lr)

    def weights(self, place: int) -> dict[str, Tensor]:
        """Return one client's weights."""
        return {name: whole[place] for name, whole in self._whole.items()}

    def step(self, rows: Sequence[Tensor]) -> Tensor:
        """Make a step of the first ``len(rows)`` clients and return their losses before it, shape ``(clients,)``."""
        self._shrink(len(rows))
        x, y, share = self._gather(rows)

        def loss_of(weights: dict[str, Tensor], some: Tensor, answers: Tensor) -> Tensor:
            logits = functional_call(self._model, {**weights, **self._fixed}, (some,))
            return functional.cross_entropy(logits, answers, reduction="none")

        self._optimizer.zero_grad(set_to_none=True)
        each = vmap(loss_of)(dict(self._current), x, y)
        losses = each.mean(1) if share is None else (each * share).sum(1)
        losses.sum().backward()  # type: ignore[no-untyped-call]
        self._shape_gradients()
        self._optimizer.step()
        return losses.detach()

    def _prefix(self) -> dict[str, nn.Parameter]:
        return {name: nn.Parameter(whole[: self._active]) for name, whole in self._whole.items()}

    def _shrink(self, active: int) -> None:
        """Leave out the clients that have made all their steps; the others keep their optimiser's state."""
        if active == self._active:
            return
        self._active = active
        states = [self._optimizer.state[p] for p in self._current.values()]
        self._current = self._prefix()
        self._optimizer = make_optimizer(list(self._current.values()), self._config, self._lr)
        for parameter, state in zip(self._current.values(), states, strict=True):
            # A count of steps has no axis of clients; all clients that are left have made as many.
            self._optimizer.state[parameter] = {
                key: value[:active] if isinstance(value, Tensor) and value.dim() else value
                for key, value in state.items()
            }

    def _gather(self, rows: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return examples and labels, filled up where counts differ, and each example's share of its client's mean."""
        most = max(map(len, rows))
        pairs = list(zip(self._members, rows, strict=False))
        if all(len(r) == most for r in rows):
            return torch.stack([m.x[r] for m, r in pairs]), torch.stack([m.y[r] for m, r in pairs]), None
        # Filled up with the client's own first row, whose share is 0.
        filled = [torch.cat([r, r[:1].expand(most - len(r))]) for r in rows]
        counts = torch.tensor([len(r) for r in rows])
        share = (torch.arange(most) < counts[:, None]) / counts[:, None].to(self._members[0].x.dtype)
        x = torch.stack([m.x[r] for (m, _), r in zip(pairs, filled, strict=True)])
        y = torch.stack([m.y[r] for (m, _), r in zip(pairs, filled, strict=True)])
        return x, y, share.to(x.device)

    def _shape_gradients(self) -> None:
        """Add the proximal term's gradient, then clip each client's gradient by its own norm, as torch's clip does."""
        config = self._config
        with torch.no_grad():
            if self._anchor is not None:
                for name, parameter in self._current.items():
                    if parameter.grad is not None:
                        centre = self._anchor[name][: self._active]
                        parameter.grad.add_(parameter - centre, alpha=config.proximal_mu)
            if config.clip_norm:
                _clip(list(self._gradients()), config.clip_norm)

    def _gradients(self) -> Iterator[Tensor]:
        return (p.grad for p in self._current.values() if p.grad is not None)


def _clip(gradients: Sequence[Tensor], most: float) -> None:
    norms = torch.stack([torch.linalg.vector_norm(g.flatten(1), dim=1) for g in gradients])
    factors = (most / (torch.linalg.vector_norm(norms, dim=0) + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factors.view(-1, *[1] * (gradient.dim() - 1)))
