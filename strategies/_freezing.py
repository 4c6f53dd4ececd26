"""Freezing parts of a model for good: what does not train becomes a buffer, so that parameters are what travels."""

from collections.abc import Callable

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from strategies.errors import Incompatible


def freeze(model: nn.Module, keeps: Callable[[nn.Module, str, nn.Parameter], bool]) -> None:
    """Turn every parameter into a buffer for which `keeps(module, name, parameter)` is false."""
    for module in list(model.modules()):
        for name, parameter in list(module.named_parameters(recurse=False)):
            if not keeps(module, name, parameter):
                delattr(module, name)
                module.register_buffer(name, parameter.detach())


def refuse_batch_norm(model: nn.Module) -> None:
    """Raise :class:`~strategies.errors.Incompatible` if the model normalises over batches."""
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm):
            raise Incompatible(
                f"layer '{name}' is {type(module).__name__}: its statistics would have to travel beside what trains; "
                "use a model with group or layer norms"
            )


__all__ = ["freeze", "refuse_batch_norm"]
