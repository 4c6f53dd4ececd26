"""Make the packaged part of Fashion-MNIST anew: `python fedsim/tasks/files/make_fashion_mnist.py [IDX FOLDER]`.

Needs Debian's dataset-fashion-mnist (or its four files in a folder). The choice of rows is seeded, so the arrays are
the same every time.
"""

import sys
from pathlib import Path

import numpy as np

from fedsim.tasks.data import load_dataset
from fedsim.tasks.sets.fashion_mnist import balanced_part

TRAIN_PER_CLASS = 500
TEST_PER_CLASS = 100
SEED = 20170825


def main(folder: str) -> None:
    """Write fashion_mnist_5k.npz beside this file."""
    full = load_dataset("fashion-mnist-full", folder=folder)
    rng = np.random.default_rng(SEED)
    train_x, train_y = balanced_part(full.train_x[:, 0], full.train_y, TRAIN_PER_CLASS, rng)
    test_x, test_y = balanced_part(full.test_x[:, 0], full.test_y, TEST_PER_CLASS, rng)
    np.savez_compressed(
        Path(__file__).with_name("fashion_mnist_5k.npz"),
        train_x=train_x,
        train_y=train_y.astype(np.uint8),
        test_x=test_x,
        test_y=test_y.astype(np.uint8),
    )


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
