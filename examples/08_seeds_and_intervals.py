"""Lesson 8. One run is an anecdote: seeds, and a paired interval; `fedsim sweep` does this in parallel."""

from experiments.sweeps.statistics import mean
from fedsim import load_config, simulate

SMALL = ["task.name=digits", "model.name=mlp", "federation.num_clients=8", "federation.rounds=3", "output.report=false"]


def accuracy(strategy: str, seed: int) -> float:
    given = [*SMALL, f"strategy.name={strategy}", f"seed={seed}", "data.alpha=0.1", "training.lr=0.1"]
    name = f"output.name=lesson-8-{strategy}-{seed}"
    return float(simulate(load_config(None, [*given, name])).metrics["server_accuracy"])


def main() -> None:
    pairs = [(accuracy("fedavg", seed), accuracy("fedtop", seed)) for seed in (1, 2, 3)]
    for name, values in zip(("all layers", "last two"), zip(*pairs, strict=True), strict=True):
        result = mean(values)
        print(f"{name:<10} {result.value:.3f} +- {result.half:.3f}")
    # Runs of one seed share data, first weights and batches: their differences vary less than they do.
    result = mean([b - a for a, b in pairs])
    print(f"difference {result.value:+.3f} +- {result.half:.3f} (95 %, three seeds)")


if __name__ == "__main__":
    main()
