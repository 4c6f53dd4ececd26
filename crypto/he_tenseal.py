"""CKKS on TenSEAL: approximate sums of reals.

Uses TenSEAL's SEAL interface rather than its vector class: the latter's ciphertexts show neither scale nor level, so
that a damaged one could not be told from a good one, and it never uses seeded ciphertexts, which halve the upload in
symmetric mode. It also keeps key material away from the server by construction: an adder is made from parameters
alone (a vector class's ``make_context_public()`` would leave a working decryptor behind).

Parameters, headroom, error bound and the rounding of opened sums: :mod:`crypto.ckks`.
"""

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crypto import ckks, wire
from crypto._chunks import Lengths
from crypto._one_key import Mode
from crypto._sealed import SealedSum
from crypto.base import Budget, FloatVector, Plan
from crypto.ckks import CkksParameters
from crypto.errors import InputError, IntegrityError
from crypto.he_seal import SealEngine, ciphertext_lengths
from crypto.lattice import Encryption


class CkksSum(SealedSum):
    """Approximate sums; see :mod:`crypto.ckks`.

    Args:
        plan: length, clients, bound; values beyond the bound are refused.
        parameters: ring, modulus chain (the last prime serves key switching only) and scale.
        mode: ``symmetric`` (seeded, half the bytes; sealing needs the secret key) or ``public``.

    Raises:
        BudgetExceeded: the sum could wrap, or the error bound is too large; names the bound and the remedy.
    """

    scheme = "ckks"

    def __init__(self, plan: Plan, *, parameters: CkksParameters | None = None, mode: Mode = "symmetric") -> None:
        self.plan = plan
        self.mode = mode
        self.parameters = parameters if parameters is not None else CkksParameters()
        self.bound = ckks.check(self.parameters, plan, encryption(self.parameters, mode))

    @cached_property
    def params_hash(self) -> bytes:
        """See :attr:`crypto.keys.KeyedSum.params_hash`."""
        return wire.params_hash(self.scheme, self.parameters, self.mode, self.plan)

    @cached_property
    def key_params_hash(self) -> bytes:
        """See :attr:`crypto.keys.KeyedSum.key_params_hash`."""
        return wire.params_hash(self.scheme, "key", self.parameters.ring, self.parameters.chain, self.mode)

    @cached_property
    def budget(self) -> Budget:
        """Sizes to about 3 %."""
        return ckks.budget(self.parameters, self.bound, self.plan, seeded=self.mode == "symmetric")

    @property
    def slots(self) -> int:
        """See :attr:`crypto._sealed.SealedSum.slots`."""
        return self.parameters.slots

    def engine(self) -> "CkksEngine":
        """See :meth:`crypto._sealed.SealedSum.engine`."""
        return CkksEngine(self.parameters, self.mode)

    def lengths(self, kind: int) -> Lengths:
        """See :meth:`crypto._sealed.SealedSum.lengths`."""
        return ciphertext_lengths(self.parameters.ring, self.parameters.data_primes, self.mode, kind)

    def check_bound(self, vector: FloatVector) -> None:
        """See :meth:`crypto._sealed.SealedSum.check_bound`."""
        if max(float(vector.max()), -float(vector.min())) > self.plan.bound:
            bad = np.flatnonzero(np.abs(vector) > self.plan.bound)
            raise InputError(
                f"coordinate {int(bad[0])} is {vector[bad[0]]} ({bad.size} such values): must lie within the plan's "
                f"bound {self.plan.bound:g}, else the sum could wrap; raise the bound or clip updates"
            )

    def encode(self, chunk: NDArray[np.floating]) -> tuple[NDArray[Any], int]:
        """See :meth:`crypto._sealed.SealedSum.encode`."""
        return chunk.astype(np.float64), 0

    def decode(self, values: NDArray[Any], count: int) -> NDArray[np.float64]:
        """See :meth:`crypto._sealed.SealedSum.decode`; rounds to the release grid.

        Raises:
            IntegrityError: a value is larger than any sum of `count` vectors within the bound.
        """
        largest = count * self.plan.bound + self.bound.error_bound
        if not bool(np.all(np.abs(values) <= largest)):
            worst = values[np.argmax(np.abs(values))]
            raise IntegrityError(
                f"opened value {worst:g}: sums of {count} clients stay within {largest:g}; a client sent a "
                "ciphertext of another making, leave it out"
            )
        return self.bound.release(values)

    def report_clipped(self, clipped: int, size: int) -> None:
        """Do nothing: nothing is clipped."""


def encryption(parameters: CkksParameters, mode: Mode) -> Encryption:
    """Return how SEAL encrypts: a public-key ciphertext is made in the larger modulus where there is one."""
    if mode == "symmetric":
        return "symmetric"
    return "public-switched" if parameters.special else "public"


class CkksEngine(SealEngine):
    """CKKS with N/2 real slots."""

    def __init__(self, parameters: CkksParameters, mode: Mode) -> None:
        self._parameters = parameters
        super().__init__(mode)
        self._encoder = self._api.CKKSEncoder(self._context)

    def _make_context(self) -> Any:
        api, p = self._api, self._parameters
        chosen = api.EncryptionParameters(api.SCHEME_TYPE.CKKS)
        chosen.set_poly_modulus_degree(p.ring)
        chosen.set_coeff_modulus(api.CoeffModulus.Create(p.ring, list(p.chain)))
        # Whether less than 128 bits is allowed was decided when the parameters were made.
        level = api.SEC_LEVEL_TYPE.TC128 if p.security_bits else api.SEC_LEVEL_TYPE.NONE
        return self._check_context(api.SEALContext(chosen, p.special, level), p)

    def _form_error(self, ciphertext: Any) -> str:
        if not ciphertext.is_ntt_form():
            return "polynomials that are not transformed"
        if ciphertext.scale != self._parameters.scale:
            return f"scale {ciphertext.scale:g} where this round has {self._parameters.scale:g}"
        return ""

    def encrypt(self, encryptor: Any, values: NDArray[Any]) -> bytes:
        """See :meth:`crypto._sealed.Engine.encrypt`; `values` are float64."""
        self._encoder.encode(values.tolist(), self._parameters.scale, self._plain)
        return self._encrypt_plain(encryptor)

    def decrypt(self, decryptor: Any, ciphertext: Any, count: int) -> NDArray[Any]:
        """See :meth:`crypto._sealed.Engine.decrypt`; returns float64."""
        decryptor.decrypt(ciphertext, self._plain)
        return np.array(self._encoder.decode_double(self._plain))


__all__ = ["CkksEngine", "CkksSum", "encryption"]
