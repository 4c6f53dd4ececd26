"""Protections with keys: homomorphic sums that clients open, or that a committee of clients opens together.

The description names a secure sum of :mod:`crypto` and its options, never a key. Each party finds its own key under
`keys`, one folder per role (:mod:`crypto.keys`): the server's holds public material only.
"""

import hashlib
import hmac
import importlib
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Generic, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from crypto import KeyMismatch
from crypto.base import Opener, Plan, Sealer, Tag
from crypto.keys import CLIENTS, KeyBundle, KeyedSum, committee, load_key
from strategies.protection import OpenedBy, Protection

Option = Hashable
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class KeyedProtection(Protection):
    """A keyed secure sum, as a strategy sees it.

    Attributes:
        scheme_name: its name on the command line.
        entry: ``module:callable`` that takes a :class:`~crypto.base.Plan` and the options and returns the secure sum.
        options: keyword arguments for it.
        limit: largest absolute value of a coordinate.
        opened: ``clients`` or ``committee``.
        members: size of the committee; its member m is the client of partition m.
        keys: folder of this party's keys; ``None`` where none is needed (sizing).
        role: whose keys to take for public material: ``server`` or ``clients``.
        key_id: the key's id, where it is known without any file.
        repeatable: see :class:`~strategies.protection.Protection`.
    """

    scheme_name: str
    entry: str
    options: tuple[tuple[str, Option], ...]
    limit: float
    opened: OpenedBy = "clients"
    members: int = 0
    keys: str | None = None
    role: str = CLIENTS
    key_id: bytes | None = None
    repeatable: bool = True

    @property
    def name(self) -> str:  # type: ignore[override]
        """See :class:`~strategies.protection.Protection`."""
        return self.scheme_name

    @property
    def opened_by(self) -> OpenedBy:  # type: ignore[override]
        """See :class:`~strategies.protection.Protection`."""
        return self.opened

    @property
    def bound(self) -> float:
        """See :attr:`~strategies.protection.Protection.bound`."""
        return self.limit

    def describe(self, plan: Plan) -> KeyedSum:
        """Return the secure sum before any key is bound: for sizing, and for making keys."""
        return _describe(self.entry, self.options, plan)

    def secure_sum(self, plan: Plan) -> KeyedSum:
        """See :meth:`~strategies.protection.Protection.secure_sum`; bound to this party's key id where it has keys."""
        if self.key_id is not None:
            return self.describe(plan).with_key(self.key_id)
        return self.describe(plan) if self.keys is None else _bound(self, plan)

    def secret(self, plan: Plan) -> bytes:
        """See :meth:`~strategies.protection.Protection.secret`.

        Raises:
            KeyMismatch: this party holds no secret key.
        """
        return _secret(self, plan)

    def public(self, plan: Plan) -> "KeyedProtection":
        """See :meth:`~strategies.protection.Protection.public`."""
        if self.keys is None:
            return self
        return replace(self, keys=None, key_id=_bound(self, plan).key_id)

    def sealer(self, plan: Plan) -> Sealer:
        """See :meth:`~strategies.protection.Protection.sealer`."""
        return _sealer(self, plan)

    def opener(self, plan: Plan) -> Opener:
        """See :meth:`~strategies.protection.Protection.opener`; the clients' role alone can."""
        return _opener(self, plan)

    def bundle(self, plan: Plan, role: str) -> KeyBundle:
        """Return this party's key of a role.

        Raises:
            KeyMismatch: no folder of keys was given.
            FileNotFoundError, PermissionError, WireError: see :func:`crypto.keys.load_key`.
        """
        if self.keys is None:
            raise KeyMismatch(
                f"protection '{self.name}' needs a folder of keys and none was given: make one with `fedsim keys` and "
                "name it (node config 'keys', or FEDSIM_KEYS)"
            )
        return load_key(Path(self.keys), role, self.describe(plan).scheme)

    def partial(self, total: bytes, plan: Plan, member: int, tag: Tag) -> bytes:
        """Return a committee member's partial decryption of a round's total."""
        return bytes(_partial_opener(self, plan, member).partial(total, tag))

    def fuse(self, partials: list[bytes], total: bytes, plan: Plan, tag: Tag) -> NDArray[np.float64]:
        """Return the opened sum from all members' partial decryptions, float64 of shape ``(tag.length,)``."""
        scheme: Any = self.secure_sum(plan)
        fuser = scheme.fuser(tag, total)
        for partial in partials:
            fuser.add(partial)
        vector: NDArray[np.float64] = fuser.open()
        return vector


class _Roles(Generic[P, T]):
    """Keeps what a function made from a party's keys, until the party is done with them.

    Args:
        make: takes the protection first.
        size: so many are kept; the oldest goes first.
    """

    all: ClassVar[list["_Roles[..., Any]"]] = []

    def __init__(self, make: Callable[P, T], size: int) -> None:
        self._make, self._size, self._lock = make, size, threading.Lock()
        self._kept: dict[Any, T] = {}
        _Roles.all.append(self)

    def __call__(self, *key: P.args, **named: P.kwargs) -> T:
        with self._lock:
            if key in self._kept:
                return self._kept[key]
        made = self._make(*key, **named)
        with self._lock:
            # Of two threads that made one, both get the first.
            found = self._kept.setdefault(key, made)
            while len(self._kept) > self._size:
                del self._kept[next(iter(self._kept))]
        return found

    def forget(self, keys: str) -> None:
        """Drop what was made from a folder of keys."""
        with self._lock:
            self._kept = {key: made for key, made in self._kept.items() if key[0].keys != keys}


def _roles(size: int) -> Callable[[Callable[P, T]], _Roles[P, T]]:
    return lambda make: _Roles(make, size)


def forget_keys(keys: str | None) -> None:
    """Drop all that this process made from a folder of keys: secrets, and the memory and files of libraries."""
    for each in _Roles.all:
        if keys is not None:
            each.forget(keys)


@lru_cache(maxsize=16)
def _describe(entry: str, options: tuple[tuple[str, Option], ...], plan: Plan) -> KeyedSum:
    module, _, attribute = entry.partition(":")
    scheme = getattr(importlib.import_module(module), attribute)(plan, **dict(options))
    assert isinstance(scheme, KeyedSum)
    return scheme


@_roles(8)
def _secret(protection: KeyedProtection, plan: Plan) -> bytes:
    key = protection.bundle(plan, CLIENTS).secret
    if not key:
        raise KeyMismatch(f"protection '{protection.name}': this folder has no secret key; use a client's own folder")
    return hmac.new(key, b"fedsim-clients-secret-v1", hashlib.sha256).digest()


@_roles(8)
def _bound(protection: KeyedProtection, plan: Plan) -> KeyedSum:
    return protection.describe(plan).with_key(protection.bundle(plan, protection.role).key_id)


@_roles(8)
def _sealer(protection: KeyedProtection, plan: Plan) -> Sealer:
    return _bound(protection, plan).sealer(protection.bundle(plan, CLIENTS))


@_roles(8)
def _opener(protection: KeyedProtection, plan: Plan) -> Opener:
    return _bound(protection, plan).opener(protection.bundle(plan, CLIENTS))


@_roles(16)
def _partial_opener(protection: KeyedProtection, plan: Plan, member: int) -> Any:
    scheme: Any = _bound(protection, plan)
    return scheme.partial_opener(protection.bundle(plan, committee(member)))


__all__ = ["KeyedProtection", "Option"]
