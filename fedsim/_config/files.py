"""Settings from and to TOML, with overrides from the command line."""

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tomli_w
from pydantic.fields import FieldInfo

from fedsim._config.base import Section
from fedsim._config.describe import allowed, variants
from fedsim._config.run import Settings
from fedsim.errors import ConfigError, Problem
from fedsim.toml import text_of, toml_of

Table = dict[str, Any]
#: section.table.option, and one more.
_LONGEST_KEY = 4


def read_toml(path: Path) -> Table:
    """Read a settings' file into nested dicts; of a ``pyproject.toml``, what `flwr run` takes, [tool.flwr.app.config].

    Raises:
        ConfigError: there is no such file, or it is not TOML; the message names the line.
    """
    try:
        text = text_of(path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise _refuse(str(path), f"cannot be read ({reason})", "name a TOML file; `fedsim config` prints one") from None
    except UnicodeDecodeError:
        raise _refuse(str(path), "must be TOML, which is UTF-8 text", "`fedsim config` prints a valid file") from None
    except ValueError as error:
        raise _refuse(str(path), str(error), "name a file of settings; `fedsim config` prints one") from None
    data = parse_toml(text, str(path))
    return _of_flower_app(path, data) if path.name == "pyproject.toml" else data


def _of_flower_app(path: Path, data: Table) -> Table:
    for key in ("tool", "flwr", "app", "config"):
        data = data.get(key, {}) if isinstance(data, dict) else {}
    if not data:
        raise _refuse(str(path), "has no table [tool.flwr.app.config]", "put the settings there, or name another file")
    # Keys of the run, not of the settings; see fedsim.config.from_run_config.
    return {key: value for key, value in data.items() if key not in ("config", "resume")}


def parse_toml(text: str, source: str) -> Table:
    """Parse TOML text; `source` names it in the error.

    Raises:
        ConfigError: it is not TOML.
    """
    try:
        return toml_of(text)
    except ValueError as error:
        raise _refuse(
            source, f"is not TOML: {error}", "texts need quotes; `fedsim config` prints a valid file"
        ) from None


def _refuse(value: str, rule: str, remedy: str) -> ConfigError:
    return ConfigError([Problem("settings", value, rule, remedy)])


def parse_override(text: str) -> tuple[tuple[str, ...], Any]:
    """Split ``section.key=value``; the value is TOML, or text that needs no quotes.

    Raises:
        ConfigError: there is no key or no ``=``.
    """
    key, equals, value = (part.strip() for part in text.partition("="))
    path = tuple(key.split("."))
    if not equals or not all(path) or len(path) > _LONGEST_KEY:
        problem = Problem("--set", text, "must be section.key=value", "write for instance --set federation.rounds=3")
        raise ConfigError([problem])
    return path, parse_value(value)


def parse_value(text: str) -> Any:
    """Read one value: a TOML scalar, array or inline table, else the text itself."""
    try:
        value = toml_of(f"value = {text}")["value"] if "\n" not in text else text
    except (ValueError, KeyError):
        return text
    # A folder named 2026-01-31 is a name, not a date.
    return text if isinstance(value, dt.date | dt.time) else value


def apply_overrides(data: Table, overrides: Iterable[str]) -> Table:
    """Return settings with overrides applied in order; all malformed ones are refused together.

    An override that changes the name of a strategy, protection, task or model starts from the defaults of the new one:
    the other keys of that section are dropped, as they belonged to the old one.
    """
    parsed: list[tuple[tuple[str, ...], Any]] = []
    problems: list[Problem] = []
    for text in overrides:
        try:
            parsed.append(parse_override(text))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return put_all(data, parsed)


def put_all(data: Table, values: Iterable[tuple[tuple[str, ...], Any]]) -> Table:
    """Return settings with values put at their paths; see :func:`apply_overrides` for what a change of name means."""
    # Names first, so that `--set strategy.mu=1 --set strategy.name=fedprox` works in either order.
    for path, value in sorted(values, key=lambda item: item[0][1:] != ("name",)):
        if len(path) > _LONGEST_KEY:
            raise _refuse(
                ".".join(path)[:80], "is a key of too many parts", "keys are section.key, or section.key.option"
            )
        data = _put(data, path, value)
    return data


def _put(data: Table, path: tuple[str, ...], value: Any) -> Table:
    head, rest = path[0], path[1:]
    if not rest:
        return data | {head: value}
    inner = data.get(head, {})
    inner = dict(inner) if isinstance(inner, Mapping) else {}
    if rest == ("name",) and head in ("strategy", "protection", "task", "model") and inner.get("name") != value:
        inner = {}
    return data | {head: _put(inner, rest, value)}


def to_toml(settings: Settings) -> str:
    """Return settings as commented TOML; reading it back gives equal settings."""
    lines = [
        "# Settings of a fedsim run. Every key is optional; what is left out has the default shown by `fedsim config`."
    ]
    sections = []
    for name, field in Settings.model_fields.items():
        value = getattr(settings, name)
        if isinstance(value, Section):
            sections += ["", f"# {_sentence(field)}", f"[{name}]", *_section(name, value)]
        else:
            lines += ["", *_entry(name, value, field)]
    return "\n".join(lines + sections) + "\n"


def template() -> str:
    """Return the defaults as TOML, with the keys of every other strategy and protection in comments."""
    text = [to_toml(Settings())]
    for section in ("strategy", "protection"):
        given = getattr(Settings(), section).name
        for tag, kind in variants(section).items():
            if tag != given:
                text += ["", f"# {(kind.__doc__ or '').strip()}", f"#[{section}]"]
                text += [line if line.startswith("#") else f"#{line}" for line in _section(section, kind()) if line]
    return "\n".join(text) + "\n"


def _section(name: str, section: Section) -> Iterator[str]:
    tables = []
    for key, field in sorted(type(section).model_fields.items(), key=lambda item: item[0] != "name"):
        value = getattr(section, key)
        if isinstance(value, dict):
            tables.append((key, value, field))
        else:
            yield from _entry(key, value, field)
    for key, value, field in tables:
        yield from ("", f"# {_sentence(field)}", f"[{name}.{key}]")
        yield from (f"{option} = {_value(item)}" for option, item in value.items())


def _entry(key: str, value: Any, field: FieldInfo) -> Iterator[str]:
    yield f"# {_sentence(field)}: {allowed(field)}."
    if value is None:
        yield f"#{key} = "
    else:
        yield f"{key} = {_value(value)}"


def _value(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    return tomli_w.dumps({"value": value}).removeprefix("value = ").rstrip("\n")


def _sentence(field: FieldInfo) -> str:
    text = field.description or ""
    return text[:1].upper() + text[1:]
