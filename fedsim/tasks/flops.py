"""Floating-point operations of a model, counted without running it under torch's counter where that can be.

``torch.utils.flop_counter`` loads torch's compiler, two seconds of CPU, to count what a small model needs milliseconds
for. Where the graph that autograd keeps has known nodes only, the products are read off it, to the same number.
"""

import copy
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["flops_per_example"]

#: Nodes of autograd's graph that are no products; as torch's counter, we leave their work out.
_FREE = frozenset(
    [
        *("AccumulateGrad", "AddBackward0", "CloneBackward0", "DivBackward0", "ExpandBackward0"),
        *("GeluBackward0", "MaxPool2DWithIndicesBackward0", "MeanBackward0", "MeanBackward1", "MulBackward0"),
        *("NativeBatchNormBackward0", "NativeDropoutBackward0", "NativeGroupNormBackward0"),
        *("PermuteBackward0", "ReluBackward0", "ReshapeAliasBackward0", "SelectBackward0"),
        *("SigmoidBackward0", "SliceBackward0", "SubBackward0", "SumBackward0", "TBackward0"),
        *("TanhBackward0", "ToCopyBackward0", "TransposeBackward0", "UnsafeViewBackward0"),
        *("UnsqueezeBackward0", "ViewBackward0"),
    ]
)


def flops_per_example(model: nn.Module, input_shape: tuple[int, ...], *, backward: bool = True) -> int:
    """Return the floating-point operations of forward and backward for one example, as torch's counter has them.

    The counter sees matrix products, convolutions and attention; element-wise work is left out. A multiply-add counts
    as two. Parameters that do not train save the products for their own gradient. The model is not changed.
    """
    twin = copy.deepcopy(model).train()
    probe = torch.zeros((2, *input_shape), device=next(twin.parameters()).device)
    cuda = [probe.device.index or 0] if probe.device.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda):
        found = _from_graph(twin, probe, backward)
        return (_by_counter(twin, probe, backward) if found is None else found) // 2


def _by_counter(model: nn.Module, probe: Tensor, backward: bool) -> int:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        loss = model(probe).float().sum()
        if backward and loss.requires_grad:
            loss.backward()
    return int(counter.get_total_flops())


def _from_graph(model: nn.Module, probe: Tensor, backward: bool) -> int | None:
    """Return the operations by autograd's graph, ``None`` where a node is not known."""
    trains = {id(p): p.requires_grad for p in model.parameters()}
    try:
        # All operations must be in the graph; which of them have gradients is decided below.
        for parameter in model.parameters():
            parameter.requires_grad_(True)
        nodes = _in_order(model(probe).float().sum().grad_fn)
    finally:
        for parameter in model.parameters():
            parameter.requires_grad_(trains[id(parameter)])
    needed: dict[Any, bool] = {}
    total = 0
    for node in nodes:
        inputs = [child for child, _ in node.next_functions]
        own = trains.get(id(getattr(node, "variable", None)), False)
        needed[node] = own or any(needed[child] for child in inputs if child is not None)
        name = node.name().removesuffix(">").rpartition("::")[2]
        if name in _PRODUCTS:
            operands, count = _PRODUCTS[name]
            flops = count(node)
            if flops is None:
                return None
            # The gradient in an operand takes as many operations as the product itself.
            gradients = sum(inputs[i] is not None and needed[inputs[i]] for i in operands)
            total += flops * (1 + (gradients if backward else 0))
        elif name not in _FREE:
            return None
    return total


def _in_order(root: Any) -> list[Any]:
    """Return the graph's nodes, each after those that it depends on."""
    order: list[Any] = []
    seen = {root}
    stack = [(root, iter(root.next_functions))]
    while stack:
        node, children = stack[-1]
        child = next((c for c, _ in children if c is not None and c not in seen), None)
        if child is None:
            order.append(node)
            stack.pop()
        else:
            seen.add(child)
            stack.append((child, iter(child.next_functions)))
    return order


def _product(left: Sequence[int], right: Sequence[int]) -> int:
    return 2 * prod(left) * right[-1]


def _convolution(node: Any) -> int | None:
    """Return the operations of a convolution, ``None`` for what is none of the usual kind."""
    if node._saved_transposed or node._saved_groups != 1:
        return None
    x, weight = node._saved_input.shape, node._saved_weight.shape
    spans = [d * (k - 1) + 1 for d, k in zip(node._saved_dilation, weight[2:], strict=True)]
    padded = [n + 2 * p for n, p in zip(x[2:], node._saved_padding, strict=True)]
    out = [(n - s) // step + 1 for n, s, step in zip(padded, spans, node._saved_stride, strict=True)]
    return 2 * prod([int(x[0]), *map(int, out), *map(int, weight)])


#: Node -> (places of the operands among its inputs, operations of the product).
_PRODUCTS: dict[str, tuple[tuple[int, int], Callable[[Any], int | None]]] = {
    "AddmmBackward0": ((1, 2), lambda node: _product(node._saved_mat1_sym_sizes, node._saved_mat2_sym_sizes)),
    "MmBackward0": ((0, 1), lambda node: _product(node._saved_self_sym_sizes, node._saved_mat2_sym_sizes)),
    "ConvolutionBackward0": ((0, 1), _convolution),
}
