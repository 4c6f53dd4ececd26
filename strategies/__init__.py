"""The papers: each strategy has its server half and its client half side by side. Knows crypto, flwr and torch.

The names below are the package's face; they work in any Flower app, without the program's command line.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strategies.base import FederatedStrategy
    from strategies.client import ClientHalf, seal_mod
    from strategies.dictpfl import DictPFL
    from strategies.errors import StrategyError
    from strategies.fedavg import FedAdam, FedAvg, FedAvgM, FedProx
    from strategies.fedbuff import FedBuff
    from strategies.fedluar import FedLUAR
    from strategies.fedluar_sealed import SealedFedLUAR
    from strategies.fedml_he import FedMLHE
    from strategies.fedtop import FedTop
    from strategies.keyed import KeyedProtection
    from strategies.leff import LEFF
    from strategies.nodes import Participation
    from strategies.partial import FedPartial
    from strategies.plan import BufferRule, RoundPlan
    from strategies.preamble import PreambleProtection
    from strategies.protection import Plain, Protection

__all__ = [
    "LEFF",
    "BufferRule",
    "ClientHalf",
    "DictPFL",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedBuff",
    "FedLUAR",
    "FedMLHE",
    "FedPartial",
    "FedProx",
    "FedTop",
    "FederatedStrategy",
    "KeyedProtection",
    "Participation",
    "Plain",
    "PreambleProtection",
    "Protection",
    "RoundPlan",
    "SealedFedLUAR",
    "StrategyError",
    "seal_mod",
]

_HOMES = {
    "BufferRule": "plan",
    "ClientHalf": "client",
    "DictPFL": "dictpfl",
    "FedAdam": "fedavg",
    "FedAvg": "fedavg",
    "FedAvgM": "fedavg",
    "FedBuff": "fedbuff",
    "FedLUAR": "fedluar",
    "FedMLHE": "fedml_he",
    "FedPartial": "partial",
    "FedProx": "fedavg",
    "FedTop": "fedtop",
    "FederatedStrategy": "base",
    "KeyedProtection": "keyed",
    "LEFF": "leff",
    "Participation": "nodes",
    "Plain": "protection",
    "PreambleProtection": "preamble",
    "Protection": "protection",
    "RoundPlan": "plan",
    "SealedFedLUAR": "fedluar_sealed",
    "StrategyError": "errors",
    "seal_mod": "client",
}


def __getattr__(name: str) -> Any:
    # On first use: importing a module of this package must not load torch for all of them.
    if name in _HOMES:
        return getattr(import_module(f"strategies.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'strategies' has no attribute '{name}'")
