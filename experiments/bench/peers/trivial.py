"""The trivial client for our own engines: one example a client, a model of ten arrays."""

import numpy as np
from torch import nn

from experiments.bench.peers.task import Trivial
from fedsim.tasks.data import Dataset

__all__ = ["data", "model"]


def data(*, clients: int = 1000) -> Dataset:
    """Return one example a client, all of the second class, and ten to test on."""
    x = np.tile(np.array([0.0, 1.0], dtype=np.float32), (clients + 10, 1))
    y = np.ones(clients + 10, dtype=np.int64)
    return Dataset("trivial", x[10:], y[10:], x[:10], y[:10], 2, "tabular", (2,), "made here", "none")


def model(input_shape: tuple[int, ...], num_classes: int, *, size: int = 2500) -> nn.Module:
    """Return the model; `size` is that of one of its ten arrays."""
    return Trivial(size)
