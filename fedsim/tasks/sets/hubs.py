"""Data sets of the Hugging Face hub and of torchvision, for machines with a network; both libraries are optional."""

from importlib.util import find_spec
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.tasks.data import Dataset, register_dataset
from fedsim.tasks.errors import BadOption, DataUnavailable
from fedsim.tasks.text import hashed_words


def _missing_datasets() -> str:
    if find_spec("datasets"):
        return ""
    return "the package datasets is not installed: it reads the hub; run `pip install fedsim[datasets]`"


def _missing_torchvision() -> str:
    if find_spec("torchvision"):
        return ""
    return "the package torchvision is not installed: it downloads the set; run `pip install fedsim[vision]`"


@register_dataset("huggingface", "any labelled image or text set of the Hugging Face hub", missing=_missing_datasets)
def load_huggingface(
    path: str = "",
    config: str = "",
    train_split: str = "train",
    test_split: str = "test",
    input_column: str = "image",
    label_column: str = "label",
    client_column: str = "",
    data_dir: str = "",
    dim: int = 2048,
) -> Dataset:
    """Load a labelled set by the library `datasets`: pictures as uint8, strings as hashed words.

    Args:
        path: name on the hub, a local folder, or a format such as ``parquet`` together with `data_dir`.
        config: the set's configuration, empty for its default.
        train_split: split that clients share.
        test_split: split for evaluation.
        input_column: column of pictures (all of one size) or strings.
        label_column: column of classes, numbers or names.
        client_column: column that names the natural client, empty for none.
        data_dir: folder of local files, empty for none.
        dim: vector length for strings.

    Raises:
        DataUnavailable: the library is not installed, or the set cannot be fetched.
        BadOption: no path, no such column, or pictures of several sizes.
    """
    if not path:
        raise BadOption("the data set 'huggingface' needs the option 'path', such as zalando-datasets/fashion_mnist")
    if problem := _missing_datasets():
        raise DataUnavailable(problem)
    import datasets

    try:
        splits = [
            datasets.load_dataset(path, config or None, split=split, data_dir=data_dir or None)
            for split in (train_split, test_split)
        ]
    except (OSError, ValueError) as error:
        raise DataUnavailable(
            f"'{path}' cannot be fetched ({error}): it must exist with splits '{train_split}' and '{test_split}', and "
            "the hub must be reachable; check the name, the network, or give a local folder"
        ) from error
    for column in filter(None, (input_column, label_column, client_column)):
        if column not in splits[0].column_names:
            raise BadOption(f"'{path}' has no column '{column}': it has {', '.join(splits[0].column_names)}")
    (train_x, test_x), kind = _inputs([split[input_column] for split in splits], dim)
    train_y, test_y, num_classes = _classes(splits[0][label_column], splits[1][label_column])
    clients = np.unique(splits[0][client_column], return_inverse=True)[1].astype(np.int64) if client_column else None
    return Dataset(
        name=f"huggingface:{path}",
        train_x=train_x,
        train_y=train_y,
        test_x=test_x,
        test_y=test_y,
        num_classes=num_classes,
        task_kind=kind,
        input_shape=train_x.shape[1:],
        client_ids=clients,
        source=f"Hugging Face {path} {config}".strip(),
        licence=str(splits[0].info.license or "see the set's card"),
    )


@register_dataset("torchvision", "MNIST, CIFAR10, CIFAR100, SVHN ... of torchvision", missing=_missing_torchvision)
def load_torchvision(dataset: str = "CIFAR10", root: str = "data", download: bool = True) -> Dataset:
    """Load a classification set of torchvision as uint8.

    Args:
        dataset: name of a class in ``torchvision.datasets`` that takes ``train`` or ``split``.
        root: folder of the files.
        download: whether to fetch them if they are absent.

    Raises:
        DataUnavailable: torchvision is not installed, or the set cannot be fetched.
        BadOption: torchvision has no such class.
    """
    if problem := _missing_torchvision():
        raise DataUnavailable(problem)
    import torchvision.datasets

    parts = [_torchvision_split(torchvision.datasets, dataset, root, download, train) for train in (True, False)]
    (train_x, test_x), kind = _inputs([[picture for picture, _ in part] for part in parts], 0)
    train_y, test_y, num_classes = _classes(*([label for _, label in part] for part in parts))
    return Dataset(
        name=f"torchvision:{dataset}",
        train_x=train_x,
        train_y=train_y,
        test_x=test_x,
        test_y=test_y,
        num_classes=num_classes,
        task_kind=kind,
        input_shape=train_x.shape[1:],
        source=f"torchvision.datasets.{dataset}",
        licence="see the set's page",
    )


def _torchvision_split(module: ModuleType, name: str, root: str, download: bool, train: bool) -> Any:
    if not hasattr(module, name):
        raise BadOption(f"torchvision.datasets has no class '{name}': MNIST, CIFAR10, CIFAR100 and SVHN are usual")
    kind = getattr(module, name)
    try:
        try:
            return kind(root, train=train, download=download)
        except TypeError:
            return kind(root, split="train" if train else "test", download=download)
    except (OSError, RuntimeError) as error:
        raise DataUnavailable(
            f"torchvision cannot get '{name}' ({error}): its files must be in '{root}' or its server reachable; "
            "check the network or the folder"
        ) from error


def _inputs(splits: list[Any], dim: int) -> tuple[list[NDArray[Any]], str]:
    """Return one array a split, ``(n, channels, height, width)`` for pictures, and the kind of task."""
    if isinstance(next(iter(splits[0])), str):
        return [hashed_words(list(split), dim) for split in splits], "text"
    return [_pictures(split) for split in splits], "image"


def _pictures(split: Any) -> NDArray[np.uint8]:
    arrays = [np.asarray(picture, np.uint8) for picture in split]
    sizes = {array.shape for array in arrays}
    if len(sizes) != 1:
        raise BadOption(f"pictures of {len(sizes)} sizes, such as {sorted(sizes)[:2]}: all must have one; resize them")
    stacked = np.stack(arrays)
    stacked = stacked[:, None] if stacked.ndim == 3 else stacked.transpose(0, 3, 1, 2)
    return np.ascontiguousarray(stacked)


def _classes(train: Any, test: Any) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Number the classes of both splits by their sorted values."""
    names, numbers = np.unique(np.array([*train, *test]), return_inverse=True)
    numbers = numbers.astype(np.int64)
    return numbers[: len(train)], numbers[len(train) :], len(names)
