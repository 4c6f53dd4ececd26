"""The server's own data: training rows that no client holds, or an unlabelled set of another task."""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, from_numpy

from fedsim.config import LeffConfig, RunConfig
from fedsim.tasks.data import load_dataset, split_rows
from fedsim.tasks.errors import BadOption
from fedsim.tasks.training import as_inputs

__all__ = ["proxy_data", "proxy_examples", "split_proxy"]

#: Domain separation from the other uses of the run's seed.
_SEED_OFFSET = 0x70726F78


def proxy_examples(config: RunConfig) -> int:
    """Return how many training rows the server keeps."""
    if config.data.proxy_examples is not None:
        return config.data.proxy_examples
    elsewhere = isinstance(config.strategy, LeffConfig) and config.strategy.proxy_task is not None
    return 0 if elsewhere else config.strategy.proxy_rows


def split_proxy(labels: NDArray[np.int64], count: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows that clients share and those that the server keeps, each sorted; class shares are equal.

    Args:
        labels: of the training rows.
        count: rows for the server, below their number.
        seed: of the run.

    Raises:
        BadOption: too many rows are to be kept, or so few that none would be.
    """
    if not count:
        return np.arange(len(labels)), np.zeros(0, np.int64)
    if count >= len(labels):
        raise BadOption(f"data.proxy_examples {count} of {len(labels)} training rows: clients need some; lower it")
    clients, server = split_rows(labels, count / len(labels), seed ^ _SEED_OFFSET)
    if not len(server):
        raise BadOption(
            f"data.proxy_examples {count}: too few for equal shares of {len(np.unique(labels))} classes, so that none "
            "would be kept; raise it"
        )
    return clients, server


def proxy_data(config: RunConfig) -> tuple[Tensor, Tensor | None]:
    """Return the server's inputs, and their labels where they are of the run's own task.

    Raises:
        BadOption: the other task's examples have another shape.
    """
    data = load_dataset(config.task.name, **config.task.options)
    strategy = config.strategy
    if isinstance(strategy, LeffConfig) and strategy.proxy_task is not None:
        other = load_dataset(strategy.proxy_task, **strategy.proxy_options)
        if other.input_shape != data.input_shape or other.train_x.dtype != data.train_x.dtype:
            raise BadOption(
                f"proxy_task '{other.name}' has examples {other.input_shape}, {other.train_x.dtype}: must be those of "
                f"'{data.name}', {data.input_shape}, {data.train_x.dtype}; set strategy.proxy_options alike"
            )
        return as_inputs(other.train_x), None
    _, rows = split_proxy(data.train_y, proxy_examples(config), config.seed)
    return as_inputs(data.train_x[rows]), from_numpy(data.train_y[rows].astype(np.int64))
