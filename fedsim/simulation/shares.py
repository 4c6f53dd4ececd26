"""Workers of unequal size: how many of each kind a machine or a cluster has room for."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

__all__ = ["NoRoom", "WorkerKind", "pack"]


class NoRoom(ValueError):
    """Not even the workers that must be there fit; names what is short."""


@dataclass(frozen=True, slots=True)
class WorkerKind:
    """Workers that are alike.

    Attributes:
        name: of the tier of clients that they run; empty for all others.
        cpus, gpus: shares of one worker, fractions allowed.
        memory_bytes: what is set aside for one worker; 0 sets nothing aside.
        count: how many; 0 for as many as fit.

    Raises:
        ValueError: a share is out of range.
    """

    name: str = ""
    cpus: float = 1.0
    gpus: float = 0.0
    memory_bytes: int = 0
    count: int = 0

    def __post_init__(self) -> None:
        if not self.cpus > 0 or self.gpus < 0 or self.memory_bytes < 0 or self.count < 0:
            raise ValueError(f"{self}: a worker needs more than 0 CPUs, and no share is negative; correct it")

    def needs(self) -> dict[str, float]:
        """Return what one worker takes, by Ray's names."""
        return {"CPU": self.cpus, "GPU": self.gpus, "memory": float(self.memory_bytes)}


def pack(kinds: Sequence[WorkerKind], room: dict[str, float]) -> list[WorkerKind]:
    """Return the kinds with their counts settled.

    Fixed counts come first and one of each other kind; then kinds without a count get workers in turn while they fit.
    CPUs bound those alone: fixed counts may share cores, but neither memory nor GPUs.

    Args:
        kinds: in order.
        room: CPU, GPU and memory (bytes) that are there.

    Raises:
        NoRoom: GPUs or memory do not suffice for that.
    """
    counts = [kind.count or 1 for kind in kinds]
    for name in ("GPU", "memory"):
        wanted = sum(count * kind.needs()[name] for count, kind in zip(counts, kinds, strict=True))
        if wanted > room.get(name, 0.0) + 1e-9:
            unit, size = ("MB of memory", 2**20) if name == "memory" else ("GPUs", 1)
            raise NoRoom(
                f"{sum(counts)} workers want {wanted / size:g} {unit}: there are {room.get(name, 0.0) / size:g}; lower "
                "engine.workers, engine.worker_memory_mb or engine.shares"
            )
    growing = [i for i, kind in enumerate(kinds) if not kind.count]
    while growing:
        growing = [i for i in growing if _fits(kinds, [c + (j == i) for j, c in enumerate(counts)], room)]
        for i in growing:
            more = [c + (j == i) for j, c in enumerate(counts)]
            counts = more if _fits(kinds, more, room) else counts
    return [replace(kind, count=count) for kind, count in zip(kinds, counts, strict=True)]


def _fits(kinds: Sequence[WorkerKind], counts: Sequence[int], room: dict[str, float]) -> bool:
    def total(name: str) -> float:
        return math.fsum(count * kind.needs()[name] for count, kind in zip(counts, kinds, strict=True))

    return all(total(name) <= room.get(name, 0.0) + 1e-9 for name in ("CPU", "GPU", "memory") if total(name))
