"""A run's settings: one tree, read from TOML and ``section.key=value`` overrides, and carried in Flower's run config.

>>> config = load_config(None, ["federation.rounds=3", "protection.name=bfv"])
>>> config.federation.rounds, config.protection.name, config.federation.server_evaluation
(3, 'bfv', False)

Every key has a default, and the defaults together are the main job: a class-balanced subset of Fashion-MNIST, a small
CNN, 20 clients, Dirichlet 0.3, FedAvg in the clear. Values are strict: unknown keys, wrong types, NaN, infinity and
combinations that make no sense are refused together, in one :class:`~fedsim.errors.ConfigError`.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from fedsim._config.describe import Key, schema
from fedsim._config.extremes import extremes
from fedsim._config.files import apply_overrides, parse_toml, put_all, read_toml, template
from fedsim._config.files import to_toml as _to_toml
from fedsim._config.flat import Scalar, flatten, unflatten
from fedsim._config.heterogeneity import ClockConfig, DevicesConfig, FaultsConfig
from fedsim._config.problems import problems_of
from fedsim._config.protections import (
    PROTECTIONS,
    BfvConfig,
    CkksConfig,
    OpenFheBgvConfig,
    OpenFheCkksConfig,
    OpenFheThresholdConfig,
    PlainConfig,
    PreambleConfig,
    ProtectionConfig,
    RlweConfig,
    RlweThresholdConfig,
)
from fedsim._config.rules import broken_rules
from fedsim._config.run import Settings, federation_defaults, implied
from fedsim._config.sections import (
    DataConfig,
    EngineConfig,
    FederationConfig,
    ModelConfig,
    OutputConfig,
    TaskConfig,
    TrainingConfig,
)
from fedsim._config.strategies import (
    FAMILIES,
    STRATEGIES,
    DictPflConfig,
    FedAdamConfig,
    FedAvgConfig,
    FedAvgMConfig,
    FedBuffConfig,
    FedLuarConfig,
    FedMlHeConfig,
    FedProxConfig,
    FedTopConfig,
    FlwrStrategyConfig,
    LeffConfig,
    OwnStrategyConfig,
    PartialConfig,
    StrategyConfig,
)
from fedsim.errors import ConfigError, Problem


class RunConfig(Settings):
    """All settings of a run, checked; frozen.

    Args:
        data: sections by name, as their classes or as dicts; what is left out has its default.

    Raises:
        ConfigError: with all problems of all sections and of their combinations.
    """

    def __init__(self, /, **data: Any) -> None:
        if extreme := extremes(plain := {name: _plain(value) for name, value in data.items()}):
            raise ConfigError(extreme)
        given = implied(plain)
        try:
            super().__init__(**given)
        except ValidationError as error:
            problems = problems_of(error, given)
            raise ConfigError(problems + _rules_on_the_rest(given, problems)) from None
        if broken := broken_rules(self):
            raise ConfigError(broken)


def _plain(value: Any) -> Any:
    """Return what was set in a section given as an object; its name decides the kind, so it always counts as set."""
    if not isinstance(value, BaseModel):
        return value
    name = {"name": value.name} if hasattr(value, "name") else {}
    return value.model_dump(exclude_unset=True) | name


def _rules_on_the_rest(data: dict[str, Any], problems: list[Problem]) -> list[Problem]:
    """Check the combinations of those settings that are right in themselves."""
    wrong = frozenset(problem.key for problem in problems)
    rest = {name: _without(name, value, wrong) for name, value in data.items() if name in Settings.model_fields}
    try:
        settings = Settings(**{name: value for name, value in rest.items() if value is not None})
    except ValidationError:
        return []
    return broken_rules(settings, wrong | {name for name, value in rest.items() if value is None})


def _without(section: str, value: Any, wrong: frozenset[str]) -> Any:
    # Without its name a strategy's or protection's keys mean nothing.
    if section in wrong or f"{section}.name" in wrong:
        return None
    if not isinstance(value, dict):
        return value
    return {key: item for key, item in value.items() if f"{section}.{key}" not in wrong}


def load_config(path: str | Path | None = None, overrides: Iterable[str] = ()) -> RunConfig:
    """Read settings from a TOML file and overrides.

    Args:
        path: the file, or None for the defaults.
        overrides: ``section.key=value`` each; the value is a TOML scalar, array or inline table, text needs no quotes.
            A later one wins. Changing a section's ``name`` drops the file's other keys of that section.

    Raises:
        ConfigError: the file cannot be read, or settings are wrong; all problems together.
    """
    data = read_toml(Path(path)) if path is not None else {}
    return config_from_dict(apply_overrides(data, overrides))


def config_from_dict(data: Mapping[str, Any]) -> RunConfig:
    """Build settings from nested dicts; keys that are no settings are refused like any other problem."""
    return RunConfig(**{str(name): value for name, value in data.items()})


def with_values(config: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """Return checked settings that differ in some values.

    Args:
        config: not modified.
        values: dotted key -> value, such as ``{"training.lr": 0.1}``. A new ``strategy.name`` (or protection, task,
            model) starts from the new one's defaults, and defaults that depend on the protection follow it.

    Raises:
        ConfigError: the new values, or their combination with the others, are wrong.
    """
    defaults = federation_defaults(type(config.protection), type(config.strategy))
    data = config.model_dump()
    data["federation"] = {
        key: value for key, value in data["federation"].items() if key not in defaults or value != defaults[key]
    }
    return config_from_dict(put_all(data, ((tuple(key.split(".")), value) for key, value in values.items())))


def to_toml(config: RunConfig) -> str:
    """Return settings as TOML with each key's description and allowed values; :func:`load_config` reads it back."""
    return _to_toml(config)


