"""Settings -> strategies: the one place where their names meet their classes."""

from collections.abc import Callable
from functools import partial
from typing import Any

from fedsim.config import FedLuarConfig, RunConfig
from fedsim.tasks.training import TrainConfig, learning_rate
from strategies.base import FederatedStrategy
from strategies.client import ClientHalf
from strategies.fedavg import FedAdam, FedAvg, FedAvgM, FedProx
from strategies.fedluar import FedLUAR, LuarClient

#: Name -> server half; its constructor takes the options of the strategy's settings by name.
SERVER_HALVES: dict[str, type[FederatedStrategy]] = {s.name: s for s in (FedAvg, FedProx, FedAvgM, FedAdam, FedLUAR)}

#: Name -> client half, where it is not the one that trains the whole model.
CLIENT_HALVES: dict[str, type[ClientHalf]] = {LuarClient.name: LuarClient}


def server_half(config: RunConfig, **common: Any) -> FederatedStrategy:
    """Return the server half that the settings name.

    Args:
        config: the settings.
        common: arguments of :class:`~strategies.base.FederatedStrategy`.
    """
    options = config.strategy.model_dump(exclude={"name"})
    if isinstance(config.strategy, FedLuarConfig):
        options["learning_rate"] = _rate(config)
    return SERVER_HALVES[config.strategy.name](**options, **common)


def client_half(config: RunConfig) -> ClientHalf:
    """Return the client half that the settings name."""
    return CLIENT_HALVES.get(config.strategy.name, ClientHalf)()


def _rate(config: RunConfig) -> Callable[[int], float]:
    """Return the clients' learning rate by round."""
    t, rounds = config.training, config.federation.rounds
    schedule_rounds = rounds if t.schedule != "constant" else 0
    return partial(learning_rate, TrainConfig(lr=t.lr, schedule=t.schedule, schedule_rounds=schedule_rounds))
