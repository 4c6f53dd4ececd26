"""BFV on SEAL through ``tenseal.sealapi``: exact sums in small, seeded ciphertexts. The default HE scheme.

The one module that imports ``tenseal.sealapi``, on first use. SEAL writes and reads by path only: everything goes
through an anonymous file in memory (Linux ``memfd``), so that neither keys nor plaintexts touch a disk; elsewhere
through a private temporary file. SEAL holds Python's global lock: threads give nothing, processes do.

Parameters, range, noise and what the keys protect: :mod:`crypto.bfv`.
"""

import logging
import os
from collections.abc import Iterator
from copy import copy
from functools import cached_property
from math import log2
from types import ModuleType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from crypto import bfv, wire
from crypto._chunks import PREFIX_BYTES, Lengths, join, split
from crypto._memory_file import MemoryFile
from crypto.base import Adder, Budget, FloatVector, Opener, Plan, Sealer, Tag
from crypto.errors import BackendUnavailable, EmptySum, InputError, IntegrityError, KeyMismatch, WireError
from crypto.fixed_point import CLIPPING_WARNING_SHARE, FixedPoint, to_residues
from crypto.keys import CLIENTS, SERVER, KeyBundle, KeyedSum, key_id
from crypto.plain import check_finite, check_vector

logger = logging.getLogger(__name__)


def library() -> ModuleType:
    """Return ``tenseal.sealapi``.

    Raises:
        BackendUnavailable: it does not load; says why.
    """
    try:
        from tenseal import sealapi
    except ImportError as error:
        raise BackendUnavailable(f"tenseal does not load: {error}; pip install 'fedsim[tenseal]'") from error
    return sealapi  # type: ignore[no-any-return]


class BfvSum(KeyedSum):
    """Exact fixed-point sums; see :mod:`crypto.bfv`.

    Args:
        plan: length, clients, bound; values beyond the bound are clipped and counted.
        value_bits: bits of one value, sign included; the step is ``bound / 2^(value_bits - 1)``, up to a power of 2.
        mode: ``symmetric`` (seeded, half the bytes; sealing needs the secret key) or ``public``.
        stochastic: unbiased rounding, error at most one step a client; else to nearest, at most half a step.
        ring: force a ring; by default the smallest that carries the plan.

    Raises:
        BudgetExceeded: the plan does not fit at 128 bits of security.
    """

    scheme = "bfv"
    opened_by = "clients"

    def __init__(
        self,
        plan: Plan,
        *,
        value_bits: int = 22,
        mode: bfv.Mode = "symmetric",
        stochastic: bool = True,
        ring: int | None = None,
    ) -> None:
        self.plan = plan
        self.codec: FixedPoint = bfv.codec(plan, value_bits, stochastic)
        self.parameters = bfv.fit(plan, self.codec, mode, ring)

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
        """Sizes to about 2 %; the error bound holds for values that were not clipped."""
        p, n = self.parameters, self.plan.clients
        count = p.ciphertexts(self.plan.length)
        # A total and, while a part is checked before it is added, that part unpacked.
        memory = 2 * count * 2 * 8 * p.ring * len(p.chain)
        return Budget(
            upload_bytes=wire.HEADER_BYTES + count * (PREFIX_BYTES + p.fresh_bytes()),
            download_bytes=wire.HEADER_BYTES + count * (PREFIX_BYTES + p.sum_bytes()),
            error_bound=self.codec.error_bound(n),
            headroom_bits=log2(p.plain_modulus / (2 * n * self.codec.max_value)),
            security_bits=p.security_bits,
            memory_bytes=memory,
        )

    def make_keys(self) -> tuple[KeyBundle, KeyBundle]:
        """Make a fresh key: the server's bundle (nothing but the id) and the clients'.

        In public mode :func:`crypto.keys.without_secret` of the clients' bundle is enough to seal.
        """
        seal = _Seal(self.parameters)
        secret, public = seal.make_keys()
        identity = key_id(self.scheme, self.key_params_hash, public)
        kept = public if self.parameters.mode == "public" else b""

        def bundle(role: str, public: bytes, secret: bytes) -> KeyBundle:
            return KeyBundle(
                role=role,
                scheme=self.scheme,
                params_hash=self.key_params_hash,
                key_id=identity,
                public=public,
                secret=secret,
            )

        return bundle(SERVER, b"", b""), bundle(CLIENTS, kept, secret)

    def sealer(self, bundle: KeyBundle) -> "BfvSealer":
        """See :meth:`crypto.keys.KeyedSum.sealer`."""
        bundle.require(self.scheme, self.key_params_hash, self.key_id)
        return BfvSealer(self.with_key(bundle.key_id), bundle)

    def opener(self, bundle: KeyBundle) -> "BfvOpener":
        """See :meth:`crypto.keys.KeyedSum.opener`."""
        bundle.require(self.scheme, self.key_params_hash, self.key_id)
        return BfvOpener(self.with_key(bundle.key_id), bundle)

    def adder(self, tag: Tag) -> "BfvAdder":
        """See :meth:`crypto.base.SecureSum.adder`; needs a key id, never a key."""
        return BfvAdder(self, tag)

    def part_lengths(self) -> Lengths:
        """Return the allowed bytes of a fresh ciphertext."""
        return self._lengths(1 if self.parameters.mode == "symmetric" else 2)

    def total_lengths(self) -> Lengths:
        """Return the allowed bytes of a ciphertext of a total."""
        return self._lengths(2)

    def _lengths(self, polynomials: int) -> Lengths:
        # Random words below 2^bits cannot be coded in fewer bits, and SEAL's compression never adds more than headers.
        p = self.parameters
        return Lengths(
            int(0.99 * polynomials * p.ring * p.modulus_bits / 8), polynomials * 8 * p.ring * len(p.chain) + 1024
        )

    def _copy(self) -> Self:
        return copy(self)


