"""What an engine costs: the same trivial app on Flower's own engine, on ours, and in a plain loop.

``python -m experiments.bench.engine --clients 1000 --model-mb 0.1`` prints wall and CPU milliseconds a client-round and
the ratios to Flower's engine. All engines run in one call of this program, one after another, each in its own process.

The client adds nothing: it answers with the arrays that it was sent, so all that is measured is the engine.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import psutil
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

ARRAYS = 10
ENGINES = ("loop", "inline", "ray", "ray-sum", "flower")


@dataclass(frozen=True)
class Cost:
    """Of one engine.

    Attributes:
        wall_ms: Milliseconds a client-round, best round.
        cpu_ms: User and system milliseconds a client-round of all processes of the engine, mean of the timed rounds.
        driver_mb: Growth of the driver's resident memory over the idle engine, peak.
        start_s: Until the end of the warm-up round.
    """

    engine: str
    wall_ms: float
    cpu_ms: float
    driver_mb: float
    start_s: float


app = ClientApp()


@app.train()
def train(message: Message, context: Any) -> Message:
    """Answer with the arrays that were sent."""
    reply = RecordDict({"arrays": message.content["arrays"], "metrics": MetricRecord({"num-examples": 1})})
    return Message(reply, reply_to=message)


def model(model_mb: float) -> ArrayRecord:
    """Return ten equal float32 arrays of so many megabytes together."""
    size = max(1, round(model_mb * 1e6 / 4 / ARRAYS))
    rng = np.random.default_rng(0)
    return ArrayRecord([rng.normal(size=size).astype(np.float32) for _ in range(ARRAYS)])


def sum_arrays(replies: list[Message]) -> list[Message]:
    """Return one message with the sum of the replies' arrays; a reducer."""
    totals: list[Any] = []
    for reply in replies:
        if reply.has_error():
            raise RuntimeError(f"a client failed: {reply.error.reason}")
        arrays = reply.content["arrays"].to_numpy_ndarrays()  # type: ignore[union-attr]
        totals = [np.add(t, a, out=t) for t, a in zip(totals, arrays, strict=True)] if totals else arrays
    content = RecordDict({"arrays": ArrayRecord(totals), "metrics": MetricRecord({"clients": len(replies)})})
    replies[0].content = content
    return replies[:1]


def check(replies: Sequence[Message], clients: int) -> None:
    """Refuse a round in which a client failed or is missing."""
    bad = [reply.error.reason for reply in replies if reply.has_error()]
    if bad or len(replies) != clients:
        raise RuntimeError(f"{len(replies)} replies from {clients} clients, {len(bad)} failed: {bad[:1]}")


def rounds_on(grid: Grid, clients: int, arrays: ArrayRecord) -> Callable[[int], None]:
    """Return a function that runs one round on a grid, all replies held until the end of the round."""
    nodes = list(grid.get_node_ids())

    def run(number: int) -> None:
        content = RecordDict({"arrays": arrays})
        check(list(grid.send_and_receive([Message(content, n, "train", group_id=str(number)) for n in nodes])), clients)

    return run


def streamed_rounds(grid: Any, arrays: ArrayRecord, batch: int) -> Callable[[int], None]:
    """Return a function that runs one round whose replies are summed in the workers and folded in order here."""
    nodes = list(grid.get_node_ids())

    def run(number: int) -> None:
        content = RecordDict({"arrays": arrays})
        parts = [nodes[i : i + batch] for i in range(0, len(nodes), batch)]
        batches = ([Message(content, n, "train", group_id=str(number)) for n in part] for part in parts)
        totals: list[Any] = []
        waiting: dict[int, list[Message]] = {}
        following = 0
        for index, replies in grid.stream(batches, reducer=sum_arrays):
            waiting[index] = replies
            while following in waiting:
                arrays_ = waiting.pop(following)[0].content["arrays"].to_numpy_ndarrays()  # type: ignore[union-attr]
                totals = [np.add(t, a, out=t) for t, a in zip(totals, arrays_, strict=True)] if totals else arrays_
                following += 1
        if following != len(parts):
            raise RuntimeError(f"{following} of {len(parts)} batches came back")

    return run


def tree_cpu_s() -> float:
    """CPU seconds of this process and all its descendants, ended ones included."""
    own = psutil.Process()
    times = [own.cpu_times()]
    for child in own.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            times.append(child.cpu_times())
    return sum(t.user + t.system + t.children_user + t.children_system for t in times)


