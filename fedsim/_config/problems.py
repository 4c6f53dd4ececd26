"""Turns what pydantic found into problems with key, value, rule and remedy."""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from fedsim._config.base import Section
from fedsim._config.describe import allowed, schema, section_class, variants
from fedsim._config.protections import protection_tag
from fedsim._config.rules import show
from fedsim._config.run import Settings
from fedsim._config.strategies import FAMILIES, FLWR_OPTIONS, strategy_tag
from fedsim.errors import Problem

_TAGS = {"strategy": strategy_tag, "protection": protection_tag}


def problems_of(error: ValidationError, data: Mapping[str, Any]) -> list[Problem]:
    """Return one problem a setting, in the order of the settings.

    Args:
        error: as raised by :class:`~fedsim._config.run.Settings`.
        data: the settings that were given.
    """
    found: dict[str, Problem] = {}
    for detail in error.errors(include_url=False):
        key, field = _locate(detail["loc"], data)
        found.setdefault(key, _problem(key, field, dict(detail), data))
    order = list(Settings.model_fields)
    return sorted(found.values(), key=lambda p: order.index(s) if (s := p.key.split(".")[0]) in order else -1)


def _locate(loc: tuple[int | str, ...], data: Mapping[str, Any]) -> tuple[str, FieldInfo | None]:
    """Cut pydantic's location down to a key of ours: no tags, no members of unions, no list positions."""
    parts = [str(part) for part in loc]
    section = parts[0]
    kind = _kind(section, data)
    if section in _TAGS and len(parts) > 1:
        parts = [section, *parts[2:]]
    if kind is None or len(parts) < 2:
        return section, Settings.model_fields.get(section)
    field = kind.model_fields.get(parts[1])
    return ".".join(parts[:2]), field


def _kind(section: str, data: Mapping[str, Any]) -> type[Section] | None:
    tag = _TAGS[section](data.get(section, {})) if section in _TAGS else None
    return section_class(section, tag)


def _problem(key: str, field: FieldInfo | None, detail: dict[str, Any], data: Mapping[str, Any]) -> Problem:
    section, _, name = key.partition(".")
    error, value = detail["type"], show(detail["input"])
    if error == "extra_forbidden":
        return Problem(key, value, "no such setting" + _where(section, data, name), _did_you_mean(section, name, data))
    if error in ("union_tag_invalid", "union_tag_not_found"):
        return _wrong_name(section, data)
    if not name and section != "seed":
        return Problem(key, value, f"must be a table of settings, [{section}]", _example(section))
    given = _given(section, name, data, detail["input"])
    if error == "value_error":
        options = section in ("task", "model") or name == "proxy_options"
        remedy = (
            "see the data set's or model's own options" if options else "correct it; `fedsim config` says what it is"
        )
        if key == "strategy.name":
            remedy = "docs/tutorials/strategy.md has an example"
        return Problem(key, show(given), str(detail["ctx"]["error"]), remedy)
    assert field is not None
    if pattern_of_flwr := (name == "name" and section == "strategy"):
        close = difflib.get_close_matches(str(given), [f"flwr:{n}" for n in FLWR_OPTIONS], 1, 0.5)
    remedy = f"did you mean {close[0]!r}?" if pattern_of_flwr and close else _remedy(field, given)
    return Problem(key, show(given), f"must be {allowed(field)}{_bound_left_out(field, detail)}", remedy)


def _bound_left_out(field: FieldInfo, detail: dict[str, Any]) -> str:
    """Name the bound of the machine's numbers, which is told only to those who passed it."""
    if detail["type"] != "less_than":
        return ""
    limit = detail["ctx"]["lt"]
    bound = f"less than {int(limit) if limit == int(limit) else limit}"  # a float field says 1.0 where we wrote 1
    return "" if bound in allowed(field) else f", {bound}"


def _example(section: str) -> str:
    kind = section_class(section) or next(iter(variants(section).values()))
    return f"set its keys, such as {section}.{next(iter(kind.model_fields))}"


def _given(section: str, name: str, data: Mapping[str, Any], inner: Any) -> Any:
    table = data.get(section)
    return table.get(name, inner) if name and isinstance(table, Mapping) else inner


def _remedy(field: FieldInfo, given: Any) -> str:
    if isinstance(given, str) and not str(field.annotation).count("str") and "Literal" not in str(field.annotation):
        return "write it without quotes" if _is_number(given) else f"the default is {show(field.default)}"
    choices = allowed(field).removeprefix("one of ").split(", ")
    close = difflib.get_close_matches(str(given), choices, 1, 0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"the default is {show(field.default)}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return text in ("true", "false")
    return True


def _where(section: str, data: Mapping[str, Any], name: str) -> str:
    if not name:
        return ""
    tag = _TAGS[section](data.get(section, {})) if section in _TAGS else None
    return f" of {section} {tag}" if tag else f" in [{section}]"


def _wrong_name(section: str, data: Mapping[str, Any]) -> Problem:
    table = data.get(section)
    if not isinstance(table, Mapping):
        return Problem(section, show(table), f"must be a table of settings, [{section}]", _example(section))
    value = table.get("name")
    names = [name for name in variants(section) if name not in FAMILIES]
    more = list(FAMILIES.values()) if section == "strategy" else []
    close = difflib.get_close_matches(str(value), names, 1, 0.5)
    remedy = f"did you mean {close[0]!r}?" if close else f"`fedsim list` describes them; the default is {names[0]!r}"
    return Problem(f"{section}.name", show(value), f"must be one of {', '.join(names + more)}", remedy)


def _did_you_mean(section: str, name: str, data: Mapping[str, Any]) -> str:
    known = list(dict.fromkeys(key.key for key in schema()))
    if not name:
        heads = list(dict.fromkeys(key.split(".")[0] for key in known))
        elsewhere = [key for key in known if key.endswith(f".{section}")]
        close = difflib.get_close_matches(section, heads, 1, 0.6) or elsewhere
        return f"did you mean {close[0]}?" if close else f"the sections are {', '.join(heads)}"
    kind = _kind(section, data)
    here = list(kind.model_fields) if kind else []
    return next(_guesses(section, name, here, known), f"the keys are {', '.join(here)}")


def _guesses(section: str, name: str, here: list[str], known: list[str]) -> Iterator[str]:
    if close := difflib.get_close_matches(name, here, 1, 0.7):
        yield f"did you mean {section}.{close[0]}?"
    for key in known:
        if key.split(".")[-1] == name and key.split(".")[0] != section:
            yield f"did you mean {key}?"
    for key in known:
        if key == f"{section}.{name}":
            yield "it belongs to another " + section + "; choose that by " + section + ".name, or leave it out"
    if close := difflib.get_close_matches(name, here, 1, 0.5):
        yield f"did you mean {section}.{close[0]}?"
