"""The bytes that Flower moves for a message's content, found from lengths alone, without serialising anything."""

import json
import math
from functools import lru_cache
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

__all__ = ["buffer_of", "inside", "wire_bytes"]

_CHUNK_BYTES = 5 * 1024 * 1024
_ID_CHARS = 64


def buffer_of(array: Array) -> bytes | memoryview:
    """Return an array's serialised data where they lie, which may be another owner's memory."""
    shared: bytes | memoryview | None = getattr(array, "buffer", None)
    return array.data if shared is None else shared


def inside(record: RecordDict | ArrayRecord | MetricRecord | ConfigRecord) -> dict[str, Any]:
    """Return the dictionary that a record keeps, for reading: each use of the record itself takes several calls."""
    found: dict[str, Any] = record.__dict__["_data"]
    return found


def wire_bytes(content: RecordDict) -> int:
    """Return the bytes that Flower moves for a message's content: every object of the tree, headers included.

    The same total as the sum over Flower's serialised objects. Objects with identical bytes, which Flower sends once,
    are counted each time they occur.
    """
    records = inside(content)
    total = _parent_bytes("RecordDict", tuple(records))
    for record in records.values():
        total += _record_bytes(record)
    return total


def _record_bytes(record: ArrayRecord | MetricRecord | ConfigRecord) -> int:
    values = inside(record)
    if isinstance(record, ArrayRecord):
        total = _parent_bytes("ArrayRecord", tuple(values))
        for array in values.values():
            total += _array_bytes(array.dtype, tuple(array.shape), array.stype, len(buffer_of(array)))
        return total
    body = 0
    for key, value in values.items():
        size = 9 if type(value) is float else _value_bytes(value)
        if size is None:
            return len(record.deflate())
        body += _item_bytes(key, size)
    return _object_bytes(type(record).__name__, 0, body)


def _value_bytes(value: object) -> int | None:
    """Return the length of a value as protobuf writes it, its tag included; ``None`` for what is left to protobuf."""
    kind = type(value)
    if kind is float:
        return 9
    if kind is bool:
        return 2
    if isinstance(value, int):
        # Signed numbers are folded to 0, -1, 1, -2, ... before they are cut into groups of 7 bits.
        return 1 + _varint_bytes((value << 1) ^ (value >> 63)) if -(2**63) <= value < 2**63 else None
    if isinstance(value, str):
        return 1 + _sized(len(value.encode()))
    if isinstance(value, bytes):
        return 1 + _sized(len(value))
    return None


def _text_bytes(text: str) -> int:
    """Return the length of a key; an empty one is not written."""
    return 1 + _sized(len(text.encode())) if text else 0


@lru_cache(maxsize=1024)
def _item_bytes(key: str, size: int) -> int:
    """Return the length of an item of a record: tag and length, the key's tag, length and text, the value's."""
    item = _text_bytes(key) + 1 + _varint_bytes(size) + size
    return 1 + _varint_bytes(item) + item


def _sized(length: int) -> int:
    return _varint_bytes(length) + length


def _varint_bytes(number: int) -> int:
    return max(1, -(-number.bit_length() // 7))


@lru_cache(maxsize=1024)
def _parent_bytes(kind: str, names: tuple[str, ...]) -> int:
    """Return the length of an object that refers to others by name."""
    return _object_bytes(kind, len(names), len(json.dumps(dict.fromkeys(names, "0" * _ID_CHARS))))


@lru_cache(maxsize=1024)
def _array_bytes(dtype: str, shape: tuple[int, ...], stype: str, size: int) -> int:
    chunks = math.ceil(size / _CHUNK_BYTES)
    metadata = {"dtype": dtype, "shape": shape, "stype": stype, "arraychunk_ids": list(range(chunks))}
    total = _object_bytes("Array", chunks, len(json.dumps(metadata)))
    for start in range(0, size, _CHUNK_BYTES):
        total += _object_bytes("ArrayChunk", 0, min(_CHUNK_BYTES, size - start))
    return total


@lru_cache(maxsize=1024)
def _object_bytes(kind: str, children: int, body: int) -> int:
    ids = children * _ID_CHARS + max(0, children - 1)
    # Flower's head: type, divider, child ids, divider, body length; then one byte before the body.
    return len(kind) + 1 + ids + 1 + len(str(body)) + 1 + body
