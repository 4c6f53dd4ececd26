"""Layers of FedLUAR: which tensors may be recycled, their scores, and the draw."""

from collections.abc import Collection, Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from strategies.records import NamedArrays

Sampler = Literal["score", "uniform", "round_robin", "deterministic"]
Group = Literal["tensor", "module"]

#: Added to the norm of the weights, as in the authors' code.
_EPSILON = 1e-6
#: A score is at least this share of the median score; a layer that never moves would otherwise be drawn for ever alone.
_FLOOR = 1e-6
_SMALLEST = 1e-30
#: Domain separation of the layers' draw from the sampling of clients.
_DRAW = 0x4C554152


def trainable(state: NamedArrays, buffers: Collection[str]) -> tuple[str, ...]:
    """Return the names of float arrays that are no buffers, in the model's order."""
    return tuple(n for n, a in state.arrays.items() if a.dtype.kind == "f" and n not in buffers)


def layers_of(state: NamedArrays, buffers: Collection[str], group: Group = "tensor") -> dict[str, tuple[str, ...]]:
    """Return the layers that may be recycled, with the arrays of each, in the model's order.

    A layer is a kernel: a trainable array of two or more dimensions (convolution, dense, embedding). Under ``module``
    it is all trainable arrays of a module that has a kernel, named by the module.
    """
    names = trainable(state, buffers)
    kernels = [n for n in names if state.arrays[n].ndim > 1]
    if group == "tensor":
        return {n: (n,) for n in kernels}
    modules = dict.fromkeys(_module(n) for n in kernels)
    return {m: tuple(n for n in names if _module(n) == m) for m in modules}


def _module(name: str) -> str:
    return name.rpartition(".")[0] or name


def score(deltas: Collection[NDArray[np.float64]], weights: Collection[NDArray[np.float64]]) -> float:
    """Return the layer's score, ``||delta|| / (||x|| + 1e-6)`` with x from the start of the round (eq. 1).

    It is rounded to float32, so that processors that add up in another order do not come to another score.
    """
    return float(np.float32(_norm(deltas) / (_norm(weights) + _EPSILON)))


def _norm(arrays: Collection[NDArray[np.float64]]) -> float:
    return float(np.sqrt(sum(float(np.vdot(a, a)) for a in arrays)))


def layer_rng(seed: int, server_round: int) -> np.random.Generator:
    """Return a round's generator, which follows from seed and round alone: none needs to be kept in a checkpoint."""
    return np.random.default_rng(np.random.SeedSequence([seed, server_round, _DRAW]))


def draw(
    scores: NDArray[np.float64], delta: int, sampler: Sampler, *, server_round: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return the layers to recycle in a round: `delta` distinct indices, sorted.

    ``score`` draws one after another without replacement with probability proportional to 1/score (eq. 2), by the
    Gumbel-top-k trick in the log domain, so that no score under- or overflows. The controls: ``uniform`` draws alike,
    ``round_robin`` goes round the layers, ``deterministic`` takes the lowest scores.

    Args:
        scores: one a layer, finite and not negative.
        delta: number of layers, below ``len(scores)``.
        sampler: the law.
        server_round: the round that they are for.
        rng: fresh from :func:`layer_rng`.
    """
    if sampler == "round_robin":
        return np.sort((np.arange(delta) + (server_round - 1) * delta) % len(scores))
    keys = np.zeros(len(scores)) if sampler == "uniform" else -np.log(floored(scores))
    if sampler != "deterministic":
        keys = keys + rng.gumbel(size=len(scores))
    return np.sort(np.argsort(-keys, kind="stable")[:delta])


def floored(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return scores with a floor of a millionth of their median, so that dead layers neither divide by zero nor win."""
    return np.maximum(scores, max(_FLOOR * float(np.median(scores)), _SMALLEST))


def communication(nbytes: Mapping[str, int], uploads: Mapping[str, int], rounds: int) -> float:
    """Return the paper's Comm: bytes of trainable arrays that were aggregated over those of FedAvg; 1 before round 1.

    Args:
        nbytes: of each trainable array.
        uploads: in how many rounds an array was aggregated; an array that is not named, in all.
        rounds: number of rounds.
    """
    total = rounds * sum(nbytes.values())
    return sum(uploads.get(n, rounds) * size for n, size in nbytes.items()) / total if total else 1.0
