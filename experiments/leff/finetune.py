"""LEFF against its baselines on a real transformer, with clients of unequal capacity and speed.

``python -m experiments.leff.finetune experiments/configs/papers/leff_minilm.toml --out leff.csv`` runs the arms with
paired seeds, one row a run, and goes on where the table ends; ``--vary strategy.rate=0.2`` adds rows of the same
arms with one setting changed at a time. Round times are virtual: counted work over the devices' speeds, and bytes over
their links; seconds of the server's scoring and distillation are measured and stand apart.
:mod:`experiments.leff.compare` reads the table.
"""

import argparse
import csv
import math
import re
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedsim.config import load_config
from fedsim.measure.ledger import Ledger
from fedsim.runner import simulate

__all__ = ["ARMS", "Row", "interval", "main", "read", "run_arm"]

#: Arm -> settings. Those after the first begin with the strategy's name, which drops the file's own.
ARMS: dict[str, list[str]] = {
    "leff": [],
    "leff-random": ["strategy.selector=random"],
    "leff-round-robin": ["strategy.selector=round_robin"],
    "leff-raw": ["strategy.selector=raw"],
    "leff-whole": ["strategy.rate=1.0"],
    "leff-undistilled": ["strategy.distil_steps=0"],
    "lisa": ["strategy.selector=uniform"],
    "gradient": ["strategy.selector=gradient"],
    "full": ["strategy.name=partial", "strategy.trained=blocks"],
    "strongest": [
        "strategy.name=partial",
        "strategy.trained=blocks",
        "federation.min_replies=1",
        "devices.availability_trace=experiments/configs/papers/leff_strongest.csv",
    ],
    "head": ["strategy.name=partial", "strategy.trained=tail"],
    "head-fast": ["strategy.name=partial", "strategy.trained=tail", "training.lr=0.01"],
    "bitfit": ["strategy.name=partial", "strategy.trained=bias", "training.lr=0.001"],
    "lora": ["strategy.name=partial", "strategy.trained=lora", "training.lr=0.001", "model.options.lora_rank=8"],
}


_TURN = ("download", "train", "seal", "upload")


@dataclass(frozen=True)
class Row:
    """One run.

    Attributes:
        arm, seed: which; an arm with a setting of its own is followed by a blank and that.
        rounds: of the run.
        accuracy: on the test set after the last round.
        best: the best of the evaluated rounds.
        round_s: mean virtual seconds of a round after the first, in which embeddings travel.
        spread: mean over those rounds of the slowest client's seconds over the fastest's.
        train_s, train_spread: the same of the computing alone.
        peak_first_bytes, peak_last_bytes: counted training memory of the first and of the last client, mean of rounds.
        upload_bytes, download_bytes: of all clients and rounds, on the wire.
        gflop: of all clients' training.
        server_s: measured seconds of scoring and distillation.
    """

    arm: str
    seed: int
    rounds: int
    accuracy: float
    best: float
    round_s: float
    spread: float
    train_s: float
    train_spread: float
    peak_first_bytes: int
    peak_last_bytes: int
    upload_bytes: int
    download_bytes: int
    gflop: float
    server_s: float


def run_arm(config: Path, arm: str, seed: int, work: Path, more: Sequence[str] = ()) -> Row:
    """Run one arm of one seed in a folder of its own, which is removed afterwards.

    Args:
        config: the experiment's file.
        arm: a key of :data:`ARMS`; a blank and one setting may follow, which comes after `more`.
        seed: of the run.
        work: folder of the run's own.
        more: settings.
    """
    name = re.sub(r"[^\w.-]", "-", f"{config.stem}-{arm}-{seed}")
    shutil.rmtree(work / name, ignore_errors=True)
    kind, *changed = arm.split()
    own = [f"seed={seed}", f"output.folder={work}", f"output.name={name}"]
    result = simulate(load_config(config, [*own, *ARMS[kind], *more, *changed]))
    ledger = Ledger.read(result.folder)
    table = ledger.table()
    row = Row(
        arm=arm,
        seed=seed,
        rounds=max(ledger.rounds()),
        accuracy=round(result.metrics["server_accuracy"], 4),
        best=round(best_accuracy(result.folder), 4),
        **times(table),
        peak_first_bytes=peak(table, 0),
        peak_last_bytes=peak(table, int(pc.max(table["client"]).as_py())),
        upload_bytes=ledger.upload_bytes(),
        download_bytes=ledger.download_bytes(),
        gflop=round(ledger.total("flops", phase="train", party="clients") / 1e9, 1),
        server_s=round(ledger.total("measured_s", phase="train", party="server"), 2),
    )
    shutil.rmtree(result.folder)
    return row


