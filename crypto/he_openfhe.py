"""Homomorphic sums on OpenFHE with one key: approximate reals (CKKS) and exact integers (BGV).

============ ========================= ============================================================================
name         frames, key files         what
============ ========================= ============================================================================
openfhe-ckks ``ofhe-ckks``             CKKS, N=4096, a 60-bit prime: about 30 B a parameter
openfhe-bgv  ``ofhe-bgv``              BGV, N=2048, a 54-bit prime, 31-bit fixed point: about 13.5 B a parameter, exact
============ ========================= ============================================================================

Clients hold one common key pair and open the sum themselves; the aggregator sees ciphertexts and holds parameters only,
it adds residues and needs no library. With one shared secret key this protects against the server, not against a client
that colludes with it; where no single party may be able to decrypt see :mod:`crypto.he_openfhe_threshold`.

CKKS sums open with noise that tells about the key: see "Release" in :mod:`crypto.ckks`; BGV sums do not.

Only what :mod:`crypto._openfhe.residues` has unpacked and checked reaches the library. The library runs in a worker
process (:mod:`crypto._openfhe.bridge`) under an interpreter that can load it.
"""

import logging
from abc import abstractmethod
from collections.abc import Iterator
from copy import copy
from functools import cached_property
from math import floor, log2, sqrt
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from crypto import ckks, wire
from crypto._one_key import RunningSum, check_opening, check_sealing, check_values, make_bundle, only_total
from crypto._openfhe import bridge
from crypto._openfhe.params import FLOODING_STD, Ring, bgv_margin_bits, fresh_std
from crypto._openfhe.residues import Residues, add_into, pack, unpack
from crypto.base import Budget, FloatVector, Opener, Plan, Sealer, Tag
from crypto.errors import BudgetExceeded, InputError, IntegrityError, KeyMismatch
from crypto.fixed_point import FixedPoint
from crypto.keys import CLIENTS, SERVER, KeyBundle, KeyedSum, key_id, without_secret
from crypto.lattice import fresh_noise_std

logger = logging.getLogger(__name__)

#: Ciphertexts per call of the library: bounds memory, a call's duration and what a crash can cost.
BATCH = 64
#: A key generation whose worker is estimated above this is refused.
MEMORY_LIMIT_BYTES = 2 << 30
#: OpenFHE adds noise of sqrt(2) times the measured one when it decodes CKKS, so variances count three times.
_DECODE_VARIANCE = 3