class BfvSealer(Sealer):
    """Encrypts fixed-point integers, one ciphertext at a time, so that memory stays near the payload."""

    def __init__(self, sum_: BfvSum, bundle: KeyBundle) -> None:
        symmetric = sum_.parameters.mode == "symmetric"
        if not (bundle.secret if symmetric else bundle.public):
            raise KeyMismatch(
                f"the '{bundle.role}' bundle has no {'secret' if symmetric else 'public'} key: sealing in "
                f"{sum_.parameters.mode} mode needs it; use the clients' bundle"
            )
        self._made_from = (sum_, bundle)
        self._sum = sum_
        self._seal = _Seal(sum_.parameters)
        self._encryptor = self._seal.encryptor(bundle)
        self._clipped = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return BfvSealer, self._made_from

    @property
    def clipped(self) -> int:
        """See :attr:`crypto.base.Sealer.clipped`."""
        return self._clipped

    def seal(self, vector: FloatVector, tag: Tag) -> list[bytes]:
        """See :meth:`crypto.base.Sealer.seal`; values beyond the bound are clipped and counted."""
        check_vector(vector, tag)
        check_length(tag, self._sum.plan)
        if not np.isfinite(vector.sum(dtype=np.float64)):
            check_finite(vector)
        self._clipped = 0
        body = join(self._ciphertexts(vector))
        if self._clipped > CLIPPING_WARNING_SHARE * vector.size:
            logger.warning(
                "%d of %d values lie outside the bound %g and were clipped; raise the bound or clip updates",
                self._clipped,
                vector.size,
                self._sum.plan.bound,
            )
        return [wire.encode(self._sum.header(tag), wire.PART, 1, body)]

    def _ciphertexts(self, vector: FloatVector) -> Iterator[bytes]:
        ring, codec = self._sum.parameters.ring, self._sum.codec
        for at in range(0, vector.size, ring):
            chunk = vector[at : at + ring]
            words = np.frombuffer(os.urandom(4 * chunk.size), "<u4") if codec.stochastic else None
            encoded = codec.encode_with(chunk, words)
            self._clipped += encoded.clipped
            yield self._seal.encrypt(self._encryptor, encoded.values)


