"""Training many clients of a small model at once: their weights stacked, one batched call where there were many.

The mathematics is that of :func:`fedsim.tasks.training.train` for each client, batch by batch and in the same order of
examples; only the kernels differ, so that results agree up to rounding (in float64 to about 1e-15 a step). What is
saved is the cost of a call (Python, autograd, dispatch), which rules where layers are small; large layers gain nothing.

Forward and backward pass are those of :mod:`fedsim.tasks.stacked`: the gradient of the sum of the clients' losses in
each client's weights is that of the client's own loss.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.utils.rnn import pad_sequence

from fedsim.tasks.stacked import stacked_gradients
from fedsim.tasks.training import TrainConfig, TrainResult, learning_rate, make_optimizer

__all__ = ["Member", "Trained", "obstacle", "train_cohort"]

#: Examples up to this size are put into the order of their steps at once.
_AT_ONCE = 128 * 2**20
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
    counts = [_counts(member, config) for member in members]
    # Longest first: those that still train are then always a prefix of the stack.
    ranking = sorted(range(len(members)), key=lambda i: -len(counts[i]))
    deck = _Deck([members[i] for i in ranking], [counts[i] for i in ranking], config)
    stack = _Stack(model, [members[i] for i in ranking], config, learning_rate(config, round))
    losses = torch.zeros(len(deck.widths), len(members), dtype=torch.float64)
    for step in range(len(deck.widths)):
        found = stack.step(*deck.batch(step))
        losses[step, : len(found)] = found
    results: dict[int, Trained] = {}
    for i, column, weights in zip(ranking, losses.T.tolist(), stack.weights(), strict=True):
        seen = sum(counts[i])
        total = sum(loss * n for loss, n in zip(column, counts[i], strict=False))
        flops = None if flops_per_example is None else flops_per_example * seen
        result = TrainResult(len(members[i].y), total / seen if seen else math.nan, len(counts[i]), flops)
        results[i] = Trained(weights, result)
    return [results[i] for i in range(len(members))]


def _counts(member: Member, config: TrainConfig) -> list[int]:
    """Return the number of examples of each step."""
    whole, rest = divmod(len(member.y), config.batch_size)
    epoch = [config.batch_size] * whole + ([rest] if rest else [])
    return (epoch * config.epochs)[: config.max_steps or None]


def _order(member: Member, config: TrainConfig) -> Tensor:
    """Return the rows in the order in which :func:`fedsim.tasks.training.train` goes through them."""
    generator = torch.Generator().manual_seed(member.seed)
    orders = [torch.randperm(len(member.y), generator=generator) for _ in range(config.epochs)]
    return orders[0] if len(orders) == 1 else torch.cat(orders)


class _Deck:
    """The members' examples as they are dealt out, step by step, clients along the first axis.

    Where counts differ, rows are filled up with the client's own first row of the step, whose share of its loss is 0.
    """

    def __init__(self, members: Sequence[Member], counts: Sequence[list[int]], config: TrainConfig) -> None:
        self._counts = counts
        self.widths = [max(c[step] for c in counts if len(c) > step) for step in range(len(counts[0]))]
        self._ends = list(accumulate(self.widths))
        self._members = members
        self._rows = [self._place(_order(m, config), c).to(m.x.device) for m, c in zip(members, counts, strict=True)]
        # Few examples are put into order at once, many step by step.
        self._x = self._y = None
        wanted = sum(rows.numel() * m.x[:1].nbytes for rows, m in zip(self._rows, members, strict=True))
        if max(wanted, sum(m.x.nbytes for m in members)) <= _AT_ONCE:
            starts = torch.tensor(list(accumulate([len(m.y) for m in members[:-1]], initial=0)))
            rows = pad_sequence(self._rows, batch_first=True) + starts.to(members[0].x.device)[:, None]
            self._x, self._y = torch.cat([m.x for m in members])[rows], torch.cat([m.y for m in members])[rows]

    def batch(self, step: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return examples, labels, and each example's share of its client's mean, ``None`` where all are equal."""
        counts = [c[step] for c in self._counts if len(c) > step]
        end, width, active = self._ends[step], self.widths[step], len(counts)
        if self._x is not None and self._y is not None:
            x, y = self._x[:active, end - width : end], self._y[:active, end - width : end]
        else:
            chosen = [(m, rows[end - width : end]) for m, rows in zip(self._members[:active], self._rows, strict=False)]
            x, y = torch.stack([m.x[rows] for m, rows in chosen]), torch.stack([m.y[rows] for m, rows in chosen])
        if all(count == width for count in counts):
            return x, y, None
        sizes = torch.tensor(counts)
        share = (torch.arange(width) < sizes[:, None]) / sizes[:, None].to(self._members[0].x.dtype)
        return x, y, share.to(x.device)

    def _place(self, order: Tensor, counts: list[int]) -> Tensor:
        if counts == self.widths[: len(counts)]:
            return order[: sum(counts)]
        steps = torch.split(order[: sum(counts)], counts)
        return torch.cat([torch.cat([s, s[:1].expand(w - len(s))]) for s, w in zip(steps, self.widths, strict=False)])


