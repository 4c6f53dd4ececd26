"""Frame of everything sealed: checked whole before any cryptographic library sees a byte.

Layout, little-endian, 80 bytes of header and then the body::

    offset size
         0    4  magic "FSIM"
         4    1  version (1)
         5    1  kind (1 part, 2 total, 3 partial decryption, 4 key set-up)
         6   10  scheme name, ASCII, zero-padded
        16   16  parameter hash (scheme parameters and plan)
        32    8  key id (zero where a scheme has no key)
        40   16  layout hash
        56    4  round
        60    4  count of client vectors inside (1 in a part)
        64    8  body length
        72    8  checksum: BLAKE2b-64 of the first 72 bytes and the body

The checksum finds damage, not forgery: a frame is authenticated by the connection that carries it (TLS, node keys).
"""

import hashlib
import struct
from dataclasses import dataclass

from crypto.base import Tag
from crypto.errors import IntegrityError, KeyMismatch, LayoutMismatch, ReplayError, WireError

MAGIC = b"FSIM"
VERSION = 1
PART, TOTAL, PARTIAL, KEY = 1, 2, 3, 4
NO_KEY = bytes(8)
_HEAD = struct.Struct("<4sBB10s16s8s16sIIQ")
HEADER_BYTES = _HEAD.size + 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The fields that a frame must match; see the module docstring."""

    scheme: str
    params_hash: bytes
    key_id: bytes
    tag: Tag


@dataclass(frozen=True, slots=True)
class Frame:
    """A decoded frame; `body` is a view into the received bytes."""

    count: int
    body: memoryview


class _Intact(bytes):
    """A frame that this process made: it cannot have been damaged on the way, so nobody hashes it again.

    What it is sent as, and what is made from it, are plain bytes.
    """

    def __reduce_ex__(self, protocol: object) -> tuple[type[bytes], tuple[bytes]]:
        return bytes, (bytes(self),)


def params_hash(scheme: str, *values: object) -> bytes:
    """Return 16 bytes that identify a scheme's parameters; `values` must have a stable ``repr``."""
    return hashlib.sha256(repr((scheme, *values)).encode()).digest()[:16]


def encode(header: Header, kind: int, count: int, body: bytes | memoryview | bytearray) -> bytes:
    """Frame a body; see the module docstring for the layout."""
    head = _HEAD.pack(
        MAGIC,
        VERSION,
        kind,
        header.scheme.encode("ascii"),
        header.params_hash,
        header.key_id,
        header.tag.layout_hash,
        header.tag.round,
        count,
        memoryview(body).nbytes,
    )
    return _Intact(b"".join((head, _checksum(head, body), body)))


def decode(data: bytes | memoryview, header: Header, kind: int, body_bytes: int | None = None) -> Frame:
    """Check a frame against what this round expects and return its body.

    Args:
        data: the received bytes, nothing before or after the frame.
        header: the expected fields.
        kind: :data:`PART` or :data:`TOTAL`.
        body_bytes: the exact length of the body, where the scheme knows it.

    Raises:
        WireError: not a frame, another version, scheme or kind, wrong length, or trailing bytes.
        IntegrityError: the checksum does not match.
        KeyMismatch: other parameters or another key.
        ReplayError: another round.
        LayoutMismatch: another layout.
    """
    view = memoryview(data).cast("B")
    if view.nbytes < HEADER_BYTES:
        raise WireError(f"{view.nbytes} bytes: a frame has at least {HEADER_BYTES}; the message was cut off")
    magic, version, got_kind, scheme, params, key_id, layout, round_, count, length = _HEAD.unpack(view[: _HEAD.size])
    if magic != MAGIC or version != VERSION:
        raise WireError(f"starts with {magic!r} version {version}: expected {MAGIC!r} version {VERSION}")
    body = view[HEADER_BYTES:]
    if length != body.nbytes:
        raise WireError(f"body of {body.nbytes} bytes: the frame says {length}; cut off or trailing bytes")
    if body_bytes is not None and length != body_bytes:
        raise WireError(f"body of {length} bytes: this scheme and layout make exactly {body_bytes}")
    if type(data) is not _Intact and _checksum(view[: _HEAD.size], body) != bytes(view[_HEAD.size : HEADER_BYTES]):
        raise IntegrityError("checksum does not match: the message was damaged on the way; send it again")
    if scheme != header.scheme.encode("ascii").ljust(10, b"\0") or got_kind != kind:
        raise WireError(f"scheme {scheme!r} kind {got_kind}: expected '{header.scheme}' kind {kind}")
    if params != header.params_hash:
        raise KeyMismatch(
            f"parameters {params.hex()[:8]}: this round uses {header.params_hash.hex()[:8]}; use one config"
        )
    if key_id != header.key_id:
        raise KeyMismatch(f"key {key_id.hex()}: this round uses {header.key_id.hex()}; distribute the run's keys")
    if round_ != header.tag.round:
        raise ReplayError(f"round {round_}: this is round {header.tag.round}; old messages are not counted")
    if layout != header.tag.layout_hash:
        raise LayoutMismatch(
            f"layout {layout.hex()[:8]}: this round's is {header.tag.layout_hash.hex()[:8]}; names, shapes, dtypes and "
            "their order must agree"
        )
    if count < 1 or (kind == PART and count != 1):
        raise WireError(f"count {count}: a part holds exactly 1 vector, a total at least 1")
    return Frame(count, body)


def _checksum(head: bytes | memoryview, body: bytes | memoryview | bytearray) -> bytes:
    digest = hashlib.blake2b(head, digest_size=8)
    digest.update(body)
    return digest.digest()
