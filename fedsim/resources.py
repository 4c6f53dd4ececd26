"""What a run will take, before anything of it starts: memory, shared memory, disk, and roughly how long.

The figures are formulas over sizes that are known (model, data, the secure sum's budget), with room on top; they are
meant to be right within a factor of three and to err on the high side. What does not fit is refused with the remedy.
"""

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from crypto import BudgetExceeded
from fedsim.progress import duration
from fedsim.site import Site, secure_plan
from fedsim.workers import kinds_of

#: A process that has trained a small model, with torch, Flower and the libraries that they load on first use; Ray's own
#: processes beside the workers.
_PROCESS_BYTES = 600 * 10**6
_RAY_BYTES = 600 * 10**6
#: Weights, gradients, the optimiser's moments, the start weights, the update, and the vector that is sealed.
_TRAINING_COPIES = 7
#: The global model, the mean in float64, the vector that was opened, and the new model.
_SERVER_COPIES = 7
#: Values that layers keep for the backward pass, for each value of an example.
_ACTIVATIONS = 200
#: A row of the ledger or of the metrics, as CSV and as Parquet; rows of a client in a round.
_ROW_BYTES, _ROWS = 250, 9
#: The report with the library that draws it, and its pictures.
_REPORT_BYTES = 12 * 10**6
#: Results that a worker may be ahead of the server; see SimulationGrid.stream.
_AHEAD = 4


@dataclass(frozen=True, slots=True)
class Need:
    """What a run takes.

    Attributes:
        memory_bytes: all processes of this machine together, at the peak.
        shm_bytes: in Ray's object store, which lies in ``/dev/shm``; 0 without Ray.
        disk_bytes: the run's folder.
        time_s: from the first round to the last, see :mod:`fedsim.estimate`.
    """

    memory_bytes: int
    shm_bytes: int
    disk_bytes: int
    time_s: float

    def figures(self) -> dict[str, float]:
        """Return the figures for a run's record."""
        return asdict(self) | {"time_s": round(self.time_s, 1)}

    def __str__(self) -> str:
        shm = f", {_mb(self.shm_bytes)} of shared memory" if self.shm_bytes else ""
        disk = f"{_mb(self.disk_bytes)} of disk"
        return f"about {duration(self.time_s)}, {_mb(self.memory_bytes)} of memory{shm}, {disk}"


@dataclass(frozen=True, slots=True)
class Room:
    """What is there; ``None`` where the system does not say.

    Attributes:
        memory_bytes: available, within the limits of the container and of the process.
        shm_bytes: free in ``/dev/shm``.
        disk_bytes: free where runs are kept.
    """

    memory_bytes: int
    shm_bytes: int | None
    disk_bytes: int


def need(site: Site, engine: str, workers: int, time_s: float) -> Need:
    """Return what a run will take.

    Args:
        site: the run's data and model.
        engine: where the clients run.
        workers: processes that run them.
        time_s: see :class:`Need`.
    """
    config = site.config
    budget = site.protection.secure_sum(secure_plan(site)).budget
    model = sum(array.nbytes for array in site.initial.arrays.values())
    arrays = (site.dataset.train_x, site.dataset.train_y, site.dataset.test_x, site.dataset.test_y)
    data = sum(array.nbytes for array in arrays)
    example = 4 * site.dataset.train_x[0].size
    batch = config.training.batch_size * example * _ACTIVATIONS
    client = _TRAINING_COPIES * model + 2 * data + batch + 2 * budget.upload_bytes
    server = _SERVER_COPIES * model + budget.memory_bytes + budget.download_bytes + example * len(site.dataset.test_x)
    parts = config.engine.chunk * budget.upload_bytes
    if engine == "inline":
        memory, shm = _PROCESS_BYTES + client + server + parts, 0
    else:
        shm = 2 * (model + budget.download_bytes) + workers * _AHEAD * budget.download_bytes
        memory = _PROCESS_BYTES + server + _RAY_BYTES + workers * (_PROCESS_BYTES + client + parts) + shm
    return Need(memory, shm if engine == "ray" else 0, _disk(site, model, budget.download_bytes), time_s)


def _disk(site: Site, model: int, total: int) -> int:
    config = site.config
    # Moments and scores in float64, where the server has a step of its own.
    state = 5 * model if config.strategy.needs_opened_sum else 0
    checkpoint = model + state + (total if site.protection.opened_by == "clients" else 0)
    rows = config.federation.rounds * config.federation.sampled * _ROWS * _ROW_BYTES
    report = _REPORT_BYTES if config.output.report else 0
    return (config.output.keep + 1) * checkpoint + 2 * model + 2 * rows + report + 10**6


def room(folder: Path) -> Room:
    """Return what is there, for runs under a folder that need not exist yet."""
    here = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if _exists(parent))
    shm = Path("/dev/shm")
    return Room(_memory_bytes(), shutil.disk_usage(shm).free if shm.exists() else None, shutil.disk_usage(here).free)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        # A name that is too long, for one; whoever makes the folder says so.
        return False


def _memory_bytes(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the memory that may still be taken: the machine's, or less in a container."""
    free = int(psutil.virtual_memory().available)
    for most, taken in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
        try:
            limit, used = (int((cgroup / name).read_text(encoding="ascii")) for name in (most, taken))
        except (OSError, ValueError):
            continue
        # The kernel gives caches of files back when memory is short; used counts them.
        free = min(free, max(0, limit - used + _cached_bytes(cgroup)))
    return free


def _cached_bytes(cgroup: Path) -> int:
    try:
        lines = (cgroup / "memory.stat").read_text(encoding="ascii").split("\n")
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith(("inactive_file ", "total_inactive_file ")))


def shortages(wanted: Need, there: Room, folder: Path) -> list[str]:
    """Return what does not fit, each with the value, the rule and the remedy."""
    found = []
    if wanted.memory_bytes > there.memory_bytes:
        found.append(
            f"about {_mb(wanted.memory_bytes)} of memory for the run: {_mb(there.memory_bytes)} are available; lower "
            "engine.workers, training.batch_size or the size of the model, or close other programs"
        )
    if there.shm_bytes is not None and wanted.shm_bytes > there.shm_bytes:
        found.append(
            f"about {_mb(wanted.shm_bytes)} of shared memory for the run: {_mb(there.shm_bytes)} are free in /dev/shm; "
            "start the container with --shm-size (compose: shm_size), or set engine.name = inline"
        )
    if wanted.disk_bytes > there.disk_bytes:
        found.append(
            f"about {_mb(wanted.disk_bytes)} of disk for the run: {_mb(there.disk_bytes)} are free in {folder}; set "
            "output.folder elsewhere, or lower output.keep"
        )
    return found


def check(wanted: Need, folder: Path, there: Room | None = None) -> None:
    """Refuse a run that does not fit.

    Raises:
        BudgetExceeded: memory, shared memory or disk are too small; says all of it.
    """
    found = shortages(wanted, there or room(folder), folder)
    if found:
        words = "; ".join(found)
        raise BudgetExceeded(f"{words} (engine.shortage = warn goes on nevertheless)")


def _mb(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 10**9 else f"{size / 1e6:.0f} MB"


def workers_of(site: Site) -> int:
    """Return how many processes would run clients under Ray."""
    return sum(kind.count for kind in kinds_of(site.config)[0])
