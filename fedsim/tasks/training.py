"""Local training and evaluation of one client: plain loops over tensors that are made once.

What a client computes depends on its seed, the model and the data alone: :func:`client_seed` gives one seed for each
(run seed, round, client), and torch's global generator is left as it was.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Literal, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.sgd import sgd

from fedsim.tasks.errors import BadOption, EmptyClient

__all__ = [
    "EvalResult",
    "TrainConfig",
    "TrainResult",
    "as_inputs",
    "client_seed",
    "evaluate",
    "learning_rate",
    "make_optimizer",
    "train",
]

OptimizerName = Literal["sgd", "adamw"]
PrecisionName = Literal["float32", "bf16"]
ScheduleName = Literal["constant", "cosine", "step", "inverse-sqrt"]

#: Separates this hash from every other use of the same numbers.
_SEED_DOMAIN = b"fedsim-client-seed-v1"
#: Of torch.compile.
_BACKEND = "inductor"
#: Examples up to this size are reordered by one copy an epoch.
_GATHER_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """How a client trains in one round.

    Attributes:
        epochs: passes over the client's examples.
        batch_size: examples of one step; the last batch of an epoch may be smaller.
        optimizer: ``sgd`` or ``adamw``; its state lives for one round.
        lr: learning rate of round 1.
        momentum: of ``sgd``, in [0, 1).
        weight_decay: L2 term of ``sgd``, decoupled decay of ``adamw``.
        nesterov: whether ``sgd`` uses Nesterov's momentum.
        schedule: how the rate changes from round to round, see :func:`learning_rate`.
        schedule_rounds: length of the schedule in rounds; needed by ``cosine`` and ``step``.
        clip_norm: largest L2 norm of a step's gradient over all parameters; 0 for no clipping.
        proximal_mu: FedProx's mu (Li et al. 2020, eq. 2): adds ``mu / 2 * |w - w_global|^2`` to the loss.
        max_steps: stop after so many steps, 0 for no limit.
        precision: ``bf16`` makes the forward and backward pass under torch's autocast; weights, their gradients and the
            optimiser stay as they are.
        compile: run the model through ``torch.compile``; the first step of a process compiles.
    """

    epochs: int = 1
    batch_size: int = 32
    optimizer: OptimizerName = "sgd"
    lr: float = 0.05
    momentum: float = 0.9
    weight_decay: float = 0.0
    nesterov: bool = False
    schedule: ScheduleName = "constant"
    schedule_rounds: int = 0
    clip_norm: float = 0.0
    proximal_mu: float = 0.0
    max_steps: int = 0
    precision: PrecisionName = "float32"
    compile: bool = False

    def __post_init__(self) -> None:
        problems = list(self._problems())
        if problems:
            raise BadOption("; ".join(problems))

    def _problems(self) -> Iterator[str]:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, float | int) and not (math.isfinite(value) and value >= 0):
                yield f"{field.name} {value} must be finite and not negative"
        for name in ("epochs", "batch_size", "lr"):
            if not getattr(self, name) > 0:
                yield f"{name} {getattr(self, name)} must be above 0"
        if self.optimizer not in get_args(OptimizerName):
            yield f"optimizer '{self.optimizer}' is unknown: choose one of {', '.join(get_args(OptimizerName))}"
        if self.schedule not in get_args(ScheduleName):
            yield f"schedule '{self.schedule}' is unknown: choose one of {', '.join(get_args(ScheduleName))}"
        if self.schedule in ("cosine", "step") and self.schedule_rounds < 1:
            yield f"schedule '{self.schedule}' needs schedule_rounds of at least 1: give the run's rounds"
        if self.precision not in get_args(PrecisionName):
            yield f"precision '{self.precision}' is unknown: choose one of {', '.join(get_args(PrecisionName))}"
        if self.momentum >= 1:
            yield f"momentum {self.momentum} must be below 1"
        if self.nesterov and not (self.momentum > 0 and self.optimizer == "sgd"):
            yield "nesterov needs sgd with a momentum above 0: set momentum 0.9 or nesterov false"


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What one client's training gave.

    Attributes:
        num_examples: number of the client's examples, the weight of its update.
        loss: mean training loss over all examples of all steps, before each step; NaN if no step was made.
        steps: optimizer steps.
        forward_backward_flops: counted floating-point operations of all steps, ``None`` if not asked for.
    """

    num_examples: int
    loss: float
    steps: int
    forward_backward_flops: int | None = None


