"""What a run tells those who watch it: a protocol of four calls, and the record of one round."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from fedsim.config import RunConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundEnd:
    """One finished round.

    Attributes:
        round: its number, from 1; 0 is the evaluation before any training.
        rounds: number of rounds of the run.
        metrics: name -> value, such as ``accuracy`` (a share) and ``loss``; empty in a round without evaluation.
        upload_bytes: bytes that all clients together sent in this round.
        download_bytes: bytes that all clients together received in this round.
        seconds: wall time of the round.
        virtual_s: time of the round on the clients' devices; NaN where it is not known.
        sampled: number of clients that were asked.
        replied: number of usable replies.
        failures: one sentence for each client that was left out.
    """

    round: int
    rounds: int
    metrics: Mapping[str, float]
    upload_bytes: int
    download_bytes: int
    seconds: float
    sampled: int
    replied: int
    failures: Sequence[str] = field(default=())
    virtual_s: float = math.nan


class Observer(Protocol):
    """Watches a run; must not change it. Calls come from one thread: started, (round_end | note)*, finished."""

    def started(self, config: RunConfig, folder: Path) -> None:
        """The run's folder exists and the first round is about to begin."""

    def round_end(self, event: RoundEnd) -> None:
        """A round is over."""

    def note(self, text: str) -> None:
        """Something that a user should know, such as a warning."""

    def finished(self, summary: Mapping[str, Any]) -> None:
        """All rounds are over and all files are written; not called for a run that fails or is interrupted."""


class NullObserver:
    """Watches nothing."""

    def started(self, config: RunConfig, folder: Path) -> None:
        """See :meth:`Observer.started`."""

    def round_end(self, event: RoundEnd) -> None:
        """See :meth:`Observer.round_end`."""

    def note(self, text: str) -> None:
        """See :meth:`Observer.note`."""

    def finished(self, summary: Mapping[str, Any]) -> None:
        """See :meth:`Observer.finished`."""


__all__ = ["NullObserver", "Observer", "RoundEnd"]
