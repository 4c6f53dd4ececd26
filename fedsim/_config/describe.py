"""Says in words what each setting may be; feeds error messages, the TOML template and the documentation."""

import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Interval, Le, Lt
from pydantic.fields import FieldInfo

from fedsim._config.base import Section
from fedsim._config.protections import PROTECTIONS
from fedsim._config.run import Settings
from fedsim._config.strategies import FLWR_OPTIONS, STRATEGIES

_NOUNS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


@dataclass(frozen=True, slots=True)
class Key:
    """One setting.

    Attributes:
        key: dotted key.
        allowed: the values it may take, in words.
        default: the value when it is not given; None for "not set".
        description: what it does.
        of: the strategy or protection that has this key, empty for a key of every run.
    """

    key: str
    allowed: str
    default: Any
    description: str
    of: str = ""


def variants(section: str) -> dict[str, type[Section]]:
    """Return name -> class of a section that comes in several kinds, or nothing."""
    if section == "strategy":
        return dict(STRATEGIES)
    return dict(PROTECTIONS) if section == "protection" else {}


def section_class(section: str, tag: str | None = None) -> type[Section] | None:
    """Return the class of a section (of the kind `tag`, where there are kinds), or None if there is none."""
    if kinds := variants(section):
        return kinds.get(tag or "")
    annotation = Settings.model_fields[section].annotation if section in Settings.model_fields else None
    return annotation if isinstance(annotation, type) and issubclass(annotation, Section) else None


def allowed(field: FieldInfo) -> str:
    """Say which values a field takes, such as "a number, more than 0, at most 1"."""
    return _words(field.annotation, list(field.metadata))


def _words(annotation: Any, metadata: list[Any]) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _words(arguments[0], [*metadata, *arguments[1:]])
    if origin is Literal:
        return ("one of " if len(arguments) > 1 else "") + ", ".join(str(choice) for choice in arguments)
    if origin in (Union, types.UnionType):
        kinds = [kind for kind in arguments if kind is not type(None)]
        words = " or ".join(_words(kind, metadata) for kind in kinds)
        return words if len(kinds) == len(arguments) else f"{words}; or not set"
    if origin is tuple:
        return f"a list of {_NOUNS[arguments[0]].removeprefix('a ')}s"
    if origin is dict:
        return "a table of true/false, numbers, texts and flat lists of these"
    words = ", ".join([_NOUNS.get(annotation, str(annotation)), *_limits(metadata)])
    return words.replace("text, of", "text of").replace("text, one of", "one of")


def _limits(metadata: list[Any]) -> Iterator[str]:
    for item in metadata:
        parts = item.metadata if isinstance(item, FieldInfo) else [item]
        for part in parts:
            yield from _limit(part)


def _limit(part: Any) -> Iterator[str]:
    if isinstance(part, Interval):
        for bound in part:
            yield from _limit(bound)
    elif isinstance(part, Ge):
        yield f"at least {part.ge}"
    elif isinstance(part, Gt):
        yield f"more than {part.gt}"
    elif isinstance(part, Le):
        yield f"at most {part.le}"
    elif isinstance(part, Lt) and part.lt not in (2**31, 2**63):
        yield f"less than {part.lt}"
    elif pattern := getattr(part, "pattern", None):
        yield _pattern(pattern)
    elif (least := getattr(part, "min_length", None)) is not None and least > 0:
        yield "not empty"


def _pattern(pattern: str) -> str:
    if "flwr:" in pattern:
        return "one of " + ", ".join(f"flwr:{name}" for name in FLWR_OPTIONS)
    if ":" in pattern:
        return "of small letters, digits and . _ - :, or your own as module:function"
    return "of letters, digits, '.', '_' and '-'"


def schema() -> list[Key]:
    """List every setting, in the order of the file; strategies' and protections' keys once for each kind."""
    keys = []
    for section, field in Settings.model_fields.items():
        kinds = variants(section)
        if kinds:
            for tag, kind in kinds.items():
                keys += list(_keys(section, kind, tag))
        elif single := section_class(section):
            keys += list(_keys(section, single, ""))
        else:
            keys.append(Key(section, allowed(field), field.default, field.description or ""))
    return keys


def _keys(section: str, kind: type[Section], tag: str) -> Iterator[Key]:
    for name, field in kind.model_fields.items():
        yield Key(f"{section}.{name}", allowed(field), field.default, field.description or "", tag)
