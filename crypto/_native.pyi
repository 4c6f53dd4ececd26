"""Native kernels. Arrays are C-contiguous and used in place; the GIL is released inside every kernel.

``isa`` names the instruction set (see :func:`isas`); empty means the default, which is resolved once.
"""

from numpy import int64, uint8, uint32
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

def discrete_gaussian(key: bytes, variance: int, out: NDArray[int64], threads: int = 1, isa: str = "") -> None:
    """Fill `out` with exact discrete Gaussian samples; the same for any number of threads.

    Raises:
        ValueError: the key is not 16 bytes, or the variance outside [1, 2^56].
    """
