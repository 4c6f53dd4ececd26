"""Settings that no description of a value excludes, and that no program can use: refused before they are looked at."""

from collections.abc import Iterator, Mapping
from typing import Any

from crypto.texts import DEEPEST
from fedsim.errors import Problem

#: Ten times as many keys as there are settings.
_MOST_KEYS = 2000
_REMEDY = "`fedsim config` prints all settings there are"


def extremes(data: Mapping[str, Any]) -> list[Problem]:
    """Return what is wrong with settings as nested dicts, whatever their meaning.

    Texts with a zero character, which no file's name may have; keys that are no text; too many keys; too deep tables.
    """
    problems, keys = list[Problem](), 0
    inside: list[tuple[str, Any]] = [("", data)]
    for _ in range(DEEPEST):
        problems += [Problem(key or "settings", *fault) for key, value in inside for fault in _faults(key, value)]
        inside = [item for key, value in inside for item in _items(key, value)]
        keys += len(inside)
        if not inside:
            break
        if keys > _MOST_KEYS:
            return [Problem("settings", f"{keys} keys", f"must be at most {_MOST_KEYS}", _REMEDY)]
    else:
        problems.append(Problem(".".join(inside[0][0].split(".")[:2]), "...", "is nested too deeply", _REMEDY))
    return problems


def _items(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((f"{key}.{_shown(name)}".removeprefix("."), item) for name, item in value.items())
    elif isinstance(value, list | tuple) and any(isinstance(item, list | tuple | Mapping) for item in value):
        yield from ((key, item) for item in value if isinstance(item, list | tuple | Mapping))


def _faults(key: str, value: Any) -> Iterator[tuple[str, str, str]]:
    if isinstance(value, Mapping):
        for name in value:
            if not _is_text(name):
                yield _shown(name), "is a key that is no text", "write keys in letters, digits, '_' and '-'"
    texts = value if isinstance(value, list | tuple) else [value]
    if any(isinstance(text, str) and "\0" in text for text in texts):
        yield _shown(value)[:80], "holds a zero character", "leave it out"


def _is_text(name: Any) -> bool:
    try:
        return bool(str(name).encode("utf-8") or True)
    except UnicodeEncodeError:
        return False


def _shown(value: Any) -> str:
    return str(value).encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")
