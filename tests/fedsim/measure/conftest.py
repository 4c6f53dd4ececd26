"""Run folders that look like real runs, made from a seed in well under a second."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsim.measure.ledger import HELPER, SERVER, ClientRound, Entry, Ledger
from fedsim.measure.metrics import Metrics
from fedsim.measure.runfolder import RunFolder
from fedsim.measure.runs import write_partition

START = datetime(2026, 3, 1, 9, 30, tzinfo=UTC)
CLASSES = ("T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")


@dataclass(frozen=True)
class Plan:
    """What a made-up run looks like."""

    rounds: int = 12
    clients: int = 20
    participation: float = 0.6
    seed: int = 1
    model_bytes: int = 420_000
    expansion: float = 1.0
    best: float = 0.86
    pace: float = 3.0
    strategy: str = "fedavg"
    protection: str = "plain"
    virtual: bool = True
    drops: float = 0.06
    helper: bool = False
    status: str = "finished"
    reason: str = "all rounds done"
    reasons: tuple[str, ...] = ("no reply within 30 s", "update has NaN in 'conv1.weight'", "worker died (SIGKILL)")
    extra: dict[str, Any] = field(default_factory=dict)


MakeRun = Callable[..., Path]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    def make(name: str = "fashion-fedavg", root: Path | None = None, **changes: Any) -> Path:
        plan = Plan(**changes)
        path = (root or tmp_path / "runs") / name
        folder = RunFolder.create(path, config_of(plan), plan.seed, ENVIRONMENT, START)
        rng = np.random.default_rng(plan.seed)
        shares = rng.dirichlet([0.3] * plan.clients, len(CLASSES)).T
        counts = np.floor(shares * 500).astype(int)
        measures = {"mean Jensen-Shannon distance": 0.61234, "mean label EMD": 1.1}
        write_partition(folder, counts.sum(1).tolist(), CLASSES, counts.tolist(), measures)
        record(path, plan, rng, counts.sum(1))
        if plan.status != "running":
            ended = START + timedelta(minutes=17)
            budget = {"scheme": plan.protection, "error_bound": 2.4e-7, "security_bits": 128, "upload_bytes": 421_337}
            folder.update_status(
                plan.status,  # type: ignore[arg-type]
                ended=ended,
                exit_reason=plan.reason,
                weights_sha256="9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
                protection=budget,
                aggregation={"weighting": "examples", "chunk": 8},
            )
        return path

    return make


ENVIRONMENT = {
    "versions": {"python": "3.11.2", "fedsim": "0.1.0", "flwr": "1.42.0", "ray": "2.55.1", "torch": "2.13.0"},
    "platform": "Linux-6.1-x86_64",
    "machine": "x86_64",
    "cpu_count": 8,
    "git": {"commit": "9df128d0aa55", "dirty": False},
}


def config_of(plan: Plan) -> str:
    return f"""seed = {plan.seed}

[task]
name = "fashion-mnist"

[model]
name = "cnn"

[data]
scheme = "dirichlet"
alpha = 0.3

[training]
epochs = 1
batch_size = 32
lr = 0.05

[federation]
num_clients = {plan.clients}
rounds = {plan.rounds}
participation = {plan.participation}

[strategy]
name = "{plan.strategy}"

[protection]
name = "{plan.protection}"
"""


def record(path: Path, plan: Plan, rng: np.random.Generator, sizes: np.ndarray) -> None:
    """Write ledger and metrics of all rounds."""
    ledger, metrics = Ledger(path), Metrics(path)
    slowness = rng.lognormal(0, 0.6, plan.clients)
    metrics.extend(0, "server", {"accuracy": 0.1, "loss": 2.303})
    for round in range(1, plan.rounds + 1):
        chosen = rng.choice(plan.clients, max(1, int(plan.participation * plan.clients)), replace=False)
        turns = [
            client_turn(ledger, plan, rng, round, int(c), float(slowness[c]), int(sizes[c])) for c in np.sort(chosen)
        ]
        add_s, evaluate_s = 0.0004 * len(turns), 0.31
        ledger.add(Entry(round, SERVER, "add", plan.model_bytes, 0, add_s, add_s))
        if plan.helper:
            ledger.add(Entry(round, HELPER, "upload", plan.model_bytes, plan.model_bytes + 900, 0.002))
        ledger.add(Entry(round, SERVER, "evaluate", measured_s=evaluate_s))
        progress = 1 - np.exp(-plan.pace * round / plan.rounds)
        accuracy = 0.1 + (plan.best - 0.1) * progress + rng.normal(0, 0.006)
        metrics.extend(
            round, "server", {"accuracy": accuracy, "loss": 2.3 - 1.85 * progress, "round_s": max(turns) + 0.4}
        )
        metrics.add(round, "client", "accuracy", accuracy + 0.02 + rng.normal(0, 0.01))
        if plan.virtual:
            metrics.add(round, "server", "virtual_round_s", 11 * max(turns))
        ledger.flush()
        metrics.flush()
    if plan.status == "finished":
        ledger.write()
        metrics.write()


def client_turn(
    ledger: Ledger, plan: Plan, rng: np.random.Generator, round: int, client: int, slowness: float, size: int
) -> float:
    """Record one client's phases and turn; returns its seconds."""
    lost = rng.random() < plan.drops
    train_s = size * 0.0008 * slowness * rng.uniform(0.9, 1.15)
    wire = int(plan.model_bytes * plan.expansion) + 1_337
    seal_s, open_s = 0.012 * plan.expansion, 0.004 * plan.expansion
    moved = {
        "download": (wire, 0.01),
        "open": (0, open_s),
        "train": (0, train_s),
        "seal": (0, seal_s),
        "upload": (wire, 0.012),
    }
    outcome = str(rng.choice(["dropped", "late", "rejected"])) if lost else "ok"
    reason = str(rng.choice(plan.reasons)) if lost else ""
    for phase, (wire_bytes, measured_s) in moved.items():
        logical = plan.model_bytes if wire_bytes else 0
        flops = int(1e9 * size) if phase == "train" else 0
        virtual_s = 11 * measured_s if plan.virtual else float("nan")
        ledger.add(Entry(round, client, phase, logical, wire_bytes, measured_s, virtual_s, flops, 0, outcome, reason))
    total_s = sum(measured_s for _, measured_s in moved.values())
    ledger.add_client(ClientRound(round, client, total_s, size, outcome, reason))
    return total_s
