"""Lesson 3. A file of your own, dealt out to clients, and a look at how unequal they are.

Real clients read each their own file with the same settings; see docs/deployment.md.
"""

from pathlib import Path

import numpy as np

from fedsim import load_config, simulate
from fedsim.tasks.data import load_dataset
from fedsim.tasks.partition import partition


def main() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 600)
    rows = rng.normal(size=(600, 2)) + 3 * np.stack([labels == 1, labels == 2], axis=1)
    np.savez(Path("points.npz"), x=rows.astype(np.float32), y=labels)

    options = {"path": "points.npz", "shape": (2,), "classes": 3}
    data = load_dataset("files", **options)
    dealt = partition(data.train_y, 5, "dirichlet", seed=1, alpha=0.3)
    print(f"sizes {dealt.sizes.tolist()}")
    print(f"labels\n{dealt.label_histogram}")

    settings = 'task={name="files", options={path="points.npz", shape=[2], classes=3}}'
    quick = ["model.name=logistic", "federation.num_clients=5", "federation.rounds=3", "training.lr=0.2"]
    result = simulate(load_config(None, [settings, *quick, "output.report=false", "output.name=lesson-3"]))
    print(f"accuracy {result.metrics['server_accuracy']:.3f}")


if __name__ == "__main__":
    main()