@dataclass(frozen=True, slots=True)
class EvalResult:
    """What an evaluation gave.

    Attributes:
        loss: mean cross-entropy in nats.
        accuracy: share of right answers, ``correct / num_examples``.
        num_examples: number of examples.
        correct: number of right answers.
        class_correct: of these, by class number.
        class_total: examples by class number.
    """

    loss: float
    accuracy: float
    num_examples: int
    correct: int
    class_correct: tuple[int, ...] = ()
    class_total: tuple[int, ...] = ()


def client_seed(seed: int, round: int, client_id: int) -> int:
    """Return a seed in [0, 2^63) for one client in one round: SHA-256 over a domain string and the three numbers.

    Args:
        seed: seed of the run, in [0, 2^64).
        round: server round, in [0, 2^32).
        client_id: client number, in [0, 2^64).

    Raises:
        BadOption: a number is out of range.
    """
    for name, value, bits in (("seed", seed, 64), ("round", round, 32), ("client_id", client_id, 64)):
        if not 0 <= value < 2**bits:
            raise BadOption(f"{name} {value} must lie in [0, 2^{bits})")
    text = _SEED_DOMAIN + seed.to_bytes(8, "little") + round.to_bytes(4, "little") + client_id.to_bytes(8, "little")
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little") >> 1


def learning_rate(config: TrainConfig, round: int) -> float:
    """Return the rate of a round, counted from 1 (round 0 counts as 1).

    With r rounds done before and R = ``schedule_rounds``: ``constant`` keeps lr; ``cosine`` is
    ``lr * (1 + cos(pi * r / R)) / 2`` down to 1 % of lr; ``step`` divides by 10 at half and at three quarters of R;
    ``inverse-sqrt`` is ``lr / sqrt(1 + r)``.
    """
    done = max(round - 1, 0)
    if config.schedule == "cosine":
        return config.lr * max((1 + math.cos(math.pi * min(done / config.schedule_rounds, 1.0))) / 2, 0.01)
    if config.schedule == "step":
        return config.lr * 0.1 ** ((2 * done >= config.schedule_rounds) + (4 * done >= 3 * config.schedule_rounds))
    if config.schedule == "inverse-sqrt":
        return config.lr / math.sqrt(1 + done)
    return config.lr


def as_inputs(x: NDArray[Any] | Tensor, device: torch.device | None = None) -> Tensor:
    """Return examples as a tensor on `device`, `x` unmodified.

    Bytes 0..255 become float32 in -1..1, token ids (int32 or int64) become int64, floats become float32.
    """
    tensor = x if isinstance(x, Tensor) else torch.tensor(x)
    if tensor.dtype in (torch.int32, torch.int64):
        return tensor.to(device, torch.int64)
    if tensor.dtype == torch.uint8:
        return tensor.to(device).to(torch.float32).div_(127.5).sub_(1.0)
    return tensor.to(device, torch.float32)


def train(
    model: nn.Module,
    x: NDArray[Any] | Tensor,
    y: NDArray[np.int64] | Tensor,
    config: TrainConfig,
    *,
    seed: int,
    round: int,
    global_weights: Mapping[str, NDArray[Any] | Tensor] | None = None,
    flops_per_example: int | None = None,
) -> TrainResult:
    """Train a model in place on one client's examples with cross-entropy.

    Each epoch goes through a new permutation. A last batch of one example is left out where the model has batch
    normalisation and the client has more examples (one example has no variance); a client with one example in all
    trains with the running statistics instead. Only parameters with ``requires_grad`` change; a module none of
    whose parameters do stays in evaluation mode (no dropout, fixed statistics).

    Args:
        model: on any device; left in training mode as it was found.
        x: examples, see :func:`as_inputs`; not modified.
        y: shape ``(n,)``, int64.
        config: see :class:`TrainConfig`.
        seed: of this client in this round, see :func:`client_seed`; decides order and dropout.
        round: server round, for the schedule.
        global_weights: the proximal term's centre by parameter name; ``None`` for the weights at the start.
        flops_per_example: as :func:`flops_per_example` counts them, to fill the result's field.

    Raises:
        EmptyClient: there are no examples.
        BadOption: examples and labels differ in number, or the centre lacks a parameter.
    """
    device = next(model.parameters()).device
    inputs, labels = _tensors(x, y, device)
    parameters = [p for p in model.parameters() if p.requires_grad]
    step = _stepper(parameters, config, learning_rate(config, round))
    anchor = _anchor(model, global_weights) if config.proximal_mu else None
    forward = _forward(model, config, device)
    with _mode(model, training=True) as modules, _forked(seed, device):
        losses, seen = [], 0
        for some, answers in _batches(inputs, labels, config, _freeze_statistics(modules, len(labels))):
            loss = functional.cross_entropy(forward(some), answers)
            # Not backward(): gradients that nobody else reads need no place in the parameters.
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
            step(_shaped(parameters, gradients, anchor, config))
            losses.append(loss.detach() * answers.shape[0])
            seen += answers.shape[0]
    mean = float(torch.stack(losses).sum(dtype=torch.float64)) / seen if seen else math.nan
    flops = None if flops_per_example is None else flops_per_example * seen
    return TrainResult(len(labels), mean, len(losses), flops)


