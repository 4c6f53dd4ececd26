"""Two attacks on the visible coordinates of one example's gradient, and how alike two images are."""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

Bools = NDArray[np.bool_]


def gradients(model: nn.Module, x: Tensor, label: Tensor, *, create_graph: bool = False) -> dict[str, Tensor]:
    """Return the gradient of the cross-entropy of one example by parameter name."""
    weights = dict(model.named_parameters())
    loss = functional.cross_entropy(functional_call(model, weights, (x[None],)), label[None])
    found = torch.autograd.grad(loss, list(weights.values()), create_graph=create_graph)
    return dict(zip(weights, found, strict=True))


def dense_recovery(weight: Tensor, bias: Tensor, seen_weight: Tensor, seen_bias: Tensor) -> tuple[Tensor, Tensor]:
    """Recover the input of a first dense layer from the gradient of its weight and bias (Phong et al. 2018).

    As ``dL/dW[j] = dL/db[j] x``, one visible entry of a row with a visible bias gives one input value exactly.

    Args:
        weight, bias: gradients, shapes ``(n, m)`` and ``(n,)``.
        seen_weight, seen_bias: which entries are visible.

    Returns:
        The input, shape ``(m,)``, 0 where nothing gives it; and which entries were recovered.
    """
    usable = seen_weight & seen_bias[:, None] & (bias.abs() > 1e-9)[:, None]
    ratio = torch.where(
        usable, weight / torch.where(usable, bias[:, None], torch.ones_like(weight)), torch.zeros_like(weight)
    )
    # The row with the largest bias gradient loses the fewest bits.
    rank = torch.where(usable, bias.abs()[:, None], torch.full_like(weight, -1.0))
    best = rank.argmax(dim=0)
    return ratio.gather(0, best[None])[0], usable.any(dim=0)


def invert(
    model: nn.Module,
    target: Mapping[str, Tensor],
    seen: Mapping[str, Tensor],
    label: Tensor,
    guess: Tensor,
    steps: int = 60,
) -> Tensor:
    """Find an input whose gradient matches the visible entries: DLG (Zhu et al. 2019) with the label known, by L-BFGS.

    Args:
        model: the global model, which the server knows in this attack: the strongest case.
        target: the gradient; only visible entries are read.
        seen: bool by parameter name.
        label: the example's, int64 scalar.
        guess: where to begin; returned as it is if nothing is visible.
        steps: of L-BFGS, with a line search.
    """
    if not any(bool(s.any()) for s in seen.values()):
        return guess.clone()
    found = guess.clone().requires_grad_(True)
    scale = sum(float((target[n][s] ** 2).sum()) for n, s in seen.items()) or 1.0
    optimizer = torch.optim.LBFGS([found], lr=1.0, max_iter=steps, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        own = gradients(model, found, label, create_graph=True)
        distance = torch.stack([((own[n] - target[n])[s] ** 2).sum() for n, s in seen.items() if bool(s.any())])
        loss: Tensor = distance.sum() / scale
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    return found.detach()


def ssim(one: NDArray[np.floating], two: NDArray[np.floating]) -> float:
    """Return the structural similarity of two images with values in [0, 1], over one window (Wang et al. 2004, eq. 13).

    One window because the images here are 8 x 8; constants as in the paper.
    """
    a, b = one.astype(np.float64).reshape(-1), two.astype(np.float64).reshape(-1)
    c1, c2 = 0.01**2, 0.03**2
    covariance = float(((a - a.mean()) * (b - b.mean())).mean())
    light = (2 * a.mean() * b.mean() + c1) / (a.mean() ** 2 + b.mean() ** 2 + c1)
    return float(light * (2 * covariance + c2) / (a.var() + b.var() + c2))


def cosine(one: NDArray[np.floating], two: NDArray[np.floating]) -> float:
    """Return the cosine of two images about their means."""
    a, b = (v.astype(np.float64).reshape(-1) - v.mean() for v in (one, two))
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b) + 1e-12))


__all__ = ["cosine", "dense_recovery", "gradients", "invert", "ssim"]
