"""Lesson 2. A strategy of your own is a class; its name is where it stands.

The clients' mean is what the server may look at; what it makes of it is this class.
"""

from typing import Any

from fedsim import load_config, simulate
from strategies import FedAvg


class Signs(FedAvg):
    """Moves each value by a fixed step towards the clients' mean."""

    name = "signs"

    def __init__(self, *, step: float = 0.01, **common: Any) -> None:
        super().__init__(**common)
        self.step = step

    def apply(self, mean: dict[str, Any], server_round: int) -> None:
        before = self.state.arrays
        moved = {n: before[n] + (value - before[n]).clip(-self.step, self.step) for n, value in mean.items()}
        super().apply(moved, server_round)


def main() -> None:
    # `module:Class`; this file is `__main__` while it runs. From the command line: --strategy my_file:Signs
    small = ["task.name=digits", "model.name=mlp", "federation.num_clients=6", "output.report=false"]
    own = ["strategy.name=__main__:Signs", "strategy.options.step=0.02", "output.name=lesson-2"]
    result = simulate(load_config(None, [*small, *own, "federation.rounds=3"]))
    print(f"accuracy {result.metrics['server_accuracy']:.3f} with steps of at most 0.02")


if __name__ == "__main__":
    main()
