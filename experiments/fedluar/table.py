"""Tables of runs: one CSV row a run, resumed where a sweep was stopped, and means with intervals of paired seeds."""

import csv
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np

from experiments.sweeps.statistics import Mean, mean

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Row:
    """One run.

    Attributes:
        arm: which variant.
        seed: runs of one seed share data, first weights, sampled clients and batches.
        rounds: rounds that were done.
        accuracy: of the last round's model on the test set.
        comm: the paper's Comm, bytes aggregated over those of FedAvg, uplink, trainable arrays.
        longest_run: rounds in a row that a layer was recycled, at most.
        upload_bytes, download_bytes: as the ledger has them; 0 where none was kept.
        two_way: (up + down) over that of the arm ``fedavg`` of the same seed; 1 without one.
        frequencies: for each layer the share of rounds in which it was recycled, ``name:share`` apart by spaces.
    """

    arm: str
    seed: int
    rounds: int
    accuracy: float
    comm: float
    longest_run: int
    upload_bytes: int = 0
    download_bytes: int = 0
    two_way: float = 1.0
    frequencies: str = ""

    @property
    def shares(self) -> dict[str, float]:
        """:attr:`frequencies` by name."""
        return {name: float(share) for name, _, share in (f.rpartition(":") for f in self.frequencies.split())}


def frequencies(layers: Iterable[str], uploads: Iterable[float], rounds: int) -> str:
    """Return the field :attr:`Row.frequencies` from the rounds in which each layer was aggregated."""
    return " ".join(f"{name}:{1 - n / rounds:.2f}" for name, n in zip(layers, uploads, strict=True))


def read_rows(path: Path) -> list[Row]:
    """Return a table's rows; none where there is no table yet."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [Row(**{f.name: f.type(line[f.name]) for f in fields(Row)}) for line in csv.DictReader(file)]  # type: ignore[operator]


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write a table."""
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, [f.name for f in fields(Row)], lineterminator="\n")
        table.writeheader()
        table.writerows(asdict(row) for row in rows)


def fill(path: Path, jobs: Iterable[tuple[str, int]], run: Callable[[str, int, list[Row]], Row]) -> list[Row]:
    """Run what the table lacks and write it after each run.

    Args:
        path: the table; its rows stay.
        jobs: arm and seed of each run.
        run: takes arm, seed, and the rows so far.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = read_rows(path)
    for arm, seed in jobs:
        if any((r.arm, r.seed) == (arm, seed) for r in rows):
            continue
        rows.append(run(arm, seed, rows))
        log.info("%s", rows[-1])
        write_rows(path, rows)
    return rows


def paired(rows: Sequence[Row], arm: str, other: str) -> Mean:
    """Return the accuracy of `arm` minus that of `other`, over the seeds that both have."""
    mine, theirs = ({r.seed: r.accuracy for r in rows if r.arm == a} for a in (arm, other))
    return mean([mine[seed] - theirs[seed] for seed in sorted(mine.keys() & theirs.keys())])


def said(value: Mean) -> str:
    """Return mean and half of the 95 % interval."""
    return f"{value.value:.3f} +- {value.half:.3f}" if value.count > 1 else f"{value.value:.3f}"


def markdown(rows: Sequence[Row], base: str = "fedavg") -> str:
    """Return a table of all arms: means over seeds, and accuracy less that of `base`, paired by seed."""
    lines = [
        f"| arm | seeds | accuracy | less {base} | Comm | up + down | longest run |",
        "|---|---|---|---|---|---|---|",
    ]
    for arm in dict.fromkeys(r.arm for r in rows):
        mine = [r for r in rows if r.arm == arm]
        gap = said(paired(rows, arm, base)) if arm != base else ""
        both = f"{np.mean([r.two_way for r in mine]):.3f}" if mine[0].upload_bytes else ""
        cells = [arm, len(mine), said(mean([r.accuracy for r in mine])), gap]
        cells += [f"{np.mean([r.comm for r in mine]):.3f}", both, max(r.longest_run for r in mine)]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)
