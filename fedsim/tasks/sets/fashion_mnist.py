"""Fashion-MNIST: a packaged class-balanced part, and the whole set from Debian's package (Xiao et al. 2017)."""

import gzip
import math
import os
import zlib
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.tasks.data import Dataset, register_dataset
from fedsim.tasks.errors import BadOption, DataUnavailable

_DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
_FOLDER_VARIABLE = "FEDSIM_FASHION_MNIST_DIR"
_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
_IDX_UINT8 = 8


@register_dataset(
    "fashion-mnist", "5,000 + 1,000 clothing pictures, 28x28 grey, 10 balanced classes; packaged (default)"
)
def load_packaged() -> Dataset:
    """Load the packaged part: uint8, 500 training and 100 test pictures a class."""
    with resources.files("fedsim.tasks").joinpath("files/fashion_mnist_5k.npz").open("rb") as file:
        arrays = np.load(file)
        parts = [arrays[key] for key in ("train_x", "train_y", "test_x", "test_y")]
    return _dataset("fashion-mnist", parts, "packaged class-balanced part of Debian's dataset-fashion-mnist")


def _missing() -> str:
    folder = _folder("")
    absent = [name for name in _FILES if not (folder / name).is_file()]
    if not absent:
        return ""
    return (
        f"{folder / absent[0]} is not there: the set has four files; run `apt-get install dataset-fashion-mnist`, "
        f"or name their folder by the option 'folder' or the variable {_FOLDER_VARIABLE}"
    )


@register_dataset("fashion-mnist-full", "60,000 + 10,000 clothing pictures, 28x28 grey, 10 classes", missing=_missing)
def load_full(folder: str = "") -> Dataset:
    """Load all 70,000 pictures from the four gzipped IDX files.

    Args:
        folder: where the files are; empty for the environment variable or Debian's folder.

    Raises:
        DataUnavailable: a file is absent or is not IDX.
    """
    at = _folder(folder)
    absent = [name for name in _FILES if not (at / name).is_file()]
    if absent:
        raise DataUnavailable(
            _missing() if not folder else f"{at / absent[0]} is not there: give the folder of the IDX files"
        )
    train_x, train_y, test_x, test_y = (read_idx(at / name) for name in _FILES)
    return _dataset("fashion-mnist-full", [train_x, train_y, test_x, test_y], f"IDX files in {at}")


def _folder(folder: str) -> Path:
    return Path(folder or os.environ.get(_FOLDER_VARIABLE, "") or _DEBIAN_FOLDER)


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read a gzipped IDX file of bytes: two zeros, type, number of dimensions, big-endian sizes, then the values.

    Raises:
        DataUnavailable: the file is not such a file or is cut off.
    """
    try:
        with gzip.open(path, "rb") as file:
            raw = file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise DataUnavailable(f"{path} cannot be unpacked ({error}); install the set again") from error
    dims = raw[3] if len(raw) > 3 else 0
    start = 4 + 4 * dims
    if len(raw) < start or raw[:3] != bytes([0, 0, _IDX_UINT8]):
        raise DataUnavailable(f"{path} does not start like an IDX file of bytes; install the set again")
    shape = tuple(int(size) for size in np.frombuffer(raw, ">i4", dims, 4))
    if min(shape, default=0) < 0 or len(raw) - start != math.prod(shape):
        raise DataUnavailable(f"{path} holds {len(raw) - start} bytes for shape {shape}; install the set again")
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


def balanced_part(
    x: NDArray[Any], y: NDArray[Any], per_class: int, rng: np.random.Generator
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return `per_class` random rows of every class, in mixed order.

    Raises:
        BadOption: a class is smaller.
    """
    smallest = int(np.bincount(y).min())
    if per_class > smallest:
        raise BadOption(f"{per_class} rows a class: the smallest class has {smallest}; ask for less")
    rows = np.concatenate([rng.choice(np.flatnonzero(y == c), per_class, replace=False) for c in np.unique(y)])
    rows = rng.permutation(rows)
    return x[rows], y[rows]


def _dataset(name: str, parts: list[NDArray[Any]], source: str) -> Dataset:
    train_x, train_y, test_x, test_y = parts
    return Dataset(
        name=name,
        train_x=train_x.reshape(-1, 1, 28, 28),
        train_y=train_y.astype(np.int64),
        test_x=test_x.reshape(-1, 1, 28, 28),
        test_y=test_y.astype(np.int64),
        num_classes=10,
        task_kind="image",
        input_shape=(1, 28, 28),
        source=source,
        licence="MIT (Zalando SE)",
    )
