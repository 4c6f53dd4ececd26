"""Settings -> strategies and protections: the one place where their names meet their classes."""

from collections.abc import Callable
from typing import Any

from fedsim.config import BfvConfig, RunConfig
from strategies.base import FederatedStrategy
from strategies.client import ClientHalf
from strategies.fedavg import FedAdam, FedAvg, FedAvgM, FedProx
from strategies.keyed import KeyedProtection
from strategies.protection import Plain, Protection

#: Name -> server half; its constructor takes the options of the strategy's settings by name.
SERVER_HALVES: dict[str, type[FederatedStrategy]] = {s.name: s for s in (FedAvg, FedProx, FedAvgM, FedAdam)}

#: Name -> client half, where it is not the one that trains the whole model.
CLIENT_HALVES: dict[str, type[ClientHalf]] = {}


def _plain(config: RunConfig, keys: str | None) -> Protection:
    return Plain()


def _bfv(config: RunConfig, keys: str | None) -> Protection:
    p = config.protection
    assert isinstance(p, BfvConfig)
    options = (("value_bits", p.value_bits), ("mode", p.mode), ("ring", p.poly_degree))
    return KeyedProtection("bfv", "crypto.he_seal:BfvSum", options, p.clip, keys=keys)


#: Name -> how settings become a protection, given the folder of this party's keys.
PROTECTIONS: dict[str, Callable[[RunConfig, str | None], Protection]] = {"plain": _plain, "bfv": _bfv}


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


def protection_of(config: RunConfig, keys: str | None) -> Protection:
    """Return the protection that the settings name.

    Args:
        config: the settings.
        keys: folder of this party's keys, or ``None``.
    """
    return PROTECTIONS[config.protection.name](config, keys)
