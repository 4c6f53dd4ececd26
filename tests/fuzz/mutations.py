"""Damage for decoders: what transport, disks and attackers do to bytes."""

import random
from collections.abc import Callable

#: Values that lengths and counts are replaced by.
EDGES = [0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**63 - 1, 2**64 - 1]


def _flip(data: bytearray, coin: random.Random) -> None:
    for _ in range(coin.choice((1, 1, 1, 2, 8))):
        data[coin.randrange(len(data))] ^= 1 << coin.randrange(8)


def _cut(data: bytearray, coin: random.Random) -> None:
    del data[coin.randrange(len(data)) :]


def _append(data: bytearray, coin: random.Random) -> None:
    data += coin.randbytes(coin.randrange(1, 64))


def _remove(data: bytearray, coin: random.Random) -> None:
    at = coin.randrange(len(data))
    del data[at : at + coin.randrange(1, 32)]


def _overwrite(data: bytearray, coin: random.Random) -> None:
    at = coin.randrange(len(data))
    data[at : at + coin.randrange(1, 32)] = coin.randbytes(coin.randrange(1, 32))


def _edge(data: bytearray, coin: random.Random) -> None:
    size = coin.choice((1, 2, 4, 8))
    at = coin.randrange(max(1, len(data) - size + 1))
    value = coin.choice(EDGES) & (256**size - 1)
    data[at : at + size] = value.to_bytes(size, coin.choice(("little", "big")))


def _repeat(data: bytearray, coin: random.Random) -> None:
    at, size = coin.randrange(len(data)), coin.randrange(1, 64)
    data[at:at] = data[at : at + size] * coin.choice((1, 2, 50))


def _digits(data: bytearray, coin: random.Random) -> None:
    """Put another number in the place of one that is written as text."""
    at = next((i for i in range(coin.randrange(len(data)), len(data)) if 48 <= data[i] < 58), None)
    if at is not None:
        choices = (b"-1", b"0", b"1e400", b"9" * 40, b"9" * 5000, b"NaN", b"null", b'"x"', b"[]", b"{}", b"true")
        data[at : at + 1] = coin.choice(choices)


def _nest(data: bytearray, coin: random.Random) -> None:
    """Open tables or lists without end."""
    at = coin.randrange(len(data))
    data[at:at] = coin.choice((b"[", b'{"a":', b"{a=", b"a.")) * coin.choice((20, 100, 5000))


_KINDS: tuple[Callable[[bytearray, random.Random], None], ...] = (
    _flip,
    _cut,
    _append,
    _remove,
    _overwrite,
    _edge,
    _repeat,
    _digits,
    _nest,
)


def mutate(good: bytes, others: list[bytes], coin: random.Random) -> bytes:
    """Return `good` after one to three kinds of damage, sometimes spliced with another input, rarely pure noise."""
    if coin.random() < 0.02:
        return coin.randbytes(coin.randrange(300))
    data = bytearray(good)
    if others and coin.random() < 0.1:
        other = coin.choice(others)
        at = coin.randrange(len(data) + 1)
        data[at:] = other[min(at, len(other)) :]
    for _ in range(coin.choice((1, 1, 2, 3))):
        if data:
            coin.choice(_KINDS)(data, coin)
    return bytes(data)
