"""A run read back from its folder: what summary and report are made of."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from crypto.texts import json_of
from fedsim.measure._files import plain_json, write_json, write_text
from fedsim.measure.errors import LedgerError, RunFolderError
from fedsim.measure.ledger import Ledger
from fedsim.measure.metrics import ROUND_S, VIRTUAL_ROUND_S, Metrics, Side
from fedsim.measure.runfolder import RunFolder, RunRecord
from fedsim.toml import toml_of

#: Clients up to which the partition's file is indented.
_READABLE = 2000


@dataclass(frozen=True, slots=True)
class Partition:
    """Who holds how much of what; the content of ``partition.json``.

    Args:
        sizes: examples per client, in the order of the partition ids.
        classes: names of the labels; empty where there are none.
        histogram: counts, one row a client, one column a class.
        measures: name -> how unequal the clients are.
    """

    sizes: list[int]
    classes: list[str]
    histogram: list[list[int]]
    measures: dict[str, float]

    @property
    def empty(self) -> list[int]:
        """The clients without examples."""
        return [client for client, size in enumerate(self.sizes) if size == 0]


@dataclass(frozen=True, slots=True)
class Run:
    """All that a run's folder holds; `config` is empty and `config_text` is raw where the TOML cannot be read."""

    name: str
    folder: Path
    record: RunRecord
    config: dict[str, Any]
    config_text: str
    ledger: Ledger
    entries: pa.Table
    turns: pa.Table
    metrics: Metrics
    partition: Partition | None

    def rounds(self) -> list[int]:
        """Return the rounds that have ledger entries or metrics, from 1, ascending."""
        seen = set(self.ledger.rounds()) | set(self.metrics.table()["round"].to_pylist())
        return sorted(round for round in seen if round > 0)

    def best_known(self, name: str) -> dict[int, float]:
        """Return a metric by round: the server's, or where it has none the clients'."""
        return self.metrics.series(name, "server") or self.metrics.series(name, "client")

    def sides(self, name: str) -> dict[Side, dict[int, float]]:
        """Return a metric by round for each side that has it."""
        sides: tuple[Side, ...] = ("server", "client")
        return {side: series for side in sides if (series := self.metrics.series(name, side))}

    def round_seconds(self, virtual: bool = False) -> dict[int, float]:
        """Return the duration of each round in seconds; empty if no such time was recorded.

        The metric says it; without one it is the slowest client's phases plus the other parties'.
        """
        said = self.metrics.series(VIRTUAL_ROUND_S if virtual else ROUND_S, "server")
        return said or _slowest_plus_server(self.entries, "virtual_s" if virtual else "measured_s")


def load_run(path: Path, name: str | None = None) -> Run:
    """Read a run's folder, whether it finished, was killed, or still runs.

    Args:
        path: the folder.
        name: what to call the run; None for the folder's name.

    Returns:
        The run; parts that were not written yet are empty.

    Raises:
        RunFolderError: no run lies there, or its record is broken.
        LedgerError: a table is damaged.
    """
    folder = RunFolder.open(path)
    config_text = folder.config.read_text(encoding="utf-8", errors="replace") if folder.config.exists() else ""
    try:
        ledger = Ledger.read(folder.path)
    except LedgerError:
        if any((folder.path / f"ledger.{kind}").exists() for kind in ("csv", "parquet")):
            raise
        ledger = Ledger()
    return Run(
        name=name or folder.path.resolve().name,
        folder=folder.path,
        record=folder.record(),
        config=_config(config_text),
        config_text=config_text,
        ledger=ledger,
        entries=ledger.table(),
        turns=ledger.clients(),
        metrics=Metrics.read(folder.path),
        partition=read_partition(folder),
    )


def write_partition(
    folder: RunFolder,
    sizes: Sequence[int],
    classes: Sequence[str] = (),
    histogram: Sequence[Sequence[int]] = (),
    measures: Mapping[str, float] | None = None,
) -> None:
    """Write ``partition.json``.

    Args:
        folder: the run's folder.
        sizes: examples per client.
        classes: names of the labels, or nothing for a task without labels.
        histogram: shape (clients, classes), counts; or nothing.
        measures: name -> how unequal the clients are, such as the mean Jensen-Shannon distance.

    Raises:
        RunFolderError: the histogram does not fit sizes and classes.
    """
    if len(histogram) not in (0, len(sizes)) or any(len(row) != len(classes) for row in histogram):
        shape = f"{len(histogram)} rows of {sorted({len(row) for row in histogram})}"
        raise RunFolderError(f"histogram has {shape}: it needs {len(sizes)} rows of {len(classes)}; count it anew")
    counts = [[int(count) for count in row] for row in histogram]
    partition = Partition([int(size) for size in sizes], [str(name) for name in classes], counts, dict(measures or {}))
    content = {"sizes": partition.sizes, "empty": partition.empty, "measures": partition.measures}
    content |= {"classes": partition.classes, "histogram": partition.histogram}
    if len(sizes) <= _READABLE:
        write_json(folder.partition, content)
    else:
        # Plain numbers throughout, one line: to indent a hundred thousand rows takes longer than to deal them out.
        write_text(folder.partition, json.dumps({**content, "measures": plain_json(partition.measures)}) + "\n")


def read_partition(folder: RunFolder) -> Partition | None:
    """Return ``partition.json``, or None if there is none.

    Raises:
        RunFolderError: the file is broken.
    """
    if not folder.partition.exists():
        return None
    try:
        content = json_of(folder.partition.read_text(encoding="utf-8"))
        return Partition(content["sizes"], content["classes"], content["histogram"], content["measures"])
    except (ValueError, KeyError, TypeError) as error:
        raise RunFolderError(f"{folder.partition} is no partition ({error!r}); restore it or delete it") from error


def _config(text: str) -> dict[str, Any]:
    try:
        return toml_of(text)
    except ValueError:
        return {}


def _slowest_plus_server(entries: pa.Table, column: str) -> dict[int, float]:
    timed = entries.filter(pc.invert(pc.is_nan(entries[column])))
    per_client = timed.group_by(["round", "client"]).aggregate([(column, "sum")])
    round, client, seconds = (per_client[name].to_numpy() for name in ("round", "client", f"{column}_sum"))
    found: dict[int, float] = {}
    for number in np.unique(round):
        slowest = seconds[(round == number) & (client >= 0)]
        others = seconds[(round == number) & (client < 0)]
        total = float(slowest.max(initial=0.0) + others.sum())
        if number > 0 and math.isfinite(total):
            found[int(number)] = total
    return found
