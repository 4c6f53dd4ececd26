"""Texts as vectors of fixed length, without a vocabulary that clients would have to agree on."""

import re
import zlib
from collections import Counter
from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from fedsim.tasks.errors import BadOption

__all__ = ["hashed_words", "words"]

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?")
_SIGN_BIT = 1 << 31
#: Length of every non-empty vector: entries of size about 0.1 to 1, as the image sets have.
_NORM = 8.0


def words(text: str) -> list[str]:
    """Return the lower-cased words of a text: runs of letters and digits, an inner apostrophe kept."""
    return _WORD.findall(text.lower())


def hashed_words(texts: Sequence[str], dim: int = 2048) -> NDArray[np.float32]:
    """Return one signed hashed bag-of-words vector a text (Weinberger et al. 2009, sec. 2).

    A word with CRC-32 h adds to entry ``h mod dim``, negatively if the top bit of h is set. A word that occurs t times
    counts ``1 + ln t``. Every vector is scaled to length 8; a text without words gives zeros. The result is the same on
    every machine.

    Args:
        texts: n texts.
        dim: length of a vector, at least 2.

    Returns:
        float32 of shape ``(n, dim)``.

    Raises:
        BadOption: `dim` is too small.
    """
    if dim < 2:
        raise BadOption(f"dim {dim} must be at least 2; 2048 is the default")
    out = np.zeros((len(texts), dim), np.float32)
    code_of = cache(lambda word: zlib.crc32(word.encode()))
    for row, text in zip(out, texts, strict=True):
        counts = Counter(words(text))
        codes = np.array([code_of(word) for word in counts], np.int64)
        values = np.where(codes & _SIGN_BIT, -1.0, 1.0) * (1.0 + np.log(list(counts.values())))
        sums = np.bincount(codes % dim, values, minlength=dim)
        row[:] = sums * (_NORM / max(float(np.linalg.norm(sums)), 1e-12))
    return out
