"""Seeded randomness: AES-128 in counter mode, on whatever the processor offers.

One 16-byte seed and one domain name give one stream; streams of different seeds or domains are independent. The bytes
are the same on every machine and instruction set, so a client and a server can expand the same mask from a seed.

The seed itself must come from the operating system (``secrets.token_bytes(SEED_BYTES)``) or from a key agreement.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

from crypto import _native
from crypto.errors import InputError

SEED_BYTES = 16
BLOCK_BYTES = 16

# What a stream is for, at most 16 bytes of ASCII, "/1" is the version. A new use takes a new name, never an old one.
MASK = b"mask/1"  # additive masks of sealed vectors
ROTATION = b"rotation/1"  # public signs and permutations
SAMPLING = b"sampling/1"  # private choice of blocks, stochastic rounding
NOISE = b"noise/1"  # discrete noise of aggregators
RLWE = b"rlwe/1"  # public polynomials of seeded ciphertexts
RLWE_KEY = b"rlwe-key/1"  # public polynomial of a public key
RLWE_SECRET = b"rlwe-secret/1"  # ternary secrets
RLWE_KEY_ERROR = b"rlwe-key-error/1"  # errors of public keys
RLWE_ERROR = b"rlwe-error/1"  # errors of ciphertexts
RLWE_TERNARY = b"rlwe-ternary/1"  # ternary polynomials of public-key ciphertexts
RLWE_COINS = b"rlwe-coins/1"  # stochastic rounding before sealing
RLWE_SMUDGE = b"rlwe-smudge/1"  # noise of partial decryptions

_PERSON_BYTES = 16


def isa() -> str:
    """Return the instruction set in use: ``vaes``, ``aesni``, ``armv8`` or ``generic``.

    It is chosen once, at the first use; the environment variable ``FEDSIM_ISA`` forces one of them.

    Raises:
        ValueError: ``FEDSIM_ISA`` names an unknown instruction set or one that this processor lacks.
    """
    return _native.isa()


def isas() -> tuple[str, ...]:
    """Return all instruction sets that this processor supports, fastest first."""
    return tuple(_native.isas())


def stream_key(seed: bytes, domain: bytes) -> bytes:
    """Return the 16-byte AES key of a stream: BLAKE2b keyed with the seed, personalised with the domain.

    Raises:
        InputError: the seed is not 16 bytes, or the domain is empty or longer than 16.
    """
    if len(seed) != SEED_BYTES:
        raise InputError(f"seed of {len(seed)} bytes: must be {SEED_BYTES}; draw it with secrets.token_bytes")
    if not 1 <= len(domain) <= _PERSON_BYTES:
        raise InputError(f"domain {domain!r} of {len(domain)} bytes: must have 1 to {_PERSON_BYTES}; shorten the name")
    return hashlib.blake2b(key=seed, person=domain, digest_size=SEED_BYTES).digest()


class Stream:
    """The stream of one seed and one domain; not for use by several threads at once.

    Every draw starts at a whole 16-byte block and discards what is left of its last one. So the position after a draw
    depends only on its number of bytes.

    Args:
        seed: 16 bytes; secret where the stream is.
        domain: what the stream is for, one of this module's constants or a name of the caller's.
        isa: instruction set to use, for tests; empty means the default.

    Example:
        >>> mask = Stream(bytes(16), MASK).uint32(4)
    """

    def __init__(self, seed: bytes, domain: bytes, isa: str = "") -> None:
        self._key = stream_key(seed, domain)
        self._isa = isa
        self._block = 0

    def __repr__(self) -> str:
        return f"Stream(at block {self._block})"

    @property
    def block(self) -> int:
        """Index of the next 16-byte block, from 0."""
        return self._block

    def seek(self, block: int) -> None:
        """Continue at 16-byte block `block`.

        Raises:
            InputError: the index is negative or at least 2^64.
        """
        if not 0 <= block < 2**64:
            raise InputError(f"block {block}: must lie in [0, 2^64)")
        self._block = block

    def fill(self, out: NDArray[np.uint8]) -> None:
        """Overwrite a C-contiguous uint8 array of whole 16-byte blocks.

        Raises:
            InputError: the array is not of that form.
        """
        if out.dtype != np.uint8 or out.ndim != 1 or not out.flags.c_contiguous or out.size % BLOCK_BYTES:
            raise InputError(
                f"array of dtype {out.dtype}, shape {out.shape}: must be contiguous uint8 in multiples of {BLOCK_BYTES}"
            )
        _native.aes_stream(self._key, self._block.to_bytes(16, "big"), out, self._isa)
        self._block += out.size // BLOCK_BYTES

    def _draw(self, size_bytes: int) -> NDArray[np.uint8]:
        if size_bytes < 0:
            raise InputError(f"{size_bytes} bytes: a draw cannot be negative")
        out = np.empty(-(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES, np.uint8)
        self.fill(out)
        return out[:size_bytes]

    def bytes(self, count: int) -> bytes:
        """Return `count` bytes."""
        return self._draw(count).tobytes()

    def uint32(self, count: int) -> NDArray[np.uint32]:
        """Return `count` uniform 32-bit words, read little-endian; shape ``(count,)``, owned by the caller."""
        return self._draw(4 * count).view("<u4").astype(np.uint32, copy=False)

    def uint64(self, count: int) -> NDArray[np.uint64]:
        """Return `count` uniform 64-bit words, read little-endian; shape ``(count,)``, owned by the caller."""
        return self._draw(8 * count).view("<u8").astype(np.uint64, copy=False)

    def float64(self, count: int) -> NDArray[np.float64]:
        """Return `count` multiples of 2^-53 in [0, 1), one 64-bit word each (its upper 53 bits)."""
        return (self.uint64(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def float32(self, count: int) -> NDArray[np.float32]:
        """Return `count` multiples of 2^-24 in [0, 1), one 32-bit word each (its upper 24 bits)."""
        return (self.uint32(count) >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)
