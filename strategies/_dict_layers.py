"""DePE (DictPFL, section 4.1): every weight is ``W0 + D T`` with a frozen dictionary D and a trained lookup table T.

D holds the first r left singular vectors of the start weight W0, times their singular values; T starts at zero, so that
the shaped model computes what the start model did, and nothing of W0 that the rank drops is lost. Only T trains, and
as W0 and D are the same constants at all clients, the mean of their T is the mean of their weights.

A layer computes ``x W0^T + (x T^T) D^T`` and never makes D T while training; whoever reads its ``weight`` (the fast
paths of torch's own transformer layers do) gets ``W0 + D T``.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

Scale = Literal["us", "u"]
Orient = Literal["literal", "auto"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DictOptions:
    """How a model is decomposed.

    Attributes:
        rank: columns of every dictionary, at most the weight's smaller side.
        ranks: ``layer=rank`` each, in place of `rank`; 0 leaves a layer frozen. A layer named here is decomposed
            whatever its size.
        dict_scale: ``us``: D = U Sigma, as in the paper; ``u``: D = U, orthonormal.
        orient: ``literal``: T has as many columns as the layer has inputs; ``auto``: as its shorter side.
        train_head: the last linear layer trains as it is.
        train_bias: biases and norms of all layers train too.
        convolutions: convolutions are decomposed too, as matrices of out x (in * height * width).
    """

    rank: int = 4
    ranks: tuple[str, ...] = ()
    dict_scale: Scale = "us"
    orient: Orient = "literal"
    train_head: bool = True
    train_bias: bool = False
    convolutions: bool = False

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"rank {self.rank} must be at least 1")
        for text in self.ranks:
            name, equals, rank = text.rpartition("=")
            if not (equals and name and rank.isdecimal()):
                raise ValueError(f"ranks entry {text!r} must be LAYER=RANK, such as 'fc1=8'")

    def by_layer(self) -> dict[str, int]:
        """Return the ranks that were given one by one."""
        return {text.rpartition("=")[0]: int(text.rpartition("=")[2]) for text in self.ranks}


def decompose(weight: Tensor, rank: int, scale: Scale = "us") -> Tensor:
    """Return the dictionary of a matrix: float32 of shape ``(n, rank)``, the same on every machine with one LAPACK.

    Singular vectors are defined up to sign only; here the entry of largest magnitude of each column is positive. Found
    in float64 on one thread.

    Args:
        weight: shape ``(n, m)``.
        rank: at most ``min(n, m)``.
        scale: see :class:`DictOptions`.
    """
    with _one_thread():
        left, values, _ = torch.linalg.svd(weight.detach().to(torch.float64), full_matrices=False)
    left, values = left[:, :rank], values[:rank]
    largest = left.abs().argmax(dim=0)
    left = left * torch.sign(left[largest, torch.arange(rank)])
    dictionary: Tensor = (left * values if scale == "us" else left).to(torch.float32).contiguous()
    return dictionary


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class _DictLayer(nn.Module):
    """What decomposed layers share: buffers ``base`` and (not saved) ``dictionary``, and the parameter ``table``."""

    base: Tensor
    dictionary: Tensor
    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None, dictionary: Tensor, columns: int) -> None:
        super().__init__()
        self.register_buffer("base", weight.detach().clone())
        self.register_buffer("dictionary", dictionary, persistent=False)
        self.table = nn.Parameter(torch.zeros(dictionary.shape[1], columns, dtype=weight.dtype))
        if isinstance(bias, nn.Parameter):
            self.register_parameter("bias", bias)
        else:
            self.register_buffer("bias", bias)

    @property
    def weight(self) -> Tensor:
        """The whole weight, made when asked for."""
        return self.base + self.change(self.table)

    def change(self, table: Tensor) -> Tensor:
        """Return D T in the weight's shape."""
        return (self.dictionary @ table).reshape(self.base.shape)


class DictLinear(_DictLayer):
    """A linear layer ``x (W0 + D T)^T + b``; transposed, ``W0 + (D T)^T``.

    Args:
        linear: its weight and bias are taken over.
        dictionary: D of the weight, or of its transpose.
        transposed: which.
    """

    def __init__(self, linear: nn.Linear, dictionary: Tensor, *, transposed: bool = False) -> None:
        columns = linear.out_features if transposed else linear.in_features
        super().__init__(linear.weight, linear.bias, dictionary, columns)
        self.in_features, self.out_features, self.transposed = linear.in_features, linear.out_features, transposed

    def change(self, table: Tensor) -> Tensor:
        """See :meth:`_DictLayer.change`."""
        return (self.dictionary @ table).T if self.transposed else self.dictionary @ table

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(..., out_features)`` for ``(..., in_features)``."""
        first, second = (self.dictionary.T, self.table.T) if self.transposed else (self.table, self.dictionary)
        low = functional.linear(functional.linear(x, first), second)
        return functional.linear(x, self.base, self.bias) + low


class DictConv2d(_DictLayer):
    """A convolution whose filters are ``W0 + D T``: r trained filters, mixed by D.

    Args:
        conv: its weight, bias and geometry are taken over; one group, zero padding.
        dictionary: D of the weight as a matrix of out x (in * height * width).
    """

    def __init__(self, conv: nn.Conv2d, dictionary: Tensor) -> None:
        super().__init__(conv.weight, conv.bias, dictionary, conv.weight[0].numel())
        self.stride, self.padding, self.dilation = conv.stride, conv.padding, conv.dilation

    def forward(self, x: Tensor) -> Tensor:
        """Return what the convolution gives for ``(batch, channels, height, width)``."""
        filters = self.table.reshape(-1, *self.base.shape[1:])
        low = self._convolve(x, filters, None)
        return self._convolve(x, self.base, self.bias) + functional.conv2d(low, self.dictionary[:, :, None, None])

    def _convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return functional.conv2d(x, weight, bias, self.stride, self.padding, self.dilation)


class DictProjection(nn.Module):
    """A parametrization: query, key and value of torch's packed attention weight, each with its own dictionary.

    Args:
        dictionaries: three, each ``(dim, rank)``.
        columns: width of the input.
    """

    dictionaries: Tensor

    def __init__(self, dictionaries: list[Tensor], columns: int) -> None:
        super().__init__()
        self.register_buffer("dictionaries", torch.stack(dictionaries), persistent=False)
        self.table = nn.Parameter(torch.zeros(len(dictionaries), dictionaries[0].shape[1], columns))

    def change(self, table: Tensor) -> Tensor:
        """Return D T for all three, one below the other."""
        return torch.flatten(self.dictionaries @ table, 0, 1)

    def forward(self, base: Tensor) -> Tensor:
        """Return ``W0 + D T``."""
        return base + self.change(self.table)


__all__ = ["DictConv2d", "DictLinear", "DictOptions", "DictProjection", "decompose"]
