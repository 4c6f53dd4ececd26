"""What a run needs to go on after a round, on disk: written atomically, checked when read, no pickle.

One file a round, ``checkpoints/round-000012.ckpt``: a line of JSON (format version, round, the sections and their
lengths, SHA-256 of all), then the sections: the model and the strategy's own arrays in the safetensors format, and the
last sealed total where only clients can open the model. What simulated clients keep to themselves stands apart, in
``clients/round-000012.state``, in the same form.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from safetensors.numpy import load, save

from crypto import WireError
from crypto.texts import json_of
from fedsim.errors import FedsimError
from strategies.records import NamedArrays, model_bytes, model_from_bytes
from strategies.sealed_state import SealedState

_VERSION = "2"
#: A head is a line of a few hundred characters and one entry a record of a client; what is longer is no head.
_LONGEST_HEAD = 64 * 2**20


@dataclass(frozen=True)
class Checkpoint:
    """What a run needs to go on after a round.

    Attributes:
        round: the last round that is in it.
        state: the global model; where only clients can open it, that of round 0.
        strategy: the strategy's own arrays.
        sealed: the last sealed total, where only clients can open the model.
    """

    round: int
    state: NamedArrays
    strategy: dict[str, NDArray[np.generic]] = field(default_factory=dict)
    sealed: SealedState | None = None


def weights_sha256(state: NamedArrays) -> str:
    """Return the SHA-256 of a model's weights: names, dtypes, shapes and bits."""
    return hashlib.sha256(model_bytes(state)).hexdigest()


def save_checkpoint(folder: Path, checkpoint: Checkpoint, keep: int = 2) -> Path:
    """Write a checkpoint and remove all but the newest `keep`; returns its path."""
    sections = {"model": model_bytes(checkpoint.state)}
    if checkpoint.strategy:
        sections["strategy"] = save({k: np.asarray(v, order="C") for k, v in checkpoint.strategy.items()})
    if checkpoint.sealed is not None:
        sections["sealed"] = checkpoint.sealed.to_bytes()
    path = _path(folder, checkpoint.round)
    _write(path, checkpoint.round, sections)
    _prune(folder, "round-*.ckpt", keep)
    return path


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint.

    Raises:
        FedsimError: the file is not a checkpoint of this version, or damaged.
    """
    at, sections = _read(path)
    try:
        own = load(sections["strategy"]) if "strategy" in sections else {}
        sealed = SealedState.from_bytes(sections["sealed"]) if "sealed" in sections else None
        return Checkpoint(at, model_from_bytes(sections["model"]), dict(own), sealed)
    except (ValueError, KeyError, TypeError, WireError, safetensors.SafetensorError) as error:
        raise _no_checkpoint(path, error) from error


def latest_checkpoint(folder: Path) -> Checkpoint | None:
    """Return the newest checkpoint that can be read, or None if there is none at all.

    Raises:
        FedsimError: there are checkpoints, but none can be read; says why of the newest.
    """
    paths, problems = sorted(folder.glob("round-*.ckpt"), reverse=True), []
    for path in paths:
        try:
            return load_checkpoint(path)
        except FedsimError as error:
            problems.append(error)
    if problems:
        raise FedsimError(f"none of {len(paths)} checkpoints can be read: start a new run. {problems[0]}")
    return None


def load_if_there(folder: Path, at: int) -> Checkpoint | None:
    """Return the checkpoint of a round, or None if it is missing or damaged."""
    try:
        return load_checkpoint(_path(folder, at))
    except FedsimError:
        return None


def save_clients(folder: Path, at: int, states: Mapping[int, RecordDict], keep: int = 2) -> Path:
    """Write what simulated clients keep between rounds, by partition id; returns the path.

    Records that several clients hold to the same bits are written once.
    """
    blobs: dict[bytes, int] = {}
    index: dict[str, dict[str, int]] = {}
    for client, state in states.items():
        own = index.setdefault(str(client), {})
        for name, record in state.items():
            blob = recorddict_to_proto(RecordDict({name: record})).SerializeToString(deterministic=True)
            own[name] = blobs.setdefault(blob, len(blobs))
    sections = {"index": json.dumps(index).encode()} | {str(number): blob for blob, number in blobs.items()}
    path = folder / f"round-{at:06d}.state"
    _write(path, at, sections)
    _prune(folder, "round-*.state", keep)
    return path


def load_clients(folder: Path, at: int) -> dict[int, RecordDict]:
    """Return what the clients kept after a round; nothing where they kept nothing.

    Raises:
        FedsimError: the file is damaged.
    """
    path = folder / f"round-{at:06d}.state"
    if not path.exists():
        return {}
    _, sections = _read(path)
    try:
        index: dict[str, dict[str, int]] = json_of(sections["index"])
        return {
            int(client): RecordDict({name: _record(sections[str(number)], name) for name, number in own.items()})
            for client, own in index.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, DecodeError) as error:
        raise _no_checkpoint(path, error) from error


def _record(blob: bytes, name: str) -> ArrayRecord | ConfigRecord | MetricRecord:
    return recorddict_from_proto(ProtoRecordDict.FromString(blob))[name]


def _write(path: Path, at: int, sections: Mapping[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lengths = [[name, len(data)] for name, data in sections.items()]
    digest = _digest(at, lengths, sections.values())
    head = {"version": _VERSION, "round": at, "sections": lengths, "sha256": digest}
    temporary = path.with_suffix(".tmp")
    try:
        with temporary.open("wb") as file:
            file.write(json.dumps(head).encode() + b"\n")
            for data in sections.values():
                file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        # Half a checkpoint on a full disk helps nobody.
        temporary.unlink(missing_ok=True)
        raise


def _read(path: Path) -> tuple[int, dict[str, bytes]]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise FedsimError(f"{path} cannot be read ({error.strerror}): use an older checkpoint") from error
    end = data.find(b"\n", 0, _LONGEST_HEAD)
    try:
        if end < 0:
            raise ValueError("it has no first line")
        head = json_of(data[:end])
        version, at, lengths, digest = head["version"], head["round"], head["sections"], head["sha256"]
        if version != _VERSION:
            raise FedsimError(f"{path} has format version {version}: this program reads {_VERSION}; start a new run")
        sections, start = {}, end + 1
        for name, length in lengths:
            sections[str(name)] = data[start : start + int(length)]
            start += int(length)
        if start != len(data) or _digest(at, lengths, sections.values()) != digest:
            raise FedsimError(f"{path} is damaged: its checksum does not match; use an older checkpoint")
        return int(at), sections
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise _no_checkpoint(path, error) from error


def _digest(at: Any, lengths: Any, sections: Any) -> str:
    digest = hashlib.sha256(json.dumps([_VERSION, at, lengths]).encode())
    for data in sections:
        digest.update(data)
    return digest.hexdigest()


def _no_checkpoint(path: Path, error: Exception) -> FedsimError:
    return FedsimError(f"{path} is not a checkpoint ({error}): name a file of a run's checkpoints folder")


def _prune(folder: Path, pattern: str, keep: int) -> None:
    for old in sorted(folder.glob(pattern))[:-keep]:
        old.unlink(missing_ok=True)


def _path(folder: Path, at: int) -> Path:
    return folder / f"round-{at:06d}.ckpt"