def _forward(model: nn.Module, config: TrainConfig, device: torch.device) -> Callable[[Tensor], Tensor]:
    """Return what gives the logits in training."""
    called = _COMPILED.of(model) if config.compile else model
    if config.precision == "float32":
        return called

    def forward(x: Tensor) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16):
            logits: Tensor = called(x)
        # The loss has sums over classes, for which 8 bits are few.
        return logits.float()

    return forward


class _Compiled:
    """The last model that was compiled, as such; a process's clients share one."""

    def __init__(self) -> None:
        self._last: tuple[nn.Module, Callable[[Tensor], Tensor]] | None = None

    def of(self, model: nn.Module) -> Callable[[Tensor], Tensor]:
        """Return the model compiled."""
        if self._last is None or self._last[0] is not model:
            self._last = model, torch.compile(model, backend=_BACKEND)
        return self._last[1]


_COMPILED = _Compiled()


def evaluate(
    model: nn.Module, x: NDArray[Any] | Tensor, y: NDArray[np.int64] | Tensor, batch_size: int = 256
) -> EvalResult:
    """Return mean cross-entropy and accuracy; the model is not changed.

    Args:
        model: on any device.
        x: examples, see :func:`as_inputs`; not modified.
        y: shape ``(n,)``, int64.
        batch_size: examples of one forward pass, at least 1.

    Raises:
        EmptyClient: there are no examples.
        BadOption: examples and labels differ in number, or `batch_size` is below 1.
    """
    if batch_size < 1:
        raise BadOption(f"batch_size {batch_size} must be at least 1")
    inputs, labels = _tensors(x, y, next(model.parameters()).device)
    total, right = 0.0, torch.zeros(len(labels), dtype=torch.bool)
    at = 0
    with _mode(model, training=False), torch.inference_mode():
        for some, answers in zip(torch.split(inputs, batch_size), torch.split(labels, batch_size), strict=True):
            logits = model(some)
            total += float(functional.cross_entropy(logits, answers, reduction="sum"))
            right[at : at + len(answers)] = (logits.argmax(dim=1) == answers).cpu()
            at += len(answers)
    correct, known = int(right.sum()), labels.cpu()
    totals = torch.bincount(known)
    by_class = torch.bincount(known[right], minlength=len(totals))
    return EvalResult(
        total / len(labels),
        correct / len(labels),
        len(labels),
        correct,
        tuple(by_class.tolist()),
        tuple(totals.tolist()),
    )


def _tensors(x: NDArray[Any] | Tensor, y: NDArray[np.int64] | Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    if len(x) != len(y):
        raise BadOption(f"{len(x)} examples, {len(y)} labels: there must be one label for each example")
    if not len(y):
        raise EmptyClient("0 examples: training and evaluation need at least one; leave this client out of the round")
    labels = y if isinstance(y, Tensor) else torch.tensor(y)
    return as_inputs(x, device), labels.to(device, torch.int64)


def make_optimizer(parameters: list[nn.Parameter], config: TrainConfig, lr: float) -> torch.optim.Optimizer:
    """Return a fresh optimiser of the settings' kind.

    Raises:
        BadOption: no parameters.
    """
    if not parameters:
        raise BadOption("no parameter of the model has requires_grad: at least one must train; unfreeze a layer")
    if config.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=lr, weight_decay=config.weight_decay)
    return torch.optim.SGD(
        parameters, lr=lr, momentum=config.momentum, weight_decay=config.weight_decay, nesterov=config.nesterov
    )


_Gradients = Sequence[Tensor | None]


