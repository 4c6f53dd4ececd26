"""The task on fluke (fluke-fl 0.8), one process, no evaluation: ``run_fluke.py TASK.npz`` prints its cost as JSON."""

import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cpu_torchvision  # noqa: F401 - before fluke, which imports torchvision
from fluke import FlukeENV
from fluke.algorithms import CentralizedFL
from fluke.client import Client
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader
from fluke.server import Server
from task import Clock, Task, load
from torch import nn


class InTurn(Server):  # type: ignore[misc]
    """A server that samples as the other peers do: the next so many clients."""

    def sample_in_turn(self, sampled: int) -> None:
        """Sample so many clients a round."""
        self._turn, self._sampled = itertools.cycle(self.clients), sampled

    def get_eligible_clients(self, eligible_perc: float) -> Sequence[Any]:
        """Return the round's clients."""
        return list(itertools.islice(self._turn, self._sampled))


class Federation(CentralizedFL):  # type: ignore[misc]
    """Plain federated averaging that marks the clock, and ends after its last round."""

    clock: Clock

    def notify(self, event: str, **values: Any) -> None:
        """See fluke's ``ObserverSubject``."""
        super().notify(event, **values)
        if event == "end_round":
            self.clock.mark()

    def finalize(self) -> None:
        """Send the clients nothing more."""


def clients_of(task: Task) -> list[Any]:
    """Return fluke's clients; each forgets its model after its round, as a client without state does."""
    optimizer = OptimizerConfigurator({"name": "SGD", "lr": task.lr}, {"name": "StepLR", "step_size": 1, "gamma": 1})
    size = {"batch_size": task.batch_size, "num_labels": int(task.test[1].max()) + 1, "skip_singleton": False}
    return [
        Client(i, FastDataLoader(x, y, **size), None, optimizer, nn.CrossEntropyLoss(), 1, persistency=False)
        for i, (x, y) in enumerate(task.clients)
    ]


def main(path: Path) -> None:
    """Train and print."""
    clock, task = Clock(), load(path)
    FlukeENV().set_eval_cfg(server=False, locals=False, pre_fit=False, post_fit=False)
    clients = clients_of(task)
    server = InTurn(task.model, None, clients, weighted=True)
    server.sample_in_turn(task.sampled)
    federation = Federation(len(clients), None, None, clients=clients, server=server)
    federation.clock = clock
    federation.run(task.rounds + 1, task.sampled / len(clients))
    clock.report("fluke", task, task.accuracy(server.model))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
