"""What a round costs with many registered clients: ``python -m experiments.bench.registered``.

The same 100 clients' worth of work a round with 1,000, 10,000 and 100,000 registered clients, each in a process of its
own; CPU milliseconds a client-round (the least and the median over rounds), seconds until the first round, and peak
memory. The data are made up: four examples of eight numbers a client.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from experiments.bench.engine import run_apart
from experiments.bench.peak import peak_bytes

SAMPLED = 100
EXAMPLES = 4
LEAST_ROUNDS = 6


@dataclass(frozen=True)
class Cost:
    """Of one number of registered clients.

    Attributes:
        clients: registered.
        least_ms, median_ms: CPU milliseconds a client-round.
        start_s: CPU seconds until the end of the first round, imports left out.
        peak_mb: resident memory, peak.
    """

    clients: int
    least_ms: float
    median_ms: float
    start_s: float
    peak_mb: float


def write_data(clients: int, path: Path) -> None:
    """Write made-up examples, :data:`EXAMPLES` a client, and test rows."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(round(clients * EXAMPLES * 1.02), 8)).astype(np.float32)
    np.savez(path, x=x, y=(x[:, 0] > 0).astype(np.int64))


def measure(clients: int, rounds: int) -> Cost:
    """Run in this process."""
    from fedsim.config import load_config
    from fedsim.events import NullObserver, RoundEnd
    from fedsim.runner import simulate

    marks: list[float] = []

    class Marks(NullObserver):
        def round_end(self, event: RoundEnd) -> None:
            marks.append(time.process_time())

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.npz"
        write_data(clients, path)
        settings = [
            "task.name=files",
            f'task.options={{path="{path}", shape=[8], classes=["0", "1"], test_fraction=0.01}}',
            "model.name=mlp",
            "model.options.hidden=[16]",
            "data.scheme=iid",
            "data.min_size=1",
            f"federation.num_clients={clients}",
            f"federation.clients_per_round={SAMPLED}",
            f"federation.rounds={rounds}",
            f"federation.evaluate_every={rounds}",
            "engine.name=inline",
            "output.report=false",
            "output.checkpoint_every=0",
            f"output.folder={folder}",
        ]
        begun_s = time.process_time()
        simulate(load_config(None, settings), Marks())
    # The last round evaluates, the first ones warm up.
    found = np.diff(marks[2:-1]) * 1e3 / SAMPLED
    peak_mb = peak_bytes() / 2**20
    return Cost(clients, float(found.min()), statistics.median(found), marks[0] - begun_s, peak_mb)


def main(argv: Sequence[str] | None = None) -> list[Cost]:
    """Measure and print a table; ``--only`` measures one here and prints it as JSON."""
    parser = argparse.ArgumentParser(prog="experiments.bench.registered", description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--only", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.rounds < LEAST_ROUNDS:
        parser.error(
            f"--rounds {args.rounds}: the first two warm up, the last evaluates, and two must be left to measure; give "
            f"{LEAST_ROUNDS} or more"
        )
    if args.only:
        one = measure(args.only, args.rounds)
        print(json.dumps(asdict(one)), flush=True)
        return [one]
    command = [sys.executable, "-m", "experiments.bench.registered", "--rounds", str(args.rounds), "--only"]
    costs = [Cost(**run_apart(str(count), [*command, str(count)])) for count in args.clients]
    print(f"{SAMPLED} sampled clients, {args.rounds} rounds; a client-round, CPU:")
    print(f"{'registered':>10} {'least ms':>9} {'median ms':>10} {'ratio':>6} {'start s':>8} {'peak MB':>8}")
    for c in costs:
        ratio = c.least_ms / costs[0].least_ms
        print(f"{c.clients:10,} {c.least_ms:9.3f} {c.median_ms:10.3f} {ratio:6.2f} {c.start_s:8.1f} {c.peak_mb:8.0f}")
    return costs


if __name__ == "__main__":
    main()
