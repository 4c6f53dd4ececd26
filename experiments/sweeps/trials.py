"""One trial: an ordinary run in an ordinary folder, begun, resumed, or found finished."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crypto.texts import json_of
from fedsim.config import RunConfig, load_config
from fedsim.errors import exit_code_of
from fedsim.keystore import has_keys
from fedsim.measure.runfolder import STATUSES

__all__ = ["State", "run_trial", "state_of"]


@dataclass(frozen=True, slots=True)
class State:
    """Where a trial stands.

    Attributes:
        status: ``missing``, ``finished``, ``failed``, ``stopped`` or ``running`` (then its process is gone).
        reason: why it ended.
    """

    status: str
    reason: str = ""


def folder_of(config: RunConfig) -> Path:
    """Return a trial's folder."""
    assert config.output.name is not None
    return Path(config.output.folder) / config.output.name


def state_of(config: RunConfig) -> State:
    """Return where a trial stands, by its folder; other settings than its own count as missing."""
    folder = folder_of(config)
    try:
        record = json_of((folder / "run.json").read_text(encoding="utf-8"))
        if load_config(folder / "config.toml") != config:
            return State("missing", "its folder has other settings")
        if record["status"] not in STATUSES:
            return State("missing", f"its record has the status {record['status']!r}")
        return State(record["status"], str(record.get("exit_reason", "")))
    except Exception:  # noqa: BLE001 - a folder that cannot be read is begun anew, whatever is wrong with it
        return State("missing")


def run_trial(config: RunConfig) -> dict[str, Any]:
    """Run a trial to its end, from where it stands.

    Returns:
        Its status and reason. An error that was foreseen (a round with too few replies, a plan that does not fit) is a
        result; it would come again. Others are raised, to be tried again.
    """
    from fedsim.runner import simulate

    state = state_of(config)
    if state.status == "finished":
        return {"status": "finished", "reason": ""}
    try:
        if state.status != "missing" and _resumable(config):
            simulate(config, resume=True)
        else:
            shutil.rmtree(folder_of(config), ignore_errors=True)
            simulate(config)
    except Exception as error:
        if exit_code_of(error) is None:
            raise
        return {"status": "failed", "reason": str(error)}
    return {"status": "finished", "reason": ""}


def _resumable(config: RunConfig) -> bool:
    """Tell whether a trial can go on: it has a checkpoint, and keys that open it where only clients do."""
    folder = folder_of(config)
    blind = config.protection.opened_by == "clients" and not has_keys(folder)
    stock = config.strategy.name.startswith("flwr:")
    return not (stock or blind) and any((folder / "checkpoints").glob("*.ckpt"))
