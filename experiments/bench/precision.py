"""What ``training.precision`` and ``training.compile`` cost: ``python -m experiments.bench.precision``.

One client of each task trained alone, one thread, the ways in turns; CPU milliseconds of one training, the least of so
many, its ratio to float32 as it is, and the seconds of the first training, in which ``torch.compile`` compiles.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from experiments.bench.training import TASKS, site_for
from fedsim.site import Site
from fedsim.tasks.training import train

WAYS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bf16": {"precision": "bf16"},
    "compiled": {"compile": True},
    "both": {"precision": "bf16", "compile": True},
}


@dataclass(frozen=True)
class Cost:
    """Of one way: CPU milliseconds of a client's training, and CPU seconds of the first one."""

    way: str
    least_ms: float
    first_s: float


def train_s(site: Site, way: str) -> float:
    """Return the CPU seconds in which the first client trains, wherever the model is."""
    config = replace(site.train_config(site.config.federation.rounds, 0.0), **WAYS[way])
    begun_s = time.process_time()
    train(site.model, *site.train_data(0), config, seed=1, round=1)
    return time.process_time() - begun_s


def measure(task: str, ways: Sequence[str], turns: int) -> list[Cost]:
    """Measure in this process."""
    torch.set_num_threads(1)
    site = site_for(task, 1)
    first = {way: train_s(site, way) for way in ways}
    found: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(turns):
        for way in ways:
            found[way].append(train_s(site, way))
    return [Cost(way, 1e3 * min(found[way]), first[way]) for way in ways]


def main(argv: Sequence[str] | None = None) -> list[Cost]:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(prog="experiments.bench.precision", description=__doc__)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=["digits", "cnn"])
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--turns", type=int, default=30)
    args = parser.parse_args(argv)
    costs: list[Cost] = []
    for task in args.tasks:
        found = measure(task, args.ways, args.turns)
        for one in found:
            ratio = one.least_ms / found[0].least_ms
            print(f"{task:8} {one.way:9} {one.least_ms:9.3f} ms  x {ratio:5.2f}  first {one.first_s:6.2f} s")
        costs += found
    return costs


if __name__ == "__main__":
    main()
