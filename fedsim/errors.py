"""What can go wrong in a run, and the exit code that the command line ends with.

Every message has three parts: the value, the rule, the remedy.

::

    FedsimError              1
    |-- ConfigError          2    all problems of the settings together
    |-- TooFewReplies        3    a round got fewer usable replies than `federation.min_replies`
    `-- EngineError          5    Ray or Flower's engine could not be started or was lost

Errors of the other rooms end the program too: what is not installed (`BackendUnavailable`, `DataUnavailable`) with 4,
what was asked for wrongly (`BudgetExceeded`, `BadOption`, ...) with 2; see :func:`exit_code_of`.

:data:`EXIT_CODES` is the one table of exit codes; the README shows the same table and a test compares them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

OK = 0
FAILED = 1
BAD_CONFIG = 2
TOO_FEW_REPLIES = 3
UNAVAILABLE = 4
ENGINE_LOST = 5
INTERRUPTED = 130

#: Exit code -> what happened and what to do.
EXIT_CODES: dict[int, str] = {
    OK: "the command did what was asked",
    FAILED: "the run failed; the message names client, round and cause, and the last good model is in the run's folder",
    BAD_CONFIG: "bad usage or settings; every problem is listed with its rule and remedy, nothing was started",
    TOO_FEW_REPLIES: "a round got fewer usable replies than `federation.min_replies`; the last good model is saved",
    UNAVAILABLE: "a backend or data set is not installed or does not load here; see `fedsim doctor`",
    ENGINE_LOST: "the engine (Ray or Flower's) could not be started or was lost; see `fedsim doctor`",
    INTERRUPTED: "stopped by Ctrl-C or SIGTERM; the run's folder is consistent",
}


class FedsimError(Exception):
    """Base of all errors of the program; raised itself when a run fails for a reason that has no class of its own."""

    exit_code: ClassVar[int] = FAILED


class TooFewReplies(FedsimError):
    """A round got fewer usable replies than required; the model of the last good round is saved."""

    exit_code = TOO_FEW_REPLIES


class EngineError(FedsimError):
    """The engine could not be started or was lost during the run."""

    exit_code = ENGINE_LOST


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with the settings.

    Attributes:
        key: dotted key, such as ``federation.rounds``.
        value: what was given, as text.
        rule: what must hold.
        remedy: what to do.
    """

    key: str
    value: str
    rule: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.key} = {self.value}: {self.rule}; {self.remedy}"


class ConfigError(FedsimError, ValueError):
    """Settings that cannot be run, all problems together.

    Attributes:
        problems: each with key, value, rule and remedy, in the order of the settings.
    """

    exit_code = BAD_CONFIG

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        head = "1 problem in the settings:" if count == 1 else f"{count} problems in the settings:"
        super().__init__("\n".join([head, *(f"  {problem}" for problem in self.problems)]))

    def __reduce__(self) -> tuple[type["ConfigError"], tuple[tuple[Problem, ...]]]:
        return ConfigError, (self.problems,)


# By name, because importing the rooms (torch, flwr) to tell an error's class would take seconds.
_CODES_BY_NAME = {
    "BackendUnavailable": UNAVAILABLE,
    "DataUnavailable": UNAVAILABLE,
    "BudgetExceeded": BAD_CONFIG,
    "UnknownName": BAD_CONFIG,
    "BadOption": BAD_CONFIG,
    "BadTrace": BAD_CONFIG,
    "Incompatible": BAD_CONFIG,
    "InfeasiblePartition": BAD_CONFIG,
    "RunFolderError": BAD_CONFIG,
    "ReportError": BAD_CONFIG,
    "KeyboardInterrupt": INTERRUPTED,
    "CryptoError": FAILED,
    "TaskError": FAILED,
    "MeasureError": FAILED,
    "StrategyError": FAILED,
}
_ROOMS = ("builtins", "crypto", "strategies", "fedsim", "experiments")


def exit_code_of(error: BaseException) -> int | None:
    """Return the exit code of an expected error, or None for one that nobody foresaw (it deserves its traceback)."""
    if isinstance(error, FedsimError):
        return error.exit_code
    for kind in type(error).__mro__:
        if kind.__module__.split(".")[0] in _ROOMS and kind.__name__ in _CODES_BY_NAME:
            return _CODES_BY_NAME[kind.__name__]
    return None


__all__ = [
    "BAD_CONFIG",
    "ENGINE_LOST",
    "EXIT_CODES",
    "FAILED",
    "INTERRUPTED",
    "OK",
    "TOO_FEW_REPLIES",
    "UNAVAILABLE",
    "ConfigError",
    "EngineError",
    "FedsimError",
    "Problem",
    "TooFewReplies",
    "exit_code_of",
]
