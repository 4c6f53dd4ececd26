"""How long a small round takes in a deployment, with Flower's own loop and nodes and with ours.

``python -m experiments.bench.pace`` starts a SuperLink with TLS and node keys on this machine and, one after another,
Flower's own SuperNodes (``flower-supernode``, a Python for each message) under Flower's own FedAvg, and ours
(``fedsim deploy node``) under our fedavg. Seconds are from the end of one round to the end of the next, the median; CPU
seconds are of all processes together. With two messages a round every client also evaluates the new model.
"""

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from experiments.bench.engine import tree_cpu_s
from fedsim.config import load_config
from fedsim.deploy.control import Control, await_nodes
from fedsim.deploy.environment import process_environment, temporary_home
from fedsim.deploy.folder import Deployment, Node
from fedsim.deploy.init import initialise
from fedsim.deploy.node import free_port, supernode_arguments
from fedsim.deploy.server import runner_command, server_variables, superlink_command

_SMALL = (
    "task.name=digits",
    "model.name=mlp",
    "federation.num_clients=3",
    "output.report=false",
    "output.checkpoint_every=0",
)
_STRATEGY = {"Flower": "flwr:FedAvg", "fedsim": "fedavg"}
_WAIT_S = 600.0
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class Pace:
    """Of one kind of node.

    Attributes:
        kind: whose nodes and loop.
        messages: a round and client.
        round_s, cpu_s: median seconds of a round; CPU seconds a round of all processes.
    """

    kind: str
    messages: int
    round_s: float
    cpu_s: float


def measure(kind: str, rounds: int, evaluate: bool) -> Pace:
    """Run one federation.

    Args:
        kind: ``Flower`` or ``fedsim``.
        rounds: measured, one for warming up comes first.
        evaluate: whether clients evaluate in each round.

    Raises:
        EngineError: it does not start.
        TimeoutError: it stands still.
    """
    sets = [f"strategy.name={_STRATEGY[kind]}", f"federation.rounds={rounds + 1}"]
    sets += [f"federation.client_evaluation_fraction={float(evaluate)}"]
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        config = load_config(None, [*_SMALL, *sets])
        deployment = initialise(Path(place) / "it", config, superlink_port=free_port()).deployment
        os.chmod(place, 0o755)
        control = Control(deployment, "direct", lambda _: None)
        stack.enter_context(_server(deployment))
        control.await_superlink(_WAIT_S)
        control.register()
        for number in range(config.federation.num_clients):
            stack.enter_context(_node(deployment, number, kind))
        await_nodes(control, config.federation.num_clients, _WAIT_S, lambda _: None)
        control.start()
        ends, spent = _watch(deployment.runs, rounds + 1)
    return Pace(kind, 2 if evaluate else 1, statistics.median(_steps(ends)), (spent[-1] - spent[0]) / rounds)


def _steps(ends: Sequence[float]) -> list[float]:
    return [two - one for one, two in zip(ends, ends[1:], strict=False)]


def _watch(runs: Path, rounds: int) -> tuple[list[float], list[float]]:
    """Return when each round was written down, and the CPU seconds spent by then."""
    ends: list[float] = []
    spent: list[float] = []
    last_s = time.monotonic()
    while len(ends) < rounds:
        done = sum(file.read_text().count('"round_s"') for file in runs.glob("*/metrics.csv"))
        if done > len(ends):
            last_s = time.monotonic()
            ends.extend([last_s] * (done - len(ends)))
            spent.extend([tree_cpu_s()] * (done - len(spent)))
        if time.monotonic() - last_s > _WAIT_S:
            raise TimeoutError(f"{len(ends)} of {rounds} rounds, and none for {_WAIT_S:g} s: look at the logs")
        time.sleep(0.01)
    return ends, spent


@contextmanager
def _server(deployment: Deployment) -> Iterator[None]:
    with temporary_home() as home:
        environment = process_environment(os.environ, home) | server_variables(deployment)
        commands = superlink_command(deployment, home), runner_command(deployment)
        with _running(commands[0], environment), _running(commands[1], environment):
            yield


@contextmanager
def _node(deployment: Deployment, number: int, kind: str) -> Iterator[None]:
    folder, server = deployment.client(number), f"localhost:{deployment.superlink_port}"
    with temporary_home() as home:
        environment = process_environment(os.environ, home) | {"FEDSIM_SUPERLINK": server}
        command = [sys.executable, "-c", "from fedsim.cli import main; main()", "deploy", "node", str(folder)]
        if kind == "Flower":
            own = supernode_arguments(Node.read(folder, environment), free_port())
            at = own.index("--isolation")
            # As `flower-supernode` does by itself: it starts the processes of its messages.
            command = [str(home / "bin" / "flower-supernode"), *own[:at], *own[at + 2 :]]
        with _running(command, environment):
            yield


@contextmanager
def _running(command: Sequence[str], environment: dict[str, str]) -> Iterator[None]:
    log = subprocess.DEVNULL
    process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def table(found: Sequence[Pace]) -> str:
    """Return the costs as text, with the ratios to Flower's of as many messages."""
    lines = [f"{'nodes':8} {'messages':>8} {'s a round':>10} {'CPU s':>8} {'wall x':>8} {'CPU x':>8}"]
    for each in found:
        flower = next(p for p in found if p.kind == "Flower" and p.messages == each.messages)
        lines.append(
            f"{each.kind:8} {each.messages:8} {each.round_s:10.2f} {each.cpu_s:8.2f} "
            f"{flower.round_s / each.round_s:8.1f} {flower.cpu_s / each.cpu_s:8.1f}"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; returns 0, or 1 where ours is not faster."""
    parser = argparse.ArgumentParser(prog="experiments.bench.pace", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds of each")
    parser.add_argument("--json", action="store_true", help="one line of JSON beside the table")
    args = parser.parse_args(argv)
    # Flower leaves processes without a parent; they are counted and ended here.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    found = [measure(kind, args.rounds, evaluate) for evaluate in (False, True) for kind in _STRATEGY]
    print(table(found))
    if args.json:
        print(json.dumps([{name: getattr(p, name) for name in Pace.__slots__} for p in found]))
    ours = {p.messages: p.round_s for p in found if p.kind == "fedsim"}
    return int(any(p.round_s <= ours[p.messages] for p in found if p.kind == "Flower"))


if __name__ == "__main__":
    sys.exit(main())
