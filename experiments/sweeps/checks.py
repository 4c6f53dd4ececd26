"""What a sweep's file may hold; the settings of the runs are checked as those of any run."""

import datetime as dt
import math
import re
from collections.abc import Mapping
from typing import Any

from fedsim.errors import ConfigError, Problem

__all__ = ["check"]

_TABLES = {"sweep", "settings", "grid", "random", "arms"}
_KEYS = {
    "name": str,
    "seeds": list,
    "target": float,
    "baseline": str,
    "refused": str,
    "heat": list,
    "cpus": float,
    "gpus": float,
    "memory_mb": int,
    "retries": int,
    "samples": int,
    "seed": int,
}
#: Smallest values of the numbers; a trial of no CPU at all would run beside all others at once.
_LEAST = {"cpus": 0.01, "gpus": 0, "memory_mb": 0, "retries": 0, "samples": 1, "seed": 0, "target": 0}
#: Settings that a sweep gives each trial, and where they come from.
_OWN = {
    "seed": "sweep.seeds has them",
    "output.name": "trials are named by what they vary",
    "output.folder": "`--folder` and sweep.name say where",
}


def check(data: Mapping[str, Any]) -> None:
    """Look at everything in a sweep's file but the runs' settings.

    Raises:
        ConfigError: a table, key or value is not one of a sweep's; all problems together.
    """
    problems = [
        Problem(name, "table", "no such table in a sweep", f"the tables are {', '.join(sorted(_TABLES))}")
        for name in data
        if name not in _TABLES
    ]
    problems += _not_tables(data)
    if problems:
        raise ConfigError(problems)
    head = data.get("sweep", {})
    for key, value in head.items():
        kind = _KEYS.get(key)
        if kind is None:
            problems.append(Problem(f"sweep.{key}", str(value), "no such key", f"the keys are {', '.join(_KEYS)}"))
        elif not isinstance(value, (int, float) if kind is float else kind) or isinstance(value, bool):
            problems.append(Problem(f"sweep.{key}", str(value), f"must be a {kind.__name__}", "correct it"))
        elif key in _LEAST and not _LEAST[key] <= value < math.inf:
            problems.append(Problem(f"sweep.{key}", str(value), f"must be at least {_LEAST[key]}", "correct it"))
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", str(head.get("name", ""))):
        problems.append(
            Problem("sweep.name", str(head.get("name")), "must be letters, digits, . _ -", "name the sweep")
        )
    if head.get("refused", "error") not in ("error", "skip"):
        problems.append(Problem("sweep.refused", str(head["refused"]), "must be error or skip", "choose one"))
    seeds = head.get("seeds", [1])
    if isinstance(seeds, list) and (
        not seeds or any(type(s) is not int for s in seeds) or len(set(seeds)) < len(seeds)
    ):
        problems.append(Problem("sweep.seeds", str(seeds), "must be distinct whole numbers", "such as [1, 2, 3]"))
    for key, values in data.get("grid", {}).items():
        if not isinstance(values, list) or not values:
            problems.append(Problem(f"grid.{key}", str(values), "must be a list of values", "quote the dotted key"))
        elif len(set(map(repr, values))) < len(values):
            problems.append(Problem(f"grid.{key}", str(values), "has a value twice", "give each once"))
    for key, law in data.get("random", {}).items():
        if not _good_law(law):
            problems.append(Problem(f"random.{key}", str(law), "must be a list or {low, high, log}", "see the docs"))
    arms = data.get("arms", [])
    names = [arm.get("name") for arm in arms]
    if any(not isinstance(arm.get("set"), dict) or not isinstance(arm.get("name"), str) for arm in arms):
        problems.append(Problem("arms", str(names), "each needs a name and a table `set`", "see the docs"))
    elif len(set(names)) < len(names) or (head.get("baseline") and head["baseline"] not in names):
        problems.append(Problem("arms", str(names), "names are distinct, and the baseline is one", "correct them"))
    problems += _bad_keys(data)
    if problems:
        raise ConfigError(problems)


def _not_tables(data: Mapping[str, Any]) -> list[Problem]:
    """Return what should be a table and is not; the rest of the checks can then look into them."""
    settings = data.get("settings", {})
    inner = settings if isinstance(settings, dict) else {}
    tables = {name: data.get(name, {}) for name in ("sweep", "settings", "grid", "random")}
    tables |= {f"settings.{name}": inner.get(name, {}) for name in ("engine", "output")}
    problems = [
        Problem(name, str(value), "must be a table", f"write [{name}] and its keys below")
        for name, value in tables.items()
        if not isinstance(value, dict)
    ]
    if (where := _date(data, "")) is not None:
        problems.append(Problem(where, "a date", "is no value of a setting", "quote it if it is a text"))
    arms = data.get("arms", [])
    if not isinstance(arms, list) or not all(isinstance(arm, dict) for arm in arms):
        problems.append(Problem("arms", str(arms), "must be tables", "write [[arms]] and name and set below, for each"))
    return problems


def _date(value: Any, key: str) -> str | None:
    """Return where in a file's values there is a date, or None."""
    if isinstance(value, dt.date | dt.time):
        return key
    inner = value.items() if isinstance(value, dict) else [("", v) for v in value] if isinstance(value, list) else []
    found = (_date(item, f"{key}.{name}".strip(".")) for name, item in inner)
    return next((where for where in found if where is not None), None)


def _bad_keys(data: Mapping[str, Any]) -> list[Problem]:
    """Return keys that a sweep sets itself, and keys that two of its tables set: one would win without a word."""
    places = [("grid", data.get("grid", {})), ("random", data.get("random", {}))]
    in_arms = {key: 0 for arm in data.get("arms", []) if isinstance(arm.get("set"), dict) for key in arm["set"]}
    problems = [
        Problem(f"{place}.{key}", "given", "is the sweep's own to set", f"leave it out; {_OWN[key]}")
        for place, table in [*places, ("arms", in_arms)]
        for key in table
        if key in _OWN
    ]
    seen: dict[str, str] = {}
    for place, table in [*places, ("arms", in_arms)]:
        for key in table:
            if key in seen:
                problems.append(Problem(f"{place}.{key}", "given", f"stands in [{seen[key]}] too", "keep one of them"))
            seen[key] = place
    heat, varied = data.get("sweep", {}).get("heat", []), [*data.get("grid", {}), *data.get("random", {}), *in_arms]
    if isinstance(heat, list) and (len(heat) not in (0, 2) or any(key not in varied for key in heat)):
        rule = "must be two keys that the sweep varies"
        problems.append(Problem("sweep.heat", str(heat), rule, f"it varies {', '.join(varied) or 'none'}"))
    return problems


def _good_law(law: Any) -> bool:
    if isinstance(law, list):
        return bool(law)
    if not isinstance(law, dict) or not set(law) <= {"low", "high", "log"} or not {"low", "high"} <= set(law):
        return False
    if not all(type(law[key]) in (int, float) and abs(law[key]) < 2**62 for key in ("low", "high")):
        return False
    return type(law.get("log", False)) is bool and law["low"] < law["high"] and (not law.get("log") or law["low"] > 0)
