"""Keys of a run: one strict file per role and scheme, made fresh, never shown.

========================= =============================================================================
role                      what its bundle holds
========================= =============================================================================
``server``                public material only; a server bundle with a secret is refused by its type
``clients``               what clients seal with and, where clients open, the common secret key
``helper``                the second aggregator of a two-server sum: its own private key
``committee-0``, ``-1``.. one member's share of a threshold key
========================= =============================================================================

A key set lies in one folder per role (mode 0700), each file 0600, so that a folder can be handed to its role as it is::

    keys/server/bfv.key  keys/clients/bfv.key

File layout, little-endian::

    offset size
         0    4  magic "FSKY"
         4    1  version (1)
         5   16  role, ASCII, zero-padded
        21   10  scheme, ASCII, zero-padded
        31   16  hash of the parameters that the key was made for
        47    8  key id
        55    8  length of the public part
        63    8  length of the secret part
        71    8  checksum: BLAKE2b-64 of the first 71 bytes and both parts
        79       public part, secret part

The key id is a hash of public material, so that it identifies a key and tells nothing about it.
"""

import hashlib
import os
import re
import stat
import struct
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from crypto import wire
from crypto.base import Opener, Sealer, SecureSum, Tag
from crypto.errors import InputError, IntegrityError, KeyMismatch, WireError

MAGIC = b"FSKY"
VERSION = 1
SUFFIX = ".key"
SERVER, CLIENTS, HELPER = "server", "clients", "helper"
_ROLE = re.compile(r"server|clients|helper|committee-(0|[1-9][0-9]{0,4})")
_SCHEME = re.compile(r"[a-z0-9-]{1,10}")
_HEAD = struct.Struct("<4sB16s10s16s8sQQ")
_HEAD_BYTES = _HEAD.size + 8


def committee(member: int) -> str:
    """Return the role name of a threshold committee's member, from 0."""
    return f"committee-{member}"


