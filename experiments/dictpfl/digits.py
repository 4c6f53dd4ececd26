"""DictPFL's learning on the packaged digits: rank, reactivation, residual, heterogeneity, beside FedAvg and Top2.

``python -m experiments.dictpfl.digits --out experiments/results/dictpfl_digits.csv`` runs every arm with paired seeds
from one start model (:mod:`experiments.dictpfl.start`), one row a run, going on where the table ends. Sums are plain;
encryption changes nothing but the last bits (a test compares the two).
"""

import argparse
import csv
import shutil
import statistics
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from experiments.dictpfl.start import pretrain
from fedsim.config import load_config
from fedsim.events import NullObserver
from fedsim.measure.ledger import Ledger
from fedsim.runner import run

CONFIG = Path(__file__).parents[1] / "configs" / "papers" / "dictpfl_digits.toml"
MODEL = ["task.name=digits", "model.name=mlp"]
_FULL, _HEAD = ["strategy.name=fedavg"], ["strategy.name=fedtop", "strategy.layers=1"]
_TABLES = ["strategy.rank=8", "strategy.prune_share=0.0"]
_HARSH = ["strategy.rank=8", "strategy.population=transmitted"]


def arms() -> Iterator[tuple[str, list[str]]]:
    """Yield each arm's name and settings."""
    yield "fedavg", _FULL
    yield "head", _HEAD
    yield "top2", ["strategy.name=fedtop"]
    for rank in (1, 2, 4, 8, 16):
        yield f"rank-{rank}", [f"strategy.rank={rank}", "strategy.prune_share=0.0"]
    yield "prune-all", ["strategy.rank=8"]
    yield "prune-sent", _HARSH
    yield "prune-sent-no-reactivation", [*_HARSH, "strategy.reactivation=false"]
    yield "prune-sent-no-residual", [*_HARSH, "strategy.residual=false"]
    for share in (0.2, 0.5, 0.9):
        yield f"share-{share}", ["strategy.rank=8", f"strategy.prune_share={share}"]
    for patience in (1, 5, 10):
        yield f"patience-{patience}", [*_HARSH, f"strategy.patience={patience}"]
    for beta in (0.5, 0.8):
        yield f"beta-{beta}", [*_HARSH, f"strategy.beta={beta}"]
    for alpha in (0.3, 0.6, 0.9):
        uneven = ["data.scheme=inner-dirichlet", f"data.alpha={alpha}"]
        yield f"alpha-{alpha}-fedavg", [*_FULL, *uneven]
        yield f"alpha-{alpha}-dictpfl", ["strategy.rank=8", *uneven]


def run_arm(name: str, settings: list[str], seed: int, work: Path, rounds: int) -> dict[str, str | int | float]:
    """Run one arm of one seed in a folder of its own, which is removed afterwards."""
    start = work / "start.safetensors"
    if not start.exists():
        pretrain(start, [*MODEL, "seed=1"])
    folder = f"{name}-{seed}"
    shutil.rmtree(work / folder, ignore_errors=True)
    own = [f"seed={seed}", f"federation.rounds={rounds}", f"output.folder={work}", f"output.name={folder}"]
    config = load_config(CONFIG, [*own, f"model.weights={start}", *settings])
    result = run(config, NullObserver())
    accuracy = result.metrics.get("client_accuracy", result.metrics.get("server_accuracy", float("nan")))
    ledger = Ledger.read(result.folder)
    uploads = [ledger.upload_bytes(r) for r in range(1, rounds + 1)]
    shutil.rmtree(result.folder)
    return {
        "arm": name,
        "seed": seed,
        "rounds": rounds,
        "accuracy": round(accuracy, 4),
        "upload_bytes": sum(uploads),
        "sent_share": round(float(np.mean(uploads)) / uploads[0], 4),
    }


def summary(rows: list[dict[str, str]]) -> str:
    """Return one line an arm: mean accuracy, its standard deviation over seeds, bytes, and share of round 1's bytes."""
    by_arm: dict[str, list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        by_arm[row["arm"]].append(row)
    lines = ["| arm | accuracy % | sd | upload MB | bytes of a round over the first |", "|---|---|---|---|---|"]
    for arm, found in by_arm.items():
        values = [100 * float(r["accuracy"]) for r in found]
        spread = statistics.stdev(values) if len(values) > 1 else float("nan")
        mega = statistics.mean(float(r["upload_bytes"]) for r in found) / 1e6
        share = statistics.mean(float(r["sent_share"]) for r in found)
        lines.append(f"| {arm} | {statistics.mean(values):.1f} | {spread:.1f} | {mega:.2f} | {share:.2f} |")
    return "\n".join(lines)


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("dictpfl_digits.csv"))
    parser.add_argument("--work", type=Path, default=Path("runs/dictpfl"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--arms", nargs="*", help="some of them")
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    done = list(csv.DictReader(args.out.open())) if args.out.exists() else []
    for seed in range(1, args.seeds + 1):
        for name, settings in arms():
            if args.arms and name not in args.arms:
                continue
            if any((r["arm"], r["seed"]) == (name, str(seed)) for r in done):
                continue
            row = run_arm(name, settings, seed, args.work, args.rounds)
            done.append({k: str(v) for k, v in row.items()})
            with args.out.open("w", newline="") as file:
                writer = csv.DictWriter(file, list(row))
                writer.writeheader()
                writer.writerows(done)
            print(*row.values(), flush=True)
    print(summary(done))


if __name__ == "__main__":
    main()
