"""Lesson 6. Differential privacy with two aggregators: state the guarantee, and read what it costs.

Sixteen clients are far too few for a useful model at this guarantee; the lesson shows the arithmetic and the record.
"""

import json

from fedsim import load_config, simulate


def main() -> None:
    given = ["task.name=digits", "model.name=mlp", "federation.num_clients=16", "federation.rounds=2"]
    private = [
        "protection.name=preamble",
        "protection.epsilon=2.0",
        "protection.budget=run",
        "protection.clip_norm=0.5",
    ]
    result = simulate(load_config(None, [*given, *private, "output.report=false", "output.name=lesson-6"]))
    promise = json.loads((result.folder / "run.json").read_text())["protection"]
    print(f"epsilon {promise['epsilon_run']:.3f} for the run, {promise['epsilon_round']:.3f} a round")
    print(f"delta {promise['delta']}, noise of each aggregator {promise['sigma_each_aggregator']:.3f}")
    print(f"noise of the mean, a coordinate: {promise['mean_noise_per_coordinate']:.3f}")


if __name__ == "__main__":
    main()