def key_id(scheme: str, params_hash: bytes, public: bytes) -> bytes:
    """Return the 8 bytes that identify a key: a hash of its scheme, parameters and public material."""
    text = b"fedsim-key-v1\0" + scheme.encode("ascii") + b"\0" + params_hash + public
    return hashlib.sha256(text).digest()[:8]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyBundle:
    """What one role holds of one key. The representation shows no key bytes.

    Attributes:
        role: ``server``, ``clients``, ``helper`` or ``committee-<member>``.
        scheme: the secure sum's name.
        params_hash: 16 bytes, hash of the parameters that the key depends on.
        key_id: 8 bytes, equal in all bundles of one key set; see :func:`key_id`.
        public: public material in the scheme's own form.
        secret: secret material; empty in the server's bundle.
    """

    role: str
    scheme: str
    params_hash: bytes
    key_id: bytes
    public: bytes = field(default=b"", repr=False)
    secret: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        if not _ROLE.fullmatch(self.role):
            raise InputError(f"key role '{self.role}': must be server, clients, helper or committee-<number>")
        if not _SCHEME.fullmatch(self.scheme):
            raise InputError(f"key scheme '{self.scheme}': must be 1 to 10 of a-z, 0-9 and '-'")
        if len(self.params_hash) != 16 or len(self.key_id) != 8 or self.key_id == wire.NO_KEY:
            raise InputError(
                f"params hash of {len(self.params_hash)} bytes, key id {self.key_id.hex()}: must be 16 bytes and "
                "8 bytes that are not all zero; use crypto.keys.key_id"
            )
        if self.role == SERVER and self.secret:
            raise InputError(
                f"{len(self.secret)} secret bytes in a server bundle: the server must hold none; drop them"
            )

    def __repr__(self) -> str:
        return (
            f"KeyBundle(role='{self.role}', scheme='{self.scheme}', key_id={self.key_id.hex()}, "
            f"public={len(self.public)} bytes, secret={'[redacted]' if self.secret else 'none'})"
        )

    def encode(self) -> bytes:
        """Return the file's bytes; see the module docstring."""
        head = _HEAD.pack(
            MAGIC,
            VERSION,
            self.role.encode("ascii"),
            self.scheme.encode("ascii"),
            self.params_hash,
            self.key_id,
            len(self.public),
            len(self.secret),
        )
        return b"".join((head, _checksum(head, self.public, self.secret), self.public, self.secret))

    @staticmethod
    def file_bytes(data: bytes) -> int:
        """Return how many bytes the key file takes that `data` begins with; 0 if it does not begin with one."""
        if len(data) < _HEAD_BYTES or not data.startswith(MAGIC):
            return 0
        *_, public_bytes, secret_bytes = _HEAD.unpack(data[: _HEAD.size])
        return int(_HEAD_BYTES + public_bytes + secret_bytes)

    @classmethod
    def decode(cls, data: bytes) -> "KeyBundle":
        """Read a file's bytes.

        Raises:
            WireError: not a key file, another version, wrong length or trailing bytes.
            IntegrityError: the checksum does not match.
        """
        if len(data) < _HEAD_BYTES:
            raise WireError(f"key file of {len(data)} bytes: must have at least {_HEAD_BYTES}; make the keys anew")
        head = data[: _HEAD.size]
        magic, version, role, scheme, params, identity, public_bytes, secret_bytes = _HEAD.unpack(head)
        if magic != MAGIC or version != VERSION:
            raise WireError(f"starts with {magic!r} version {version}: a key file starts with {MAGIC!r} {VERSION}")
        if len(data) - _HEAD_BYTES != public_bytes + secret_bytes:
            raise WireError(
                f"{len(data) - _HEAD_BYTES} key bytes: the file says {public_bytes} + {secret_bytes}; cut off or "
                "trailing bytes, copy the file again"
            )
        public = data[_HEAD_BYTES : _HEAD_BYTES + public_bytes]
        secret = data[_HEAD_BYTES + public_bytes :]
        if _checksum(head, public, secret) != data[_HEAD.size : _HEAD_BYTES]:
            raise IntegrityError("key file's checksum does not match: it was damaged; copy it again")
        try:
            names = [name.rstrip(b"\0").decode("ascii") for name in (role, scheme)]
            return cls(
                role=names[0], scheme=names[1], params_hash=params, key_id=identity, public=public, secret=secret
            )
        except (UnicodeDecodeError, InputError) as error:
            raise WireError(f"key file names role {role!r}, scheme {scheme!r}: {error}") from error

    def require(self, scheme: str, params_hash: bytes, expected_id: bytes | None = None) -> None:
        """Check that the bundle belongs to a secure sum.

        Raises:
            KeyMismatch: another scheme, other parameters, or another key than `expected_id`.
        """
        if self.scheme != scheme:
            raise KeyMismatch(f"key of scheme '{self.scheme}': this run uses '{scheme}'; make keys for it")
        if self.params_hash != params_hash:
            raise KeyMismatch(
                f"key made for parameters {self.params_hash.hex()[:8]}: this run uses {params_hash.hex()[:8]}; "
                "make the keys anew with this run's config"
            )
        if expected_id is not None and self.key_id != expected_id:
            raise KeyMismatch(
                f"key {self.key_id.hex()}: this run uses {expected_id.hex()}; distribute one key set to all roles"
            )