def times(table: pa.Table) -> dict[str, float]:
    """Return the seconds and spreads of :class:`Row`."""
    found = {}
    for name, spread, phases in (("round_s", "spread", _TURN), ("train_s", "train_spread", ("train",))):
        each = turns(table, phases)
        found[name] = round(float(np.mean([max(seconds) for seconds in each])), 3)
        found[spread] = round(float(np.mean([max(seconds) / min(seconds) for seconds in each])), 3)
    return found


def turns(table: pa.Table, names: Sequence[str]) -> list[list[float]]:
    """Return the virtual seconds that each client's turn spends in these phases, by round after the first."""
    phases = pc.is_in(table["phase"], pa.array(names))
    kept = table.filter(pc.and_(phases, pc.and_(pc.greater_equal(table["client"], 0), pc.greater(table["round"], 1))))
    sums: dict[int, dict[int, float]] = {}
    for each in kept.select(["round", "client", "virtual_s"]).to_pylist():
        own = sums.setdefault(each["round"], {})
        seconds = each["virtual_s"]
        own[each["client"]] = own.get(each["client"], 0.0) + (0.0 if math.isnan(seconds) else seconds)
    return [list(own.values()) for own in sums.values()]


def peak(table: pa.Table, client: int) -> int:
    """Return a client's counted training memory, the mean over rounds; 0 for one that never trained."""
    mine = pc.and_(pc.equal(table["client"], client), pc.equal(table["phase"], "train"))
    return round(pc.mean(table.filter(mine)["peak_memory_bytes"]).as_py() or 0)


def best_accuracy(folder: Path) -> float:
    """Return the best accuracy of the server's evaluations."""
    with (folder / "metrics.csv").open(encoding="utf-8") as file:
        found = [float(r["value"]) for r in csv.DictReader(file) if (r["side"], r["name"]) == ("server", "accuracy")]
    return max(found)


def read(path: Path) -> list[Row]:
    """Return the rows of a table, none where there is none yet."""
    if not path.exists():
        return []
    kinds = {field.name: field.type for field in fields(Row)}
    with path.open(encoding="utf-8") as file:
        return [Row(**{k: kinds[k](v) for k, v in each.items()}) for each in csv.DictReader(file)]  # type: ignore[operator]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and half the width of its 95 % interval (Student's t); NaN for one value."""
    from scipy.stats import t

    n = len(values)
    half = math.nan if n < 2 else float(t.ppf(0.975, n - 1)) * float(np.std(values, ddof=1)) / math.sqrt(n)
    return float(np.mean(values)), half


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--arms", nargs="*", choices=list(ARMS), default=["leff", "full", "head", "head-fast"])
    parser.add_argument(
        "--set", nargs="*", default=[], metavar="KEY=VALUE", help="of all arms; {seed} stands for the seed"
    )
    parser.add_argument(
        "--vary", nargs="*", default=[], metavar="KEY=VALUE", help="each one a further row of every arm, by itself"
    )
    parser.add_argument("--work", type=Path, default=Path("runs"))
    parser.add_argument("--out", type=Path, default=Path("leff.csv"))
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    done = {(row.arm, row.seed) for row in read(args.out)}
    for seed in args.seeds:
        for arm in [*args.arms, *(f"{arm} {each}" for arm in args.arms for each in args.vary)]:
            if (arm, seed) in done:
                continue
            more = [each.replace("{seed}", str(seed)) for each in args.set]
            row = asdict(run_arm(args.config, arm, seed, args.work, more))
            new = not args.out.exists()
            with args.out.open("a", encoding="utf-8", newline="") as file:
                writer = csv.DictWriter(file, list(row))
                if new:
                    writer.writeheader()
                writer.writerow(row)
            print(row, flush=True)


if __name__ == "__main__":
    main()
