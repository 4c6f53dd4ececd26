"""Lesson 1. A federation in five lines: settings, a run, and what it left.

Eight clients share the digits of scikit-learn, unequally, and train a small network together.
"""

from fedsim import load_config, simulate

SMALL = ["task.name=digits", "model.name=mlp", "federation.num_clients=8", "training.lr=0.1", "output.report=false"]


def main() -> None:
    config = load_config(None, [*SMALL, "federation.rounds=3", "output.name=lesson-1"])
    result = simulate(config)
    print(f"accuracy {result.metrics['server_accuracy']:.3f} after 3 rounds")
    print(f"ledger, metrics, model and checkpoints: {result.folder}")
    # The same settings give the same model, to the bit.
    print(f"weights {result.weights_sha256[:16]}")


if __name__ == "__main__":
    main()
