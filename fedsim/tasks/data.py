"""Data sets by name: one small record of arrays, and a registry that a new file in `sets/` joins by a decorator."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.own import is_own
from fedsim.tasks._checks import bad_options, own_function
from fedsim.tasks.errors import BadOption, UnknownName

__all__ = ["Dataset", "DatasetInfo", "list_datasets", "load_dataset", "register_dataset", "split_rows"]


@dataclass(frozen=True, eq=False)
class Dataset:
    """One data set, split into training and test rows. The arrays are read-only and shared within a process.

    Attributes:
        name: the name it was loaded by.
        train_x: shape ``(n, *input_shape)``, uint8 (0 to 255, images), float32, or int32 (token ids, 0 for padding).
        train_y: shape ``(n,)``, int64 class numbers.
        test_x: shape ``(m, *input_shape)``, dtype of `train_x`.
        test_y: shape ``(m,)``, int64.
        num_classes: class numbers lie in ``[0, num_classes)``.
        task_kind: ``"image"``, ``"tabular"`` or ``"text"`` (already turned into vectors or ids).
        input_shape: shape of one example; ``(channels, height, width)`` for images.
        client_ids: shape ``(n,)``, int64, the natural client of each training row, or ``None``.
        source: where the files came from.
        licence: the licence as its package states it.
    """

    name: str
    train_x: NDArray[Any]
    train_y: NDArray[np.int64]
    test_x: NDArray[Any]
    test_y: NDArray[np.int64]
    num_classes: int
    task_kind: str
    input_shape: tuple[int, ...]
    source: str
    licence: str
    client_ids: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        self._check_rows("train", self.train_x, self.train_y)
        self._check_rows("test", self.test_x, self.test_y)
        if self.client_ids is not None and self.client_ids.shape != self.train_y.shape:
            raise BadOption(f"{self.name}: client ids of shape {self.client_ids.shape}: must be one for each train row")
        for array in (self.train_x, self.train_y, self.test_x, self.test_y, self.client_ids):
            if array is not None:
                array.flags.writeable = False

    def _check_rows(self, split: str, x: NDArray[Any], y: NDArray[np.int64]) -> None:
        if x.shape != (y.shape[0], *self.input_shape) or x.dtype not in (np.uint8, np.float32, np.int32):
            raise BadOption(
                f"{self.name}: {split} examples of shape {x.shape}, {x.dtype}: must be uint8, float32 or int32 of "
                f"shape ({y.shape[0]}, {', '.join(map(str, self.input_shape))}); convert them in the loader"
            )
        if y.dtype != np.int64 or (y.size and not 0 <= y.min() <= y.max() < self.num_classes):
            raise BadOption(
                f"{self.name}: {split} labels must be int64 in [0, {self.num_classes}); map them in the loader"
            )


@dataclass(frozen=True, slots=True)
class DatasetInfo:
    """One line of :func:`list_datasets`.

    Attributes:
        name: what :func:`load_dataset` takes.
        summary: one line: size, classes, kind.
        available: whether its files are on this machine.
        reason_if_not: what to install, empty when available.
    """

    name: str
    summary: str
    available: bool
    reason_if_not: str = ""


@dataclass(frozen=True, slots=True)
class _Entry:
    loader: Callable[..., Dataset]
    summary: str
    missing: Callable[[], str]


_registry: dict[str, _Entry] = {}


def register_dataset(
    name: str, summary: str, *, missing: Callable[[], str] = lambda: ""
) -> Callable[[Callable[..., Dataset]], Callable[..., Dataset]]:
    """Return a decorator that makes a loader known under `name`.

    Args:
        name: what users write; must be new.
        summary: one line for listings.
        missing: returns why the set cannot be loaded here, or an empty string. Must be cheap.

    Returns:
        The decorator. The loader's keyword arguments are the set's options.
    """

    def add(loader: Callable[..., Dataset]) -> Callable[..., Dataset]:
        if name in _registry:
            raise BadOption(f"data set '{name}' is registered twice: names must be distinct; choose another")
        _registry[name] = _Entry(loader, summary, missing)
        return loader

    return add


@cache
def _discover() -> dict[str, _Entry]:
    """Import every module of `sets/`, which registers its loaders, and return the registry."""
    sets = importlib.import_module("fedsim.tasks.sets")
    for module in sorted(pkgutil.iter_modules(sets.__path__), key=lambda m: m.name):
        importlib.import_module(f"fedsim.tasks.sets.{module.name}")
    return _registry


def list_datasets() -> list[DatasetInfo]:
    """Return every known data set in alphabetical order, with what is missing on this machine."""
    infos = []
    for name, entry in sorted(_discover().items()):
        reason = entry.missing()
        infos.append(DatasetInfo(name, entry.summary, not reason, reason))
    return infos


def load_dataset(name: str, **options: Any) -> Dataset:
    """Return a data set; the same name and options give the same object within a process.

    Args:
        name: one of :func:`list_datasets`, or ``module:function`` of your own.
        options: the loader's keyword arguments; values must be hashable.

    Raises:
        UnknownName: no set has this name.
        BadOption: the set has no such option, or its value is out of range.
        DataUnavailable: its files are not here.
    """
    loader = _loader(name)
    known = list(inspect.signature(loader).parameters)
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise BadOption(f"data set '{name}' has no option '{unknown[0]}': it takes {', '.join(known) or 'none'}")
    try:
        return _load(name, tuple(sorted(options.items())))
    except Exception as error:
        defaults = {p.name: p.default for p in inspect.signature(loader).parameters.values()}
        raise bad_options(f"data set '{name}'", options, defaults, error) from error


@lru_cache(maxsize=8)
def _load(name: str, options: tuple[tuple[str, Any], ...]) -> Dataset:
    loaded = _loader(name)(**dict(options))
    if not isinstance(loaded, Dataset):
        raise BadOption(f"data set '{name}' gave {type(loaded).__name__}: must be a fedsim.tasks.data.Dataset")
    return loaded


def _loader(name: str) -> Callable[..., Dataset]:
    """Return the function that loads a set, from the registry or, as ``module:function``, from anywhere.

    Raises:
        UnknownName: there is none.
    """
    entries = _discover()
    if is_own(name) and name not in entries:
        return own_function(name)
    if name not in entries:
        raise UnknownName(f"data set '{name}' does not exist: choose one of {', '.join(sorted(entries))}")
    return entries[name].loader


def split_rows(
    labels: NDArray[np.int64], test_fraction: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split row numbers into training and test rows with equal class shares, for sets that come without a split.

    Args:
        labels: shape ``(n,)``.
        test_fraction: share of every class that goes to the test rows, in (0, 1); rounded to whole rows.
        seed: decides which rows.

    Returns:
        Sorted training rows and sorted test rows.

    Raises:
        BadOption: the fraction is out of range.
    """
    if not 0 < test_fraction < 1:
        raise BadOption(f"test_fraction {test_fraction} must lie strictly between 0 and 1; 0.2 is usual")
    rng = np.random.default_rng(seed)
    is_test = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        is_test[rows[: round(test_fraction * len(rows))]] = True
    return np.flatnonzero(~is_test), np.flatnonzero(is_test)
