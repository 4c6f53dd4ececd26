"""The forward and backward pass of many clients of one model: their weights stacked, clients along the first axis.

Models that are a chain of simple layers get a form written by hand, one batched product a layer and direction; all
others ``torch.func.vmap`` and autograd, which finds out anew in each step what to do and takes two to three times as
long where layers are small.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional

__all__ = ["Forward", "Gradients", "stacked_forward", "stacked_gradients"]

#: Weights by name, ``(clients, ...)`` each; examples ``(clients, batch, ...)`` -> logits ``(clients, batch, classes)``.
Forward = Callable[[Mapping[str, Tensor], Tensor], Tensor]
#: Weights; examples; labels ``(clients, batch)``; each example's share of its client's mean, ``None`` for equal ones;
#: names of what trains -> each client's loss ``(clients,)``, and the gradient of its own loss in its weights, by name.
Gradients = Callable[
    [Mapping[str, Tensor], Tensor, Tensor, Tensor | None, Iterable[str]], tuple[Tensor, dict[str, Tensor | None]]
]

#: Layers that treat each number by itself.
_POINTWISE = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.ELU, nn.LeakyReLU, nn.Identity)


class _Layer(ABC):
    """A layer of a chain."""

    #: Whether :meth:`back` is there.
    by_hand = True

    @abstractmethod
    def forward(self, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return the layer's output."""

    def back(self, weights: Mapping[str, Tensor], x: Tensor, out: Tensor, grad: Tensor) -> Tensor:
        """Return the gradient in the input, given that in the output."""
        raise NotImplementedError

    def note(self, x: Tensor, grad: Tensor, found: dict[str, Tensor | None]) -> None:  # noqa: B027 - most have none
        """Put the gradients in the layer's weights into `found`, those of them that it names."""