class BfvAdder(Adder):
    """Running ciphertext sum. Holds parameters and a key id: there is nothing here that could decrypt."""

    def __init__(self, sum_: BfvSum, tag: Tag) -> None:
        check_length(tag, sum_.plan)
        self._header = sum_.header(tag)
        self._sum = sum_
        self._ciphertexts = sum_.parameters.ciphertexts(tag.length)
        self._seal = _Seal(sum_.parameters)
        self._total: list[Any] = []
        self._count = 0

    @property
    def count(self) -> int:
        """See :attr:`crypto.base.Adder.count`."""
        return self._count

    def add(self, part: bytes) -> None:
        """See :meth:`crypto.base.Adder.add`."""
        self._accumulate(wire.decode(part, self._header, wire.PART), self._sum.part_lengths())

    def merge(self, total: bytes) -> None:
        """See :meth:`crypto.base.Adder.merge`."""
        self._accumulate(wire.decode(total, self._header, wire.TOTAL), self._sum.total_lengths())

    def _accumulate(self, frame: wire.Frame, lengths: Lengths) -> None:
        check_count(self._count + frame.count, self._sum.plan)
        # All are loaded and checked before the first is added, so that a bad one leaves the sum unchanged.
        loaded = [self._seal.load(chunk) for chunk in split(frame.body, self._ciphertexts, lengths)]
        if self._total:
            self._seal.add(self._total, loaded)
        else:
            self._total = loaded
        self._count += frame.count

    def total(self) -> bytes:
        """See :meth:`crypto.base.Adder.total`."""
        if not self._total:
            raise EmptySum("the sum of no vectors was asked for: at least one client must deliver")
        return wire.encode(self._header, wire.TOTAL, self._count, join(self._seal.save(c) for c in self._total))


class BfvOpener(Opener):
    """Decrypts a total with the clients' secret key."""

    def __init__(self, sum_: BfvSum, bundle: KeyBundle) -> None:
        if not bundle.secret:
            raise KeyMismatch(f"the '{bundle.role}' bundle has no secret key: only the clients' bundle opens sums")
        self._made_from = (sum_, bundle)
        self._sum = sum_
        self._seal = _Seal(sum_.parameters)
        self._decryptor = self._seal.decryptor(bundle)

    def __reduce__(self) -> tuple[Any, ...]:
        return BfvOpener, self._made_from

    def open(self, totals: list[bytes], tag: Tag) -> NDArray[np.float64]:
        """See :meth:`crypto.base.Opener.open`.

        Raises:
            IntegrityError: a ciphertext's noise is beyond what the plan's clients can make: some client sent a
                ciphertext of another making.
        """
        if len(totals) != 1:
            raise WireError(f"{len(totals)} totals: '{self._sum.scheme}' has one aggregator")
        check_length(tag, self._sum.plan)
        frame = wire.decode(totals[0], self._sum.header(tag), wire.TOTAL)
        check_count(frame.count, self._sum.plan)
        p = self._sum.parameters
        out = np.empty(tag.length)
        chunks = split(frame.body, p.ciphertexts(tag.length), self._sum.total_lengths())
        for at, chunk in zip(range(0, tag.length, p.ring), chunks, strict=True):
            integers = self._seal.decrypt(self._decryptor, self._seal.load(chunk))
            part = out[at : at + p.ring]
            part[:] = self._sum.codec.decode(integers[: part.size])
        return out


def check_length(tag: Tag, plan: Plan) -> None:
    """Raise :class:`~crypto.errors.InputError` if a round is longer than the plan."""
    if tag.length > plan.length:
        raise InputError(f"round of {tag.length} coordinates: the plan declares at most {plan.length}; declare more")


def check_count(count: int, plan: Plan) -> None:
    """Raise :class:`~crypto.errors.WireError` if more vectors are summed than the plan allows."""
    if count > plan.clients:
        raise WireError(f"{count} vectors: the plan declares {plan.clients} clients, more could wrap; declare more")


