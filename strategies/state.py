"""A torch model as named numpy arrays, and back.

The names are those of the state dict, parameters and persistent buffers, in its order. A tensor that has several names
(tied weights) appears once, under its first name, and stays tied when it is loaded. numpy has no bfloat16: such a
tensor is carried as float32, which holds it exactly, and :func:`state_dtypes` records what it was.
"""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

__all__ = ["StateMismatch", "buffer_names", "load_state_arrays", "read_tensors", "state_arrays", "state_dtypes"]

_SHOWN = 3


class StateMismatch(ValueError):
    """Arrays that do not fit the model: names, shapes or kinds differ; the message names the first ones."""


def state_arrays(model: nn.Module) -> dict[str, NDArray[np.generic]]:
    """Return copies of the model's tensors: own memory, C order, shape and dtype kept (bfloat16 as float32).

    Args:
        model: on any device; not modified.

    Raises:
        StateMismatch: the state dict holds something that is not a dense real tensor.
    """
    return {name: _to_numpy(tensor) for name, tensor in _distinct(model).items()}


def state_dtypes(model: nn.Module) -> dict[str, str]:
    """Return each array's dtype on the model by name, such as ``"bfloat16"``; what `Layout.of` takes as `dtypes`."""
    return {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in _distinct(model).items()}


def read_tensors(model: nn.Module) -> tuple[dict[str, NDArray[np.generic]], dict[str, str]]:
    """Return :func:`state_arrays`, and the dtypes that numpy cannot say by name, in one walk over the model."""
    tensors = _distinct(model)
    odd = {name: "bfloat16" for name, tensor in tensors.items() if tensor.dtype == torch.bfloat16}
    return {name: _to_numpy(tensor) for name, tensor in tensors.items()}, odd


def buffer_names(model: nn.Module) -> frozenset[str]:
    """Return the names among :func:`state_arrays` that are buffers (BatchNorm statistics), not parameters."""
    return frozenset(name for name, tensor in _distinct(model).items() if not isinstance(tensor, nn.Parameter))


def load_state_arrays(model: nn.Module, arrays: Mapping[str, NDArray[np.generic]]) -> None:
    """Copy arrays into the model's tensors in place; on an error the model is unchanged.

    Args:
        model: on any device; its tensors keep their memory, dtype and ties.
        arrays: as :func:`state_arrays` names them, any order, strides or byte order, read-only allowed; not modified
            and not kept. Floats load into tensors of any float dtype, whole numbers into tensors of the same kind.

    Raises:
        StateMismatch: a name is missing or not the model's, or a shape or kind differs.
    """
    tensors = _distinct(model)
    _check_names(tensors, arrays)
    for name, tensor in tensors.items():
        _check_array(name, tensor, arrays[name])
    with torch.no_grad():
        for name, tensor in tensors.items():
            _copy_into(tensor, arrays[name])


def _distinct(model: nn.Module) -> dict[str, Tensor]:
    """Return the state dict's tensors, each once: names that share object or memory, shape and strides are ties."""
    seen: set[object] = set()
    tensors: dict[str, Tensor] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if not isinstance(tensor, Tensor) or tensor.layout != torch.strided or tensor.is_complex():
            raise StateMismatch(
                f"'{name}' is {type(tensor).__name__}: the state must be dense real tensors; convert it"
            )
        memory = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride()) if tensor.numel() else id(tensor)
        if memory not in seen:
            seen.add(memory)
            tensors[name] = tensor
    return tensors


def _to_numpy(tensor: Tensor) -> NDArray[np.generic]:
    plain = tensor.detach().cpu()
    if plain.dtype == torch.bfloat16:
        plain = plain.float()
    array: NDArray[np.generic] = np.array(plain.numpy(), order="C", copy=True)
    return array


def _check_names(tensors: Mapping[str, Tensor], arrays: Mapping[str, NDArray[np.generic]]) -> None:
    missing = [name for name in tensors if name not in arrays]
    extra = [name for name in arrays if name not in tensors]
    if missing or extra:
        raise StateMismatch(
            f"{len(missing)} arrays missing {missing[:_SHOWN]}, {len(extra)} unknown {extra[:_SHOWN]}: the model has "
            f"{len(tensors)} and all must be given; build the same model on both sides"
        )


def _check_array(name: str, tensor: Tensor, array: NDArray[np.generic]) -> None:
    if tuple(array.shape) != tuple(tensor.shape):
        raise StateMismatch(
            f"array '{name}' has shape {tuple(array.shape)}: the model's is {tuple(tensor.shape)}; "
            "build the same model on both sides"
        )
    wanted = "f" if tensor.is_floating_point() else np.dtype(str(tensor.dtype).removeprefix("torch.")).kind
    if array.dtype.kind != wanted:
        raise StateMismatch(
            f"array '{name}' is {array.dtype}: the model's tensor is {tensor.dtype}, and floats, signed, unsigned and "
            "boolean values do not mix; round or cast it first"
        )


def _copy_into(tensor: Tensor, array: NDArray[np.generic]) -> None:
    target = tensor.detach()
    if target.device.type == "cpu" and target.dtype != torch.bfloat16:
        # numpy writes straight into the tensor's memory: one copy, whatever the strides and byte order of the source.
        np.copyto(target.numpy(), array, casting="same_kind")
    else:
        target.copy_(torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="))))
