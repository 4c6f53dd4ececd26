"""Roles of a secure sum whose vectors are cut into ciphertexts, for any engine that makes, adds and opens these.

An engine belongs to one process; descriptions, bundles, sealers and openers may be pickled (the latter two carry their
bundle and rebuild the engine).
"""

from abc import abstractmethod
from collections.abc import Iterator
from copy import copy
from typing import Any, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from crypto import wire
from crypto._chunks import Lengths, join, split
from crypto.base import Adder, FloatVector, Opener, Plan, Sealer, Tag
from crypto.errors import EmptySum, InputError, KeyMismatch, WireError
from crypto.keys import CLIENTS, SERVER, KeyBundle, KeyedSum, key_id
from crypto.plain import check_finite, check_vector

Mode = Literal["symmetric", "public"]


class Engine(Protocol):
    """A library's objects for one parameter set; ciphertexts are its own objects or bytes."""

    def make_keys(self) -> tuple[bytes, bytes]:
        """Return a fresh secret key and its public key."""

    def encryptor(self, bundle: KeyBundle) -> Any:
        """Return what :meth:`encrypt` needs."""

    def decryptor(self, bundle: KeyBundle) -> Any:
        """Return what :meth:`decrypt` needs."""

    def encrypt(self, encryptor: Any, values: NDArray[Any]) -> bytes:
        """Return one fresh ciphertext of at most as many values as there are slots; other slots are zero."""

    def decrypt(self, decryptor: Any, ciphertext: Any, count: int) -> NDArray[Any]:
        """Return the values in all slots of a sum of `count` vectors."""

    def load(self, data: memoryview) -> Any:
        """Read a ciphertext and check its form, or raise :class:`~crypto.errors.WireError`."""

    def save(self, ciphertext: Any) -> bytes:
        """Return a ciphertext's bytes."""

    def add(self, total: list[Any], more: list[Any]) -> None:
        """Add ciphertexts in place."""


