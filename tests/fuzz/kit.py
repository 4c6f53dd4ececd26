"""What targets are made of: a decoder with good inputs and the errors that it may raise."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from crypto import CryptoError, wire
from crypto.base import Opener, Plan, SecureSum, Tag

LENGTH = 40
TAG = Tag(round=7, layout_hash=b"layout-hash-0123", length=LENGTH)
PLAN = Plan(length=LENGTH, clients=10, bound=1.0)


@dataclass(frozen=True)
class Target:
    """One decoder.

    Attributes:
        good: inputs that it takes.
        read: the decoder.
        refuses: what it may raise.
        forge: makes damaged bytes look whole; ``None`` where nothing hides the content.
        cheap: whether a million executions take minutes, not hours.
    """

    good: list[bytes]
    read: Callable[[bytes], object]
    refuses: tuple[type[Exception], ...]
    forge: Callable[[bytes], bytes] | None = None
    cheap: bool = True


@cache
def folder() -> Path:
    """Return a folder for decoders that read files, in memory where there is any."""
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="fedsim-fuzz-", dir=memory if memory.is_dir() else None))


def forge_frame(data: bytes) -> bytes:
    if len(data) < wire.HEADER_BYTES:
        return data
    size = wire._HEAD.size
    head, body = bytearray(data[:size]), data[wire.HEADER_BYTES :]
    head[-8:] = len(body).to_bytes(8, "little")
    return bytes(head) + wire._checksum(bytes(head), body) + body


def read_file(name: str, read: Callable[[Path], object]) -> Callable[[bytes], None]:
    def through(data: bytes) -> None:
        path = folder() / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        read(path)

    return through


def added_and_opened(scheme: SecureSum, opener: Opener) -> Callable[[bytes], None]:
    """Return a reader that takes a part or a total into an empty sum and opens it."""

    def read(data: bytes) -> None:
        into = scheme.adder(TAG)
        try:
            into.add(data)
        except CryptoError:
            into.merge(data)
        opener.open([into.total()], TAG)

    return read
