"""TOML of others: no larger and no deeper nested than settings can be, and refused by ``ValueError`` alone."""

import tomllib
from pathlib import Path
from typing import Any

from crypto.texts import shallow

__all__ = ["LARGEST_BYTES", "text_of", "toml_of"]

#: A hundred times the largest file of settings that makes sense.
LARGEST_BYTES = 256 * 1024


def text_of(path: Path) -> str:
    """Read a file of settings, or as much of it as shows that it is none.

    Raises:
        OSError: it cannot be read.
        ValueError: it is larger than :data:`LARGEST_BYTES`, or no UTF-8 text.
    """
    with path.open("rb") as file:
        data = file.read(LARGEST_BYTES + 1)
    if len(data) > LARGEST_BYTES:
        raise ValueError(f"is larger than {LARGEST_BYTES // 1024} kB")
    # Some editors begin a file with a mark of its byte order.
    return data.decode("utf-8-sig")


def toml_of(text: str) -> dict[str, Any]:
    """Parse TOML.

    Raises:
        ValueError: it is not TOML, a number is too long, or it is nested deeper than
            :data:`crypto.texts.DEEPEST`.
    """
    value: dict[str, Any] = shallow(tomllib.loads, text)
    return value
