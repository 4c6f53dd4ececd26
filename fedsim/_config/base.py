"""What all sections of the settings share: frozen, strict, no unknown keys, no NaN or infinity."""

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

Scalar = bool | int | float | str
Option = Scalar | tuple[Scalar, ...]

_OPTION_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


class Section(BaseModel):
    """One table of the settings."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, validate_default=True, protected_namespaces=()
    )


def as_tuple(value: object) -> object:
    """Return a list as a tuple, anything else as it is: TOML has lists, frozen settings tuples."""
    return tuple(value) if isinstance(value, list) else value


def _check_scalar(key: str, value: object) -> None:
    if not isinstance(value, bool | int | float | str):
        raise ValueError(f"option {key!r} must be true/false, a number, text, or a flat list of these")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"option {key!r} must be finite")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError(f"option {key!r} must fit into 64 bits")


def _options(value: object) -> object:
    if not isinstance(value, Mapping):
        return value
    checked: dict[str, Any] = {}
    for key, item in value.items():
        if not (isinstance(key, str) and _OPTION_KEY.fullmatch(key)):
            raise ValueError(f"option name {key!r} must be letters, digits, '_' or '-'")
        checked[key] = as_tuple(item)
        for scalar in checked[key] if isinstance(checked[key], tuple) else (item,):
            _check_scalar(key, scalar)
    return checked


#: Free settings of a task, model or strategy; the one who reads them checks their names.
Options = Annotated[dict[str, Any], BeforeValidator(_options)]
#: A TOML array of whole numbers.
Ints = Annotated[tuple[int, ...], BeforeValidator(as_tuple)]
#: A TOML array of texts.
Texts = Annotated[tuple[str, ...], BeforeValidator(as_tuple)]
#: A TOML array of numbers.
Numbers = Annotated[tuple[float, ...], BeforeValidator(as_tuple)]

Fraction = Annotated[float, Field(gt=0, le=1)]
FractionOrZero = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1, lt=2**31)]
CountOrZero = Annotated[int, Field(ge=0, lt=2**31)]
