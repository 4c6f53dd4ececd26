"""JSON of others: what is nested without end, or has a number without end, is refused like any other damage."""

import json
from collections.abc import Callable
from typing import Any

__all__ = ["DEEPEST", "deeper_than", "json_of", "shallow"]

#: Tables and lists within each other; no file or message of ours has more than a few.
DEEPEST = 32


def json_of(text: str | bytes) -> Any:
    """Parse JSON.

    Raises:
        ValueError: it is not JSON, a number is too long, or it is nested deeper than :data:`DEEPEST`: the parser, and
            whoever walks through the values, would run out of stack.
    """
    return shallow(json.loads, text)


def shallow(parse: Callable[[Any], Any], text: str | bytes) -> Any:
    """Return what a parser makes of a text.

    Raises:
        ValueError: the parser's own, or the value is nested deeper than :data:`DEEPEST`.
    """
    try:
        value = parse(text)
    except RecursionError:
        raise ValueError(f"nested deeper than {DEEPEST}") from None
    if deeper_than(DEEPEST, value):
        raise ValueError(f"nested deeper than {DEEPEST}")
    return value


def deeper_than(levels: int, value: Any) -> bool:
    """Return whether dicts and lists are nested deeper than so many levels."""
    inside = [value]
    for _ in range(levels + 1):
        containers = [item for item in inside if isinstance(item, dict | list)]
        if not containers:
            return False
        inside = [item for each in containers for item in (each.values() if isinstance(each, dict) else each)]
    return True
