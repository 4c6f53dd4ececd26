"""Data of one's own: a folder of pictures, a CSV or Parquet table, or a file of arrays.

All clients of a deployment build one model, so shape and classes stand in the settings; the path is each client's own.
"""

from collections.abc import Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.tasks.data import Dataset, register_dataset, split_rows
from fedsim.tasks.errors import BadOption, DataUnavailable

_PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
_FORMATS = "a folder with one subfolder a class, or a file that ends with .csv, .parquet, .pt, .pth or .npz"
_Rows = tuple[NDArray[Any], NDArray[Any]]


@register_dataset("files", "your own pictures, CSV, Parquet, torch or numpy file")
def load_files(
    path: str = "",
    shape: tuple[int, ...] = (),
    classes: int | tuple[str, ...] = 0,
    label: str = "label",
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Dataset:
    """Load labelled examples; a share of each class is kept for testing.

    Args:
        path: folder or file; empty for no examples, as on a server that has none.
        shape: of one example: (channels, height, width) of pictures, which are scaled to it, or (columns,) of a table.
        classes: number of classes, where labels are numbers from 0; or all their names, in order.
        label: column of a table that holds the class; all others are numbers.
        test_fraction: share of each class that is for testing.
        seed: decides which.

    Raises:
        BadOption: shape or classes are missing, or the examples are not of them.
        DataUnavailable: there is nothing at the path.
    """
    count = classes if isinstance(classes, int) else len(classes)
    if not shape or min(shape) < 1 or count < 2:
        raise BadOption(
            f"shape {shape!r}, classes {classes!r}: the data set 'files' needs both, alike for all clients, such as "
            "shape = [1, 28, 28] and classes = 10"
        )
    kind = np.dtype(np.uint8 if len(shape) == 3 else np.float32)
    x, y = (np.zeros((0, *shape), kind), np.zeros(0, np.int64)) if not path else _read(Path(path), shape, label)
    labels = _numbers(y, classes, path)
    x = _checked(x, shape, path)
    train, test = split_rows(labels, test_fraction, seed)
    return Dataset(
        name="files",
        train_x=x[train],
        train_y=labels[train],
        test_x=x[test],
        test_y=labels[test],
        num_classes=count,
        task_kind="image" if len(shape) == 3 else "tabular",
        input_shape=tuple(shape),
        source=path or "none",
        licence="the owner's",
    )


def _read(path: Path, shape: Sequence[int], label: str) -> _Rows:
    """Return examples and labels, numbers or names, as they are."""
    if not path.exists():
        raise DataUnavailable(f"{path} does not exist: name {_FORMATS}")
    try:
        if path.is_dir():
            return _pictures(path, shape)
        suffix = path.suffix.lower()
        if suffix in (".csv", ".parquet"):
            return _table(path, label)
        if suffix in (".pt", ".pth"):
            return _tensors(path)
        if suffix == ".npz":
            with np.load(path, allow_pickle=False) as held:
                return held["x"], held["y"]
    except (OSError, EOFError, KeyError, ValueError, RuntimeError, UnpicklingError) as error:
        if isinstance(error, BadOption):
            raise
        raise BadOption(f"{path} cannot be read ({type(error).__name__}: {error}): it must be {_FORMATS}") from error
    raise BadOption(f"{path} has an unknown form: it must be {_FORMATS}")


def _pictures(folder: Path, shape: Sequence[int]) -> _Rows:
    from PIL import Image

    if len(shape) != 3 or shape[0] not in (1, 3):
        raise BadOption(f"shape {tuple(shape)}: pictures have (1 or 3, height, width); correct task.options.shape")
    files = [(p, p.parent.name) for p in sorted(folder.glob("*/*")) if p.suffix.lower() in _PICTURES]
    if not files:
        raise BadOption(f"{folder} has no pictures in subfolders: it must be {_FORMATS}")
    channels, height, width = shape
    rows = np.zeros((len(files), channels, height, width), np.uint8)
    for row, (file, _) in zip(rows, files, strict=True):
        with Image.open(file) as picture:
            scaled = picture.convert("L" if channels == 1 else "RGB").resize((width, height), Image.Resampling.BOX)
        row[:] = np.asarray(scaled).reshape(height, width, channels).transpose(2, 0, 1)
    return rows, np.array([name for _, name in files])


def _table(path: Path, label: str) -> _Rows:
    from pyarrow import csv, parquet

    table = csv.read_csv(path) if path.suffix.lower() == ".csv" else parquet.read_table(path)
    if label not in table.column_names:
        raise BadOption(
            f"{path} has no column '{label}': it has {', '.join(table.column_names)}; set task.options.label"
        )
    columns = [name for name in table.column_names if name != label]
    try:
        x = np.stack([table[name].to_numpy().astype(np.float32) for name in columns], axis=1)
    except (TypeError, ValueError) as error:
        raise BadOption(f"{path} has a column that is no numbers ({error}): turn it into numbers or drop it") from error
    return x, table[label].to_numpy()


def _tensors(path: Path) -> _Rows:
    import torch

    held = torch.load(path, weights_only=True)
    return held["x"].numpy(), held["y"].numpy()


def _numbers(y: NDArray[Any], classes: int | tuple[str, ...], path: str) -> NDArray[np.int64]:
    """Return class numbers; names are looked up, and without a list of names those of folders are sorted."""
    count = classes if isinstance(classes, int) else len(classes)
    if not isinstance(classes, int):
        numbers = {name: number for number, name in enumerate(classes)}
        unknown = sorted({str(name) for name in y} - set(numbers))
        if unknown:
            raise BadOption(f"{path} has class '{unknown[0]}': task.options.classes lists {', '.join(classes)}; add it")
        return np.array([numbers[str(name)] for name in y], np.int64)
    if y.dtype.kind not in "iu":
        raise BadOption(f"{path} has names of classes: list them all in task.options.classes, in one order for all")
    if y.size and not 0 <= y.min() <= y.max() < count:
        raise BadOption(f"{path} has labels from {y.min()} to {y.max()}: with {count} classes they lie in [0, {count})")
    return y.astype(np.int64)


def _checked(x: NDArray[Any], shape: Sequence[int], path: str) -> NDArray[Any]:
    if tuple(x.shape[1:]) != tuple(shape):
        raise BadOption(f"{path} has examples of shape {x.shape[1:]}: task.options.shape says {tuple(shape)}")
    if x.dtype == np.uint8:
        return x
    values = x.astype(np.float32)
    if not np.isfinite(values).all():
        raise BadOption(f"{path} has {int((~np.isfinite(values)).sum())} values that are not finite: fill or drop them")
    return values
