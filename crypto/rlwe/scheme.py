"""``rlwe``: exact fixed-point sums under one key that the clients share. Not audited.

Parts are seeded in *symmetric* mode: a 16-byte seed stands for the uniform half of all ciphertexts of a vector, each of
which has a stream of its own. The adder expands it on arrival, so that its memory is one total. *Public* mode costs
twice the bytes; who only seals then needs no secret. Parameters, failure and security: :mod:`crypto.rlwe.parameters`.

What is constant-time: samplers, transforms, rounding and packing are written without a branch or an address that
depends on a secret or a value (docs/rlwe.md says what that rests on); expanding the public half need not be.
"""

import os
from copy import copy
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from crypto import wire
from crypto._one_key import Mode, RunningSum, check_opening, check_sealing, check_values, one_key, only_total
from crypto.base import Budget, FloatVector, Opener, Plan, Sealer, Tag
from crypto.bfv import VALUE_BITS, codec
from crypto.errors import IntegrityError
from crypto.fixed_point import FixedPoint, report_clipped
from crypto.keys import KeyBundle, KeyedSum
from crypto.prg import RLWE, stream_key
from crypto.rlwe import parameters as rlwe
from crypto.rlwe.engine import (
    PublicEncryptor,
    Seeds,
    SymmetricEncryptor,
    Words,
    checked_plane,
    empty_words,
    native_ring,
    not_canonical,
    packed,
    public_key,
    secret_multiplier,
)
from crypto.rlwe.parameters import SEED_BYTES, RlweParameters


class AdditiveRlwe(KeyedSum):
    """What the sums on this ring share: fixed point, sizes, adding."""

    mode: Mode
    codec: FixedPoint
    parameters: RlweParameters

    @cached_property
    def params_hash(self) -> bytes:
        """See :attr:`crypto.keys.KeyedSum.params_hash`."""
        return wire.params_hash(self.scheme, self.parameters, self.codec, self.plan)

    @cached_property
    def key_params_hash(self) -> bytes:
        """See :attr:`crypto.keys.KeyedSum.key_params_hash`."""
        return wire.params_hash(self.scheme, "key", self.parameters)

    @cached_property
    def budget(self) -> Budget:
        """Bytes are exact; the error bound holds for values that were not clipped."""
        return rlwe.budget(self.parameters, self.codec, self.plan)

    @property
    def slots(self) -> int:
        """See :attr:`crypto.base.SecureSum.slots`.

        The largest ring's, whatever ring the plan has: a strategy pads its vectors before the number of clients, on
        which the ring depends, is known.
        """
        return rlwe.COMMITTEE_RINGS[-1] if self.opened_by == "committee" else rlwe.RINGS[-1]

    def ciphertexts(self, length: int) -> int:
        """Return how many ciphertexts hold `length` values."""
        return self.parameters.ciphertexts(length)

    def sealer(self, bundle: KeyBundle) -> "RlweSealer":
        """See :meth:`crypto.keys.KeyedSum.sealer`."""
        bundle.require(self.scheme, self.key_params_hash, self.key_id)
        return RlweSealer(self.with_key(bundle.key_id), bundle)

    def adder(self, tag: Tag) -> "RlweAdder":
        """See :meth:`crypto.base.SecureSum.adder`; needs a key id, never a key."""
        return RlweAdder(self, tag)

    def check_opened(self, value: int, noise: float, count: int) -> None:
        """Check the largest integer and noise of an opened sum of `count` vectors.

        Raises:
            IntegrityError: one is larger than those of honest vectors.
        """
        most_value, most_noise = count * self.codec.max_value, self.parameters.noise_bound(count)
        if value > most_value or noise > most_noise:
            raise IntegrityError(
                f"opened integer {value} with noise {noise:.0f}: sums of {count} clients stay within {most_value} and "
                f"{most_noise:.0f}; a client sent a ciphertext of another making, leave it out"
            )

    def _copy(self) -> Self:
        return copy(self)


class RlweSum(AdditiveRlwe):
    """Exact fixed-point sums; see :mod:`crypto.rlwe.parameters`.

    Args:
        plan: length, clients, bound; values beyond the bound are clipped and counted.
        value_bits: bits of one value, sign included; the step is about ``bound / 2^(value_bits - 1)``, a power of 2.
        mode: ``symmetric`` (seeded, half the bytes; sealing needs the secret key) or ``public``.
        stochastic: unbiased rounding, error at most one step a client; else to nearest, at most half a step.
        ring: force a ring; by default the smallest that carries the plan.

    Raises:
        BudgetExceeded: the plan does not fit at 128 bits of security.
    """

    scheme = "rlwe"
    opened_by = "clients"

    def __init__(
        self,
        plan: Plan,
        *,
        value_bits: int = VALUE_BITS,
        mode: Mode = "symmetric",
        stochastic: bool = True,
        ring: int | None = None,
    ) -> None:
        self.plan = plan
        self.mode = mode
        self.codec = codec(plan, value_bits, stochastic)
        self.parameters = rlwe.fit(plan, self.codec, mode, ring)

    def make_keys(self) -> tuple[KeyBundle, KeyBundle]:
        """Make a fresh key: the server's bundle and the clients'; see :func:`crypto._one_key.one_key`."""
        return self.keys_from(os.urandom(SEED_BYTES), os.urandom(SEED_BYTES))

    def keys_from(self, public_seed: bytes, secret_seed: bytes) -> tuple[KeyBundle, KeyBundle]:
        """Return the key of two seeds; the deterministic core of :meth:`make_keys`."""
        public = public_seed + public_key(self.parameters, public_seed, secret_seed)
        return one_key(self, self.mode, public, secret_seed)

    def opener(self, bundle: KeyBundle) -> "RlweOpener":
        """See :meth:`crypto.keys.KeyedSum.opener`."""
        bundle.require(self.scheme, self.key_params_hash, self.key_id)
        return RlweOpener(self.with_key(bundle.key_id), bundle)


