"""Roles of a secure sum whose vectors are cut into ciphertexts, for any engine that makes, adds and opens these.

An engine belongs to one process; descriptions, bundles, sealers and openers may be pickled (the latter two carry their
bundle and rebuild the engine).
"""

from abc import abstractmethod
from collections.abc import Iterator
from copy import copy
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from crypto import wire
from crypto._chunks import Lengths, join, split
from crypto._one_key import Mode, RunningSum, check_opening, check_sealing, check_values, one_key, only_total
from crypto.base import FloatVector, Opener, Sealer, Tag
from crypto.keys import KeyBundle, KeyedSum


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
        """Make a fresh key: the server's bundle and the clients'; see :func:`crypto._one_key.one_key`."""
        secret, public = self.engine().make_keys()
        return one_key(self, self.mode, public, secret)

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
        check_sealing(bundle, sum_.mode)
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
        check_values(vector, tag, self._sum.plan)
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


class SealedAdder(RunningSum):
    """Running ciphertext sum. Holds parameters and a key id: there is nothing here that could decrypt."""

    def __init__(self, sum_: SealedSum, tag: Tag) -> None:
        super().__init__(sum_, tag)
        self._sum = sum_
        self._ciphertexts = sum_.ciphertexts(tag.length)
        self._engine = sum_.engine()
        self._total: list[Any] = []

    def _take(self, body: memoryview, kind: int) -> None:
        # All are loaded and checked before the first is added, so that a bad one leaves the sum unchanged.
        loaded = [self._engine.load(chunk) for chunk in split(body, self._ciphertexts, self._sum.lengths(kind))]
        if self._total:
            self._engine.add(self._total, loaded)
        else:
            self._total = loaded

    def _body(self) -> bytearray:
        return join(self._engine.save(ciphertext) for ciphertext in self._total)


class SealedOpener(Opener):
    """Decrypts a total with the clients' secret key."""

    def __init__(self, sum_: SealedSum, bundle: KeyBundle) -> None:
        check_opening(bundle)
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
        frame = only_total(self._sum, totals, tag)
        slots = self._sum.slots
        out = np.empty(tag.length)
        chunks = split(frame.body, self._sum.ciphertexts(tag.length), self._sum.lengths(wire.TOTAL))
        for at, chunk in zip(range(0, tag.length, slots), chunks, strict=True):
            part = out[at : at + slots]
            values = self._engine.decrypt(self._decryptor, self._engine.load(chunk), frame.count)
            part[:] = self._sum.decode(values[: part.size], frame.count)
        return out
