"""What fedsim costs beside a loop by hand, round by round in one process: ``python -m experiments.bench.beside``.

After each of our rounds the same clients are trained by a loop as a researcher writes it (torch's optimiser, no
shuffle, nothing measured, kept or sent). Both run on the same core within milliseconds of each other, so that their
ratio holds on a busy machine where seconds do not. Ours is the whole product: messages, sealing, ledger, metrics.
"""

import argparse
import copy
import itertools
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from experiments.bench.training import TASKS, settings, site_for
from fedsim.config import load_config
from fedsim.events import NullObserver, RoundEnd
from fedsim.runner import simulate
from fedsim.site import Site

#: What is compared -> its settings.
MODES = {"inline": (), "cohort": ("engine.cohort=on", "engine.chunk=25")}
LEAST_ROUNDS = 2


class HandLoop:
    """The loop by hand.

    Args:
        site: data, model and rates.
    """

    def __init__(self, site: Site) -> None:
        federation, self._training = site.config.federation, site.config.training
        self._model = copy.deepcopy(site.model)
        self._data = [site.train_data(client) for client in range(federation.num_clients)]
        self._users, self._sampled = itertools.cycle(range(federation.num_clients)), federation.sampled
        self._weights = [p.detach().clone() for p in self._model.parameters()]

    def round(self) -> None:
        """Train and average."""
        totals, seen = [torch.zeros_like(w) for w in self._weights], 0
        for user in itertools.islice(self._users, self._sampled):
            x, y = self._data[user]
            with torch.no_grad():
                for parameter, weight in zip(self._model.parameters(), self._weights, strict=True):
                    parameter.copy_(weight)
            optimizer = torch.optim.SGD(self._model.parameters(), lr=self._training.lr)
            size = self._training.batch_size
            for some, answers in zip(x.split(size), y.split(size), strict=True):
                optimizer.zero_grad()
                nn.functional.cross_entropy(self._model(some), answers).backward()
                optimizer.step()
            with torch.no_grad():
                for total, parameter in zip(totals, self._model.parameters(), strict=True):
                    total.add_(parameter, alpha=len(y))
            seen += len(y)
        self._weights = [total / seen for total in totals]


@dataclass(frozen=True)
class Compared:
    """CPU milliseconds a client-round, medians over rounds, and the ratio of each round to the loop's beside it."""

    ours_ms: float
    loop_ms: float
    ratio: float


class Turns(NullObserver):
    """Runs the loop after each of our rounds, and notes the CPU seconds of both."""

    def __init__(self, loop: HandLoop) -> None:
        self._loop, self._begun_s = loop, time.process_time()
        self.pairs: list[tuple[float, float]] = []

    def round_end(self, event: RoundEnd) -> None:
        """See :class:`fedsim.events.Observer`."""
        middle_s = time.process_time()
        self._loop.round()
        end_s = time.process_time()
        self.pairs.append((middle_s - self._begun_s, end_s - middle_s))
        self._begun_s = time.process_time()


def compare(task: str, mode: str, rounds: int) -> Compared:
    """Measure in this process."""
    torch.set_num_threads(1)
    site = site_for(task, rounds)
    turns = Turns(HandLoop(site))
    with tempfile.TemporaryDirectory() as folder:
        how = [*settings(task, rounds), *MODES[mode], "engine.name=inline", f"output.folder={folder}"]
        simulate(load_config(None, how), turns)
    # The first rounds warm up, the last one evaluates.
    pairs, clients = turns.pairs[2:-1], site.config.federation.sampled
    ours, loops = zip(*pairs, strict=True)
    ratio = statistics.median(a / b for a, b in pairs)
    return Compared(1e3 * statistics.median(ours) / clients, 1e3 * statistics.median(loops) / clients, ratio)


def main(argv: Sequence[str] | None = None) -> list[Compared]:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(prog="experiments.bench.beside", description=__doc__)
    parser.add_argument("--task", choices=list(TASKS), default="digits")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--modes", nargs="+", choices=list(MODES), default=list(MODES))
    args = parser.parse_args(argv)
    if args.rounds < LEAST_ROUNDS:
        parser.error(f"--rounds {args.rounds}: the first warms up, the last evaluates; give {LEAST_ROUNDS} or more")
    found = [compare(args.task, mode, args.rounds) for mode in args.modes]
    print(f"{args.task}, {args.rounds} rounds; CPU ms a client-round, ratio to the loop of the same moment:")
    for mode, one in zip(args.modes, found, strict=True):
        print(f"{mode:8} ours {one.ours_ms:7.3f}  loop {one.loop_ms:7.3f}  ratio {one.ratio:5.2f}")
    return found


if __name__ == "__main__":
    main()