class RlweSealer(Sealer):
    """Encodes, encrypts and packs a whole vector in one native call."""

    def __init__(self, sum_: AdditiveRlwe, bundle: KeyBundle) -> None:
        check_sealing(bundle, sum_.mode)
        self._made_from = (sum_, bundle)
        self._sum = sum_
        self._encryptor: SymmetricEncryptor | PublicEncryptor
        if sum_.mode == "symmetric":
            self._encryptor = SymmetricEncryptor(sum_.parameters, bundle.secret)
        else:
            self._encryptor = PublicEncryptor(sum_.parameters, bundle.public)
        self._clipped = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return RlweSealer, self._made_from

    @property
    def clipped(self) -> int:
        """See :attr:`crypto.base.Sealer.clipped`."""
        return self._clipped

    def seal(self, vector: FloatVector, tag: Tag) -> list[bytes]:
        """See :meth:`crypto.base.Sealer.seal`."""
        return [self.seal_with(vector, tag, Seeds(os.urandom(SEED_BYTES), os.urandom(SEED_BYTES)))]

    def seal_with(self, vector: FloatVector, tag: Tag, seeds: Seeds, isa: str = "") -> bytes:
        """Return the part that given seeds make; the deterministic core of :meth:`seal`, for tests."""
        check_values(vector, tag, self._sum.plan)
        narrow = vector.dtype == np.float32
        values: Any = np.ascontiguousarray(vector, np.float32 if narrow else np.float64)
        body, self._clipped = self._encryptor.encrypt(values, self._sum.codec, seeds, isa)
        report_clipped(self._clipped, vector.size, self._sum.plan.bound)
        return wire.encode(self._sum.header(tag), wire.PART, 1, body)


class RlweAdder(RunningSum):
    """Running sum of both halves of the ciphertexts, unpacked. Holds parameters and a key id, nothing that decrypts."""

    def __init__(self, sum_: AdditiveRlwe, tag: Tag) -> None:
        super().__init__(sum_, tag)
        self._parameters, self._length = sum_.parameters, tag.length
        self._planes: tuple[Words, Words] | None = None

    def _body_bytes(self, kind: int) -> int:
        sizes = self._parameters.part_bytes if kind == wire.PART else self._parameters.total_bytes
        return sizes(self._length)

    def _take(self, body: memoryview, kind: int) -> None:
        ring = native_ring(self._parameters)
        if kind == wire.PART and self._parameters.mode == "symmetric":
            first, second = self._running()
            if not ring.add_plane(np.frombuffer(body[SEED_BYTES:], np.uint8), first):
                raise not_canonical()
            ring.add_uniform(stream_key(bytes(body[:SEED_BYTES]), RLWE), second)
            return
        planes = split_planes(self._parameters, body)
        for plane, running in zip(planes, self._running(), strict=True):
            ring.add_plane(plane, running)

    def _running(self) -> tuple[Words, Words]:
        if self._planes is None:
            count = self._parameters.ciphertexts(self._length)
            self._planes = empty_words(self._parameters, count), empty_words(self._parameters, count)
        return self._planes

    def _body(self) -> bytes:
        return b"".join(packed(self._parameters, words) for words in self._running())


class RlweOpener(Opener):
    """Decrypts a total with the clients' secret key."""

    def __init__(self, sum_: RlweSum, bundle: KeyBundle) -> None:
        check_opening(bundle)
        self._made_from = (sum_, bundle)
        self._sum = sum_
        self._secret = secret_multiplier(sum_.parameters, bundle.secret)

    def __reduce__(self) -> tuple[Any, ...]:
        return RlweOpener, self._made_from

    def open(self, totals: list[bytes], tag: Tag) -> NDArray[np.float64]:
        """See :meth:`crypto.base.Opener.open`.

        Raises:
            IntegrityError: what was decrypted cannot be a sum of the plan's clients.
        """
        p = self._sum.parameters
        frame = only_total(self._sum, totals, tag, p.total_bytes(tag.length))
        planes, out = np.frombuffer(frame.body, np.uint8), np.empty(tag.length)
        half = planes.size // 2
        found = native_ring(p).open(planes[:half], planes[half:], self._secret, self._sum.codec.step, out)
        if found is None:
            raise not_canonical()
        self._sum.check_opened(*found, frame.count)
        return out


def split_planes(parameters: RlweParameters, body: memoryview) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return both planes of a body, checked.

    Raises:
        WireError: a residue is not canonical.
    """
    half = body.nbytes // 2
    return checked_plane(parameters, body[:half]), checked_plane(parameters, body[half:])


__all__ = ["AdditiveRlwe", "RlweAdder", "RlweOpener", "RlweSealer", "RlweSum", "split_planes"]
