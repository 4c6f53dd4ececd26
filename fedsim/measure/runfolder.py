"""A run's folder: the names of its files, how it is opened, and ``run.json``, the record of what ran and how it ended.

::

    config.toml       the resolved settings
    run.json          status, times, seed, versions, platform, git commit, why it ended, hash of the final weights
    ledger.csv|parquet   clients.csv|parquet   metrics.csv|parquet
    partition.json    label histogram per client, sizes, empty clients, how unequal they are
    checkpoints/      report.html      figures/*.png
"""

import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from crypto.texts import json_of
from fedsim.measure._files import write_json, write_text
from fedsim.measure.errors import RunFolderError

Status = Literal["running", "finished", "stopped", "failed"]
STATUSES = ("running", "finished", "stopped", "failed")
_PACKAGES = ("fedsim", "flwr", "ray", "torch", "numpy")


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The content of ``run.json``.

    Args:
        status: running, finished (all rounds), stopped (by the user or a rule) or failed.
        started: ISO 8601 time with zone; `ended` likewise, empty while running.
        seed: the run's seed.
        environment: see `environment`.
        exit_reason: one sentence on why the run ended, empty while running.
        weights_sha256: of the final weights, empty until there are any.
        protection: budget of the secure sum (bytes, error bound, security bits, privacy) as plain values.
        aggregation: how sums were formed (chunks, order, averaging) as plain values.
        notes: whatever else the run wants kept, such as warnings.
    """

    status: Status
    started: str
    seed: int
    environment: dict[str, Any] = field(default_factory=dict)
    ended: str = ""
    exit_reason: str = ""
    weights_sha256: str = ""
    protection: dict[str, Any] = field(default_factory=dict)
    aggregation: dict[str, Any] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)


class RunFolder:
    """The paths of a run; makes and reads nothing by itself.

    Args:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.config = self.path / "config.toml"
        self.run = self.path / "run.json"
        self.partition = self.path / "partition.json"
        self.checkpoints = self.path / "checkpoints"
        self.clients = self.path / "clients"
        self.report = self.path / "report.html"
        self.figures = self.path / "figures"

    @classmethod
    def create(
        cls, path: Path, config_toml: str, seed: int, environment: Mapping[str, Any], started: datetime
    ) -> "RunFolder":
        """Make a run's folder with its config and a record that says "running".

        Args:
            path: a folder that does not exist or is empty; parents are made.
            config_toml: the resolved settings.
            seed: the run's seed.
            environment: see `environment`.
            started: with a time zone.

        Raises:
            RunFolderError: the folder holds something, is a file, or cannot be made.
        """
        folder = cls(path)
        try:
            folder._refuse_used()
            folder.path.mkdir(parents=True, exist_ok=True)
            # Of two runs that start at once, only one can make this folder.
            folder.checkpoints.mkdir()
            write_text(folder.config, config_toml)
        except FileExistsError:
            raise RunFolderError(f"{path} holds a run already; resume it or choose another name") from None
        except OSError as error:
            reason = error.strerror or str(error)
            raise RunFolderError(
                f"{path}: a run's folder cannot be made there ({reason}); name a folder that can be written"
            ) from error
        folder.write(RunRecord("running", started.isoformat(timespec="seconds"), seed, dict(environment)))
        return folder

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """Return the folder of an earlier run.

        Raises:
            RunFolderError: there is no ``run.json`` in it.
        """
        folder = cls(path)
        if not folder.run.is_file():
            raise RunFolderError(f"{path} holds no run.json; pass the folder of a run, such as runs/NAME")
        return folder

    def record(self) -> RunRecord:
        """Return ``run.json``; unknown keys of a newer version are kept in `notes`.

        Raises:
            RunFolderError: the file is not a record.
        """
        try:
            content = json_of(self.run.read_text(encoding="utf-8"))
            names = {item.name for item in fields(RunRecord)}
            known = {key: value for key, value in content.items() if key in names}
            record = RunRecord(**known)
            _check(record)
        except (ValueError, TypeError, AttributeError) as error:
            raise RunFolderError(f"{self.run} is not a run's record ({error}); restore it or start anew") from error
        other = {key: value for key, value in content.items() if key not in names}
        return replace(record, notes=record.notes | other) if other else record

    def write(self, record: RunRecord) -> None:
        """Write ``run.json`` atomically.

        Raises:
            RunFolderError: an unknown status.
        """
        if record.status not in STATUSES:
            raise RunFolderError(f"status {record.status!r} is unknown; a status is one of {', '.join(STATUSES)}")
        write_json(self.run, asdict(record))

    def update_status(self, status: Status, *, ended: datetime | None = None, **changes: Any) -> RunRecord:
        """Change the status and other fields of ``run.json``; returns the new record.

        Args:
            status: the new status.
            ended: when the run ended, with a time zone.
            changes: other fields of `RunRecord`.

        Raises:
            RunFolderError: an unknown status or field.
        """
        if unknown := sorted(set(changes) - {item.name for item in fields(RunRecord)}):
            known = ", ".join(item.name for item in fields(RunRecord))
            raise RunFolderError(f"field {unknown[0]!r} is unknown in run.json; it has {known}")
        if ended is not None:
            changes["ended"] = ended.isoformat(timespec="seconds")
        record = replace(self.record(), status=status, **changes)
        self.write(record)
        return record

    def _refuse_used(self) -> None:
        if "\0" in str(self.path):
            raise RunFolderError(f"{str(self.path)!r} holds a zero character; no folder's name may, choose another")
        if self.path.exists() and not self.path.is_dir():
            raise RunFolderError(f"{self.path} is a file; a run needs a folder, choose another name")
        if self.run.exists():
            raise RunFolderError(f"{self.path} holds a run already; resume it or choose another name")
        if self.path.exists() and (other := next(iter(sorted(self.path.iterdir())), None)):
            raise RunFolderError(f"{self.path} holds {other.name!r}, no run; choose an empty or new folder")


