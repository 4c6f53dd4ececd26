"""Two small real sets inside the scikit-learn wheel, for tests and first steps."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedsim.tasks.data import Dataset, register_dataset, split_rows

_LICENCE = "BSD-3-Clause (scikit-learn)"


@register_dataset("digits", "1,797 handwritten digits, 8x8 grey, 10 classes (scikit-learn)")
def load_digits(test_fraction: float = 0.2, seed: int = 0, tokens: bool = False) -> Dataset:
    """Load the digits: float32 in [0, 1], shape ``(n, 1, 8, 8)``; the split is seeded and class-balanced.

    With `tokens` a digit is a text of 64 grey levels, line by line: int32 in [1, 17], for the text models.
    """
    rows = _digits()
    x: NDArray[np.generic] = np.ascontiguousarray(rows[:, :-1].reshape(-1, 1, 8, 8) / 16.0, np.float32)
    if tokens:
        x = rows[:, :-1].astype(np.int32) + 1
    y = rows[:, -1].astype(np.int64)
    train, test = split_rows(y, test_fraction, seed)
    return Dataset(
        name="digits",
        train_x=x[train],
        train_y=y[train],
        test_x=x[test],
        test_y=y[test],
        num_classes=10,
        task_kind="text" if tokens else "image",
        input_shape=x.shape[1:],
        source="scikit-learn load_digits (UCI optical recognition of handwritten digits, test part)",
        licence=_LICENCE,
    )


def _digits() -> NDArray[np.float64]:
    """Return 64 grey levels and the label of each digit, from the wheel's file: scikit-learn takes seconds."""
    spec = find_spec("sklearn")
    for folder in (spec.submodule_search_locations if spec else None) or ():
        path = Path(folder) / "datasets" / "data" / "digits.csv.gz"
        if path.exists():
            return np.loadtxt(path, delimiter=",")
    from sklearn import datasets

    raw = datasets.load_digits()
    return np.column_stack([raw.data, raw.target])


@register_dataset("breast-cancer", "569 tumours, 30 measured features, 2 classes (scikit-learn)")
def load_breast_cancer(test_fraction: float = 0.2, seed: int = 0) -> Dataset:
    """Load the Wisconsin tumours: float32, shape ``(n, 30)``, standardised by the training rows' mean and deviation."""
    from sklearn import datasets

    raw = datasets.load_breast_cancer()
    y = raw.target.astype(np.int64)
    train, test = split_rows(y, test_fraction, seed)
    x = (raw.data - raw.data[train].mean(axis=0)) / raw.data[train].std(axis=0)
    x = x.astype(np.float32)
    return Dataset(
        name="breast-cancer",
        train_x=x[train],
        train_y=y[train],
        test_x=x[test],
        test_y=y[test],
        num_classes=2,
        task_kind="tabular",
        input_shape=(30,),
        source="scikit-learn load_breast_cancer (UCI Wisconsin diagnostic)",
        licence=_LICENCE,
    )
