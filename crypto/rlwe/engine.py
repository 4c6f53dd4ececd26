"""Planes of ciphertexts and keys on the native ring: bytes in, bytes out.

A *plane* is one packed polynomial for each ciphertext of a vector. Secrets are 16-byte seeds; the polynomials that they
expand to live in native memory only.
"""

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from crypto import prg
from crypto._native import RlweMultiplier, RlweRing
from crypto.base import FloatVector
from crypto.errors import KeyMismatch, WireError
from crypto.fixed_point import FixedPoint
from crypto.rlwe.parameters import SEED_BYTES, RlweParameters

Words = NDArray[np.uint64]
Plane = NDArray[np.uint8]


@lru_cache(maxsize=16)
def native_ring(parameters: RlweParameters) -> RlweRing:
    """Return the tables of a parameter set; made once a process."""
    return RlweRing(parameters.ring, list(parameters.moduli), parameters.plain_bits)


def empty_words(parameters: RlweParameters, ciphertexts: int) -> Words:
    """Return the zero polynomials of so many ciphertexts, unpacked; shape ``(ciphertexts * primes * N,)``."""
    return np.zeros(ciphertexts * len(parameters.moduli) * parameters.ring, np.uint64)


def checked_plane(parameters: RlweParameters, body: memoryview) -> Plane:
    """Return a plane that was received.

    Raises:
        WireError: a residue is not below its prime: no honest encoder writes it.
    """
    plane = np.frombuffer(body, np.uint8)
    if not native_ring(parameters).canonical(plane):
        raise not_canonical()
    return plane


def not_canonical() -> WireError:
    """Return the error of a plane that no honest encoder writes."""
    return WireError("a residue is not below the modulus: the sender does not follow the format; leave it out")


def packed(parameters: RlweParameters, words: Words) -> bytes:
    """Return the plane of unpacked polynomials."""
    ring = native_ring(parameters)
    out = np.empty(words.size // (len(parameters.moduli) * parameters.ring) * ring.polynomial_bytes, np.uint8)
    ring.pack_plane(words, out)
    return out.tobytes()


def secret_words(parameters: RlweParameters, seed: bytes) -> Words:
    """Return a seed's ternary secret in transformed order; shape ``(primes * N,)``."""
    _check_seed(seed)
    ring = native_ring(parameters)
    small = np.empty(parameters.ring, np.int64)
    ring.ternary(prg.stream_key(seed, prg.RLWE_SECRET), 0, small)
    out = empty_words(parameters, 1)
    ring.forward(small, out)
    return out


def secret_multiplier(parameters: RlweParameters, seed: bytes) -> RlweMultiplier:
    """Return a seed's secret, ready to multiply."""
    return RlweMultiplier(native_ring(parameters), secret_words(parameters, seed), divided=True)


def public_half(parameters: RlweParameters, seed: bytes) -> Words:
    """Return the uniform polynomial a of a public key, in transformed order."""
    out = empty_words(parameters, 1)
    native_ring(parameters).uniform(prg.stream_key(seed, prg.RLWE_KEY), 0, out)
    return out


def public_key(parameters: RlweParameters, public_seed: bytes, secret_seed: bytes) -> bytes:
    """Return the plane of ``b = e - a s``, in transformed order: with the seed of a, the public key of a secret.

    Public keys over one a add up: their sum belongs to the sum of the secrets.
    """
    ring = native_ring(parameters)
    small = np.empty(parameters.ring, np.int64)
    ring.errors(prg.stream_key(secret_seed, prg.RLWE_KEY_ERROR), 0, small)
    out = empty_words(parameters, 1)
    ring.forward(small, out)
    minus = negated(parameters, secret_words(parameters, secret_seed))
    ring.multiply_add(public_half(parameters, public_seed), RlweMultiplier(ring, minus, divided=False), out)
    return packed(parameters, out)


def negated(parameters: RlweParameters, words: Words) -> Words:
    """Return ``-x``, for one polynomial."""
    primes = np.repeat(np.array(parameters.moduli, np.uint64), parameters.ring)
    return np.where(words == 0, words, primes - words)


def unpacked(parameters: RlweParameters, plane: Plane) -> Words:
    """Return a plane's polynomials as words."""
    ring = native_ring(parameters)
    out = empty_words(parameters, plane.size // ring.polynomial_bytes)
    ring.add_plane(plane, out)
    return out


@dataclass(frozen=True, slots=True)
class Seeds:
    """The randomness of one sealed vector: a seed that travels and one that is forgotten."""

    public: bytes
    secret: bytes = field(repr=False)


class SymmetricEncryptor:
    """Seals under a secret; half of each ciphertext is a seed."""

    def __init__(self, parameters: RlweParameters, secret_seed: bytes) -> None:
        self._parameters, self._secret = parameters, secret_multiplier(parameters, secret_seed)

    def encrypt(self, vector: FloatVector, codec: FixedPoint, seeds: Seeds, isa: str = "") -> tuple[bytes, int]:
        """Return a part's body and how many values were clipped.

        Args:
            vector: finite values, float32 or float64, contiguous.
            codec: fixed point.
            seeds: fresh for every call: two vectors under the same would tell their difference.
            isa: ring kernels, for tests.
        """
        out = np.empty(SEED_BYTES + self._parameters.plane_bytes(vector.size), np.uint8)
        out[:SEED_BYTES] = np.frombuffer(seeds.public, np.uint8)
        clipped = native_ring(self._parameters).seal_symmetric(
            vector,
            codec.bound,
            2.0**codec.fraction_bits,
            _coins(codec, seeds),
            self._secret,
            prg.stream_key(seeds.public, prg.RLWE),
            prg.stream_key(seeds.secret, prg.RLWE_ERROR),
            out[SEED_BYTES:],
            isa,
        )
        return out.tobytes(), clipped


class PublicEncryptor:
    """Seals under a public key: the seed of a and the plane of b."""

    def __init__(self, parameters: RlweParameters, public: bytes) -> None:
        self._parameters = parameters
        ring = native_ring(parameters)
        if len(public) != SEED_BYTES + ring.polynomial_bytes:
            raise KeyMismatch(f"public key of {len(public)} bytes: must be {SEED_BYTES + ring.polynomial_bytes}")
        b = unpacked(parameters, checked_plane(parameters, memoryview(public)[SEED_BYTES:]))
        self._b = RlweMultiplier(ring, b, divided=True)
        self._a = RlweMultiplier(ring, public_half(parameters, public[:SEED_BYTES]), divided=False)

    def encrypt(self, vector: FloatVector, codec: FixedPoint, seeds: Seeds, isa: str = "") -> tuple[bytes, int]:
        """See :meth:`SymmetricEncryptor.encrypt`; the public seed is not used."""
        out = np.empty(2 * self._parameters.plane_bytes(vector.size), np.uint8)
        clipped = native_ring(self._parameters).seal_public(
            vector,
            codec.bound,
            2.0**codec.fraction_bits,
            _coins(codec, seeds),
            self._b,
            self._a,
            prg.stream_key(seeds.secret, prg.RLWE_TERNARY),
            prg.stream_key(seeds.secret, prg.RLWE_ERROR),
            out,
            isa,
        )
        return out.tobytes(), clipped


def _coins(codec: FixedPoint, seeds: Seeds) -> bytes | None:
    return prg.stream_key(seeds.secret, prg.RLWE_COINS) if codec.stochastic else None


def _check_seed(seed: bytes) -> None:
    if len(seed) != SEED_BYTES:
        raise KeyMismatch(f"secret of {len(seed)} bytes: must be a seed of {SEED_BYTES}; load the right key file")
