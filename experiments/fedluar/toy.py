"""A toy federation on which FedLUAR's claims can be checked in seconds: ten Gaussian classes and a numpy MLP.

``python -m experiments.fedluar.toy --seeds 4 --out experiments/results/fedluar_toy.csv`` runs all arms with paired
seeds: within a seed the data, the first weights, the sampled clients and their batches are the same for every arm.
"""

import argparse
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from experiments.fedluar.table import Row, fill, frequencies, markdown
from fedsim.simulation.inline import InlineGrid
from strategies.client import open_model, seal_update
from strategies.fedluar import FedLUAR, LuarClient
from strategies.nodes import Participation
from strategies.outcome import RoundRecord
from strategies.plan import RoundPlan
from strategies.protection import Plain
from strategies.records import NamedArrays, model_record, sealed_record

log = logging.getLogger(__name__)

Floats = NDArray[np.float32]
Weights = dict[str, Floats]

WIDTHS = (20, 64, 128, 32, 32, 10)
CLIENTS, SAMPLED, STEPS, BATCH, RATE, MOMENTUM = 32, 8, 10, 32, 0.02, 0.9
_SPREAD = 0.85

#: Arm -> options of :class:`~strategies.fedluar.FedLUAR`.
ARMS: dict[str, dict[str, Any]] = {
    "fedavg": {"delta": 0},
    "luar-1": {"delta": 1},
    "luar-2": {"delta": 2},
    "drop-2": {"delta": 2, "drop": True},
    "uniform-2": {"delta": 2, "sampler": "uniform"},
    "round-robin-2": {"delta": 2, "sampler": "round_robin"},
    "deterministic-2": {"delta": 2, "sampler": "deterministic"},
    "luar-3": {"delta": 3},
    "luar-3-cap-3": {"delta": 3, "max_staleness": 3},
    "drop-3": {"delta": 3, "drop": True},
    "luar-4": {"delta": 4},
    "luar-4-cap-3": {"delta": 4, "max_staleness": 3},
    "drop-4": {"delta": 4, "drop": True},
}


@dataclass(frozen=True)
class Problem:
    """Data of one seed.

    Attributes:
        clients: (x of shape (n, 20), y of shape (n,)) of each client.
        test: the same for testing.
        initial: the first weights.
    """

    clients: list[tuple[Floats, NDArray[np.int64]]]
    test: tuple[Floats, NDArray[np.int64]]
    initial: Weights


def make_problem(seed: int, alpha: float) -> Problem:
    """Draw classes, samples, and a Dirichlet(alpha) partition with at least 10 samples a client."""
    rng = np.random.default_rng([seed, 0x544F59])
    centres = rng.normal(0, _SPREAD, (WIDTHS[-1], WIDTHS[0]))

    def sample(labels: NDArray[np.int64]) -> Floats:
        return (centres[labels] + rng.normal(size=(len(labels), WIDTHS[0]))).astype(np.float32)

    test_y = rng.integers(0, WIDTHS[-1], 2000)
    clients = []
    for _ in range(CLIENTS):
        shares = rng.dirichlet(np.full(WIDTHS[-1], alpha))
        y = rng.choice(WIDTHS[-1], size=int(rng.integers(10, 390)), p=shares)
        clients.append((sample(y), y))
    initial: Weights = {}
    for i, (wide, narrow) in enumerate(zip(WIDTHS, WIDTHS[1:], strict=False)):
        initial[f"{i}.weight"] = rng.normal(0, np.sqrt(2 / wide), (wide, narrow)).astype(np.float32)
        initial[f"{i}.bias"] = np.zeros(narrow, np.float32)
    return Problem(clients, (sample(test_y), test_y), initial)


def forward(weights: Weights, x: Floats) -> list[Floats]:
    """Return the inputs of all layers, and the logits at the end."""
    layers = [x]
    last = len(WIDTHS) - 2
    for i in range(last + 1):
        z = layers[-1] @ weights[f"{i}.weight"] + weights[f"{i}.bias"]
        layers.append(z if i == last else np.maximum(z, 0))
    return layers


def accuracy(weights: Weights, test: tuple[Floats, NDArray[np.int64]]) -> float:
    """Return the share of correct answers; weights that are not finite answer at random, 0.1."""
    logits = forward(weights, test[0])[-1]
    return float(np.mean(logits.argmax(1) == test[1])) if np.isfinite(logits).all() else 1 / WIDTHS[-1]


