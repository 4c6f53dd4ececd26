"""Memory of local training: weights, gradients, optimiser state, and what the forward pass keeps for backward."""

import copy

import torch
from torch import Tensor, nn

__all__ = ["activation_bytes", "training_bytes"]


def training_bytes(model: nn.Module, example: Tensor, batch: int, moments: int) -> int:
    """Return the bytes that are held at the end of a forward pass in training, with gradients and optimiser state.

    ``weights + (1 + moments) * trained weights + batch * activations``. Buffers that a single operation needs for a
    moment are left out.

    Args:
        model: parameters with ``requires_grad`` train; not changed.
        example: one input, ``(1, ...)``.
        batch: examples in a step.
        moments: arrays that the optimiser keeps for each weight: 2 for Adam, 1 for SGD with momentum.
    """
    parameters = list({id(p): p for p in model.parameters()}.values())
    held = sum(t.nbytes for t in (*parameters, *model.buffers()))
    trained = sum(p.nbytes for p in parameters if p.requires_grad)
    return held + (1 + moments) * trained + batch * activation_bytes(model, example)


def activation_bytes(model: nn.Module, example: Tensor) -> int:
    """Return the bytes that one example's forward pass keeps for the backward pass, weights left out.

    Counted on a copy, in training mode where anything trains; frozen modules stay in evaluation mode.
    """
    twin = copy.deepcopy(model).train()
    for module in twin.modules():
        parameters = list(module.parameters())
        if parameters and not any(p.requires_grad for p in parameters):
            module.eval()
    weights = {p.untyped_storage().data_ptr() for p in (*twin.parameters(), *twin.buffers())}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    devices = [example.device] if example.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        # Two examples: batch normalisation has no variance of one.
        held = twin(torch.cat([example, example]))
        del held
    return sum(kept.values()) // 2
