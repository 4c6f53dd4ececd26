"""Native kernels. Arrays are C-contiguous and used in place; the GIL is released inside every kernel.

``isa`` names the instruction set (see :func:`isas`); empty means the default, which is resolved once.
"""

from typing import overload

from numpy import float32, float64, int64, uint8, uint32, uint64
from numpy.typing import NDArray

def isa() -> str:
    """Return the default instruction set: the environment's ``FEDSIM_ISA`` or the fastest one here.

    Raises:
        ValueError: ``FEDSIM_ISA`` is unknown or this processor lacks it.
    """

def isas() -> list[str]:
    """Return the instruction sets that this processor supports, fastest first; the last is ``generic``."""

def aes_round_keys(key: bytes, isa: str = "") -> bytes:
    """Return the 176 bytes of round keys of a 16-byte key (FIPS-197, section 5.2)."""

def aes_encrypt(key: bytes, data: NDArray[uint8], out: NDArray[uint8], isa: str = "") -> None:
    """Write the AES-128 encryption of whole blocks, each by itself, to `out` (may be `data`).

    Raises:
        ValueError: the key is not 16 bytes, the data not whole blocks, or the lengths differ.
    """

def aes_stream(key: bytes, counter: bytes, out: NDArray[uint8], isa: str = "") -> None:
    """Fill `out` with AES-128-CTR keystream from a 16-byte big-endian counter that wraps (SP 800-38A).

    Raises:
        ValueError: key or counter is not 16 bytes, or `out` is not whole blocks.
    """

def blake2b(data: bytes, digest_bytes: int, person: str) -> bytes:
    """Return what ``hashlib.blake2b(data, digest_size=digest_bytes, person=person)`` gives; for tests."""

def dpf_public_bytes(group: int, groups: int, blocks: int, length: int) -> int:
    """Return the length of a public share without its nonce; `group` is 1 (Z32), 2 (Z64) or 3 (Field64)."""

def dpf_stretch(group: int, seed: bytes, out: NDArray[uint8], isa: str = "") -> None:
    """Fill `out` with the words that a leaf seed stretches to."""

def dpf_generate(
    group: int,
    groups: int,
    blocks: int,
    length: int,
    tree_keys: bytes,
    binding: bytes,
    roots0: bytes,
    roots1: bytes,
    alpha: NDArray[uint32],
    payload: NDArray[uint8],
    isa: str = "",
) -> bytes:
    """Return the public share (without nonce) of `groups` blocks of `length` words.

    Raises:
        ValueError: a buffer has the wrong length, or an index is not below `blocks`.
    """

def dpf_accumulate(
    group: int,
    groups: int,
    blocks: int,
    length: int,
    server: int,
    tree_keys: list[bytes],
    bindings: list[bytes],
    roots: list[bytes],
    public_shares: list[bytes],
    total: NDArray[uint8],
    threads: int = 1,
    isa: str = "",
) -> None:
    """Add the expansions of all reports to `total`, in place.

    Raises:
        ValueError: a buffer or list has the wrong length; `total` is unchanged.
    """

def dpf_block_sums(
    group: int,
    groups: int,
    blocks: int,
    length: int,
    server: int,
    tree_keys: bytes,
    roots: bytes,
    public_share: bytes,
    out: NDArray[uint8],
    isa: str = "",
) -> None:
    """Write the sum of each group's blocks of one report's expansion."""

def dpf_prove(
    group: int,
    groups: int,
    blocks: int,
    length: int,
    server: int,
    tree_keys: list[bytes],
    bindings: list[bytes],
    roots: list[bytes],
    public_shares: list[bytes],
    digests: list[bytes],
    threads: int = 1,
    isa: str = "",
) -> bytes:
    """Return the one-block proofs of all reports, 32 bytes each."""

def dpf_expand_tree(
    groups: int,
    blocks: int,
    length: int,
    group: int,
    server: int,
    which: int,
    tree_keys: bytes,
    roots: bytes,
    public_share: bytes,
    seeds: NDArray[uint8],
    bits: NDArray[uint8],
    isa: str = "",
) -> None:
    """Write the leaf seeds (16 bytes each) and control bits of group number `which`."""

@overload
def hadamard(values: NDArray[float32]) -> None: ...
@overload
def hadamard(values: NDArray[float64]) -> None:
    """Replace contiguous values by their orthonormal Walsh-Hadamard transform; the same bits on every machine.

    Raises:
        ValueError: their number is no power of two.
        TypeError: they are not contiguous float32 or float64.
    """

def discrete_gaussian(key: bytes, variance: int, out: NDArray[int64], threads: int = 1, isa: str = "") -> None:
    """Fill `out` with exact discrete Gaussian samples; the same for any number of threads.

    Raises:
        ValueError: the key is not 16 bytes, or the variance outside [1, 2^56].
    """