def train(weights: Weights, x: Floats, y: NDArray[np.int64], rng: np.random.Generator) -> Weights:
    """Return the weights after local SGD with momentum on cross-entropy; the input is not modified."""
    w = {n: a.copy() for n, a in weights.items()}
    speed = {n: np.zeros_like(a) for n, a in w.items()}
    for _ in range(STEPS):
        rows = rng.integers(0, len(y), BATCH)
        layers = forward(w, x[rows])
        grad = np.exp(layers[-1] - layers[-1].max(1, keepdims=True))
        grad /= grad.sum(1, keepdims=True)
        grad[np.arange(BATCH), y[rows]] -= 1
        grad /= BATCH
        for i in reversed(range(len(WIDTHS) - 1)):
            below = (grad @ w[f"{i}.weight"].T) * (layers[i] > 0)
            for name, g in ((f"{i}.weight", layers[i].T @ grad), (f"{i}.bias", grad.sum(0))):
                speed[name] = MOMENTUM * speed[name] + g
                w[name] = (w[name] - RATE * speed[name]).astype(np.float32)
            grad = below
    return w


def client_app(problem: Problem, seed: int) -> ClientApp:
    """Return the clients' Flower app."""
    app, half, protection = ClientApp(), LuarClient(), Plain()

    @app.train()
    def handle(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        x, y = problem.clients[client]
        plan = RoundPlan.from_record(message.content.config_records["config"])
        before = half.complete(message.content, open_model(message.content, protection, None), context.state)
        weights: Any = before.arrays
        after: Any = train(weights, x, y, np.random.default_rng([seed, plan.round, client]))
        sealed = seal_update(
            half,
            plan,
            before,
            NamedArrays(after),
            num_examples=len(y),
            partition_id=client,
            buffer_names=frozenset(),
            protection=protection,
        )
        metrics = MetricRecord({"num-examples": len(y)})
        return Message(RecordDict({"sealed": sealed_record(sealed.parts), "metrics": metrics}), reply_to=message)

    return app


class Watch:
    """Keeps the rounds' records and the longest run of recycling."""

    def __init__(self) -> None:
        self.records: list[RoundRecord] = []
        self.longest = 0

    def evaluate(self, server_round: int, state: NamedArrays) -> dict[str, float]:
        """Nothing on the way; the end counts."""
        return {}

    def round_done(self, record: RoundRecord, strategy: Any) -> None:
        """See :class:`~strategies.base.RoundObserver`."""
        self.records.append(record)
        self.longest = max(self.longest, int(max(strategy.luar.ages, default=0)))


def run_arm(arm: str, options: dict[str, Any], *, alpha: float, seed: int, rounds: int = 100) -> Row:
    """Run one arm of one seed."""
    problem, watch = make_problem(seed, alpha), Watch()
    participation = Participation(clients=SAMPLED, min_nodes=CLIENTS)
    strategy = FedLUAR(**options, participation=participation, seed=seed, observer=watch)
    initial = model_record(NamedArrays(dict(problem.initial)))
    with InlineGrid(client_app(problem, seed), node_configs=[{}] * CLIENTS, run_config={}, seed=seed) as grid:
        try:
            strategy.start(grid, initial, num_rounds=rounds)
        except ValueError as error:
            log.warning("%s, seed %d stopped after round %d: %s", arm, seed, len(watch.records), error)
    assert strategy.state is not None
    done = strategy.luar.rounds
    return Row(
        arm=arm,
        seed=seed,
        rounds=done,
        accuracy=round(accuracy(dict(strategy.state.arrays), problem.test), 4),  # type: ignore[arg-type]
        comm=round(watch.records[-1].metrics["server_luar_comm"], 4),
        longest_run=watch.longest,
        frequencies=frequencies(strategy.luar.layers, strategy.luar.uploads, done) if strategy.luar.delta else "",
    )


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--alpha", type=float, default=0.1)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--arms", nargs="*", default=list(ARMS))
    parser.add_argument("--out", type=Path, default=Path("fedluar_toy.csv"))
    args = parser.parse_args()
    jobs = [(arm, seed) for seed in range(args.seeds) for arm in args.arms]
    rows = fill(
        args.out, jobs, lambda arm, seed, _: run_arm(arm, ARMS[arm], alpha=args.alpha, seed=seed, rounds=args.rounds)
    )
    print(markdown(rows))


if __name__ == "__main__":
    main()
