"""FedLUAR's figures from tables of runs: accuracy against Comm, and how often each layer is recycled.

``python -m experiments.fedluar.figures experiments/results/fedluar_digits_resnet.csv --out experiments/results`` writes
``<table>_accuracy.png`` (means with 95 % intervals over paired seeds, as differences from FedAvg) and
``<table>_layers.png``.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from experiments.fedluar.table import Row, paired, read_rows

_DPI = 110
_MARKS = {"luar": "o", "drop": "x", "uniform": "s", "round-robin": "^", "deterministic": "v"}


def accuracy_figure(rows: Sequence[Row], title: str) -> Figure:
    """Return accuracy less FedAvg's of the same seed, in points, against Comm, one point an arm."""
    figure = Figure(figsize=(6.4, 4.2), dpi=_DPI, layout="constrained")
    axes = figure.add_subplot()
    axes.axhline(0, color="#5b6675", linewidth=1)
    axes.axhline(-2, color="#5b6675", linewidth=0.8, linestyle=":")
    for arm in dict.fromkeys(r.arm for r in rows if r.arm != "fedavg"):
        gap = paired(rows, arm, "fedavg")
        if not gap.count:
            continue
        comm = float(np.mean([r.comm for r in rows if r.arm == arm]))
        mark = next((m for kind, m in _MARKS.items() if arm.startswith(kind)), "o")
        half = 100 * gap.half if gap.count > 1 else None
        axes.errorbar(comm, 100 * gap.value, yerr=half, marker=mark, capsize=3, linestyle="none", label=arm)
    axes.set_xlabel("Comm (share of FedAvg's bytes aggregated)")
    axes.set_ylabel("accuracy less FedAvg's (points)")
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlim(0, 1)
    axes.grid(color="#e5e7eb")
    axes.legend(frameon=False, fontsize=8)
    return figure


def layers_figure(rows: Sequence[Row], arms: Sequence[str], title: str) -> Figure:
    """Return the mean share of rounds in which each layer was recycled, one group of bars a layer."""
    figure = Figure(figsize=(7.2, 4.2), dpi=_DPI, layout="constrained")
    axes = figure.add_subplot()
    names = list(next(r.shares for r in rows if r.arm in arms))
    width = 0.8 / len(arms)
    for place, arm in enumerate(arms):
        shares = np.mean([[r.shares[n] for n in names] for r in rows if r.arm == arm], axis=0)
        axes.bar(np.arange(len(names)) + width * (place - (len(arms) - 1) / 2), shares, width, label=arm)
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right", fontsize=7)
    axes.set_ylabel("share of rounds recycled")
    axes.set_title(title, loc="left", fontsize=11)
    axes.legend(frameon=False, fontsize=8)
    return figure


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", type=Path, nargs="+")
    parser.add_argument("--arms", nargs="*", help="of the figure of layers; all that recycle by score if left out")
    parser.add_argument("--out", type=Path, default=Path("."))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for table in args.tables:
        rows = read_rows(table)
        arms = args.arms or list(dict.fromkeys(r.arm for r in rows if r.arm.startswith("luar") and r.frequencies))
        seeds = len({r.seed for r in rows})
        for kind, figure in (
            ("accuracy", accuracy_figure(rows, f"{table.stem}: {seeds} paired seeds, bars are 95 % intervals")),
            ("layers", layers_figure(rows, arms, f"{table.stem}: how often each layer is recycled")),
        ):
            figure.savefig(args.out / f"{table.stem}_{kind}.png", metadata={"Software": "fedsim"})


if __name__ == "__main__":
    main()