def ring_isas() -> list[str]:
    """Return the ring kernels that this processor supports, fastest first: ``avx512``, ``avx2``, ``neon``, ``generic``.

    ``FEDSIM_ISA=generic`` makes ``generic`` the default.
    """

class RlweRing:
    """R_q with a plaintext modulus ``2^plain_bits``; see ``crypto/native/rlwe.hpp``. `isa` names ring kernels.

    A plane is the packed residues of one polynomial for each ciphertext; a total is the same unpacked, shape
    ``(ciphertexts * primes * n,)``. Keys are 16 bytes. Every method raises ValueError for arrays of another length.

    Raises:
        ValueError: n is no power of two in [16, 4096]; the moduli are not one or two primes of at most 57 bits that are
            1 mod 2n; or the plaintext modulus leaves no room.
    """

    def __init__(self, n: int, moduli: list[int], plain_bits: int) -> None: ...
    @property
    def polynomial_bytes(self) -> int:
        """Bytes of one packed polynomial."""

    def uniform(self, key: bytes, index: int, out: NDArray[uint64], isa: str = "") -> None:
        """Write polynomial `index` of a key's stream: uniform residues."""

    def errors(self, key: bytes, index: int, out: NDArray[int64], isa: str = "") -> None:
        """Write `n` errors: centred binomial of 21 coin pairs."""

    def ternary(self, key: bytes, index: int, out: NDArray[int64], isa: str = "") -> None:
        """Write `n` values of -1, 0, 1."""

    def add_uniform(self, key: bytes, total: NDArray[uint64], isa: str = "") -> None:
        """Add a key's uniform polynomials, numbers 0, 1, ..."""

    def add_smudging(self, key: bytes, bits: int, total: NDArray[uint64], isa: str = "") -> None:
        """Add centred sums of 12 uniform words of `bits` bits, 1 to 100: deviation ``2^bits``."""

    def forward(self, x: NDArray[int64], out: NDArray[uint64], isa: str = "") -> None:
        """Transform a polynomial of small integers (below every prime in size)."""

    def multiply_add(
        self, x: NDArray[uint64], multiplier: RlweMultiplier, total: NDArray[uint64], isa: str = ""
    ) -> None:
        """Add a product in transformed order; the multiplier must not be divided."""

    def canonical(self, plane: NDArray[uint8], isa: str = "") -> bool:
        """Tell whether all residues of a plane are below their primes."""

    def add_plane(self, plane: NDArray[uint8], total: NDArray[uint64], isa: str = "") -> bool:
        """Add a plane; return False, with the total unchanged, if a residue is not below its prime."""

    def add_product(self, plane: NDArray[uint8], secret: RlweMultiplier, total: NDArray[uint64], isa: str = "") -> None:
        """Add the product, by coefficients, of a plane in transformed order and a divided multiplier."""

    def pack_plane(self, total: NDArray[uint64], out: NDArray[uint8], isa: str = "") -> None:
        """Write a total as a plane."""

    def decode(self, phases: NDArray[uint64], step: float, out: NDArray[float64], isa: str = "") -> tuple[int, float]:
        """Write `step` times the rounded phases; return the largest integer and noise in size, padding included."""

    def open(
        self,
        first: NDArray[uint8],
        second: NDArray[uint8],
        secret: RlweMultiplier,
        step: float,
        out: NDArray[float64],
        isa: str = "",
    ) -> tuple[int, float] | None:
        """Decrypt both planes of a total as :meth:`decode` does; None if a residue is not below its prime."""

    def seal_symmetric(
        self,
        values: NDArray[float32] | NDArray[float64],
        bound: float,
        scale: float,
        coins: bytes | None,
        secret: RlweMultiplier,
        uniform_key: bytes,
        error_key: bytes,
        out: NDArray[uint8],
        isa: str = "",
    ) -> int:
        """Write the plane of a vector sealed under a divided secret; return how many values were clipped.

        Values become what :meth:`crypto.fixed_point.FixedPoint.encode_with` gives for the 32-bit words of the stream
        `coins`, or to nearest without.
        """

    def seal_public(
        self,
        values: NDArray[float32] | NDArray[float64],
        bound: float,
        scale: float,
        coins: bytes | None,
        b: RlweMultiplier,
        a: RlweMultiplier,
        ternary_key: bytes,
        error_key: bytes,
        out: NDArray[uint8],
        isa: str = "",
    ) -> int:
        """Write both planes of a vector sealed under the public key (b divided, a not); return the number clipped."""

class RlweMultiplier:
    """A fixed polynomial in transformed order, ready to multiply; holds a secret where that is one."""

    def __init__(self, ring: RlweRing, words: NDArray[uint64], divided: bool) -> None: ...
