"""What a round of real training costs under each engine, beside a plain loop that does the same work.

``python -m experiments.bench.training --task digits`` prints wall and CPU milliseconds a client-round and the ratios to
those of the loop: fedsim in process, with cohort training, on Ray workers, and Flower's own engine. Data, partition,
model, batches, order and rates are the same for all; the final accuracy is printed so that it shows. Each engine runs
in a process of its own, one after another, with one thread. Ours is the whole product: messages, ledger, metrics.
"""

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import psutil
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from experiments.bench.engine import check, run_apart, tree_cpu_s
from experiments.bench.peak import peak_bytes
from fedsim.config import load_config, to_run_config
from fedsim.events import NullObserver, RoundEnd
from fedsim.registry import train_config
from fedsim.site import Site, site_of
from fedsim.tasks.training import client_seed, evaluate, train

ENGINES = ("loop", "inline", "cohort", "ray", "ray-cohort", "flower")
#: Small layers (9,610 weights, 72 images a client); a CNN that is all arithmetic (50 of 100 clients, 50 images); one
#: step on one example (0.1 MB in ten arrays, 100 of 1000 clients), where the engine is what costs.
TASKS: Mapping[str, Sequence[str]] = {
    "digits": ("task.name=digits", "model.name=mlp", "model.options.hidden=[128]", "federation.num_clients=20"),
    "cnn": (
        "model.name=cnn",
        "model.options.width=32",
        "federation.num_clients=100",
        "federation.clients_per_round=50",
        "training.batch_size=10",
    ),
    "trivial": (
        "task.name=experiments.bench.peers.trivial:data",
        "model.name=experiments.bench.peers.trivial:model",
        "federation.num_clients=1000",
        "federation.clients_per_round=100",
        "training.batch_size=1",
        "data.min_size=1",
    ),
}
COMMON = (
    "seed=7",
    "data.scheme=iid",
    "training.momentum=0.0",
    "training.lr=0.1",
    "federation.server_evaluation=true",
    "output.report=false",
    "output.checkpoint_every=0",
)


@dataclass(frozen=True)
class Cost:
    """Of one engine.

    Attributes:
        wall_ms, cpu_ms: milliseconds a client-round: the best round's, and the mean over all processes.
        start_s: until the end of the warm-up round, imports included.
        accuracy: of the last round's model.
        peak_mb: resident memory, the peaks of all processes added up (pages that they share count in each).
    """

    engine: str
    wall_ms: float
    cpu_ms: float
    start_s: float
    accuracy: float
    peak_mb: float


class Marks(NullObserver):
    """Notes the clocks at the end of each round."""

    def __init__(self) -> None:
        self.at: list[Mark] = []
        self._clock = Clock()
        self.accuracy = float("nan")

    def round_end(self, event: RoundEnd) -> None:
        """See :class:`fedsim.events.Observer`."""
        if event.round:
            self.at.append(self._clock.mark())
        self.accuracy = event.metrics.get("server_accuracy", event.metrics.get("accuracy", self.accuracy))


#: Wall seconds, CPU seconds, MB.
Mark = tuple[float, float, float]


def cost(engine: str, marks: Sequence[Mark], clients: int, begun_s: float, accuracy: float) -> Cost:
    """Return the cost of the rounds between the first mark, which ends the warm-up, and the last."""
    walls = np.diff([wall for wall, _, _ in marks])
    cpu_s = (marks[-1][1] - marks[0][1]) / (len(marks) - 1)
    wall_ms, peak_mb = 1e3 * float(walls.min()) / clients, max(mb for _, _, mb in marks)
    return Cost(engine, wall_ms, 1e3 * cpu_s / clients, marks[0][0] - begun_s, accuracy, peak_mb)


class Clock:
    """Marks moments; what marking takes, a look at all processes, is in none of them."""

    def __init__(self) -> None:
        self._cpu_s = self._wall_s = 0.0

    def mark(self) -> Mark:
        """Return wall seconds, CPU seconds and peak memory (MB) of this process and its children now."""
        wall_s, own_s = time.perf_counter(), time.process_time()
        moment, cpu_s, peaks = wall_s - self._wall_s, tree_cpu_s() - self._cpu_s, 0
        for process in (own := psutil.Process(), *own.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess, OSError, IndexError):
                peaks += peak_bytes(process.pid)
        self._cpu_s += time.process_time() - own_s
        self._wall_s += time.perf_counter() - wall_s
        return moment, cpu_s, peaks / 2**20


