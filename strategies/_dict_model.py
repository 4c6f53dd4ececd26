"""Shaping a whole model for DictPFL in place, and back; the layers are in :mod:`strategies._dict_layers`."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.utils import parametrize

from strategies._dict_layers import DictConv2d, DictLinear, DictOptions, DictProjection, decompose
from strategies._freezing import freeze, refuse_batch_norm
from strategies.errors import Incompatible

#: A table must be this many times smaller than its weight, else the layer stays frozen.
_LEAST_RATIO = 2


@dataclass(frozen=True, slots=True)
class _Decomposed:
    """One decomposed weight: its arrays' names in the shaped and in the plain model, and how the change is made."""

    base: str
    table: str
    weight: str
    layer: Any


class DictModel:
    """Shapes a model in place and knows how to go back.

    Args:
        model: any torch model; not shaped yet.
        options: see :class:`DictOptions`.

    Raises:
        Incompatible: nothing of the model can be decomposed, a name in ``ranks`` is no such layer, the head shares
            its weight, or the model normalises over batches.
    """

    def __init__(self, model: nn.Module, options: DictOptions) -> None:
        self.decomposed: list[_Decomposed] = []
        self._options = options
        self._ranks = options.by_layer()
        self._unused = set(self._ranks)
        refuse_batch_norm(model)
        head = _head(model) if options.train_head else None
        kept = {id(p) for p in head.parameters()} if head is not None else set()
        self._decompose(model, head)
        if self._unused:
            raise Incompatible(
                f"ranks for {sorted(self._unused)}: the model has no such layer that can be decomposed; it has "
                f"{', '.join(d.weight.removesuffix('.weight') for d in self.decomposed) or 'none'}"
            )
        if not self.decomposed:
            raise Incompatible(
                f"rank {options.rank}: no layer has {_LEAST_RATIO} times as many outputs or more; lower strategy.rank, "
                "give strategy.ranks, or set strategy.convolutions"
            )
        freeze(
            model,
            lambda module, name, p: name == "table" or id(p) in kept or (options.train_bias and _small(module, name)),
        )
        self.digest = self._digest(model)

    def _decompose(self, model: nn.Module, head: nn.Module | None) -> None:
        done: dict[int, nn.Module] = {}
        for path, module in list(model.named_modules()):
            for name, child in list(module._modules.items()):
                if child is None or child is head:
                    continue
                full = f"{path}.{name}" if path else name
                made = done.get(id(child)) or self._layer(full, child)
                if made is None:
                    continue
                setattr(module, name, made)
                if id(child) not in done:
                    self.decomposed.append(_Decomposed(f"{full}.base", f"{full}.table", f"{full}.weight", made))
                done[id(child)] = made
            if isinstance(module, nn.MultiheadAttention):
                self._attention(path, module)

    def _layer(self, path: str, layer: nn.Module) -> nn.Module | None:
        """Return the decomposed layer, or ``None`` for one that stays as it is."""
        if type(layer) in (nn.Linear, NonDynamicallyQuantizableLinear):
            assert isinstance(layer, nn.Linear)
            across = self._options.orient == "auto" and layer.out_features < layer.in_features
            weight = layer.weight.T if across else layer.weight
            rank = self._rank(path, weight)
            return DictLinear(layer, self._dictionary(weight, rank), transposed=across) if rank else None
        if type(layer) is nn.Conv2d and (self._options.convolutions or path in self._ranks):
            if layer.groups != 1 or layer.padding_mode != "zeros":
                return None
            weight = layer.weight.flatten(1)
            rank = self._rank(path, weight)
            return DictConv2d(layer, self._dictionary(weight, rank)) if rank else None
        return None

    def _attention(self, path: str, attention: nn.MultiheadAttention) -> None:
        full = f"{path}.in_proj_weight" if path else "in_proj_weight"
        packed: Tensor | None = attention.in_proj_weight
        if packed is None:
            return
        parts = packed.detach().chunk(3)
        rank = self._rank(full, parts[0])
        if not rank:
            return
        base = packed.detach().clone()
        del attention.in_proj_weight
        attention.register_buffer("in_proj_weight", base)
        made = DictProjection([self._dictionary(p, rank) for p in parts], base.shape[1])
        parametrize.register_parametrization(attention, "in_proj_weight", made)
        below = f"{path}." if path else ""
        names = f"{below}parametrizations.in_proj_weight.original", f"{below}parametrizations.in_proj_weight.0.table"
        self.decomposed.append(_Decomposed(*names, full, made))

    def _rank(self, path: str, weight: Tensor) -> int:
        """Return a layer's rank, 0 where it stays frozen."""
        least = min(weight.shape)
        if path in self._ranks:
            self._unused.discard(path)
            return min(self._ranks[path], least)
        rank = self._options.rank
        return rank if least > rank and weight.shape[0] >= _LEAST_RATIO * rank else 0

    def _dictionary(self, weight: Tensor, rank: int) -> Tensor:
        return decompose(weight, rank, self._options.dict_scale).to(weight.dtype)

    def _digest(self, model: nn.Module) -> bytes:
        """Return SHA-256 of all that is frozen, dictionaries included."""
        digest = hashlib.sha256()
        for name, buffer in sorted(model.named_buffers()):
            digest.update(name.encode() + b"\0" + buffer.detach().cpu().float().contiguous().numpy().tobytes())
        return digest.digest()

    def merged(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return the plain model's arrays: ``W0 + D T`` under the weights' own names, everything else as it is."""
        by_base = {d.base: d for d in self.decomposed}
        tables = {d.table for d in self.decomposed}
        out: dict[str, NDArray[Any]] = {}
        for name, array in arrays.items():
            if name in tables:
                continue
            if name not in by_base:
                out[name] = array
                continue
            one = by_base[name]
            with torch.no_grad():
                change = one.layer.change(torch.from_numpy(np.array(arrays[one.table]))).numpy()
            out[one.weight] = array + change.reshape(array.shape)
        return out


def _head(model: nn.Module) -> nn.Module:
    """Return the last linear layer.

    Raises:
        Incompatible: there is none, or its weight is used elsewhere too.
    """
    linear = [m for m in model.modules() if isinstance(m, nn.Linear)]
    if not linear:
        raise Incompatible("the model has no linear layer: nothing is there to be decomposed or to be the head")
    head = linear[-1]
    users = [n for n, p in model.named_parameters(remove_duplicate=False) if p is head.weight]
    if len(users) > 1:
        raise Incompatible(f"the head's weight is used {len(users)} times ({', '.join(users)}): untie it")
    return head


def _small(module: nn.Module, name: str) -> bool:
    """Return whether a parameter is a bias or of a norm."""
    return isinstance(module, nn.LayerNorm | nn.GroupNorm) or name.endswith("bias")


__all__ = ["DictModel"]
