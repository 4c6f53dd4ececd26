"""How long a run will take, from one batch that is trained here and now.

Training is what a batch takes on this machine times their number; evaluation, cryptography and the round's own work
come on top, roughly. Meant to tell seconds from minutes and minutes from hours.
"""

import copy
import math
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from fedsim.clocks import crypto_costs_of
from fedsim.registry import train_config
from fedsim.site import Site
from fedsim.tasks.training import as_inputs, train

__all__ = ["batch_s", "run_s"]

#: Start of a run, of each worker under Ray, and what a round and a client's turn take beside their work.
_START_S, _RAY_START_S, _ROUND_S, _TURN_S = 1.0, 6.0, 0.02, 0.004
#: Of the time that training an example takes, evaluating it takes this share.
_FORWARD = 1 / 3


def batch_s(site: Site, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds of one training batch on one worker's threads; 0 where this process has no data.

    A copy of the model trains, and the second of two batches counts; no random stream moves.
    """
    config = site.config
    examples = min(config.training.batch_size, len(site.dataset.train_y))
    if not examples:
        return 0.0
    inputs, labels = as_inputs(site.dataset.train_x[:examples]), torch.tensor(site.dataset.train_y[:examples])
    once = replace(train_config(config, config.federation.rounds), epochs=1, max_steps=1)
    model, threads, took_s = copy.deepcopy(site.model), torch.get_num_threads(), 0.0
    torch.set_num_threads(config.engine.threads_per_worker)
    try:
        for _ in range(2):
            started = clock()
            train(model, inputs, labels, once, seed=0, round=1)
            took_s = clock() - started
    finally:
        torch.set_num_threads(threads)
    return took_s


def run_s(site: Site, engine: str, workers: int, batch_s: float) -> float:
    """Return a rough guess of a run's seconds, from its first to its last round.

    Args:
        site: the run's.
        engine: where the clients run.
        workers: processes that run them.
        batch_s: seconds of one batch, see :func:`batch_s`.
    """
    federation, training = site.config.federation, site.config.training
    asked, costs = site.config.asked, crypto_costs_of(site)
    steps = training.epochs * math.ceil(float(site.partition.sizes.mean()) / training.batch_size)
    if training.max_steps is not None:
        steps = min(steps, training.max_steps)
    at_once = 1 if engine == "inline" else max(1, min(workers, asked))
    clients_s = asked * (_TURN_S + steps * batch_s + costs.seal_s + costs.open_s) / at_once
    tested = math.ceil(len(site.dataset.test_y) / training.batch_size) * batch_s * _FORWARD
    evaluated_s = tested * (federation.server_evaluation + federation.client_evaluation_fraction / at_once)
    clients_s += asked * federation.evaluate_received * tested / federation.num_clients / at_once
    round_s = _ROUND_S + clients_s + asked * costs.add_s + costs.server_open_s
    start_s = _START_S if engine == "inline" else _RAY_START_S
    return start_s + federation.rounds * (round_s + evaluated_s / federation.evaluate_every)
