"""Settings -> strategies: the one place where their names meet their classes."""

from typing import Any

from fedsim.config import RunConfig
from strategies.base import FederatedStrategy
from strategies.client import ClientHalf
from strategies.fedavg import FedAdam, FedAvg, FedAvgM, FedProx

#: Name -> server half; its constructor takes the options of the strategy's settings by name.
SERVER_HALVES: dict[str, type[FederatedStrategy]] = {s.name: s for s in (FedAvg, FedProx, FedAvgM, FedAdam)}

#: Name -> client half, where it is not the one that trains the whole model.
CLIENT_HALVES: dict[str, type[ClientHalf]] = {}


def server_half(config: RunConfig, **common: Any) -> FederatedStrategy:
    """Return the server half that the settings name.

    Args:
        config: the settings.
        common: arguments of :class:`~strategies.base.FederatedStrategy`.
    """
    options = config.strategy.model_dump(exclude={"name"})
    return SERVER_HALVES[config.strategy.name](**options, **common)


def client_half(config: RunConfig) -> ClientHalf:
    """Return the client half that the settings name."""
    return CLIENT_HALVES.get(config.strategy.name, ClientHalf)()