@contextlib.contextmanager
def peak_memory(found: list[float], period_s: float = 0.02) -> Iterator[None]:
    """Append the peak growth of this process's resident memory, in megabytes."""
    own, stop = psutil.Process(), threading.Event()
    start = peak = own.memory_info().rss

    def watch() -> None:
        nonlocal peak
        while not stop.wait(period_s):
            peak = max(peak, own.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        stop.set()
        watcher.join()
        found.append((max(peak, own.memory_info().rss) - start) / 1e6)


def timed(engine: str, run: Callable[[int], None], clients: int, rounds: int, begun_s: float) -> Cost:
    """Run a warm-up round and the timed ones."""
    memory: list[float] = []
    with peak_memory(memory):
        run(0)
        start_s = time.perf_counter() - begun_s
        cpu_s, walls = tree_cpu_s(), []
        for number in range(1, rounds + 1):
            round_s = time.perf_counter()
            run(number)
            walls.append(time.perf_counter() - round_s)
        cpu_s = tree_cpu_s() - cpu_s
    return Cost(engine, 1e3 * min(walls) / clients, 1e3 * cpu_s / clients / rounds, memory[0], start_s)


def measure_flower(clients: int, arrays: ArrayRecord, rounds: int, workers: int, begun_s: float) -> Cost:
    """Measure Flower's own engine, one CPU an actor."""
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    server, found = ServerApp(), list[Cost]()

    @server.main()
    def main(grid: Grid, context: Any) -> None:
        while len(list(grid.get_node_ids())) < clients:
            time.sleep(0.01)
        found.append(timed("flower", rounds_on(grid, clients, arrays), clients, rounds, begun_s))

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": workers}}
    run_simulation(server, app, clients, backend_config=resources)
    return found[0]


def measure_loop(clients: int, arrays: ArrayRecord, rounds: int, begun_s: float) -> Cost:
    """Measure a plain loop: the handler, a message and a private copy of the arrays for each client."""
    from flwr.app import Context
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1

    def run(number: int) -> None:
        replies = []
        for client in range(clients):
            content = RecordDict({"arrays": ArrayRecord(arrays.to_numpy_ndarrays())})
            message = Message(content, client, "train", group_id=str(number))
            replies.append(app(message, Context(1, client, {}, RecordDict(), {})))
        check(replies, clients)

    return timed("loop", run, clients, rounds, begun_s)


def measure(engine: str, clients: int, model_mb: float, rounds: int, workers: int, batch: int) -> Cost:
    """Measure one engine in this process."""
    begun_s, arrays = time.perf_counter(), model(model_mb)
    if engine == "loop":
        return measure_loop(clients, arrays, rounds, begun_s)
    if engine == "flower":
        return measure_flower(clients, arrays, rounds, workers, begun_s)
    settings: dict[str, Any] = {"node_configs": [{}] * clients, "run_config": {}, "seed": 0}
    reference = "experiments.bench.engine:app"
    if engine == "inline":
        from fedsim.simulation.inline import InlineGrid

        with InlineGrid(reference, **settings) as inline:
            return timed(engine, rounds_on(inline, clients, arrays), clients, rounds, begun_s)
    from fedsim.simulation.ray_grid import RayGrid

    with RayGrid(reference, workers=workers, **settings) as grid:
        run = rounds_on(grid, clients, arrays) if engine == "ray" else streamed_rounds(grid, arrays, batch)
        return timed(engine, run, clients, rounds, begun_s)


def run_apart(name: str, command: Sequence[str]) -> dict[str, Any]:
    """Run a program that prints a cost as one line of JSON, with one thread a library, and return what it printed.

    Raises:
        RuntimeError: The process failed; with the end of what it said.
    """
    threads = {key: "1" for key in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | threads | quiet)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise RuntimeError(f"engine {name} failed with exit code {done.returncode}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def measure_apart(engine: str, options: Sequence[str]) -> Cost:
    """Measure one engine in a process of its own; see :func:`run_apart`."""
    return Cost(**run_apart(engine, [sys.executable, "-m", "experiments.bench.engine", *options, "--only", engine]))


def table(costs: Sequence[Cost]) -> str:
    """Return the costs as text, with the ratio of each to Flower's engine where that was measured."""
    flower = next((cost for cost in costs if cost.engine == "flower"), None)
    lines = [f"{'engine':8} {'wall ms':>9} {'CPU ms':>9} {'driver MB':>10} {'start s':>8} {'wall x':>8} {'CPU x':>8}"]
    for cost in costs:
        ratios = f"{flower.wall_ms / cost.wall_ms:8.1f} {flower.cpu_ms / cost.cpu_ms:8.1f}" if flower else ""
        figures = f"{cost.wall_ms:9.3f} {cost.cpu_ms:9.3f} {cost.driver_mb:10.0f} {cost.start_s:8.1f}"
        lines.append(f"{cost.engine:8} {figures} {ratios}".rstrip())
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> list[Cost]:
    """Measure engines and print a table; ``--only`` measures one here and prints it as JSON."""
    parser = argparse.ArgumentParser(prog="experiments.bench.engine", description=__doc__)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--model-mb", type=float, default=0.1)
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds, after one to warm up")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=10, help="clients a batch where sums are made in the workers")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--only", choices=ENGINES, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.only:
        cost = measure(args.only, args.clients, args.model_mb, args.rounds, args.workers, args.batch)
        print(json.dumps(asdict(cost)), flush=True)
        return [cost]
    names = ("clients", "model_mb", "rounds", "workers", "batch")
    options = [word for name in names for word in (f"--{name.replace('_', '-')}", str(getattr(args, name)))]
    costs = [measure_apart(engine, options) for engine in args.engines]
    print(f"{args.clients} clients x {args.model_mb} MB, {args.rounds} rounds, {args.workers} workers; a client-round:")
    print(table(costs))
    return costs


if __name__ == "__main__":
    main()
