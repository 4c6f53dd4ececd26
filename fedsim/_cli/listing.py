"""What there is to choose from: name, one line, and what is missing on this machine."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass

from fedsim.config import FAMILIES, PROTECTIONS, STRATEGIES, schema

#: Tells why a backend does not load, or returns an empty text.
Missing = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Row:
    """One choice.

    Attributes:
        name: as written in the settings.
        summary: one line.
        missing: what is missing to use it here; empty if it can be used.
    """

    name: str
    summary: str
    missing: str = ""


def tasks() -> list[Row]:
    """List the data sets."""
    data = importlib.import_module("fedsim.tasks.data")
    return [Row(info.name, info.summary, info.reason_if_not) for info in data.list_datasets()]


def models() -> list[Row]:
    """List the models."""
    found = importlib.import_module("fedsim.tasks.models").list_models()
    return [Row(name, summary) for name, summary in found.items()]


def strategies() -> list[Row]:
    """List the strategies, with those that come with Flower, and those of one's own, in one row each."""
    return [
        Row(FAMILIES.get(tag, tag), _first_line(kind.__doc__) + _keys("strategy", tag))
        for tag, kind in STRATEGIES.items()
    ]


def protections(missing: Missing) -> list[Row]:
    """List the protections; `missing` is asked once for each backend."""
    reasons = {need: missing(need) if need else "" for need in {kind.needs for kind in PROTECTIONS.values()}}
    return [
        Row(name, f"{_first_line(kind.__doc__)} Opened by the {kind.opened_by}.", reasons[kind.needs])
        for name, kind in PROTECTIONS.items()
    ]


def _keys(section: str, tag: str) -> str:
    keys = [key.key.split(".")[1] for key in schema() if key.of == tag and key.key.startswith(f"{section}.")]
    own = [key for key in keys if key != "name"]
    return f" Keys: {', '.join(own)}." if own else ""


def _first_line(doc: str | None) -> str:
    return (doc or "").strip().splitlines()[0] if doc else ""
