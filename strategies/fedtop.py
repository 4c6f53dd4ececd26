"""FedAvg on the last layers alone: under an encrypted sum, FedHE-Top2 of the DictPFL paper (section 6.1)."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from crypto import Layout
from strategies._freezing import freeze, refuse_batch_norm
from strategies.client import ClientHalf
from strategies.errors import Incompatible
from strategies.fedavg import FedAvg


class FedTop(FedAvg):
    """Server half.

    Args:
        layers: see :class:`TopClient`; the clients' affair.
        common: see :class:`~strategies.base.FederatedStrategy`.
    """

    name = "fedtop"

    def __init__(self, *, layers: int = 2, **common: Any) -> None:
        if layers < 1:
            raise ValueError(f"layers {layers} must be at least 1")
        super().__init__(**common)

    def travelling(self, layout: Layout, server_round: int) -> Layout:
        """Return the layout of what trains: everything but buffers, which the client half made of what is frozen."""
        return self.longest(layout)

    def longest(self, layout: Layout) -> Layout:
        """See :meth:`travelling`."""
        return layout.only(n for n in layout.names if n not in self.buffers.names)


class TopClient(ClientHalf):
    """Client half.

    Args:
        layers: how many of the last modules with weights of their own train.
    """

    name = "fedtop"

    def __init__(self, layers: int = 2) -> None:
        self.layers = layers

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "TopClient":
        """See :meth:`~strategies.client.ClientHalf.of`."""
        return cls(options["layers"])

    def shape(self, model: nn.Module) -> None:
        """Freeze all but the last layers.

        Raises:
            Incompatible: the model has fewer layers, or normalises over batches.
        """
        refuse_batch_norm(model)
        owners = [m for m in model.modules() if any(p.ndim > 1 for p in m.parameters(recurse=False))]
        if len(owners) < self.layers:
            raise Incompatible(
                f"strategy.layers = {self.layers}: the model has {len(owners)} layers with weights; lower it"
            )
        kept = {id(p) for m in owners[-self.layers :] for p in m.parameters(recurse=False)}
        freeze(model, lambda module, name, parameter: id(parameter) in kept)


__all__ = ["FedTop", "TopClient"]
