"""The same training by a plain loop, pfl-research, fluke and fedsim: ``python -m experiments.bench.peers``.

A task (clients' data, model, start weights, rates) is written to one file that each peer reads. Each peer runs in a
virtual environment of its own that this program makes (``--venv`` keeps them), one after another, with one thread; ours
runs here. Ratios are to the plain loop. ``--picture`` draws all tasks.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from experiments.bench.engine import run_apart
from experiments.bench.training import TASKS, Cost, measure_apart, site_for, table

HERE = Path(__file__).parent
#: Peer -> what is installed beside torch and numpy, which are the project's versions; torchvision is that torch's own.
PEERS: Mapping[str, Sequence[str]] = {
    "loop": (),
    "pfl": ("pfl==0.6.0",),
    "fluke": ("fluke-fl==0.8.1", "torchvision==0.28.0"),
}
OURS = ("inline", "cohort", "ray", "ray-cohort", "flower")
#: Timed rounds of each task.
ROUNDS = {"trivial": 10, "digits": 20, "cnn": 2}


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


def pinned(constraints: str, names: Sequence[str]) -> list[str]:
    """Return the lines of a constraints file that pin these packages; peers bring everything else as they like it."""
    return [line for line in constraints.splitlines() if line.partition("==")[0].lower() in names]


def make_environment(folder: Path, packages: Sequence[str]) -> Path:
    """Return the Python of a peer's environment, made at first; torch and numpy are those of ``constraints.txt``."""
    python = folder / "bin" / "python"
    if not (folder / "installed").exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pins = HERE.parents[2] / "constraints.txt"
        own = pinned(pins.read_text() if pins.exists() else "", ("torch", "numpy"))
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages, *(own or ["torch", "numpy"])], check=True)
        (folder / "installed").touch()
    return python


def run_peer(name: str, python: Path, task: Path) -> Cost:
    """Run one peer; see :func:`experiments.bench.engine.run_apart`."""
    return Cost(**run_apart(name, [str(python), str(HERE / f"run_{name}.py"), str(task)]))


def measure_task(task: str, rounds: int, args: argparse.Namespace) -> list[Cost]:
    """Return the costs of the peers and of ours, each the one with the least CPU time of so many turns."""
    options = ["--task", task, "--rounds", str(rounds), "--workers", str(args.workers)]
    turns: list[list[Cost]] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "task.npz"
        write_task(task, rounds, path)
        for _ in range(args.repeat):
            # The loop needs nothing but torch and numpy, which any of the environments has.
            pythons = {p: make_environment(args.venv.absolute() / (p if PEERS[p] else "pfl"), _with(p)) for p in PEERS}
            found = [run_peer(name, pythons[name], path) for name in PEERS if name == "loop" or name in args.peers]
            turns.append(found + [measure_apart(engine, options) for engine in args.ours])
    return [min(costs, key=lambda cost: cost.cpu_ms) for costs in zip(*turns, strict=True)]


def _with(peer: str) -> Sequence[str]:
    return PEERS[peer] or PEERS["pfl"]


def draw(costs: Mapping[str, Sequence[Cost]], path: Path) -> None:
    """Draw the CPU time of each task's engines as multiples of the plain loop's."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * len(costs), 3.2), layout="constrained")
    for axes, (task, found) in zip(np.atleast_1d(figure.subplots(1, len(costs))), costs.items(), strict=True):
        names, ratios = [cost.engine for cost in found], [cost.cpu_ms / found[0].cpu_ms for cost in found]
        ours = [name in OURS and name != "flower" for name in names]
        bars = axes.barh(names, ratios, color=["tab:blue" if own else "tab:gray" for own in ours])
        axes.bar_label(bars, [f"{ratio:.2f}" for ratio in ratios], padding=2)
        axes.set(xscale="log", title=task, xlabel="CPU, plain loop = 1", xlim=(min(ratios) / 2, max(ratios) * 4))
        axes.invert_yaxis()
    figure.savefig(path, dpi=120)


def main(argv: Sequence[str] | None = None) -> dict[str, list[Cost]]:
    """Measure, print a table for each task, and draw."""
    parser = argparse.ArgumentParser(prog="experiments.bench.peers", description=__doc__)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(ROUNDS))
    parser.add_argument("--rounds", type=int, help="timed rounds, after one to warm up; each task has its own")
    parser.add_argument("--repeat", type=int, default=1, help="turns; of each engine the one with the least CPU time")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--peers", nargs="*", choices=list(PEERS), default=list(PEERS))
    parser.add_argument("--ours", nargs="*", choices=OURS, default=list(OURS))
    parser.add_argument("--venv", type=Path, default=Path(".peers"), help="folder of the peers' environments")
    parser.add_argument("--picture", type=Path, help="PNG to write")
    parser.add_argument("--json", type=Path, help="file to add the figures to, and to draw what is in it")
    args = parser.parse_args(argv)
    found: dict[str, list[Cost]] = {}
    if args.json and args.json.exists():
        found = {task: [Cost(**cost) for cost in costs] for task, costs in json.loads(args.json.read_text()).items()}
    for task in args.tasks:
        rounds = args.rounds or ROUNDS[task]
        found[task] = measure_task(task, rounds, args)
        sys.stdout.write(f"{task}, {rounds} rounds; a client-round, ratios to the plain loop:\n{table(found[task])}\n")
        if args.json:
            args.json.write_text(json.dumps({name: [asdict(c) for c in costs] for name, costs in found.items()}))
    if args.picture:
        draw(found, args.picture)
    return found


if __name__ == "__main__":
    main()
