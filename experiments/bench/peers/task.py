"""A task as one file that any peer can read: clients' data, model, start weights, rates. Needs numpy, torch."""

import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Task:
    """What every peer trains.

    Attributes:
        clients: each client's examples and labels.
        test: examples and labels of the test set.
        sampled: clients of a round.
        batch_size, lr: of the local SGD, one epoch, no momentum.
        rounds: timed rounds, after one to warm up.
        model: holds the start weights.
    """

    clients: list[tuple[Tensor, Tensor]]
    test: tuple[Tensor, Tensor]
    sampled: int
    batch_size: int
    lr: float
    rounds: int
    model: nn.Module

    def accuracy(self, model: nn.Module) -> float:
        """Return the share of right answers on the test set."""
        with torch.no_grad():
            return float((model(self.test[0]).argmax(1) == self.test[1]).float().mean())


class SmallCNN(nn.Module):
    """The product's small CNN, for 28x28 grey images."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.fc1 = nn.Linear(2 * width * 49, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        x = torch.relu(nn.functional.max_pool2d(self.conv1(x), 2))
        x = torch.relu(nn.functional.max_pool2d(self.conv2(x), 2))
        logits: Tensor = self.fc2(torch.relu(self.fc1(x.flatten(1))))
        return logits


class Trivial(nn.Module):
    """Ten arrays whose mean is the second class's logit: one step adds the same number to each value.

    Args:
        size: values of one array.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.parts = nn.ParameterList(nn.Parameter(torch.zeros(size)) for _ in range(10))

    def forward(self, x: Tensor) -> Tensor:
        """Return the examples, shape ``(batch, 2)``, times the mean of the arrays' means."""
        return x * torch.stack([part.mean() for part in self.parts]).mean()


def build(name: str, size: int = 0) -> nn.Module:
    """Return the untrained model of a task; `size` is that of the first array."""
    if name == "trivial":
        return Trivial(size)
    if name == "cnn":
        return SmallCNN(32)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def load(path: Path) -> Task:
    """Read a task file."""
    torch.set_num_threads(1)
    with np.load(path) as file:
        about = json.loads(str(file["about"]))
        count = int(about["clients"])
        clients = [(torch.from_numpy(file[f"x{i}"]), torch.from_numpy(file[f"y{i}"])) for i in range(count)]
        test = torch.from_numpy(file["test_x"]), torch.from_numpy(file["test_y"])
        model = build(about["name"], file["w0"].size)
        names = list(model.state_dict())
        model.load_state_dict({name: torch.from_numpy(file[f"w{i}"]) for i, name in enumerate(names)})
    return Task(clients, test, about["sampled"], about["batch_size"], about["lr"], about["rounds"], model)


class Clock:
    """Notes wall and CPU seconds at the end of each round and prints the cost as JSON."""

    def __init__(self) -> None:
        self.begun_s = time.perf_counter()
        self._at: list[tuple[float, float]] = []

    def mark(self) -> None:
        """Note the end of a round."""
        times = os.times()
        own_s = times.user + times.system + times.children_user + times.children_system
        self._at.append((time.perf_counter(), own_s))

    def report(self, engine: str, task: Task, accuracy: float) -> None:
        """Print the cost of the rounds between the first mark, which ends the warm-up, and the last."""
        walls = np.diff([wall for wall, _ in self._at])
        cpu_s = (self._at[-1][1] - self._at[0][1]) / (len(self._at) - 1)
        found = {
            "engine": engine,
            "wall_ms": 1e3 * float(walls.min()) / task.sampled,
            "cpu_ms": 1e3 * cpu_s / task.sampled,
            "start_s": self._at[0][0] - self.begun_s,
            "accuracy": accuracy,
            "peak_mb": int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024,
        }
        sys.stdout.write("\n" + json.dumps(found) + "\n")
