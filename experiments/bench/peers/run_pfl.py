"""The task on pfl (pfl-research 0.6), one process: ``run_pfl.py TASK.npz`` prints its cost as JSON."""

import itertools
import logging
import sys
from pathlib import Path
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from task import Clock, load
from torch import nn


class Marks(TrainingProcessCallback):  # type: ignore[misc]
    """Marks the clock after each round."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Metrics]:
        """Go on."""
        self._clock.mark()
        return False, Metrics()


class Wrapped(nn.Module):
    """A module with the loss that pfl asks for."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        logits: torch.Tensor = self.inner(x)
        return logits

    def loss(self, x: torch.Tensor, y: torch.Tensor, eval: bool = False) -> torch.Tensor:
        """Return the mean cross-entropy."""
        return nn.functional.cross_entropy(self(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor, eval: bool = False) -> dict[str, Any]:
        """Return nothing: nothing is evaluated."""
        return {}


def main(path: Path) -> None:
    """Train and print."""
    logging.disable(logging.WARNING)
    clock, task = Clock(), load(path)
    users = itertools.cycle(range(len(task.clients)))
    data = FederatedDataset(lambda user: PyTorchTensorDataset(task.clients[user]), lambda: next(users))
    net = Wrapped(task.model)
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    FederatedAveraging().run(
        NNAlgorithmParams(task.rounds + 1, 10**9, task.sampled, None),
        SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()]),
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=task.lr, local_batch_size=task.batch_size),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[Marks(clock)],
    )
    clock.report("pfl", task, task.accuracy(net.inner))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