def to_run_config(config: RunConfig) -> dict[str, Scalar]:
    """Return settings as Flower's flat run config: dotted keys, scalars only; :func:`from_run_config` inverts it."""
    return flatten(config)


def from_run_config(run_config: Mapping[str, Any]) -> RunConfig:
    """Build settings from Flower's run config.

    Args:
        run_config: dotted keys. The key ``config``, if there and not empty, is TOML text (it holds a ``=``) or the path
            of a TOML file, over which the other keys go.

    Raises:
        ConfigError: as in :func:`load_config`.
    """
    flat = dict(run_config)
    text = str(flat.pop("config", ""))
    base = (parse_toml(text, "config") if "=" in text else read_toml(Path(text))) if text else {}
    return config_from_dict(_merge(base, unflatten(flat)))


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


__all__ = [
    "FAMILIES",
    "PROTECTIONS",
    "STRATEGIES",
    "BfvConfig",
    "CkksConfig",
    "ClockConfig",
    "ConfigError",
    "DataConfig",
    "DevicesConfig",
    "DictPflConfig",
    "EngineConfig",
    "FaultsConfig",
    "FedAdamConfig",
    "FedAvgConfig",
    "FedAvgMConfig",
    "FedBuffConfig",
    "FedLuarConfig",
    "FedMlHeConfig",
    "FedProxConfig",
    "FedTopConfig",
    "FederationConfig",
    "FlwrStrategyConfig",
    "Key",
    "LeffConfig",
    "ModelConfig",
    "OpenFheBgvConfig",
    "OpenFheCkksConfig",
    "OpenFheThresholdConfig",
    "OutputConfig",
    "OwnStrategyConfig",
    "PartialConfig",
    "PlainConfig",
    "PreambleConfig",
    "Problem",
    "ProtectionConfig",
    "RlweConfig",
    "RlweThresholdConfig",
    "RunConfig",
    "StrategyConfig",
    "TaskConfig",
    "TrainingConfig",
    "config_from_dict",
    "from_run_config",
    "load_config",
    "schema",
    "template",
    "to_run_config",
    "to_toml",
    "with_values",
]
