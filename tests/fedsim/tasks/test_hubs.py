"""The hub loaders, with stand-ins for the two optional libraries: what they are asked for, and what is made of it."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedsim.tasks.errors import BadOption, DataUnavailable
from fedsim.tasks.sets import hubs

PICTURES = [np.full((4, 5, 3), value, np.uint8) for value in range(6)]


class _Split:
    """Columns by name, as a split of `datasets` gives them."""

    info = SimpleNamespace(license="mit")

    def __init__(self, columns: dict[str, list[Any]]) -> None:
        self._columns = columns
        self.column_names = list(columns)

    def __getitem__(self, name: str) -> list[Any]:
        return self._columns[name]


def _install(monkeypatch: pytest.MonkeyPatch, name: str, **content: Any) -> None:
    module = ModuleType(name)
    module.__dict__.update(content)
    monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(hubs, "find_spec", lambda package: object() if package == name.split(".")[0] else None)


def _hub(monkeypatch: pytest.MonkeyPatch, columns: dict[str, list[Any]]) -> None:
    _install(monkeypatch, "datasets", load_dataset=lambda path, config, split, data_dir: _Split(columns))


def test_pictures_of_the_hub_become_bytes_with_channels_first(monkeypatch: pytest.MonkeyPatch) -> None:
    _hub(monkeypatch, {"image": PICTURES, "label": ["b", "a"] * 3, "writer": [9, 9, 4, 4, 4, 7]})
    data = hubs.load_huggingface("some/set", client_column="writer")
    assert data.train_x.shape == (6, 3, 4, 5) and data.input_shape == (3, 4, 5) and data.task_kind == "image"
    assert data.train_y.tolist() == [1, 0] * 3 and data.num_classes == 2 and data.licence == "mit"
    assert data.client_ids is not None and data.client_ids.tolist() == [2, 2, 0, 0, 0, 1]


def test_strings_of_the_hub_become_hashed_words(monkeypatch: pytest.MonkeyPatch) -> None:
    _hub(monkeypatch, {"text": ["a cat", "a dog"], "label": [0, 1]})
    data = hubs.load_huggingface("some/set", input_column="text", dim=16)
    assert data.train_x.shape == (2, 16) and data.task_kind == "text"


def test_hub_problems_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    _hub(monkeypatch, {"image": [PICTURES[0], PICTURES[0][:2]], "label": [0, 1]})
    with pytest.raises(BadOption, match="needs the option 'path'"):
        hubs.load_huggingface()
    with pytest.raises(BadOption, match="'some/set' has no column 'digit': it has image, label"):
        hubs.load_huggingface("some/set", label_column="digit")
    with pytest.raises(BadOption, match="pictures of 2 sizes"):
        hubs.load_huggingface("some/set")

    def offline(*args: Any, **options: Any) -> None:
        raise ConnectionError("no route")

    _install(monkeypatch, "datasets", load_dataset=offline)
    with pytest.raises(DataUnavailable, match="'some/set' cannot be fetched .no route.*check the name, the network"):
        hubs.load_huggingface("some/set")


def test_torchvision_sets_by_train_flag_and_by_split_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_flag(root: str, *, train: bool, download: bool) -> list[tuple[np.ndarray, int]]:
        return [(picture[:, :, 0], k % 2) for k, picture in enumerate(PICTURES if train else PICTURES[:2])]

    def by_split(root: str, *, split: str, download: bool) -> list[tuple[np.ndarray, int]]:
        return [(picture, k % 3) for k, picture in enumerate(PICTURES if split == "train" else PICTURES[:3])]

    module = SimpleNamespace(MNIST=by_flag, SVHN=by_split)
    _install(monkeypatch, "torchvision.datasets", MNIST=by_flag, SVHN=by_split)
    monkeypatch.setitem(sys.modules, "torchvision", SimpleNamespace(datasets=module))
    grey = hubs.load_torchvision("MNIST")
    assert grey.input_shape == (1, 4, 5) and len(grey.test_y) == 2 and grey.num_classes == 2
    assert hubs.load_torchvision("SVHN").input_shape == (3, 4, 5)
    with pytest.raises(BadOption, match="torchvision.datasets has no class 'CIFAR11'"):
        hubs.load_torchvision("CIFAR11")


def test_an_absent_library_says_which_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hubs, "find_spec", lambda package: None)
    with pytest.raises(DataUnavailable, match=r"pip install fedsim\[datasets\]"):
        hubs.load_huggingface("some/set")
    with pytest.raises(DataUnavailable, match=r"pip install fedsim\[vision\]"):
        hubs.load_torchvision()