class OpenFheSum(KeyedSum):
    """What all sums on OpenFHE share: a plan, a ring, and a bridge to the library.

    Args:
        plan: what the federation will ask.
        ring: the context; by default the scheme's lean one for the plan.
        symmetric: seal under the secret key, which the clients hold anyway: less noise, less work, same bytes.
        python: interpreter of the worker, see :class:`crypto._openfhe.bridge.Bridge`.
        timeout_s: deadline of one call of the library.

    Raises:
        BudgetExceeded: the plan does not fit the ring.
    """

    opened_by = "clients"
    #: Parties that hold shares of the key.
    parties: int = 1
    kind: ClassVar[str]

    def __init__(
        self,
        plan: Plan,
        ring: Ring | None = None,
        *,
        symmetric: bool = False,
        python: str | None = None,
        timeout_s: float = bridge.DEFAULT_TIMEOUT_S,
    ) -> None:
        self.plan = plan
        self.ring = ring or self._default_ring()
        self.symmetric = symmetric
        self._python, self._timeout_s = python, timeout_s
        if self.ring.kind != self.kind:
            raise InputError(f"a {self.ring.kind} ring for '{self.scheme}': must be {self.kind}")
        self._prove()

    @abstractmethod
    def _default_ring(self) -> Ring: ...

    @abstractmethod
    def _prove(self) -> None:
        """Raise :class:`~crypto.errors.BudgetExceeded` unless sums within the plan open right."""

    @abstractmethod
    def _bounds(self) -> tuple[float, float]:
        """Return error bound and headroom bits."""

    @abstractmethod
    def _encode(self, values: FloatVector) -> tuple[NDArray[Any], int]:
        """Return what the library seals (int64 or float64, as long as `values`) and the number of clipped values."""

    @abstractmethod
    def _decode(self, opened: NDArray[Any], count: int) -> NDArray[np.float64]:
        """Return the values of what the library opened for a sum of `count` vectors."""

    @abstractmethod
    def _largest(self, count: int) -> float:
        """Return the largest absolute value that the library may open for a sum of `count` vectors."""

    def body_bytes(self, length: int, polynomials: int = 2) -> int:
        """Return the bytes of all packed ciphertexts (or partial decryptions: 1 polynomial) of a vector."""
        return self.ring.ciphertexts(length) * self.ring.bytes_of(polynomials)

    @cached_property
    def budget(self) -> Budget:
        """See :class:`crypto.base.Budget`; an aggregator holds the running total and one unpacked part."""
        error_bound, headroom_bits = self._bounds()
        body = self.body_bytes(self.plan.length)
        unpacked = self.ring.ciphertexts(self.plan.length) * 16 * len(self.ring.moduli) * self.ring.ring
        return Budget(
            upload_bytes=wire.HEADER_BYTES + body,
            download_bytes=wire.HEADER_BYTES + body,
            error_bound=error_bound,
            headroom_bits=headroom_bits,
            security_bits=self.ring.security_bits,
            memory_bytes=3 * unpacked + 2 * body,
        )

    @cached_property
    def params_hash(self) -> bytes:
        """See :attr:`crypto.keys.KeyedSum.params_hash`."""
        return wire.params_hash(self.scheme, self.ring, self.parties, self.plan)

    @property
    def slots(self) -> int:
        """See :attr:`crypto.base.SecureSum.slots`."""
        return self.ring.slots

    @cached_property
    def key_params_hash(self) -> bytes:
        """See :attr:`crypto.keys.KeyedSum.key_params_hash`; a key outlives a change of plan on the same ring."""
        return wire.params_hash(self.scheme, self.ring.spec(), self.parties)

    def _copy(self) -> Self:
        return copy(self)

    def call(self, op: str, *buffers: Any, **more: object) -> list[Any]:
        """Run one operation of the library in this description's context."""
        return bridge.shared(self._python, self._timeout_s).call(op, self.ring.spec(), buffers, **more)

    def check_memory(self, limit_bytes: int = MEMORY_LIMIT_BYTES) -> None:
        """Estimate, log and check what key generation needs, before anything is allocated.

        Raises:
            BudgetExceeded: the estimate is above the limit.
        """
        need = self.ring.worker_memory_bytes
        logger.info("OpenFHE at ring %d with %d primes: about %d MB", self.ring.ring, len(self.ring.moduli), need >> 20)
        if need > limit_bytes:
            raise BudgetExceeded(
                f"ring {self.ring.ring} with {len(self.ring.moduli)} primes needs about {need} bytes for keys: "
                f"the limit is {limit_bytes}; use a smaller ring or raise the limit"
            )

    def make_keys(self, memory_limit_bytes: int = MEMORY_LIMIT_BYTES) -> tuple[KeyBundle, ...]:
        """See :meth:`crypto.keys.KeyedSum.make_keys`: one bundle for the clients, one for the server."""
        self.check_memory(memory_limit_bytes)
        public, secret = (self.pack(part) for part in self.call("keygen"))
        identity = key_id(self.scheme, self.key_params_hash, public)
        clients = make_bundle(self, CLIENTS, identity, public, secret)
        return without_secret(clients, SERVER), clients

    def sealer(self, bundle: KeyBundle) -> "OpenFheSealer":
        """See :meth:`crypto.keys.KeyedSum.sealer`."""
        bundle.require(self.scheme, self.key_params_hash, self.key_id)
        check_sealing(bundle, "symmetric" if self.symmetric else "public")
        key = self.unpack_key(bundle.secret, 1) if self.symmetric else self.unpack_key(bundle.public, 2)
        return OpenFheSealer(self.with_key(bundle.key_id), key)

    def opener(self, bundle: KeyBundle) -> Opener:
        """See :meth:`crypto.keys.KeyedSum.opener`."""
        bundle.require(self.scheme, self.key_params_hash, self.key_id)
        check_opening(bundle)
        return OpenFheOpener(self.with_key(bundle.key_id), self.unpack_key(bundle.secret, 1))

    def adder(self, tag: Tag) -> "OpenFheAdder":
        """See :meth:`crypto.base.SecureSum.adder`; needs parameters and a key id, no key and no library."""
        return OpenFheAdder(self, tag)

    def pack(self, residues: Any) -> bytes:
        """Return residues (an array or a buffer of uint64) as they travel."""
        flat = np.frombuffer(memoryview(residues).cast("B"), "<u8")
        return pack(flat, self.ring.residue_bits).tobytes()

    def unpack(self, body: memoryview, polynomials: int) -> Residues:
        """Return packed residues, shape ``(objects, polynomials, limbs, ring)``; see :func:`~residues.unpack`."""
        shape = (-1, *self.ring.shape(polynomials))
        return unpack(body, self.ring.residue_bits, self.ring.moduli_array, shape)

    def unpack_key(self, key: bytes, polynomials: int) -> Residues:
        """Return a key's residues.

        Raises:
            KeyMismatch: the length is not that of a key on this ring.
        """
        if len(key) != self.ring.bytes_of(polynomials):
            raise KeyMismatch(f"key of {len(key)} bytes: must be {self.ring.bytes_of(polynomials)} on this ring")
        return self.unpack(memoryview(key), polynomials)

    def batches(self, residues: Residues) -> Iterator[Residues]:
        """Yield runs of at most :data:`BATCH` objects."""
        for at in range(0, len(residues), BATCH):
            yield residues[at : at + BATCH]

    def values(self, opened: list[Any], length: int, count: int) -> NDArray[np.float64]:
        """Return the first `length` values of what the library opened, batch by batch, for a sum of `count` vectors.

        Raises:
            IntegrityError: a value is beyond what `count` vectors within the plan's bound can sum to.
        """
        dtype = "<i8" if self.kind == "bgv" else "<f8"
        flat = np.concatenate([np.frombuffer(memoryview(part).cast("B"), dtype) for part in opened])[:length]
        found, largest = float(np.abs(flat).max()), self._largest(count)
        if not found <= largest:
            raise IntegrityError(
                f"opened sum reaches {found:g} (before scaling): {count} vectors reach {largest:g} at most; a client "
                "sent a ciphertext of another making, or too few members' partial decryptions were fused"
            )
        return self._decode(flat, count)