class _Seal:
    """SEAL's objects for one parameter set, with bytes in and out. Not picklable; lives in one process."""

    def __init__(self, parameters: bfv.BfvParameters) -> None:
        self._api = library()
        self._parameters = parameters
        self._context = self._make_context()
        self._encoder = self._api.BatchEncoder(self._context)
        self._evaluator = self._api.Evaluator(self._context)
        self._plain = self._api.Plaintext()
        self._file = MemoryFile()

    def _make_context(self) -> Any:
        api, p = self._api, self._parameters
        chosen = api.EncryptionParameters(api.SCHEME_TYPE.BFV)
        chosen.set_poly_modulus_degree(p.ring)
        chosen.set_coeff_modulus(api.CoeffModulus.Create(p.ring, list(p.chain)))
        chosen.set_plain_modulus(api.Modulus(p.plain_modulus))
        # No key-switching prime: every prime holds data.
        context = api.SEALContext(chosen, False, api.SEC_LEVEL_TYPE.TC128)
        if not context.parameters_set():
            raise BackendUnavailable(f"SEAL refuses {p}: {context.parameters_error_message()}; use other parameters")
        return context

    def make_keys(self) -> tuple[bytes, bytes]:
        """Return a fresh secret key and its public key."""
        generator = self._api.KeyGenerator(self._context)
        public = self._api.PublicKey()
        generator.create_public_key(public)
        return self._file.save(generator.secret_key()), self._file.save(public)

    def encryptor(self, bundle: KeyBundle) -> Any:
        """Return what :meth:`encrypt` needs."""
        if self._parameters.mode == "public":
            return self._api.Encryptor(self._context, self._load(self._api.PublicKey(), bundle.public))
        return self._api.Encryptor(self._context, self._load(self._api.SecretKey(), bundle.secret))

    def decryptor(self, bundle: KeyBundle) -> Any:
        """Return what :meth:`decrypt` needs."""
        return self._api.Decryptor(self._context, self._load(self._api.SecretKey(), bundle.secret))

    def encrypt(self, encryptor: Any, integers: NDArray[np.int64]) -> bytes:
        """Return one fresh ciphertext of at most N integers; the other slots are zero."""
        self._encoder.encode(to_residues(integers, self._parameters.plain_modulus).tolist(), self._plain)
        if self._parameters.mode == "symmetric":
            return self._file.save(encryptor.encrypt_symmetric(self._plain))
        ciphertext = self._api.Ciphertext(self._context)
        encryptor.encrypt(self._plain, ciphertext)
        return self._file.save(ciphertext)

    def decrypt(self, decryptor: Any, ciphertext: Any) -> NDArray[np.int64]:
        """Return the N integers of a ciphertext."""
        if decryptor.invariant_noise_budget(ciphertext) <= 0:
            raise IntegrityError(
                "noise beyond the plan's: a client sent a ciphertext of another making; repeat the round"
            )
        decryptor.decrypt(ciphertext, self._plain)
        return np.array(self._encoder.decode_int64(self._plain), np.int64)

    def load(self, data: memoryview) -> Any:
        """Read a ciphertext and check its form."""
        ciphertext = self._load(self._api.Ciphertext(self._context), data)
        if (
            ciphertext.size() != 2
            or ciphertext.parms_id() != self._context.first_parms_id()
            or ciphertext.is_ntt_form()
            or ciphertext.is_transparent()
        ):
            raise WireError(
                f"ciphertext of {ciphertext.size()} polynomials, transparent {ciphertext.is_transparent()}: must have "
                "2 at the first level, encrypted; use the round's parameters"
            )
        return ciphertext

    def save(self, ciphertext: Any) -> bytes:
        """Return a ciphertext's bytes."""
        return self._file.save(ciphertext)

    def add(self, total: list[Any], more: list[Any]) -> None:
        """Add ciphertexts in place."""
        for mine, theirs in zip(total, more, strict=True):
            self._evaluator.add_inplace(mine, theirs)

    def _load(self, target: Any, data: bytes | memoryview) -> Any:
        try:
            with self._file.holding(data) as path:
                target.load(self._context, path)
        except (RuntimeError, ValueError, IndexError) as error:
            raise WireError(f"SEAL refuses {len(data)} bytes: {error}; use the round's parameters and keys") from error
        return target
