"""What sums under one key have in common, whatever makes their ciphertexts: checks, key files, the running sum."""

from abc import abstractmethod
from typing import ClassVar, Literal, Protocol

import numpy as np

from crypto import wire
from crypto.base import Adder, FloatVector, Plan, Tag
from crypto.errors import EmptySum, InputError, KeyMismatch, WireError
from crypto.keys import CLIENTS, SERVER, KeyBundle, KeyedSum, key_id
from crypto.plain import check_finite, check_vector

Mode = Literal["symmetric", "public"]


class Framed(Protocol):
    """A description that knows its frames; what adders and openers take."""

    scheme: ClassVar[str]
    plan: Plan

    def header(self, tag: Tag) -> wire.Header:
        """See :meth:`crypto.keys.KeyedSum.header`."""


def make_bundle(sum_: KeyedSum, role: str, identity: bytes, public: bytes = b"", secret: bytes = b"") -> KeyBundle:
    """Return a role's key file."""
    return KeyBundle(
        role=role,
        scheme=sum_.scheme,
        params_hash=sum_.key_params_hash,
        key_id=identity,
        public=public,
        secret=secret,
    )


def one_key(sum_: KeyedSum, mode: Mode, public: bytes, secret: bytes) -> tuple[KeyBundle, KeyBundle]:
    """Return the key files of one key: the server's (nothing but the id) and the clients'.

    In public mode :func:`crypto.keys.without_secret` of the clients' bundle is enough to seal.
    """
    identity = key_id(sum_.scheme, sum_.key_params_hash, public)
    kept = public if mode == "public" else b""
    return make_bundle(sum_, SERVER, identity), make_bundle(sum_, CLIENTS, identity, kept, secret)


def check_sealing(bundle: KeyBundle, mode: Mode) -> None:
    """Raise :class:`~crypto.errors.KeyMismatch` if a bundle lacks the key that sealing in a mode needs."""
    wanted = "secret" if mode == "symmetric" else "public"
    if not (bundle.secret if wanted == "secret" else bundle.public):
        raise KeyMismatch(
            f"the '{bundle.role}' bundle has no {wanted} key: sealing in {mode} mode needs it; use the clients' bundle"
        )


def check_opening(bundle: KeyBundle) -> None:
    """Raise :class:`~crypto.errors.KeyMismatch` if a bundle holds no secret."""
    if not bundle.secret:
        raise KeyMismatch(f"the '{bundle.role}' bundle has no secret key: only the clients' bundle opens sums")


def check_values(vector: FloatVector, tag: Tag, plan: Plan) -> None:
    """Raise :class:`~crypto.errors.InputError` unless a vector may be sealed for a round: floats, length, finite."""
    check_vector(vector, tag)
    check_length(tag, plan)
    if not np.isfinite(vector.sum(dtype=np.float64)):
        check_finite(vector)


def check_length(tag: Tag, plan: Plan) -> None:
    """Raise :class:`~crypto.errors.InputError` if a round is longer than the plan."""
    if tag.length > plan.length:
        raise InputError(f"round of {tag.length} coordinates: the plan declares at most {plan.length}; declare more")


def check_count(count: int, plan: Plan) -> None:
    """Raise :class:`~crypto.errors.WireError` if more vectors are summed than the plan allows."""
    if count > plan.clients:
        raise WireError(f"{count} vectors: the plan declares {plan.clients} clients, more could wrap; declare more")


def only_total(sum_: Framed, totals: list[bytes], tag: Tag, body_bytes: int | None = None) -> wire.Frame:
    """Return the frame of the one total that a sum with one aggregator has.

    Args:
        sum_: the description, bound to its key.
        totals: what an opener was given.
        tag: the round's.
        body_bytes: the body's length, where the scheme fixes it.

    Raises:
        InputError: the round is longer than the plan.
        WireError: (or a subclass) another number of totals, or one of another scheme, key, round, layout or plan.
    """
    if len(totals) != 1:
        raise WireError(f"{len(totals)} totals: '{sum_.scheme}' has one aggregator; give its total alone")
    check_length(tag, sum_.plan)
    frame = wire.decode(totals[0], sum_.header(tag), wire.TOTAL, body_bytes)
    check_count(frame.count, sum_.plan)
    return frame


class RunningSum(Adder):
    """An adder that takes parts and totals: counts, checks the plan, frames. Holds no key."""

    def __init__(self, sum_: Framed, tag: Tag) -> None:
        check_length(tag, sum_.plan)
        self._plan, self._header = sum_.plan, sum_.header(tag)
        self._count = 0

    @property
    def count(self) -> int:
        """See :attr:`crypto.base.Adder.count`."""
        return self._count

    def add(self, part: bytes) -> None:
        """See :meth:`crypto.base.Adder.add`."""
        self._accumulate(part, wire.PART)

    def merge(self, total: bytes) -> None:
        """See :meth:`crypto.base.Adder.merge`."""
        self._accumulate(total, wire.TOTAL)

    def _accumulate(self, data: bytes, kind: int) -> None:
        frame = wire.decode(data, self._header, kind, self._body_bytes(kind))
        check_count(self._count + frame.count, self._plan)
        self._take(frame.body, kind)
        self._count += frame.count

    def total(self) -> bytes:
        """See :meth:`crypto.base.Adder.total`."""
        if not self._count:
            raise EmptySum("the sum of no vectors was asked for: at least one client must deliver")
        return wire.encode(self._header, wire.TOTAL, self._count, self._body())

    def _body_bytes(self, kind: int) -> int | None:
        """Return the length that a body must have, where the scheme fixes it."""
        return None

    @abstractmethod
    def _take(self, body: memoryview, kind: int) -> None:
        """Add a body to the sum, or raise :class:`~crypto.errors.WireError` and leave it unchanged."""

    @abstractmethod
    def _body(self) -> bytes | bytearray:
        """Return the sum as it travels; at least one vector is in it."""
