"""A vector cut into ciphertexts, back to back in one frame body, each with a 4-byte little-endian length before it.

The number of ciphertexts follows from the layout and is not on the wire; each length must lie in a range that follows
from the parameters. A body with anything else, before, between or after, is refused before a library sees a byte.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from crypto.errors import WireError

_LENGTH = struct.Struct("<I")

#: Bytes before each ciphertext.
PREFIX_BYTES = _LENGTH.size


@dataclass(frozen=True, slots=True)
class Lengths:
    """Allowed bytes of one ciphertext, both ends included."""

    least: int
    most: int


def join(chunks: Iterable[bytes]) -> bytearray:
    """Return the body that holds these ciphertexts; they are consumed one at a time."""
    body = bytearray()
    for chunk in chunks:
        body += _LENGTH.pack(len(chunk))
        body += chunk
    return body


def split(body: memoryview, count: int, lengths: Lengths) -> list[memoryview]:
    """Return views of the ciphertexts in a body.

    Raises:
        WireError: not exactly `count` ciphertexts of allowed lengths.
    """
    chunks: list[memoryview] = []
    at = 0
    for index in range(count):
        if at + PREFIX_BYTES > body.nbytes:
            raise WireError(f"ends before ciphertext {index}: this layout has {count}; send the whole vector")
        (size,) = _LENGTH.unpack_from(body, at)
        at += PREFIX_BYTES
        if not lengths.least <= size <= lengths.most or at + size > body.nbytes:
            raise WireError(
                f"ciphertext {index} of {size} bytes with {body.nbytes - at} left: must have {lengths.least} to "
                f"{lengths.most}; use the round's parameters"
            )
        chunks.append(body[at : at + size])
        at += size
    if at != body.nbytes:
        raise WireError(f"{body.nbytes - at} bytes after the last of {count} ciphertexts: nothing may follow")
    return chunks
