"""Federated and private learning: launch simulated federations, deploy real clients, measure every byte and second.

>>> from fedsim import RunConfig, simulate
>>> result = simulate(RunConfig(federation={"num_clients": 5, "rounds": 1}))  # doctest: +SKIP
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedsim.config import RunConfig, load_config
    from fedsim.runner import RunResult, simulate

__all__ = ["RunConfig", "RunResult", "load_config", "simulate"]

_HOMES = {"RunConfig": "config", "load_config": "config", "RunResult": "runner", "simulate": "runner"}


def __getattr__(name: str) -> Any:
    # On first use: `fedsim --help` must not import torch.
    if name in _HOMES:
        return getattr(import_module(f"fedsim.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'fedsim' has no attribute '{name}'")
