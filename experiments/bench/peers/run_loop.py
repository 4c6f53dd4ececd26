"""The task as a loop written by hand: ``run_loop.py TASK.npz`` prints its cost as JSON."""

import itertools
import sys
from pathlib import Path

import torch
from task import Clock, load
from torch import nn


def main(path: Path) -> None:
    """Train and print."""
    clock, task = Clock(), load(path)
    model, users = task.model, itertools.cycle(range(len(task.clients)))
    weights = [p.detach().clone() for p in model.parameters()]
    for _ in range(task.rounds + 1):
        totals, seen = [torch.zeros_like(w) for w in weights], 0
        for user in itertools.islice(users, task.sampled):
            x, y = task.clients[user]
            with torch.no_grad():
                for parameter, weight in zip(model.parameters(), weights, strict=True):
                    parameter.copy_(weight)
            optimizer = torch.optim.SGD(model.parameters(), lr=task.lr)
            for some, answers in zip(x.split(task.batch_size), y.split(task.batch_size), strict=True):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(some), answers).backward()
                optimizer.step()
            with torch.no_grad():
                for total, parameter in zip(totals, model.parameters(), strict=True):
                    total.add_(parameter, alpha=len(y))
            seen += len(y)
        weights = [total / seen for total in totals]
        clock.mark()
    with torch.no_grad():
        for parameter, weight in zip(model.parameters(), weights, strict=True):
            parameter.copy_(weight)
    clock.report("plain loop", task, task.accuracy(model))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