def settings(task: str, rounds: int) -> list[str]:
    """Return a task's settings; one round more than is timed, since the last one evaluates."""
    return [*TASKS[task], *COMMON, f"federation.rounds={rounds + 2}", f"federation.evaluate_every={rounds + 2}"]


def measure_ours(engine: str, task: str, rounds: int, workers: int, begun_s: float) -> Cost:
    """Run the product."""
    from fedsim.runner import simulate

    name, _, cohort = engine.partition("-")
    how = ["engine.name=ray", f"engine.workers={workers}"] if name == "ray" else ["engine.name=inline"]
    if "cohort" in (name, cohort):
        how += ["engine.cohort=on", "engine.chunk=10" if name == "ray" else "engine.chunk=25"]
    marks = Marks()
    with tempfile.TemporaryDirectory() as folder:
        config = load_config(None, [*settings(task, rounds), *how, f"output.folder={folder}"])
        simulate(config, marks)
    return cost(engine, marks.at[:-1], config.federation.sampled, begun_s, marks.accuracy)


def train_one(site: Site, model: nn.Module, client: int, round: int) -> Tensor:
    """Train the model, which holds the start, on a client's data; returns the loss as the product does."""
    x, y = site.train_data(client)
    config = train_config(site.config, site.config.federation.rounds)
    train(model, x, y, config, seed=client_seed(site.config.seed, round, client), round=round)
    return torch.tensor(float(len(y)))


@lru_cache(maxsize=1)
def site_for(task: str, rounds: int) -> Site:
    """Return data, partition and model of a task; kept, since Flower's client asks in each message."""
    return site_of(to_run_config(load_config(None, settings(task, rounds))))


def measure_loop(task: str, rounds: int, begun_s: float) -> Cost:
    """Run the loop that a researcher writes by hand: load, train, add; no messages, nothing measured or kept."""
    site = site_for(task, rounds)
    model, sampled, registered = site.model, site.config.federation.sampled, site.config.federation.num_clients
    weights = [p.detach().clone() for p in model.parameters()]
    rng, marks, clock = np.random.default_rng(0), [], Clock()
    for number in range(1, rounds + 3):
        clients = range(sampled) if sampled == registered else rng.permutation(registered)[:sampled]
        totals, seen = [torch.zeros_like(w) for w in weights], 0.0
        for client in clients:
            with torch.no_grad():
                for parameter, weight in zip(model.parameters(), weights, strict=True):
                    parameter.copy_(weight)
            n = float(train_one(site, model, int(client), number))
            with torch.no_grad():
                for total, parameter in zip(totals, model.parameters(), strict=True):
                    total.add_(parameter, alpha=n)
            seen += n
        weights = [total / seen for total in totals]
        marks.append(clock.mark())
    with torch.no_grad():
        for parameter, weight in zip(model.parameters(), weights, strict=True):
            parameter.copy_(weight)
    return cost("loop", marks[:-1], sampled, begun_s, evaluate(model, *site.test_set).accuracy)


app = ClientApp()


@app.train()
def handle(message: Message, context: Any) -> Message:
    """Train as a Flower app would that keeps its model between messages."""
    config = message.content["config"]
    site = site_for(str(config["task"]), int(config["rounds"]))  # type: ignore[arg-type]
    site.model.load_state_dict(message.content["arrays"].to_torch_state_dict())  # type: ignore[union-attr]
    n = train_one(site, site.model, int(context.node_config["partition-id"]), int(config["round"]))  # type: ignore[arg-type]
    reply = {"arrays": ArrayRecord(site.model.state_dict()), "metrics": MetricRecord({"num-examples": int(n)})}
    return Message(RecordDict(reply), reply_to=message)