class OpenFheCkks(OpenFheSum):
    """``openfhe-ckks``: approximate sums of reals. Values above the plan's bound are refused, not clipped."""

    scheme = "ofhe-ckks"
    kind = "ckks"

    def _default_ring(self) -> Ring:
        return ckks_ring(self.plan)

    def _prove(self) -> None:
        parameters = ckks.CkksParameters(
            ring=self.ring.ring, chain=(self.ring.first_bits,), scale_bits=self.ring.scale_bits, special=False
        )
        n, parties = self.plan.clients, self.parties
        fresh = n * fresh_std(self.ring.ring, parties, self.symmetric) ** 2
        flooding = parties * FLOODING_STD**2 if self.opened_by == "committee" else 0.0
        counted = n * fresh_noise_std(self.ring.ring, "symmetric" if self.symmetric else "public") ** 2
        extra = sqrt(max(0.0, _DECODE_VARIANCE * (fresh + flooding) - counted))
        encryption: Any = "symmetric" if self.symmetric else "public"
        self._bound = ckks.check(parameters, self.plan, encryption, extra_std=extra, extra_count=1)

    def _bounds(self) -> tuple[float, float]:
        return self._bound.error_bound, self._bound.headroom_bits

    def _encode(self, values: FloatVector) -> tuple[NDArray[np.float64], int]:
        exact = values.astype(np.float64)
        bad = np.flatnonzero(np.abs(exact) > self.plan.bound)
        if bad.size:
            raise InputError(
                f"value {exact[bad[0]]} ({bad.size} such in a batch) is beyond the declared bound "
                f"{self.plan.bound:g}: a CKKS sum would wrap; clip updates or declare a larger bound"
            )
        return exact, 0

    def _decode(self, opened: NDArray[Any], count: int) -> NDArray[np.float64]:
        return self._bound.release(opened.astype(np.float64))

    def _largest(self, count: int) -> float:
        return count * self.plan.bound + self._bound.error_bound


class OpenFheBgv(OpenFheSum):
    """``openfhe-bgv``: exact sums of fixed-point integers; values beyond the plan's bound are clipped and counted."""

    scheme = "ofhe-bgv"
    kind = "bgv"

    def _default_ring(self) -> Ring:
        return Ring("bgv", 2048, 54, plain_bits=31)

    def _prove(self) -> None:
        self.codec = FixedPoint.fitting(
            bound=self.plan.bound, clients=self.plan.clients, ring_bits=self.ring.plain_bits, max_fraction_bits=64
        )
        ciphertexts = self.ring.ciphertexts(self.plan.length)
        committee = self.opened_by == "committee"
        self._margin_bits = bgv_margin_bits(
            self.ring, self.plan.clients, ciphertexts, self.parties, self.symmetric, committee
        )
        if self._margin_bits < 0:
            raise BudgetExceeded(
                f"noise of {self.plan.clients} clients"
                + (f" and {self.parties} flooding parties" if committee else "")
                + f" at {self.ring.plain_bits} plain bits exceeds the {self.ring.first_bits}-bit modulus by "
                f"{-self._margin_bits:.1f} bits: every slot would be silently wrong; use fewer plain bits, a longer "
                "first prime or a larger ring"
            )

    def _bounds(self) -> tuple[float, float]:
        spare = self.codec.headroom_bits(self.plan.clients, self.ring.plain_bits)
        exact = log2(self.ring.plain_modulus / 2 / (self.plan.clients * self.codec.max_value))
        return self.codec.error_bound(self.plan.clients), min(max(float(spare), exact), self._margin_bits)

    def _encode(self, values: FloatVector) -> tuple[NDArray[np.int64], int]:
        encoded = self.codec.encode(values)
        return encoded.values, encoded.clipped

    def _decode(self, opened: NDArray[Any], count: int) -> NDArray[np.float64]:
        return self.codec.decode(opened.astype(np.int64))

    def _largest(self, count: int) -> float:
        return count * self.codec.max_value


