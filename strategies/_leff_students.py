"""Fewer blocks in place of those that a client does not train: compression by distillation on proxy data.

Shen et al. (eq. 7): a student has the blocks' own architecture and ``ceil(n r)`` of them; given the teacher segment's
input it is trained to give the same hidden states and the same attention map,
``E = (1 - alpha) MSE(H_t, H_s) + alpha KL(A_t, A_s)``. No labels are read. The blocks below the window and those above
it are two segments, compressed apart.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from strategies._leff_blocks import checked

_TINY = 1e-12


@dataclass(frozen=True, kw_only=True)
class Distillation:
    """How students are trained.

    Attributes:
        steps: of AdamW; 0 leaves the evenly spaced blocks as they are.
        lr: learning rate.
        alpha: weight of the attention maps' divergence, in [0, 1].
        rms: divide the hidden states' difference by the teacher's root mean square first (offsite-tuning).
    """

    steps: int = 20
    lr: float = 1e-3
    alpha: float = 0.5
    rms: bool = False


def student_sizes(prefix: int, suffix: int, rate: float) -> tuple[int, int]:
    """Return how many blocks the segments below and above a window are compressed to.

    ``ceil((prefix + suffix) rate)`` together, shared in proportion; a segment that is not empty keeps at least one
    block, which can exceed the sum by one.

    Args:
        prefix, suffix: their blocks, 0 or more.
        rate: r in (0, 1]; 1 keeps all.
    """
    # 0.28 * 25 is 7.000000000000001: without the rounding it would be 8.
    total = math.ceil(round((prefix + suffix) * rate, 9))
    if not prefix or not suffix:
        return (total, 0) if prefix else (0, total)
    total = max(total, 2)
    share = math.floor(total * prefix / (prefix + suffix) + 0.5)
    below = min(max(share, total - suffix, 1), prefix, total - 1)
    return below, total - below


def evenly_spaced(blocks: int, kept: int) -> list[int]:
    """Return which blocks a student begins as: ``round(i (n - 1) / (m - 1))``, halves up; a single one: the middle."""
    if kept == 1:
        return [(blocks - 1) // 2]
    return [math.floor(i * (blocks - 1) / (kept - 1) + 0.5) for i in range(kept)]


@dataclass(frozen=True)
class Traced:
    """What the full model does with one batch of proxy data, without gradients.

    Attributes:
        hidden: the input of each block, and the last one's output; each ``(batch, tokens, dim)``.
        logs: the logarithm of each block's attention map.
        valid: which tokens are no padding.
    """

    hidden: list[Tensor]
    logs: list[Tensor]
    valid: Tensor | None


def trace(model: nn.Module, inputs: Sequence[Tensor]) -> list[Traced]:
    """Run the full model on proxy inputs, one trace a batch."""
    stack, traces = checked(model), []
    with torch.no_grad():
        for x in inputs:
            hidden, valid = stack.embed(x)
            states, logs = [hidden], []
            for block in stack.blocks:
                hidden, log = _traced(block, hidden, valid)
                states.append(hidden)
                logs.append(log)
            traces.append(Traced(states, logs, valid))
    return traces


def compress(
    blocks: nn.Sequential,
    start: int,
    stop: int,
    kept: int,
    traces: Sequence[Traced],
    how: Distillation,
    warm: nn.Sequential | None = None,
) -> nn.Sequential:
    """Return a student of `kept` blocks for the blocks from `start` up to `stop`; those are not changed.

    Args:
        blocks: the full model's, in evaluation mode.
        start, stop: the segment, not empty.
        kept: at least 1, at most the segment's length; then it is an exact copy and nothing is trained.
        traces: of the full model as it is now.
        how: see :class:`Distillation`.
        warm: the student of the same segment from an earlier round, to go on from.
    """
    if kept == stop - start:
        return nn.Sequential(*(copy.deepcopy(block) for block in list(blocks)[start:stop]))
    student = copy.deepcopy(warm) if warm is not None else _spaced(blocks, start, stop, kept)
    student.eval().requires_grad_(True)
    optimizer = torch.optim.AdamW(student.parameters(), lr=how.lr, weight_decay=0.0)
    for step in range(how.steps):
        optimizer.zero_grad(set_to_none=True)
        hidden, logs = _mismatch(student, start, stop, traces[step % len(traces)], how.rms)
        loss = (1 - how.alpha) * hidden + how.alpha * logs
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    student.requires_grad_(False)
    return student


def mismatch(
    student: nn.Sequential, start: int, stop: int, traces: Sequence[Traced], rms: bool = False
) -> tuple[float, float]:
    """Return the mean squared error of the hidden states and the divergence of the attention maps, over all traces."""
    with torch.no_grad():
        found = [_mismatch(student, start, stop, traced, rms) for traced in traces]
    return tuple(float(sum(values)) / len(found) for values in zip(*found, strict=True))  # type: ignore[return-value]


def _traced(block: nn.Module, hidden: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    # Modules have no typed attributes beyond torch's own.
    traced: Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]] = block.traced  # type: ignore[assignment]
    return traced(hidden, valid)


def _spaced(blocks: nn.Sequential, start: int, stop: int, kept: int) -> nn.Sequential:
    return nn.Sequential(*(copy.deepcopy(blocks[start + i]) for i in evenly_spaced(stop - start, kept)))


def _mismatch(student: nn.Sequential, start: int, stop: int, traced: Traced, rms: bool) -> tuple[Tensor, Tensor]:
    """Return MSE(H_t, H_s) and KL(A_t || A_s) of the segments' outputs, over tokens that are no padding."""
    hidden, logs = traced.hidden[start], traced.logs[stop - 1]
    *lower, last = student
    for block in lower:
        hidden = block(hidden, traced.valid)
    hidden, own_logs = _traced(last, hidden, traced.valid)
    teacher = traced.hidden[stop]
    # Keys that may not be looked at have probability 0 on both sides: 0 times a finite difference.
    divergence = (logs.exp() * (logs - own_logs)).sum(dim=-1).mean(dim=1)
    error = functional.mse_loss(hidden, teacher, reduction="none").mean(dim=-1)
    if rms:
        error = error / teacher.square().mean().clamp(min=_TINY)
    return _over(error, traced.valid), _over(divergence, traced.valid)


def _over(values: Tensor, valid: Tensor | None) -> Tensor:
    """Return the mean over ``(batch, tokens)``, padding left out."""
    if valid is None:
        return values.mean()
    return (values * valid).sum() / valid.sum().clamp(min=1)