def measure_flower(task: str, rounds: int, workers: int, begun_s: float) -> Cost:
    """Run Flower's own engine, with a server that averages as the loop does."""
    from flwr.app import ConfigRecord
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    site, server, found = site_for(task, rounds), ServerApp(), list[Cost]()
    sampled, registered = site.config.federation.sampled, site.config.federation.num_clients

    @server.main()
    def main(grid: Grid, context: Any) -> None:
        while len(list(grid.get_node_ids())) < registered:
            time.sleep(0.01)
        nodes = list(grid.get_node_ids())[:sampled]
        state, marks, clock = dict(site.model.state_dict()), list[Mark](), Clock()
        for number in range(1, rounds + 3):
            config = ConfigRecord({"task": task, "rounds": rounds, "round": number})
            content = RecordDict({"arrays": ArrayRecord(state), "config": config})
            replies = list(
                grid.send_and_receive([Message(content, node, "train", group_id=str(number)) for node in nodes])
            )
            check(replies, sampled)
            counts = [float(r.content["metrics"]["num-examples"]) for r in replies]  # type: ignore[arg-type]
            states = [r.content["arrays"].to_torch_state_dict() for r in replies]  # type: ignore[union-attr]
            state = {k: sum(n * s[k] for n, s in zip(counts, states, strict=True)) / sum(counts) for k in state}
            marks.append(clock.mark())
        site.model.load_state_dict(state)
        found.append(cost("flower", marks[:-1], sampled, begun_s, evaluate(site.model, *site.test_set).accuracy))

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": workers}}
    run_simulation(server, app, registered, backend_config=resources)
    return found[0]


def measure(engine: str, task: str, rounds: int, workers: int) -> Cost:
    """Measure one engine in this process."""
    begun_s = time.perf_counter()
    torch.set_num_threads(1)
    if engine == "loop":
        return measure_loop(task, rounds, begun_s)
    if engine == "flower":
        return measure_flower(task, rounds, workers, begun_s)
    return measure_ours(engine, task, rounds, workers, begun_s)


def measure_apart(engine: str, options: Sequence[str]) -> Cost:
    """Measure one engine in a process of its own; see :func:`experiments.bench.engine.run_apart`."""
    return Cost(**run_apart(engine, [sys.executable, "-m", "experiments.bench.training", *options, "--only", engine]))


def table(costs: Sequence[Cost]) -> str:
    """Return the costs as text, with ratios to the first and the CPU milliseconds that each takes more than that."""
    heads = f"{'wall ms':>9} {'CPU ms':>9} {'wall x':>7} {'CPU x':>7} {'over ms':>8} {'start s':>8} {'peak MB':>8}"
    lines = [f"{'engine':11} {heads} {'accuracy':>9}"]
    for one in costs:
        ratios = f"{one.wall_ms / costs[0].wall_ms:7.2f} {one.cpu_ms / costs[0].cpu_ms:7.2f}"
        figures = f"{one.wall_ms:9.3f} {one.cpu_ms:9.3f} {ratios} {one.cpu_ms - costs[0].cpu_ms:8.3f}"
        lines.append(f"{one.engine:11} {figures} {one.start_s:8.1f} {one.peak_mb:8.0f} {one.accuracy:9.4f}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> list[Cost]:
    """Measure engines and print a table; ``--only`` measures one here and prints it as JSON."""
    parser = argparse.ArgumentParser(prog="experiments.bench.training", description=__doc__)
    parser.add_argument("--task", choices=list(TASKS), default="digits")
    parser.add_argument("--rounds", type=int, default=20, help="timed rounds, after one to warm up")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--only", choices=ENGINES, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.only:
        one = measure(args.only, args.task, args.rounds, args.workers)
        print(json.dumps(asdict(one)), flush=True)
        return [one]
    options = ["--task", args.task, "--rounds", str(args.rounds), "--workers", str(args.workers)]
    costs = [measure_apart(engine, options) for engine in args.engines]
    print(f"{args.task}, {args.rounds} rounds, {args.workers} workers; a client-round, ratios to {costs[0].engine}:")
    print(table(costs))
    return costs


if __name__ == "__main__":
    main()
