"""BFV on SEAL through ``tenseal.sealapi``: exact sums in small, seeded ciphertexts. The default HE scheme.

The one module that imports ``tenseal``, on first use; :mod:`crypto.he_tenseal` shares its engine. SEAL writes and reads
by path only: everything goes through an anonymous file in memory (:mod:`crypto._memory_file`), so that neither keys
nor plaintexts touch a disk. SEAL holds Python's global lock: threads give nothing, processes do.

Parameters, range, noise and what the keys protect: :mod:`crypto.bfv`.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crypto import bfv, wire
from crypto._chunks import Lengths
from crypto._memory_file import MemoryFile
from crypto._one_key import Mode
from crypto._sealed import SealedSum
from crypto.base import Budget, FloatVector, Plan
from crypto.errors import BackendUnavailable, IntegrityError, WireError
from crypto.fixed_point import FixedPoint, report_clipped, to_residues
from crypto.keys import KeyBundle


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


class BfvSum(SealedSum):
    """Exact fixed-point sums; see :mod:`crypto.bfv`.

    Args:
        plan: length, clients, bound; values beyond the bound are clipped and counted.
        value_bits: bits of one value, sign included; the step is about ``bound / 2^(value_bits - 1)``, a power of 2.
        mode: ``symmetric`` (seeded, half the bytes; sealing needs the secret key) or ``public``.
        stochastic: unbiased rounding, error at most one step a client; else to nearest, at most half a step.
        ring: force a ring; by default the smallest that carries the plan.

    Raises:
        BudgetExceeded: the plan does not fit at 128 bits of security.
    """

    scheme = "bfv"

    def __init__(
        self,
        plan: Plan,
        *,
        value_bits: int = bfv.VALUE_BITS,
        mode: Mode = "symmetric",
        stochastic: bool = True,
        ring: int | None = None,
    ) -> None:
        self.plan = plan
        self.mode = mode
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
        """Sizes to about 3 %; the error bound holds for values that were not clipped."""
        return bfv.budget(self.parameters, self.codec, self.plan)

    @property
    def slots(self) -> int:
        """See :attr:`crypto._sealed.SealedSum.slots`."""
        return self.parameters.ring

    def engine(self) -> "BfvEngine":
        """See :meth:`crypto._sealed.SealedSum.engine`."""
        return BfvEngine(self.parameters)

    def lengths(self, kind: int) -> Lengths:
        """See :meth:`crypto._sealed.SealedSum.lengths`."""
        return ciphertext_lengths(self.parameters.ring, self.parameters.chain, self.mode, kind)

    def check_bound(self, vector: FloatVector) -> None:
        """Accept all: values beyond the bound are clipped."""

    def encode(self, chunk: NDArray[np.floating]) -> tuple[NDArray[Any], int]:
        """See :meth:`crypto._sealed.SealedSum.encode`."""
        words = np.frombuffer(os.urandom(4 * chunk.size), "<u4") if self.codec.stochastic else None
        encoded = self.codec.encode_with(chunk, words)
        return encoded.values, encoded.clipped

    def decode(self, values: NDArray[Any], count: int) -> NDArray[np.float64]:
        """See :meth:`crypto._sealed.SealedSum.decode`.

        Raises:
            IntegrityError: an integer is larger than any sum of `count` vectors.
        """
        largest, found = count * self.codec.max_value, int(np.max(np.abs(values)))
        if found > largest:
            raise IntegrityError(
                f"opened integer {found}: sums of {count} clients stay within {largest}; a client sent a ciphertext of "
                "another making, leave it out"
            )
        return self.codec.decode(values)

    def report_clipped(self, clipped: int, size: int) -> None:
        """See :meth:`crypto._sealed.SealedSum.report_clipped`."""
        report_clipped(clipped, size, self.plan.bound)


def ciphertext_lengths(ring: int, chain: Sequence[int], mode: Mode, kind: int) -> Lengths:
    """Return the allowed bytes of one ciphertext.

    Random words below ``2^bits`` cannot be coded in fewer bits, and SEAL's compression never adds more than headers.
    """
    polynomials = 1 if mode == "symmetric" and kind == wire.PART else 2
    return Lengths(int(0.99 * polynomials * ring * sum(chain) / 8), polynomials * 8 * ring * len(chain) + 1024)


class SealEngine(ABC):
    """SEAL's objects for one parameter set, with bytes in and out. Lives in one process and one thread."""

    def __init__(self, mode: Mode) -> None:
        self._api = library()
        self._mode = mode
        self._context = self._make_context()
        self._evaluator = self._api.Evaluator(self._context)
        self._plain = self._api.Plaintext()
        self._file = MemoryFile()

    @abstractmethod
    def _make_context(self) -> Any: ...

    @abstractmethod
    def _form_error(self, ciphertext: Any) -> str:
        """Return what is wrong with a ciphertext's form, or nothing."""

    def make_keys(self) -> tuple[bytes, bytes]:
        """See :meth:`crypto._sealed.Engine.make_keys`."""
        generator = self._api.KeyGenerator(self._context)
        public = self._api.PublicKey()
        generator.create_public_key(public)
        return self._file.save(generator.secret_key()), self._file.save(public)

    def encryptor(self, bundle: KeyBundle) -> Any:
        """See :meth:`crypto._sealed.Engine.encryptor`."""
        if self._mode == "public":
            return self._api.Encryptor(self._context, self._load(self._api.PublicKey(), bundle.public))
        return self._api.Encryptor(self._context, self._load(self._api.SecretKey(), bundle.secret))

    def decryptor(self, bundle: KeyBundle) -> Any:
        """See :meth:`crypto._sealed.Engine.decryptor`."""
        return self._api.Decryptor(self._context, self._load(self._api.SecretKey(), bundle.secret))

    def load(self, data: memoryview) -> Any:
        """See :meth:`crypto._sealed.Engine.load`."""
        ciphertext = self._load(self._api.Ciphertext(self._context), data)
        if ciphertext.size() != 2 or ciphertext.is_transparent():
            wrong = f"{ciphertext.size()} polynomials, transparent {ciphertext.is_transparent()}"
        elif ciphertext.parms_id() != self._context.first_parms_id():
            wrong = "another level of the modulus chain"
        else:
            wrong = self._form_error(ciphertext)
        if wrong:
            raise WireError(f"ciphertext of {wrong}: must be a fresh one or a sum; use the round's parameters")
        return ciphertext

    def save(self, ciphertext: Any) -> bytes:
        """See :meth:`crypto._sealed.Engine.save`."""
        return self._file.save(ciphertext)

    def add(self, total: list[Any], more: list[Any]) -> None:
        """See :meth:`crypto._sealed.Engine.add`."""
        for mine, theirs in zip(total, more, strict=True):
            self._evaluator.add_inplace(mine, theirs)

    def _encrypt_plain(self, encryptor: Any) -> bytes:
        if self._mode == "symmetric":
            # Without a destination SEAL leaves the seed in place of the random half.
            return self._file.save(encryptor.encrypt_symmetric(self._plain))
        ciphertext = self._api.Ciphertext(self._context)
        encryptor.encrypt(self._plain, ciphertext)
        return self._file.save(ciphertext)

    def _load(self, target: Any, data: bytes | memoryview) -> Any:
        try:
            with self._file.holding(data) as path:
                target.load(self._context, path)
        except (RuntimeError, ValueError, IndexError) as error:
            raise WireError(f"SEAL refuses {len(data)} bytes: {error}; use the round's parameters and keys") from error
        return target

    def _check_context(self, context: Any, parameters: object) -> Any:
        if not context.parameters_set():
            raise BackendUnavailable(
                f"SEAL refuses {parameters}: {context.parameters_error_message()}; use other parameters"
            )
        return context