def _check(record: RunRecord) -> None:
    """Raise ValueError unless a record that was read has values of the right kinds."""
    if record.status not in STATUSES:
        raise ValueError(f"status {record.status!r} is none of {', '.join(STATUSES)}")
    for item in fields(RunRecord):
        value, kind = getattr(record, item.name), {"seed": int}.get(item.name, type(item.default))
        kind = dict if item.name in ("environment", "protection", "aggregation", "notes") else kind
        kind = str if item.name in ("status", "started") else kind
        if not isinstance(value, kind):
            raise ValueError(f"{item.name} is {value!r}, no {kind.__name__}")


def now() -> datetime:
    """Return the time of this host's clock, in UTC."""
    return datetime.now(UTC)


def environment(source: Path | None = None) -> dict[str, Any]:
    """Return what this process runs on: versions, platform, cpu_count, git commit.

    Args:
        source: a folder whose git commit is wanted; None for the one this module lies in.

    Returns:
        versions (name -> version, "" if not installed), platform, machine, cpu_count, git (None outside of a
        repository, else commit and dirty).
    """
    versions = {"python": platform.python_version()} | {name: _version(name) for name in _PACKAGES}
    return {
        "versions": versions,
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpu_count": _cpu_count(),
        "git": _git(source or Path(__file__).resolve().parent),
    }


def _cpu_count() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _git(folder: Path) -> dict[str, Any] | None:
    def ask(*words: str) -> str:
        command = ["git", "-C", str(folder), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        # A file of an installed wheel may lie under a stranger's repository; then that commit says nothing of it.
        if not ask("ls-files", "--", "*.py"):
            return None
        return {"commit": ask("rev-parse", "HEAD"), "dirty": bool(ask("status", "--porcelain", "--untracked-files=no"))}
    except (OSError, subprocess.SubprocessError):
        return None
