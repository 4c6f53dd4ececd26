"""What blocks cost in accuracy: PREAMBLE against the dense Gaussian mechanism of the same guarantee.

``python -m experiments.preamble.utility CONFIG --seeds 1 2 3 --out table.csv`` runs each arm with each seed and adds
one row a run to the table; runs that are there already are not repeated. Arms:

* ``dense``: ``protection.dense``, all coordinates from every client; same clipping, aggregators and accountant.
* ``blocks``: PREAMBLE with the blocks that the sizing tool chooses for ``--saving`` times fewer bytes.
* ``clear``: no privacy, for scale.

``--batched`` leaves out messages and share arithmetic, which change no sum: see :mod:`experiments.preamble.batched`.

Arms of one seed share data, partition, first weights and batches; noise and choice of blocks are fresh in every run, by
the nature of the thing. The summary gives means with 95 % intervals (Student's t over seeds) and the paired difference.
"""

import argparse
import csv
import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from experiments.preamble import batched as batch
from fedsim.config import load_config, with_values
from fedsim.runner import simulate

ARMS = ("dense", "blocks", "clear")


@dataclass(frozen=True)
class Row:
    """One run.

    Attributes:
        arm, seed: which.
        accuracy: of the last model, on the server's test set.
        epsilon_round, epsilon_run, delta: what it promises; 0 for none.
        noise_ratio: noise over that of the dense mechanism.
        error_ratio: the same with the error of sampling.
        report_bytes: what a client sends in a round, both parts, framing included.
        float_bytes: its update as float32.
        blocks: ``B x k of t``.
    """

    arm: str
    seed: int
    accuracy: float
    epsilon_round: float
    epsilon_run: float
    delta: float
    noise_ratio: float
    error_ratio: float
    report_bytes: int
    float_bytes: int
    blocks: str


#: Of a report, beside what the sizing tool counts: two frames, heads, and the sealed part.
FRAME_BYTES = 320


def run_arm(config: Path, arm: str, seed: int, work: Path, saving: float, batched: bool) -> Row:
    """Run one arm of one seed in a folder of its own, which is removed afterwards."""
    base = load_config(config)
    length = parameters(config)
    dense_bytes = length * getattr(base.protection, "word_bits", 32) // 8
    name = f"{config.stem}-{arm}-{seed}"
    shutil.rmtree(work / name, ignore_errors=True)
    own: dict[str, Any] = {
        "dense": {"protection.dense": True},
        "blocks": {"protection.byte_budget": int(dense_bytes / saving) - FRAME_BYTES},
        "clear": {"protection.name": "plain", "federation.weighting": "uniform"},
    }[arm]
    places = {"seed": seed, "output.folder": str(work), "output.name": name}
    chosen = with_values(base, places | own)
    if batched:
        accuracy, facts = batch.accuracy(chosen)
        facts.setdefault("upload_bytes", 4 * length)
    else:
        result = simulate(chosen)
        accuracy = result.metrics["server_accuracy"]
        facts = json.loads((result.folder / "run.json").read_text())["protection"]
        shutil.rmtree(result.folder)
    clear = arm == "clear"
    return Row(
        arm,
        seed,
        round(accuracy, 4),
        0.0 if clear else round(facts["epsilon_round"], 4),
        0.0 if clear else round(facts["epsilon_run"], 4),
        0.0 if clear else facts["delta"],
        0.0 if clear else round(facts["noise_ratio"], 4),
        0.0 if clear else round(facts["error_ratio"], 4),
        facts["upload_bytes"],
        4 * length,
        "" if clear else f"{facts['block_size']} x {facts['blocks']} of {facts['blocks_per_group']}",
    )


def parameters(config: Path) -> int:
    """Return the number of parameters of the model that the settings name."""
    from fedsim._cli.sizes import parameters_of

    chosen = load_config(config)
    options = [f"model.options.{k}={json.dumps(v)}" for k, v in chosen.model.options.items()]
    return parameters_of(None, [f"task.name={chosen.task.name}", f"model.name={chosen.model.name}", *options])


def read(path: Path) -> list[Row]:
    """Return the rows of a table, none if it is not there."""
    if not path.exists():
        return []
    kinds = {
        f.name: f.type if callable(f.type) else {"str": str, "int": int, "float": float}[f.type] for f in fields(Row)
    }
    with path.open(newline="") as file:
        return [Row(**{k: kinds[k](v) for k, v in row.items()}) for row in csv.DictReader(file)]


def write(path: Path, rows: Iterable[Row]) -> None:
    """Write a table."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, [f.name for f in fields(Row)], lineterminator="\n")
        table.writeheader()
        table.writerows(asdict(r) for r in sorted(rows, key=lambda r: (ARMS.index(r.arm), r.seed)))


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and half width of the 95 % interval of the mean; the width is NaN for one value."""
    n = len(values)
    width = float(stats.t.ppf(0.975, n - 1)) * float(np.std(values, ddof=1)) / sqrt(n) if n > 1 else float("nan")
    return float(np.mean(values)), width


def summary(rows: Sequence[Row]) -> list[str]:
    """Return the table in lines: each arm's accuracy, bytes and promise, and blocks minus dense, paired by seed."""
    lines = []
    for arm in ARMS:
        mine = [r for r in rows if r.arm == arm]
        if not mine:
            continue
        mean, width = interval([100 * r.accuracy for r in mine])
        one = mine[0]
        promise = (
            f"epsilon {one.epsilon_round:.3f} a round, {one.epsilon_run:.3f} in all" if one.delta else "not private"
        )
        ratios = f", noise x {one.noise_ratio:.3f}, error x {one.error_ratio:.3f}" if one.delta else ""
        found = f"{mean:5.2f} +- {width:.2f} % over {len(mine)} seeds"
        lines.append(f"{arm:7} {found}, {one.report_bytes:,} B a report, {promise}{ratios}")
    by_arm = {arm: {r.seed: r for r in rows if r.arm == arm} for arm in ARMS}
    both = sorted(by_arm["dense"].keys() & by_arm["blocks"].keys())
    if both:
        mean, width = interval([100 * (by_arm["blocks"][s].accuracy - by_arm["dense"][s].accuracy) for s in both])
        saving = by_arm["dense"][both[0]].report_bytes / by_arm["blocks"][both[0]].report_bytes
        lines.append(f"blocks - dense: {mean:+.2f} +- {width:.2f} points, paired, at {saving:.2f} times fewer bytes")
    return lines


def main(argv: Sequence[str] | None = None, say: Callable[[str], object] = print) -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--saving", type=float, default=8.0, help="a report of blocks has this many times fewer bytes")
    parser.add_argument("--batched", action="store_true", help="all clients in one batch, without messages and shares")
    parser.add_argument("--work", type=Path, default=Path("runs"))
    parser.add_argument("--out", type=Path, default=Path("preamble.csv"))
    args = parser.parse_args(argv)
    rows = read(args.out)
    there = {(r.arm, r.seed) for r in rows}
    for seed in args.seeds:
        for arm in args.arms:
            if (arm, seed) not in there:
                rows.append(run_arm(args.config, arm, seed, args.work, args.saving, args.batched))
                write(args.out, rows)
    for line in summary(rows):
        say(line)


if __name__ == "__main__":
    main()
