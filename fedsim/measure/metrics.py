"""What a run learned, as one long table: round, side, name, value.

Names with a meaning to the report: `ACCURACY` and `LOSS` on both sides, `ROUND_S` and `VIRTUAL_ROUND_S` on the server
side (the round from start to applied update, on the host's clock and on the devices'). Any other name is kept and
listed. Files: ``metrics.csv`` grows as the run goes, ``metrics.parquet`` is written at its end.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, SupportsFloat

import pyarrow as pa

from fedsim.measure import _journal
from fedsim.measure.errors import LedgerError

ACCURACY, LOSS, ROUND_S, VIRTUAL_ROUND_S = "accuracy", "loss", "round_s", "virtual_round_s"
Side = Literal["server", "client"]
SCHEMA = pa.schema([("round", pa.int64()), ("side", pa.string()), ("name", pa.string()), ("value", pa.float64())])


class Metrics:
    """All metrics of a run.

    Args:
        folder: the run's folder, whose earlier records are continued; None keeps all in memory until `write`.
        keep_rounds: forget records of later rounds first; a resumed run passes the round of its checkpoint.
    """

    def __init__(self, folder: Path | None = None, keep_rounds: int | None = None) -> None:
        self._rows = _journal.Journal(SCHEMA, folder, "metrics")
        if keep_rounds is not None:
            self._rows.keep("round", keep_rounds)

    def add(self, round: int, side: Side, name: str, value: SupportsFloat) -> None:
        """Record one number; numpy scalars, 0-d arrays and torch scalars are numbers, NaN is kept.

        Args:
            round: 0 is before the first round.
            side: "server" for central evaluation, "client" for the weighted mean over the clients.
            name: what was measured.
            value: a single number.

        Raises:
            LedgerError: a side that does not exist, a negative round, or a value that is no single number.
        """
        if side not in ("server", "client") or round < 0:
            raise LedgerError(f"round {round}, side {side!r}: rounds start at 0 and a side is server or client")
        self._rows.append((round, side, _journal.one_line(name), _number(name, value)))

    def extend(self, round: int, side: Side, values: Mapping[str, SupportsFloat]) -> None:
        """Record several numbers of one round and side; all are checked before one is kept."""
        for name, value in values.items():
            _number(name, value)
        for name, value in values.items():
            self.add(round, side, name, value)

    def flush(self) -> None:
        """Append what is held to the file; call it when a round ends."""
        self._rows.flush()

    def table(self) -> pa.Table:
        """Return all rows: round (int64), side (string), name (string), value (float64)."""
        return self._rows.table()

    def write(self, folder: Path | None = None) -> None:
        """Write ``metrics.csv`` and ``metrics.parquet``, each atomically."""
        self._rows.write(folder)

    @classmethod
    def read(cls, folder: Path) -> "Metrics":
        """Return the metrics of a folder, finished or killed, in memory; empty if it has none."""
        metrics = cls()
        metrics._rows = _journal.Journal(SCHEMA, None, "metrics", base=_journal.read(SCHEMA, folder, "metrics"))
        return metrics

    def series(self, name: str, side: Side) -> dict[int, float]:
        """Return value by round, ascending; the last one counts where a round has several; NaN left out."""
        rows = self.table().to_pydict()
        found = {
            round: value
            for round, where, what, value in zip(*(rows[column] for column in SCHEMA.names), strict=True)
            if where == side and what == name and not math.isnan(value)
        }
        return dict(sorted(found.items()))


def _number(name: str, value: SupportsFloat) -> float:
    if isinstance(value, str | bytes):
        raise LedgerError(f"metric {name!r} is {value!r}; a metric is one number, convert it first")
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise LedgerError(f"metric {name!r} is a {type(value).__name__}; a metric is one number: {error}") from error
