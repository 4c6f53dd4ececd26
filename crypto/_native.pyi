"""Native kernels. Arrays are C-contiguous and used in place; the GIL is released inside every kernel.

``isa`` names the instruction set (see :func:`isas`); empty means the default, which is resolved once.
"""

from numpy import int64, uint8
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

def discrete_gaussian(key: bytes, variance: int, out: NDArray[int64], threads: int = 1, isa: str = "") -> None:
    """Fill `out` with exact discrete Gaussian samples; the same for any number of threads.

    Raises:
        ValueError: the key is not 16 bytes, or the variance outside [1, 2^56].
    """
