"""FedLUAR's ablations on a real data set: number of recycled layers, recycle against drop, controls.

``python -m experiments.fedluar.sweep experiments/configs/papers/fedluar_digits.toml --seeds 3 --out table.csv`` runs
every arm with paired seeds and writes one row a run: final accuracy, the paper's Comm, bytes both ways as the ledger
has them, bytes over those of the arm ``fedavg`` of the same seed, and how often each layer was recycled.
"""

import argparse
import csv
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np

from fedsim.checkpoint import latest_checkpoint
from fedsim.config import load_config
from fedsim.measure.ledger import Ledger
from fedsim.runner import simulate


@dataclass(frozen=True)
class Row:
    """One run; `two_way` is (up + down) over that of FedAvg with the same seed."""

    arm: str
    seed: int
    accuracy: float
    comm: float
    upload_bytes: int
    download_bytes: int
    two_way: float
    frequencies: str


def arms(deltas: list[int]) -> dict[str, list[str]]:
    """Return arm -> settings: FedAvg, then for each delta the method and its controls."""
    found = {"fedavg": ["strategy.delta=0"]}
    for delta in deltas:
        own = [f"strategy.delta={delta}"]
        found[f"luar-{delta}"] = [*own, "strategy.downlink=delta"]
        found[f"drop-{delta}"] = [*own, "strategy.drop=true", "strategy.downlink=delta"]
        for sampler in ("uniform", "round_robin", "deterministic"):
            found[f"{sampler}-{delta}"] = [*own, f"strategy.sampler={sampler}", "strategy.downlink=delta"]
        found[f"luar-{delta}-cap-3"] = [*own, "strategy.max_staleness=3", "strategy.downlink=delta"]
    return found


def run_arm(config: Path, arm: str, more: list[str], seed: int, work: Path, fedavg_bytes: int | None) -> Row:
    """Run one arm of one seed in a folder of its own, which is removed afterwards."""
    name = f"{config.stem}-{arm}-{seed}"
    shutil.rmtree(work / name, ignore_errors=True)
    result = simulate(load_config(config, [f"seed={seed}", f"output.folder={work}", f"output.name={name}", *more]))
    ledger, point = Ledger.read(result.folder), latest_checkpoint(result.folder / "checkpoints")
    assert point is not None
    up, down = ledger.upload_bytes(), ledger.download_bytes()
    rounds, uploads = int(point.strategy["luar/rounds"]), point.strategy["luar/uploads"]
    shutil.rmtree(result.folder)
    return Row(
        arm,
        seed,
        round(result.metrics["server_accuracy"], 4),
        round(result.metrics["server_luar_comm"], 4),
        up,
        down,
        round((up + down) / (fedavg_bytes or up + down), 4),
        " ".join(f"{1 - n / rounds:.2f}" for n in uploads) if uploads.any() else "",
    )


def sweep(
    config: Path, chosen: dict[str, list[str]], seeds: int, work: Path, out: Path, write: Callable[[str], object]
) -> None:
    """Run all arms; the table is written after each."""
    rows: list[Row] = []
    for arm, more in chosen.items():
        for seed in range(1, seeds + 1):
            base = next((r for r in rows if (r.arm, r.seed) == ("fedavg", seed)), None)
            total = base.upload_bytes + base.download_bytes if base else None
            rows.append(run_arm(config, arm, more, seed, work, total))
        mine = [r for r in rows if r.arm == arm]
        accuracy = np.array([r.accuracy for r in mine])
        comm, both = np.mean([r.comm for r in mine]), np.mean([r.two_way for r in mine])
        write(f"{arm:18} {accuracy.mean():.4f} +- {accuracy.std():.4f}  comm {comm:.3f}  two-way {both:.3f}")
        with out.open("w", newline="") as file:
            table = csv.DictWriter(file, [f.name for f in fields(Row)])
            table.writeheader()
            table.writerows(asdict(r) for r in rows)


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--deltas", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--arms", nargs="*", help="some of them; fedavg must be first for the column two_way")
    parser.add_argument("--work", type=Path, default=Path("runs"))
    parser.add_argument("--out", type=Path, default=Path("fedluar.csv"))
    args = parser.parse_args()
    every = arms(args.deltas)
    chosen = {arm: every[arm] for arm in args.arms} if args.arms else every
    sweep(args.config, chosen, args.seeds, args.work, args.out, print)


if __name__ == "__main__":
    main()