class SealedSum(KeyedSum):
    """A one-key sum over ciphertexts: clients seal and open, the server adds."""

    opened_by = "clients"
    mode: Mode

    @property
    @abstractmethod
    def slots(self) -> int:
        """Values per ciphertext."""

    @abstractmethod
    def engine(self) -> Engine:
        """Return a fresh engine, or raise :class:`~crypto.errors.BackendUnavailable`."""

    @abstractmethod
    def lengths(self, kind: int) -> Lengths:
        """Return the allowed bytes of one ciphertext of a part or of a total."""

    @abstractmethod
    def encode(self, chunk: NDArray[np.floating]) -> tuple[NDArray[Any], int]:
        """Return finite values as the engine takes them, and how many were clipped."""

    @abstractmethod
    def decode(self, values: NDArray[Any], count: int) -> NDArray[np.float64]:
        """Return what the engine gave for a total of `count` vectors as floats."""

    @abstractmethod
    def check_bound(self, vector: FloatVector) -> None:
        """Raise :class:`~crypto.errors.InputError` where the scheme refuses values beyond the bound."""

    @abstractmethod
    def report_clipped(self, clipped: int, size: int) -> None:
        """Warn if too many values were clipped."""

    def ciphertexts(self, length: int) -> int:
        """Return how many ciphertexts hold `length` values."""
        return -(-length // self.slots)

    def make_keys(self) -> tuple[KeyBundle, KeyBundle]:
        """Make a fresh key: the server's bundle (nothing but the id) and the clients'.

        In public mode :func:`crypto.keys.without_secret` of the clients' bundle is enough to seal.
        """
        secret, public = self.engine().make_keys()
        identity = key_id(self.scheme, self.key_params_hash, public)
        kept = public if self.mode == "public" else b""
        return self._bundle(SERVER, identity, b"", b""), self._bundle(CLIENTS, identity, kept, secret)

    def _bundle(self, role: str, identity: bytes, public: bytes, secret: bytes) -> KeyBundle:
        return KeyBundle(
            role=role,
            scheme=self.scheme,
            params_hash=self.key_params_hash,
            key_id=identity,
            public=public,
            secret=secret,
        )

    def sealer(self, bundle: KeyBundle) -> "SealedSealer":
        """See :meth:`crypto.keys.KeyedSum.sealer`."""
        bundle.require(self.scheme, self.key_params_hash, self.key_id)
        return SealedSealer(self.with_key(bundle.key_id), bundle)

    def opener(self, bundle: KeyBundle) -> "SealedOpener":
        """See :meth:`crypto.keys.KeyedSum.opener`."""
        bundle.require(self.scheme, self.key_params_hash, self.key_id)
        return SealedOpener(self.with_key(bundle.key_id), bundle)

    def adder(self, tag: Tag) -> "SealedAdder":
        """See :meth:`crypto.base.SecureSum.adder`; needs a key id, never a key."""
        return SealedAdder(self, tag)

    def _copy(self) -> Self:
        return copy(self)


class SealedSealer(Sealer):
    """Encrypts one ciphertext at a time, so that memory stays near the payload."""

    def __init__(self, sum_: SealedSum, bundle: KeyBundle) -> None:
        wanted = "secret" if sum_.mode == "symmetric" else "public"
        if not (bundle.secret if wanted == "secret" else bundle.public):
            raise KeyMismatch(
                f"the '{bundle.role}' bundle has no {wanted} key: sealing in {sum_.mode} mode needs it; use the "
                "clients' bundle"
            )
        self._made_from = (sum_, bundle)
        self._sum = sum_
        self._engine = sum_.engine()
        self._encryptor = self._engine.encryptor(bundle)
        self._clipped = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return SealedSealer, self._made_from

    @property
    def clipped(self) -> int:
        """See :attr:`crypto.base.Sealer.clipped`."""
        return self._clipped

    def seal(self, vector: FloatVector, tag: Tag) -> list[bytes]:
        """See :meth:`crypto.base.Sealer.seal`."""
        check_vector(vector, tag)
        check_length(tag, self._sum.plan)
        if not np.isfinite(vector.sum(dtype=np.float64)):
            check_finite(vector)
        self._sum.check_bound(vector)
        header = self._sum.header(tag)
        self._clipped = 0
        body = join(self._ciphertexts(vector))
        self._sum.report_clipped(self._clipped, vector.size)
        return [wire.encode(header, wire.PART, 1, body)]

    def _ciphertexts(self, vector: FloatVector) -> Iterator[bytes]:
        for at in range(0, vector.size, self._sum.slots):
            values, clipped = self._sum.encode(vector[at : at + self._sum.slots])
            self._clipped += clipped
            yield self._engine.encrypt(self._encryptor, values)


class SealedAdder(Adder):
    """Running ciphertext sum. Holds parameters and a key id: there is nothing here that could decrypt."""

    def __init__(self, sum_: SealedSum, tag: Tag) -> None:
        check_length(tag, sum_.plan)
        self._header = sum_.header(tag)
        self._sum = sum_
        self._ciphertexts = sum_.ciphertexts(tag.length)
        self._engine = sum_.engine()
        self._total: list[Any] = []
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
        frame = wire.decode(data, self._header, kind)
        check_count(self._count + frame.count, self._sum.plan)
        # All are loaded and checked before the first is added, so that a bad one leaves the sum unchanged.
        chunks = split(frame.body, self._ciphertexts, self._sum.lengths(kind))
        loaded = [self._engine.load(chunk) for chunk in chunks]
        if self._total:
            self._engine.add(self._total, loaded)
        else:
            self._total = loaded
        self._count += frame.count

    def total(self) -> bytes:
        """See :meth:`crypto.base.Adder.total`."""
        if not self._total:
            raise EmptySum("the sum of no vectors was asked for: at least one client must deliver")
        return wire.encode(self._header, wire.TOTAL, self._count, join(self._engine.save(c) for c in self._total))


class SealedOpener(Opener):
    """Decrypts a total with the clients' secret key."""

    def __init__(self, sum_: SealedSum, bundle: KeyBundle) -> None:
        if not bundle.secret:
            raise KeyMismatch(f"the '{bundle.role}' bundle has no secret key: only the clients' bundle opens sums")
        self._made_from = (sum_, bundle)
        self._sum = sum_
        self._engine = sum_.engine()
        self._decryptor = self._engine.decryptor(bundle)

    def __reduce__(self) -> tuple[Any, ...]:
        return SealedOpener, self._made_from

    def open(self, totals: list[bytes], tag: Tag) -> NDArray[np.float64]:
        """See :meth:`crypto.base.Opener.open`.

        Raises:
            IntegrityError: what was decrypted cannot be a sum of the plan's clients: some client sent a ciphertext of
                another making.
        """
        if len(totals) != 1:
            raise WireError(f"{len(totals)} totals: '{self._sum.scheme}' has one aggregator; give its total alone")
        check_length(tag, self._sum.plan)
        frame = wire.decode(totals[0], self._sum.header(tag), wire.TOTAL)
        check_count(frame.count, self._sum.plan)
        slots = self._sum.slots
        out = np.empty(tag.length)
        chunks = split(frame.body, self._sum.ciphertexts(tag.length), self._sum.lengths(wire.TOTAL))
        for at, chunk in zip(range(0, tag.length, slots), chunks, strict=True):
            part = out[at : at + slots]
            values = self._engine.decrypt(self._decryptor, self._engine.load(chunk), frame.count)
            part[:] = self._sum.decode(values[: part.size], frame.count)
        return out


def check_length(tag: Tag, plan: Plan) -> None:
    """Raise :class:`~crypto.errors.InputError` if a round is longer than the plan."""
    if tag.length > plan.length:
        raise InputError(f"round of {tag.length} coordinates: the plan declares at most {plan.length}; declare more")


def check_count(count: int, plan: Plan) -> None:
    """Raise :class:`~crypto.errors.WireError` if more vectors are summed than the plan allows."""
    if count > plan.clients:
        raise WireError(f"{count} vectors: the plan declares {plan.clients} clients, more could wrap; declare more")