class _Linear(_Layer):
    def __init__(self, weight: str, bias: str) -> None:
        self._weight, self._bias = weight, bias

    def forward(self, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        products, whole = weights[self._weight].transpose(1, 2), x.flatten(1, -2)
        if self._bias:
            out = torch.baddbmm(weights[self._bias].unsqueeze(1), whole, products)
        else:
            out = torch.bmm(whole, products)
        return out.view(*x.shape[:-1], out.shape[-1])

    def back(self, weights: Mapping[str, Tensor], x: Tensor, out: Tensor, grad: Tensor) -> Tensor:
        return torch.bmm(grad.flatten(1, -2), weights[self._weight]).view(x.shape)

    def note(self, x: Tensor, grad: Tensor, found: dict[str, Tensor | None]) -> None:
        whole = grad.flatten(1, -2)
        if self._weight in found:
            found[self._weight] = torch.bmm(whole.transpose(1, 2), x.flatten(1, -2))
        if self._bias in found:
            found[self._bias] = whole.sum(1)


class _Flatten(_Layer):
    def forward(self, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        return x.flatten(2)

    def back(self, weights: Mapping[str, Tensor], x: Tensor, out: Tensor, grad: Tensor) -> Tensor:
        return grad.view(x.shape)


class _Relu(_Layer):
    def forward(self, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        return torch.relu(x)

    def back(self, weights: Mapping[str, Tensor], x: Tensor, out: Tensor, grad: Tensor) -> Tensor:
        found: Tensor = torch.ops.aten.threshold_backward(grad, out, 0)
        return found


class _Pointwise(_Layer):
    by_hand = False

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def forward(self, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        out: Tensor = self._module(x)
        return out


def stacked_forward(model: nn.Module) -> Forward:
    """Return the forward pass for stacked weights; the model itself is not called where its layers are known."""
    layers = _layers(model)
    if layers is None:
        return _vectorised(model)
    chain = layers

    def forward(weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        for layer in chain:
            x = layer.forward(weights, x)
        return x

    return forward


def stacked_gradients(model: nn.Module) -> Gradients:
    """Return what gives each client's mean cross-entropy and its gradients, for stacked weights."""
    layers, generally = _layers(model), _by_autograd(stacked_forward(model))
    if layers is None or not all(layer.by_hand for layer in layers):
        return generally
    chain = layers
    # What comes before the first weights needs no gradient.
    first = next((i for i, layer in enumerate(chain) if isinstance(layer, _Linear)), len(chain))

    def gradients(
        weights: Mapping[str, Tensor], x: Tensor, y: Tensor, share: Tensor | None, names: Iterable[str]
    ) -> tuple[Tensor, dict[str, Tensor | None]]:
        with torch.no_grad():
            passed = [x]
            for layer in chain:
                passed.append(layer.forward(weights, passed[-1]))
            if passed[-1].dim() == 3:
                losses, grad = _cross_entropy(passed[-1], y, share)
                found: dict[str, Tensor | None] = dict.fromkeys(names)
                for i in range(len(chain) - 1, first - 1, -1):
                    chain[i].note(passed[i], grad, found)
                    if i > first:
                        grad = chain[i].back(weights, passed[i], passed[i + 1], grad)
                return losses, found
        return generally(weights, x, y, share, names)

    return gradients


def _cross_entropy(logits: Tensor, y: Tensor, share: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return each client's loss, and the gradient of their sum in the logits, ``(clients, batch, classes)``."""
    likely, places = functional.log_softmax(logits, dim=-1), y.unsqueeze(-1)
    each = -likely.gather(-1, places).squeeze(-1)
    losses = each.mean(1) if share is None else (each * share).sum(1)
    grad = likely.exp_().scatter_add_(-1, places, torch.full_like(places, -1, dtype=likely.dtype))
    return losses, grad.div_(y.shape[1]) if share is None else grad.mul_(share.unsqueeze(-1))


def _by_autograd(forward: Forward) -> Gradients:
    """Return the same by autograd on the sum of the clients' losses."""

    def gradients(
        weights: Mapping[str, Tensor], x: Tensor, y: Tensor, share: Tensor | None, names: Iterable[str]
    ) -> tuple[Tensor, dict[str, Tensor | None]]:
        logits = forward(weights, x)
        each = functional.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view(y.shape)
        losses: Tensor = each.mean(1) if share is None else (each * share).sum(1)
        wanted = list(names)
        found = torch.autograd.grad(losses.sum(), [weights[name] for name in wanted], allow_unused=True)
        return losses.detach(), dict(zip(wanted, found, strict=True))

    return gradients


def _layers(model: nn.Module) -> list[_Layer] | None:
    """Return a model's layers, ``None`` where one has no form of its own."""
    found = list(_walk(model, ""))
    layers = [layer for layer in found if layer is not None]
    return layers if len(layers) == len(found) else None


def _walk(module: nn.Module, name: str) -> Iterable[_Layer | None]:
    """Yield the layers of a module, ``None`` for what has no form of its own."""
    kind = type(module)
    if _watched(module):
        yield None
    elif kind is nn.Sequential:
        for child, inner in module.named_children():
            yield from _walk(inner, f"{name}{child}.")
    elif isinstance(module, nn.Linear) and kind is nn.Linear:
        yield _Linear(f"{name}weight", f"{name}bias" if module.bias is not None else "")
    elif isinstance(module, nn.Flatten) and kind is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1):
        yield _Flatten()
    elif kind is nn.ReLU:
        yield _Relu()
    elif kind in _POINTWISE:
        yield _Pointwise(module)
    else:
        yield None


def _watched(module: nn.Module) -> bool:
    """Return whether somebody hangs on the module's calls, or made it another function than its class."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(hooks) or hasattr(module, "parametrizations") or "forward" in vars(module)


def _vectorised(model: nn.Module) -> Forward:
    def one(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        logits: Tensor = functional_call(model, weights, (x,))
        return logits

    def forward(weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        logits: Tensor = vmap(one)(dict(weights), x)
        return logits

    return forward