class KeyedSum(SecureSum):
    """A secure sum with keys. The description carries the key's id, never the key.

    ``sum_.with_key(bundle.key_id)`` gives the description that a run's adders, sealers and openers are made from.
    """

    key_id: bytes | None = None

    @property
    @abstractmethod
    def params_hash(self) -> bytes:
        """16 bytes that identify parameters and plan; they stand in every frame."""

    @property
    @abstractmethod
    def key_params_hash(self) -> bytes:
        """16 bytes that identify the parameters that a key depends on (a change of plan may keep the keys)."""

    @abstractmethod
    def make_keys(self) -> tuple[KeyBundle, ...]:
        """Make a fresh key set from the operating system's randomness: one bundle per role."""

    @abstractmethod
    def sealer(self, bundle: KeyBundle) -> Sealer:
        """Return a client's role.

        Raises:
            KeyMismatch: the bundle is of another scheme, key or parameters, or lacks what sealing needs.
        """

    @abstractmethod
    def opener(self, bundle: KeyBundle) -> Opener:
        """Return the role that reads a total.

        Raises:
            KeyMismatch: the bundle is of another scheme, key or parameters, or holds no secret.
        """

    @abstractmethod
    def _copy(self) -> Self:
        """Return an equal description that shares nothing mutable."""

    def with_key(self, identity: bytes) -> Self:
        """Return this description bound to a key id."""
        if len(identity) != 8 or identity == wire.NO_KEY:
            raise InputError(f"key id {identity.hex()}: must be 8 bytes, not all zero; take it from a KeyBundle")
        bound = self._copy()
        bound.key_id = identity
        return bound

    def header(self, tag: Tag) -> wire.Header:
        """Return the frame fields of a round.

        Raises:
            KeyMismatch: no key is bound; see :meth:`with_key`.
        """
        if self.key_id is None:
            raise KeyMismatch(f"no key id is bound to '{self.scheme}': call with_key(bundle.key_id) first")
        return wire.Header(scheme=self.scheme, params_hash=self.params_hash, key_id=self.key_id, tag=tag)


def without_secret(bundle: KeyBundle, role: str = SERVER) -> KeyBundle:
    """Return the bundle for another role with the secret left out."""
    return replace(bundle, role=role, secret=b"")


def key_path(root: Path, role: str, scheme: str) -> Path:
    """Return where a role's key of a scheme lies under `root`."""
    return root / role / f"{scheme}{SUFFIX}"


def save_keys(root: Path, bundles: Iterable[KeyBundle]) -> list[Path]:
    """Write a key set, one folder per role (0700), one file per bundle (0600).

    Raises:
        FileExistsError: a file is there already; keys are never overwritten.
    """
    todo = {key_path(root, bundle.role, bundle.scheme): bundle for bundle in bundles}
    for path in todo:
        if path.exists():
            raise FileExistsError(f"{path} exists: keys are never overwritten; use a new folder or remove the old keys")
    for path, bundle in todo.items():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.parent.chmod(0o700)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            os.fchmod(handle, 0o600)
            file.write(bundle.encode())
    return list(todo)


def load_key(root: Path, role: str, scheme: str) -> KeyBundle:
    """Read a role's key.

    Raises:
        FileNotFoundError: there is none.
        PermissionError: group or others may read a file that holds a secret.
        WireError: (or a subclass) the file is damaged, or is another role's or scheme's under this name.
    """
    path = key_path(root, role, scheme)
    if not path.is_file():
        raise FileNotFoundError(f"no key at {path}: make keys with `fedsim keys` and copy the '{role}' folder here")
    with path.open("rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        bundle = KeyBundle.decode(file.read())
    if bundle.secret and mode & 0o077:
        raise PermissionError(f"{path} has mode {mode:04o}: a secret key must be its owner's alone; run chmod 600")
    if (bundle.role, bundle.scheme) != (role, scheme):
        raise KeyMismatch(
            f"{path} holds the '{bundle.role}' key of '{bundle.scheme}': expected '{role}' of '{scheme}'; "
            "copy the right folder"
        )
    return bundle


def _checksum(head: bytes, public: bytes, secret: bytes) -> bytes:
    digest = hashlib.blake2b(head, digest_size=8)
    digest.update(public)
    digest.update(secret)
    return digest.digest()


__all__ = [
    "MAGIC",
    "SUFFIX",
    "VERSION",
    "KeyBundle",
    "KeyedSum",
    "committee",
    "key_id",
    "key_path",
    "load_key",
    "save_keys",
    "without_secret",
]