#: Names on the command line.
SCHEMES: dict[str, type[OpenFheSum]] = {"openfhe-ckks": OpenFheCkks, "openfhe-bgv": OpenFheBgv}


def ckks_ring(plan: Plan, ring: int = 4096, first_bits: int = 60, max_scale_bits: int = 50) -> Ring:
    """Return a CKKS ring with the largest scale that leaves a spare bit above the plan's largest sum.

    Raises:
        BudgetExceeded: no scale fits.
    """
    scale_bits = min(max_scale_bits, first_bits - 2, first_bits - 2 - floor(log2(plan.clients * plan.bound)) - 1)
    if scale_bits < 1:
        raise BudgetExceeded(
            f"{plan.clients} clients at {plan.bound:g} need more than the {first_bits} bits of the first prime; lower "
            "the bound or use bgv"
        )
    return Ring("ckks", ring, first_bits, scale_bits=scale_bits)


class OpenFheSealer(Sealer):
    """Encodes, seals batch by batch in the library, packs."""

    def __init__(self, sum_: OpenFheSum, key: Residues) -> None:
        self._sum, self._key, self._clipped = sum_, key, 0

    def __repr__(self) -> str:
        return f"OpenFheSealer({self._sum.scheme}, key [redacted])"

    @property
    def clipped(self) -> int:
        """See :attr:`crypto.base.Sealer.clipped`."""
        return self._clipped

    def seal(self, vector: FloatVector, tag: Tag) -> list[bytes]:
        """See :meth:`crypto.base.Sealer.seal`; NaN and infinities are refused before the library sees anything."""
        check_values(vector, tag, self._sum.plan)
        per_batch, body, clipped = BATCH * self._sum.ring.slots, bytearray(), 0
        for at in range(0, tag.length, per_batch):
            values, outside = self._sum._encode(vector[at : at + per_batch])
            padding = -len(values) % self._sum.ring.slots
            clipped += outside
            sealed = self._sum.call("seal", self._key, np.pad(values, (0, padding)), public=self._key.shape[1] == 2)
            body += self._sum.pack(sealed[0])
        self._clipped = clipped
        return [wire.encode(self._sum.header(tag), wire.PART, 1, body)]


class OpenFheAdder(RunningSum):
    """Running sum of residues: no key, no library."""

    def __init__(self, sum_: OpenFheSum, tag: Tag) -> None:
        super().__init__(sum_, tag)
        self._sum, self._length = sum_, tag.length
        self._total: Residues | None = None

    def _body_bytes(self, kind: int) -> int:
        return self._sum.body_bytes(self._length)

    def _take(self, body: memoryview, kind: int) -> None:
        residues = self._sum.unpack(body, 2)
        if self._total is None:
            self._total = residues
        else:
            add_into(self._total, residues, self._sum.ring.moduli_array)

    def _body(self) -> bytes:
        return self._sum.pack(self._total)


class OpenFheOpener(Opener):
    """Opens totals with the clients' secret key."""

    def __init__(self, sum_: OpenFheSum, secret: Residues) -> None:
        self._sum, self._secret = sum_, secret

    def __repr__(self) -> str:
        return f"OpenFheOpener({self._sum.scheme}, key [redacted])"

    def open(self, totals: list[bytes], tag: Tag) -> NDArray[np.float64]:
        """See :meth:`crypto.base.Opener.open`."""
        frame = only_total(self._sum, totals, tag, self._sum.body_bytes(tag.length))
        sealed = self._sum.unpack(frame.body, 2)
        opened = [self._sum.call("decrypt", self._secret, batch)[0] for batch in self._sum.batches(sealed)]
        return self._sum.values(opened, tag.length, frame.count)


__all__ = [
    "BATCH",
    "MEMORY_LIMIT_BYTES",
    "SCHEMES",
    "OpenFheAdder",
    "OpenFheBgv",
    "OpenFheCkks",
    "OpenFheOpener",
    "OpenFheSealer",
    "OpenFheSum",
    "ckks_ring",
    "logger",
]
