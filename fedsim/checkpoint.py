"""The model of the last good rounds on disk: written atomically, checked when read, no pickle.

One file a round, ``checkpoints/round-000012.ckpt``: a line of JSON (format version, round, length of the model, SHA-256
of all), the model and the strategy's own arrays, both in the safetensors format.
"""

import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import safetensors
from numpy.typing import NDArray
from safetensors.numpy import load, save

from crypto import WireError
from fedsim.errors import FedsimError
from strategies.records import NamedArrays, model_bytes, model_from_bytes

_VERSION = "1"


@dataclass(frozen=True)
class Checkpoint:
    """What a run needs to go on after a round.

    Attributes:
        round: the last round that is in it.
        state: the global model.
        strategy: the strategy's own arrays.
    """

    round: int
    state: NamedArrays
    strategy: dict[str, NDArray[np.generic]] = field(default_factory=dict)


def weights_sha256(state: NamedArrays) -> str:
    """Return the SHA-256 of a model's weights: names, dtypes, shapes and bits."""
    return hashlib.sha256(model_bytes(state)).hexdigest()


def save_checkpoint(folder: Path, checkpoint: Checkpoint, keep: int = 2) -> Path:
    """Write a checkpoint and remove all but the newest `keep`; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    model = model_bytes(checkpoint.state)
    own = save({k: np.asarray(v, order="C") for k, v in checkpoint.strategy.items()}) if checkpoint.strategy else b""
    head = {
        "version": _VERSION,
        "round": checkpoint.round,
        "model_bytes": len(model),
        "sha256": _digest(checkpoint.round, len(model), model + own),
    }
    line = json.dumps(head).encode() + b"\n"
    path = _path(folder, checkpoint.round)
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        file.write(line + model + own)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    for old in sorted(folder.glob("round-*.ckpt"))[:-keep]:
        old.unlink()
    return path


def _digest(server_round: int, model_bytes: int, body: bytes) -> str:
    digest = hashlib.sha256(f"{_VERSION} {server_round} {model_bytes}\n".encode())
    digest.update(body)
    return digest.hexdigest()


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint.

    Raises:
        FedsimError: the file is not a checkpoint of this version, or damaged.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise FedsimError(f"{path} cannot be read ({error.strerror}): use an older checkpoint") from error
    line, _, body = data.partition(b"\n")
    try:
        head = json.loads(line)
        version, size, digest, at = head["version"], head["model_bytes"], head["sha256"], head["round"]
        if version != _VERSION:
            raise FedsimError(f"{path} has format version {version}: this program reads {_VERSION}; start a new run")
        if _digest(at, size, body) != digest:
            raise FedsimError(f"{path} is damaged: its checksum does not match; use an older checkpoint")
        own = load(body[size:]) if len(body) > size else {}
        return Checkpoint(int(at), model_from_bytes(body[:size]), dict(own))
    except (ValueError, KeyError, TypeError, WireError, safetensors.SafetensorError) as error:
        raise FedsimError(f"{path} is not a checkpoint ({error}): name a file of a run's checkpoints folder") from error


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


def _path(folder: Path, at: int) -> Path:
    return folder / f"round-{at:06d}.ckpt"