class _Stack:
    """The clients' weights, examples and optimiser, clients along the first axis."""

    def __init__(self, model: nn.Module, members: Sequence[Member], config: TrainConfig, lr: float) -> None:
        self._model, self._config, self._lr = model, config, lr
        trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self._fixed = {name: p.detach() for name, p in model.named_parameters() if not p.requires_grad}
        starts = [m.start for m in members]
        if all(start is starts[0] for start in starts):
            count = len(starts)
            self._whole = {n: starts[0][n].repeat(count, *[1] * starts[0][n].dim()) for n, _ in trained}
        else:
            self._whole = {name: torch.stack([start[name] for start in starts]) for name, _ in trained}
        self._anchor = {name: w.clone() for name, w in self._whole.items()} if config.proximal_mu else None
        self._gradients = stacked_gradients(model)
        self._active = len(members)
        self._current = self._prefix()
        self._optimizer = make_optimizer(list(self._current.values()), config, lr)

    def weights(self) -> list[dict[str, Tensor]]:
        """Return each client's weights."""
        names, parts = list(self._whole), zip(*(whole.unbind(0) for whole in self._whole.values()), strict=True)
        return [dict(zip(names, own, strict=True)) for own in parts]

    def step(self, x: Tensor, y: Tensor, share: Tensor | None) -> Tensor:
        """Make a step of the first clients, as many as there are examples of.

        Args:
            x: examples, shape ``(clients, batch, ...)``.
            y: labels, shape ``(clients, batch)``.
            share: of each example in its client's mean loss, ``None`` for equal ones.

        Returns:
            The clients' losses before the step, shape ``(clients,)``.
        """
        self._shrink(len(x))
        weights = {**self._current, **self._still(len(x))}
        losses, gradients = self._gradients(weights, x, y, share, self._current)
        self._move(list(gradients.values()))
        return losses

    def _still(self, active: int) -> dict[str, Tensor]:
        return {name: p.expand(active, *p.shape) for name, p in self._fixed.items()}

    def _move(self, gradients: Sequence[Tensor | None]) -> None:
        config = self._config
        if config.optimizer == "sgd" and not (config.momentum or config.weight_decay or config.proximal_mu):
            with torch.no_grad():
                if config.clip_norm:
                    gradients = _clipped(gradients, config.clip_norm)
                for parameter, gradient in zip(self._current.values(), gradients, strict=True):
                    if gradient is not None:
                        parameter.add_(gradient, alpha=-self._lr)
            return
        for parameter, gradient in zip(self._current.values(), gradients, strict=True):
            parameter.grad = None if gradient is None else gradient.clone()
        self._shape_gradients()
        self._optimizer.step()

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
                clipped = _clipped([p.grad for p in self._current.values()], config.clip_norm)
                for parameter, gradient in zip(self._current.values(), clipped, strict=True):
                    parameter.grad = gradient


def _clipped(gradients: Sequence[Tensor | None], most: float) -> list[Tensor | None]:
    there = [g for g in gradients if g is not None]
    norms = torch.stack([torch.linalg.vector_norm(g.flatten(1), dim=1) for g in there])
    factors = (most / (torch.linalg.vector_norm(norms, dim=0) + 1e-6)).clamp(max=1.0)
    return [None if g is None else g * factors.view(-1, *[1] * (g.dim() - 1)) for g in gradients]
