"""Settings -> worker processes: how many of which size, and which clients each kind runs."""

import os

import psutil

from fedsim.clocks import devices_of
from fedsim.config import ConfigError, RunConfig
from fedsim.errors import Problem
from fedsim.simulation.shares import WorkerKind, pack

__all__ = ["kinds_of"]

#: Share of the free memory that workers may set aside; the rest is the object store's and the server's.
_MEMORY_SHARE = 0.6


def kinds_of(config: RunConfig) -> tuple[list[WorkerKind], list[int]]:
    """Return the kinds of workers with their counts, and each client's kind; a tier without clients has no workers.

    Raises:
        NoRoom: what must be there does not fit on this machine.
        ConfigError: `engine.shares` has a tier that the run's devices do not have.
    """
    engine = config.engine
    others = WorkerKind(
        cpus=engine.cpus_per_worker,
        gpus=engine.gpus_per_worker,
        memory_bytes=(engine.worker_memory_mb or 0) * 2**20,
        count=engine.workers or 0,
    )
    tiers = [device.tier for device in devices_of(config)] if engine.shares else []
    _refuse_unknown(config, tiers)
    kinds = [
        WorkerKind(tier, float(cpus), float(gpus), int(memory_mb) * 2**20, int(workers))
        for tier, (cpus, gpus, memory_mb, workers) in engine.shares.items()
        if tier in tiers
    ]
    names = [kind.name for kind in kinds]
    clients = [names.index(tier) if tier in names else len(kinds) for tier in tiers]
    if not kinds or len(kinds) in clients:
        kinds.append(others)
    return pack(kinds, _room(config)), clients or [0] * config.federation.num_clients


def _refuse_unknown(config: RunConfig, tiers: list[str]) -> None:
    """Refuse a tier that no client can be of; one of few clients, or of a trace that is dealt, may be absent."""
    known = {*tiers, *config.devices.tiers}
    unknown = sorted(set(config.engine.shares) - known)
    if unknown and config.devices.profile != "trace":
        remedy = f"the tiers are: {', '.join(sorted(known))}"
        raise ConfigError([Problem("engine.shares", unknown[0], "no client is of this tier", remedy)])


def _room(config: RunConfig) -> dict[str, float]:
    """Return this machine's room; a cluster's is not known before it is joined, and bounds nothing here."""
    if config.engine.ray_address:
        unbounded = {"GPU": float("inf"), "memory": float("inf")}
        return {"CPU": float(config.engine.workers or os.cpu_count() or 1)} | unbounded
    return {
        "CPU": float(os.cpu_count() or 1),
        "GPU": float(_gpus()) if _wants_gpus(config) else 0.0,
        "memory": _MEMORY_SHARE * psutil.virtual_memory().available,
    }


def _wants_gpus(config: RunConfig) -> bool:
    return config.engine.gpus_per_worker > 0 or any(share[1] for share in config.engine.shares.values())


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()