class BfvEngine(SealEngine):
    """BFV with batching: integers modulo t in N slots."""

    def __init__(self, parameters: bfv.BfvParameters) -> None:
        self._parameters = parameters
        super().__init__(parameters.mode)
        self._encoder = self._api.BatchEncoder(self._context)

    def _make_context(self) -> Any:
        api, p = self._api, self._parameters
        chosen = api.EncryptionParameters(api.SCHEME_TYPE.BFV)
        chosen.set_poly_modulus_degree(p.ring)
        chosen.set_coeff_modulus(api.CoeffModulus.Create(p.ring, list(p.chain)))
        chosen.set_plain_modulus(api.Modulus(p.plain_modulus))
        # No key-switching prime: every prime holds data.
        return self._check_context(api.SEALContext(chosen, False, api.SEC_LEVEL_TYPE.TC128), p)

    def _form_error(self, ciphertext: Any) -> str:
        return "transformed polynomials" if ciphertext.is_ntt_form() else ""

    def encrypt(self, encryptor: Any, values: NDArray[Any]) -> bytes:
        """See :meth:`crypto._sealed.Engine.encrypt`; `values` are int64."""
        self._encoder.encode(to_residues(values, self._parameters.plain_modulus).tolist(), self._plain)
        return self._encrypt_plain(encryptor)

    def decrypt(self, decryptor: Any, ciphertext: Any, count: int) -> NDArray[Any]:
        """See :meth:`crypto._sealed.Engine.decrypt`; returns int64.

        Raises:
            IntegrityError: more noise than `count` honest ciphertexts can have.
        """
        left, least = decryptor.invariant_noise_budget(ciphertext), self._parameters.least_noise_budget(count)
        if left < least:
            raise IntegrityError(
                f"{left} bits of noise budget left: sums of {count} clients keep at least {least}; a client sent a "
                "ciphertext of another making, leave it out"
            )
        decryptor.decrypt(ciphertext, self._plain)
        return np.array(self._encoder.decode_int64(self._plain), np.int64)


__all__ = ["BfvEngine", "BfvSum", "SealEngine", "ciphertext_lengths", "library"]
