"""The same training by a plain loop, pfl-research and fedsim: ``python -m experiments.bench.peers --task digits``.

The task (clients' data, model, start weights, rates) is written to one file that each peer reads. Peers run in a
virtual environment that this program makes (``--venv`` keeps it), one after another, with one thread; ours runs here.
Ratios are to the plain loop.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from experiments.bench.engine import run_apart
from experiments.bench.training import TASKS, Cost, measure_apart, site_for, table

HERE = Path(__file__).parent
PEERS = ("loop", "pfl")
OURS = ("inline", "cohort", "ray", "ray-cohort", "flower")
#: Tested versions; torch and numpy are those of the project.
PACKAGES = ("pfl==0.6.0", "torch", "numpy")


def write_task(name: str, rounds: int, path: Path) -> None:
    """Write a task of :mod:`experiments.bench.training` as a file."""
    site = site_for(name, rounds)
    federation, training = site.config.federation, site.config.training
    arrays: dict[str, np.ndarray] = {}
    for i in range(federation.num_clients):
        x, y = site.train_data(i)
        arrays[f"x{i}"], arrays[f"y{i}"] = x.numpy(), y.numpy()
    arrays["test_x"], arrays["test_y"] = (tensor.numpy() for tensor in site.test_set)
    arrays |= {f"w{i}": tensor.numpy() for i, tensor in enumerate(site.model.state_dict().values())}
    about = {
        "name": name,
        "clients": federation.num_clients,
        "sampled": federation.sampled,
        "batch_size": training.batch_size,
        "lr": training.lr,
        "rounds": rounds,
    }
    np.savez(path, about=np.array(json.dumps(about)), **arrays)  # type: ignore[arg-type]


def make_environment(folder: Path) -> Path:
    """Return the Python of the peers' environment, made at first; versions are those of ``constraints.txt``."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pins = HERE.parents[2] / "constraints.txt"
        words = ["-c", str(pins)] if pins.exists() else []
        subprocess.run([python, "-m", "pip", "install", "--quiet", *words, *PACKAGES], check=True)
    return python


def run_peer(name: str, python: Path, task: Path) -> Cost:
    """Run one peer; see :func:`experiments.bench.engine.run_apart`."""
    return Cost(**run_apart(name, [str(python), str(HERE / f"run_{name}.py"), str(task)]))


def main(argv: Sequence[str] | None = None) -> list[Cost]:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(prog="experiments.bench.peers", description=__doc__)
    parser.add_argument("--task", choices=list(TASKS), default="digits")
    parser.add_argument("--rounds", type=int, default=20, help="timed rounds, after one to warm up")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--ours", nargs="*", choices=OURS, default=list(OURS))
    parser.add_argument("--venv", type=Path, default=Path(".peers"), help="environment of the peers")
    args = parser.parse_args(argv)
    python = make_environment(args.venv.absolute())
    options = ["--task", args.task, "--rounds", str(args.rounds), "--workers", str(args.workers)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "task.npz"
        write_task(args.task, args.rounds, path)
        costs = [run_peer(name, python, path) for name in PEERS]
    costs += [measure_apart(engine, options) for engine in args.ours]
    print(f"{args.task}, {args.rounds} rounds; a client-round, ratios to the plain loop:")
    print(table(costs))
    return costs


if __name__ == "__main__":
    main()
