"""Polynomials as residues: bit-packed on the wire, added modulo their primes without the library.

A ciphertext is an array of residues, shape ``(polynomials, limbs, ring)``, uint64, limb i below modulus i. On the wire
each residue takes exactly the bits of the largest modulus, least significant bit first in little-endian words, so that
every body of the right length is a candidate and the only thing left to check is that residues are below their modulus.
Ciphertexts of one level add coefficient by coefficient; that this equals the library's addition is verified each time
a context opens.
"""

from math import gcd, prod

import numpy as np
from numpy.typing import NDArray

from crypto.errors import WireError

Residues = NDArray[np.uint64]

# Rows packed at a time: their columns are walked with a stride, so they should stay in the cache.
_ROWS = 512


def packed_bytes(count: int, bits: int) -> int:
    """Return the bytes of `count` residues (a multiple of 64) of `bits` bits."""
    return count * bits // 8


def pack(residues: Residues, bits: int) -> NDArray[np.uint8]:
    """Pack residues below ``2^bits``; their number must be a multiple of 64. Returns flat bytes of the caller's own."""
    group = 64 // gcd(64, bits)
    values = residues.reshape(-1, group)
    words = np.zeros((len(values), group * bits // 64), "<u8")
    for at in range(0, len(values), _ROWS):
        _pack_rows(values[at : at + _ROWS], words[at : at + _ROWS], bits)
    return words.view(np.uint8).reshape(-1)


def _pack_rows(values: Residues, words: Residues, bits: int) -> None:
    for j in range(values.shape[1]):
        word, shift = divmod(j * bits, 64)
        words[:, word] |= values[:, j] << np.uint64(shift)
        if shift + bits > 64:
            words[:, word + 1] |= values[:, j] >> np.uint64(64 - shift)


def unpack(data: memoryview, bits: int, moduli: NDArray[np.uint64], shape: tuple[int, ...]) -> Residues:
    """Return the residues that :func:`pack` packed.

    Args:
        data: exactly ``packed_bytes(prod(shape), bits)`` bytes; a multiple of it where a size is -1.
        bits: width of one residue.
        moduli: one per limb.
        shape: ``(..., limbs, ring)``.

    Raises:
        WireError: another number of bytes, or a residue is not below its modulus: whoever made the message is faulty,
            as its checksum is right.
    """
    each = packed_bytes(prod(abs(size) for size in shape), bits)
    if data.nbytes != each and (min(shape) >= 0 or data.nbytes % each):
        raise WireError(f"{data.nbytes} bytes: residues of shape {shape} take {each}; the message was cut off")
    group = 64 // gcd(64, bits)
    words = np.frombuffer(data, "<u8").reshape(-1, group * bits // 64)
    out = np.empty((len(words), group), np.uint64)
    for at in range(0, len(words), _ROWS):
        _unpack_rows(words[at : at + _ROWS], out[at : at + _ROWS], bits)
    residues = out.reshape(shape)
    if np.any(residues >= moduli[:, None]):
        bad = tuple(int(i) for i in np.argwhere(residues >= moduli[:, None])[0])
        raise WireError(f"residue {residues[bad]} at {bad}: must be below its modulus; the sender is left out")
    return residues


def _unpack_rows(words: Residues, out: Residues, bits: int) -> None:
    mask = np.uint64((1 << bits) - 1)
    for j in range(out.shape[1]):
        word, shift = divmod(j * bits, 64)
        column = words[:, word] >> np.uint64(shift)
        if shift + bits > 64:
            column |= words[:, word + 1] << np.uint64(64 - shift)
        np.bitwise_and(column, mask, out=out[:, j])


def add_into(total: Residues, other: Residues, moduli: NDArray[np.uint64]) -> None:
    """Add `other` to `total` in place, modulo one prime per limb; both shaped ``(..., limbs, ring)`` and reduced."""
    total += other
    # Below 2q < 2^62: one conditional subtraction. Where total < q the difference wraps to a huge number.
    np.minimum(total, total - moduli[:, None], out=total)
