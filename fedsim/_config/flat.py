"""Settings as the flat dict of scalars that Flower's run config is, and back.

Keys are dotted (``federation.rounds``). Flower carries numbers, texts and true/false only, so what is none of these
(a list, "not set") travels as text: ``json:`` followed by JSON. A text that begins with ``json:`` travels so too.
"""

import json
from collections.abc import Mapping
from typing import Any

from crypto.texts import json_of
from fedsim._config.run import Settings
from fedsim.errors import ConfigError, Problem

Scalar = bool | int | float | str
_MARK = "json:"


def flatten(settings: Settings) -> dict[str, Scalar]:
    """Return every setting under its dotted key."""
    flat: dict[str, Scalar] = {}
    for section, value in settings.model_dump().items():
        if isinstance(value, dict):
            _flatten(section, value, flat)
        else:
            flat[section] = value
    return flat


def _flatten(prefix: str, table: Mapping[str, Any], flat: dict[str, Scalar]) -> None:
    for key, value in table.items():
        if isinstance(value, Mapping):
            _flatten(f"{prefix}.{key}", value, flat)
        else:
            flat[f"{prefix}.{key}"] = _encode(value)


def _encode(value: Any) -> Scalar:
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, str) and not value.startswith(_MARK):
        return value
    return _MARK + json.dumps(value)


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested dicts from dotted keys.

    Raises:
        ConfigError: damaged text after the ``json:`` mark, or a key that is both a value and a table.
    """
    data: dict[str, Any] = {}
    problems = []
    for key, value in flat.items():
        *path, last = key.split(".")
        table: Any = data
        for part in path:
            table = table.setdefault(part, {}) if isinstance(table, dict) else None
        try:
            decoded = _decode(value)
        except ValueError:
            problems.append(Problem(key, str(value), "is not JSON after 'json:'", "write a TOML scalar instead"))
            continue
        if not isinstance(table, dict):
            problems.append(Problem(key, str(value), "a key above it is a value, not a table", "remove one of the two"))
        else:
            table[last] = decoded
    if problems:
        raise ConfigError(problems)
    return data


def _decode(value: Any) -> Any:
    return json_of(value[len(_MARK) :]) if isinstance(value, str) and value.startswith(_MARK) else value