def _stepper(parameters: list[nn.Parameter], config: TrainConfig, lr: float) -> Callable[[_Gradients], None]:
    """Return what makes a step from given gradients, to the bits of :func:`make_optimizer`'s.

    A small model's step is mostly the optimiser's bookkeeping; SGD's arithmetic is called without it.
    """
    if config.optimizer != "sgd" or not parameters:
        return partial(_step_by, make_optimizer(parameters, config, lr), parameters)
    momenta: dict[int, Tensor | None] = {}

    def plain(gradients: _Gradients) -> None:
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                if gradient is not None:
                    parameter.add_(gradient, alpha=-lr)

    def step(gradients: _Gradients) -> None:
        places = [i for i, gradient in enumerate(gradients) if gradient is not None]
        held = [momenta.get(i) for i in places]
        with torch.no_grad():
            sgd(
                cast(list[Tensor], [parameters[i] for i in places]),
                cast(list[Tensor], [gradients[i] for i in places]),
                held,
                foreach=False,
                weight_decay=config.weight_decay,
                momentum=config.momentum,
                lr=lr,
                dampening=0.0,
                nesterov=config.nesterov,
                maximize=False,
            )
        momenta.update(zip(places, held, strict=True))

    return step if config.momentum or config.weight_decay else plain


def _step_by(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter], gradients: _Gradients) -> None:
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def _freeze_statistics(modules: Sequence[nn.Module], num_examples: int) -> bool:
    """Return whether a model normalises over batches; for one example, switch that to running statistics."""
    norms = [m for m in modules if isinstance(m, _BatchNorm) and m.training]
    if num_examples == 1:
        for norm in norms:
            norm.eval()
    return bool(norms)


def _batches(inputs: Tensor, labels: Tensor, config: TrainConfig, no_single: bool) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each step's examples and labels."""
    steps, count = 0, labels.shape[0]
    for _ in range(config.epochs):
        # Drawn on the CPU, so that every device sees the same order.
        order = torch.randperm(count).to(inputs.device)
        for some, answers in _cut(inputs, labels, order, config.batch_size):
            if config.max_steps and steps == config.max_steps:
                return
            if no_single and answers.shape[0] == 1 and count > 1 and config.batch_size > 1:
                continue
            steps += 1
            yield some, answers


def _cut(inputs: Tensor, labels: Tensor, order: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches in an order; few examples are put into it at once, many batch by batch."""
    if inputs.nbytes <= _GATHER_BYTES:
        return zip(torch.split(inputs[order], size), torch.split(labels[order], size), strict=True)
    return ((inputs[rows], labels[rows]) for rows in torch.split(order, size))


def _anchor(model: nn.Module, centre: Mapping[str, NDArray[Any] | Tensor] | None) -> list[Tensor]:
    """Return the proximal term's centre for each parameter that trains, in their order."""
    anchor = []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if centre is None:
            anchor.append(parameter.detach().clone())
            continue
        if name not in centre or tuple(centre[name].shape) != tuple(parameter.shape):
            raise BadOption(
                f"global_weights lack parameter '{name}' of shape {tuple(parameter.shape)}: give all of them"
            )
        anchor.append(torch.as_tensor(np.array(centre[name])).to(parameter))
    return anchor


def _shaped(
    parameters: list[nn.Parameter], gradients: _Gradients, anchor: list[Tensor] | None, config: TrainConfig
) -> _Gradients:
    """Return the gradients with the proximal term's, ``mu * (w - w_global)``, then clipped.

    New tensors: autograd may give two parameters the same gradient.
    """
    if anchor is not None:
        with torch.no_grad():
            gradients = [
                None if gradient is None else gradient.add(parameter - centre, alpha=config.proximal_mu)
                for parameter, gradient, centre in zip(parameters, gradients, anchor, strict=True)
            ]
    if config.clip_norm:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = None if gradient is None else gradient.clone()
        nn.utils.clip_grad_norm_(parameters, config.clip_norm)
        gradients = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None
    return gradients


@contextmanager
def _mode(model: nn.Module, *, training: bool) -> Iterator[list[nn.Module]]:
    """Set the mode of all submodules, yield them, and restore each one's own mode afterwards."""
    modules = list(model.modules())
    before = [module.training for module in modules]
    for module, mode in zip(modules, before, strict=True):
        if mode != training:
            module.training = training
    if training and not all(p.requires_grad for p in model.parameters()):
        for module in modules:
            parameters = list(module.parameters())
            if parameters and not any(p.requires_grad for p in parameters):
                module.eval()
    try:
        yield modules
    finally:
        for module, mode in zip(modules, before, strict=True):
            if module.training != mode:
                module.training = mode


@contextmanager
def _forked(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch inside, and give its generators back as they were."""
    cuda = [device.index or 0] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda):
        # torch.manual_seed() also notes, with a stack trace, a call for each kind of accelerator that is not in use:
        # more than a small client's training costs, and memory that grows with each call.
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            torch.cuda.manual_seed(seed)
        yield
