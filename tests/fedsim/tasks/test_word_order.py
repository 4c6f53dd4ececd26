"""Sentences that differ in the order of their words alone."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsim.tasks.data import load_dataset
from fedsim.tasks.errors import BadOption
from fedsim.tasks.sets.word_order import sentences, swapped
from tests.text_packages import FILMS, MINILM, needs


@given(words=st.integers(2, 20), data=st.data(), seed=st.integers(0, 99))
def test_swaps_exchange_neighbours_and_no_word_moves_twice(words, data, seed):
    swaps = data.draw(st.integers(1, words // 2))
    before = [str(i) for i in range(words)]
    after = swapped(before, swaps, np.random.default_rng(seed))
    moved = [i for i in range(words) if after[i] != before[i]]
    assert len(moved) == 2 * swaps and sorted(after) == sorted(before)
    assert all(abs(int(after[i]) - i) <= 1 for i in moved)


def test_sentences_are_long_enough_beginnings_and_every_other_one_is_swapped():
    texts = ["a b c d e f", "too short", "g h i j", "k l m n o"]
    found, y = sentences(texts, 4, 2, 0, np.random.default_rng(0))
    assert y.tolist() == [0, 1, 0]
    kept = {"a b c d", "g h i j", "k l m n"}
    assert {" ".join(sorted(each.split())) for each in found} == kept
    assert found[0] in kept and found[2] in kept and found[1] not in kept
    assert sentences(texts, 4, 2, 2, np.random.default_rng(0))[0] == found[:2]
    assert sentences(["too short"], 4, 2, 0, np.random.default_rng(0))[0] == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"swaps": 0}, r"swaps 0 of 12 words: must lie in \[1, words / 2\]"),
        ({"words": 5, "swaps": 3}, "swaps 3 of 5 words"),
        ({"limit": -1}, "limit -1, test_limit 0: must be at least 0"),
    ],
)
def test_refuses_numbers_out_of_range(options, message):
    with pytest.raises(BadOption, match=message):
        load_dataset("word-order", **options)


@needs(FILMS, MINILM, "tokenizers")
def test_the_packaged_sentences_have_the_published_size_and_say_little_by_their_words():
    data = load_dataset("word-order")
    assert data.train_x.shape == (5672, 16) and data.test_x.shape == (1414, 16)
    assert np.bincount(data.train_y).tolist() == [2836, 2836]
    pieces = [Counter(data.train_x[data.train_y == label].ravel().tolist()) for label in (0, 1)]
    common = [piece for piece, count in pieces[0].most_common(15)]
    assert all(0.8 < pieces[1][piece] / pieces[0][piece] < 1.25 for piece in common)
    assert not np.array_equal(load_dataset("word-order", seed=1).train_x, data.train_x)
    assert len(load_dataset("word-order", limit=100, test_limit=50).test_y) == 50
