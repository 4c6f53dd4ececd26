"""Looks for what must not be in an artefact: keys in a run's folder, a wheel or an image, and plain models.

Archives are opened: wheels and other zip files, tar files, and the layers in an image that ``docker save`` wrote.
"""

import io
import re
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from crypto import WireError
from crypto.keys import MAGIC, KeyBundle
from crypto.texts import json_of
from fedsim.doctor import Check
from fedsim.errors import ConfigError, Problem
from fedsim.keystore import kept_at

#: Names under which other tools keep keys, or objects that run code when they are read.
_SUSPECT = (".key", ".pem", ".p12", ".tenseal", ".pickle", ".pkl", ".pt", ".pth", ".joblib")
_PRIVATE = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----")
_PLAIN_MODEL = (".safetensors", ".npy", ".npz")
_ARCHIVES = (".whl", ".zip", ".tar", ".gz", ".tgz", ".fab")
#: What is not opened any further: nested archives, and the largest member that is read.
_DEPTH, _LARGEST_BYTES = 3, 2 * 2**30
#: Windows of a secret that are looked for, and their length; chance finds none in a petabyte.
_WINDOWS, _WINDOW_BYTES = 64, 16


@dataclass(frozen=True, slots=True)
class _File:
    name: str
    data: bytes


def scan(path: Path, keys: Path | None = None) -> list[Check]:
    """Return what was found; a last line says what was looked at.

    Args:
        path: a run's folder, any other folder, or an archive.
        keys: folder of keys whose bytes are looked for; default those that an unfinished run keeps.

    Raises:
        ConfigError: there is nothing at `path`.
    """
    if not path.exists():
        remedy = "name a run's folder, a wheel or an image's tar file"
        raise ConfigError([Problem("--run", str(path), "does not exist", remedy)])
    own = kept_at(path.resolve())
    keys = keys or own
    secrets = _secrets(keys)
    sealed = _only_clients_open(path)
    found, count = [], 0
    for file in _files(path):
        count += 1
        found += [*_key_material(file, secrets), *(_plain_values(file) if sealed else [])]
    if own.is_dir():
        found.append(_kept(path, own))
    return [*found, Check(str(path), "ok", f"{count} files, {len(secrets)} windows of known secrets looked for")]


def _files(path: Path) -> Iterator[_File]:
    if path.is_file() and tarfile.is_tarfile(path):
        # An image may be larger than memory: member by member.
        with tarfile.open(path) as tar:
            yield from _members(path.name, tar, 0)
        return
    for item in [path] if path.is_file() else sorted(path.rglob("*")):
        if item.is_file() and not item.is_symlink():
            name = item.name if path.is_file() else str(item.relative_to(path))
            yield from _opened(name, item.read_bytes(), 0)


def _members(name: str, tar: tarfile.TarFile, depth: int) -> Iterator[_File]:
    for entry in tar:
        if entry.isfile() and entry.size <= _LARGEST_BYTES and (stream := tar.extractfile(entry)) is not None:
            yield from _opened(f"{name}!{entry.name}", stream.read(), depth + 1)


def _opened(name: str, data: bytes, depth: int) -> Iterator[_File]:
    """Yield a file, and what is in it if it is an archive."""
    yield _File(name, data)
    # Layers of an image have no suffix: their content says what they are.
    if depth >= _DEPTH or not (
        name.lower().endswith(_ARCHIVES) or data[257:262] == b"ustar" or data[:2] == b"\x1f\x8b"
    ):
        return
    if zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for member in archive.infolist():
                if not member.is_dir() and member.file_size <= _LARGEST_BYTES:
                    yield from _opened(f"{name}!{member.filename}", archive.read(member), depth + 1)
        return
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            yield from _members(name, tar, depth)
    except (tarfile.TarError, EOFError, OSError):
        return


def _secrets(keys: Path) -> list[bytes]:
    """Return windows spread over the secrets of a folder, without their heads, which only say what they are."""
    windows: list[bytes] = []
    for path in sorted(keys.rglob("*.key")) if keys.is_dir() else []:
        try:
            secret = KeyBundle.decode(path.read_bytes()).secret
        except (OSError, WireError):
            continue
        step = max(_WINDOW_BYTES, len(secret) // _WINDOWS)
        spread = range(_WINDOW_BYTES if len(secret) > 4 * _WINDOW_BYTES else 0, len(secret) - _WINDOW_BYTES + 1, step)
        windows += [w for at in spread if len(set(w := secret[at : at + _WINDOW_BYTES])) >= _WINDOW_BYTES // 2]
    return windows


def _key_material(file: _File, secrets: list[bytes]) -> Iterator[Check]:
    remedy = "delete it, make new keys, and find out who had it"
    if _PRIVATE.search(file.data):
        yield Check(file.name, "failed", "holds a private key in PEM form", remedy)
    for at in _places(file.data, MAGIC):
        if secret := _secret_bytes(file.data[at:]):
            yield Check(file.name, "failed", f"holds a secret key of {secret} bytes at byte {at}", remedy)
    hits = sum(w in file.data or w.hex().encode() in file.data for w in secrets)
    if hits:
        yield Check(file.name, "failed", f"holds {hits} of {len(secrets)} windows of this run's secrets", remedy)
    if file.name.lower().endswith(_SUSPECT) and not file.name.lower().endswith(".key"):
        yield Check(file.name, "warning", "has the name of a key or of a pickled object", "look what it is")


def _places(data: bytes, needle: bytes) -> Iterator[int]:
    at = data.find(needle)
    while at >= 0:
        yield at
        at = data.find(needle, at + 1)


def _secret_bytes(data: bytes) -> int:
    """Return how long the secret of a key file that begins here is; 0 if none does, or it is public."""
    try:
        return len(KeyBundle.decode(data[: KeyBundle.file_bytes(data)]).secret)
    except WireError:
        return 0


def _only_clients_open(path: Path) -> bool:
    """Return whether this is the folder of a run whose server must not hold a model."""
    try:
        record = json_of((path / "run.json").read_text(encoding="utf-8"))
        return bool(record["protection"]["opened_by"] == "clients")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _plain_values(file: _File) -> Iterator[Check]:
    """Find models outside of the clients' own folder in a run that only clients can open."""
    if file.name.startswith("clients/"):
        return
    if file.name.lower().endswith(_PLAIN_MODEL):
        yield Check(file.name, "failed", "holds plain arrays, and only clients may read this run's model", "delete it")
    if file.name.endswith(".ckpt"):
        head = file.data[: file.data.find(b"\n") + 1]
        try:
            names = [name for name, _ in json_of(head)["sections"]]
            at = json_of(head)["round"]
        except (ValueError, KeyError, TypeError):
            return
        if "sealed" not in names and at > 0:
            yield Check(file.name, "failed", "holds a plain model of a run that only clients may read", "delete it")


def _kept(path: Path, keys: Path) -> Check:
    mode = keys.stat().st_mode & 0o777
    if mode & 0o077:
        return Check(str(keys), "failed", f"keys of {path} may be read by others (mode {mode:o})", f"chmod 700 {keys}")
    text = f"keys of {path} are kept here, so that it can resume; only you may read them"
    return Check(str(keys), "warning", text, "remove the folder if the run is not to go on")
