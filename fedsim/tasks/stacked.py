"""The forward pass of many clients of one model: their weights stacked, clients along the first axis.

Models that are a chain of simple layers get a form written by hand, one batched product a layer; all others
``torch.func.vmap``, which finds it out anew in each step and takes two to three times as long where layers are small.
"""

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

__all__ = ["Forward", "stacked_forward"]

#: Weights by name, ``(clients, ...)`` each; examples ``(clients, batch, ...)`` -> logits ``(clients, batch, classes)``.
Forward = Callable[[Mapping[str, Tensor], Tensor], Tensor]

#: Layers that treat each number by itself.
_POINTWISE = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.ELU, nn.LeakyReLU, nn.Identity)


def stacked_forward(model: nn.Module) -> Forward:
    """Return the forward pass for stacked weights; the model itself is not called where its layers are known."""
    steps = list(_steps(model, ""))
    if None in steps:
        return _vectorised(model)
    chain = [step for step in steps if step is not None]

    def forward(weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        for step in chain:
            x = step(weights, x)
        return x

    return forward


def _steps(module: nn.Module, name: str) -> Iterable[Forward | None]:
    """Yield the steps of a module, ``None`` for what has no form of its own."""
    kind = type(module)
    if _watched(module):
        yield None
    elif kind is nn.Sequential:
        for child, inner in module.named_children():
            yield from _steps(inner, f"{name}{child}.")
    elif isinstance(module, nn.Linear) and kind is nn.Linear:
        yield _linear(f"{name}weight", f"{name}bias" if module.bias is not None else "")
    elif isinstance(module, nn.Flatten) and kind is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1):
        yield lambda _, x: x.flatten(2)
    elif kind in _POINTWISE:
        yield lambda _, x: module(x)
    else:
        yield None


def _watched(module: nn.Module) -> bool:
    """Return whether somebody hangs on the module's calls, or made it another function than its class."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(hooks) or hasattr(module, "parametrizations") or "forward" in vars(module)


def _linear(weight: str, bias: str) -> Forward:
    def linear(weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        products = weights[weight].transpose(1, 2)
        whole = x.flatten(1, -2)
        out = torch.baddbmm(weights[bias].unsqueeze(1), whole, products) if bias else torch.bmm(whole, products)
        return out.view(*x.shape[:-1], out.shape[-1])

    return linear


def _vectorised(model: nn.Module) -> Forward:
    def one(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        logits: Tensor = functional_call(model, weights, (x,))
        return logits

    def forward(weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        logits: Tensor = vmap(one)(dict(weights), x)
        return logits

    return forward
