"""Named arrays <-> Flower records.

A whole model travels as one Flower `Array` (a blob in the safetensors format), because Flower's deployment runtime pays
a request per `Array`; a sealed vector travels as one blob per aggregator.
"""

import json
import math
import tokenize
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import safetensors
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray
from safetensors.numpy import load, save

from crypto import InputError, Layout, WireError
from crypto.packing import DTYPES

#: Serialisation types of our blobs; Flower's own decoder refuses them rather than misread them.
MODEL_STYPE = "fedsim/safetensors"
SEALED_STYPE = "fedsim/sealed"
_CHUNK_BYTES = 5 * 1024 * 1024
_ID_CHARS = 64
# What numpy's reader raises, depending on which part of a header was damaged.
_NOT_NUMPY = (TypeError, ValueError, EOFError, OverflowError, MemoryError, SyntaxError, tokenize.TokenError)


@dataclass(frozen=True)
class NamedArrays:
    """A model's state: arrays by name, and the dtypes that numpy cannot say.

    Attributes:
        arrays: name -> array, in the model's order.
        dtypes: name -> dtype where it is not the array's own (``"bfloat16"``, carried as float32).
    """

    arrays: dict[str, NDArray[np.generic]]
    dtypes: dict[str, str] = field(default_factory=dict)

    @property
    def layout(self) -> Layout:
        """The layout of the whole state."""
        return Layout.of(self.arrays, self.dtypes)


def model_bytes(state: NamedArrays) -> bytes:
    """Return the state in the safetensors format; bfloat16 takes two bytes a value, the order of names is kept."""
    tensors = {}
    for name, array in state.arrays.items():
        dtype = state.dtypes.get(name, str(array.dtype.newbyteorder("=")))
        if dtype not in DTYPES:
            raise InputError(f"array '{name}' has dtype {dtype}: must be one of {sorted(DTYPES)}; cast it")
        little = array.astype(array.dtype.newbyteorder("<"), order="C", copy=False)
        tensors[name] = _bfloat16_bits(little) if dtype == "bfloat16" else little
    # One entry: safetensors writes several in no fixed order, and equal models must have equal bytes.
    return save(tensors, {"fedsim": json.dumps([list(state.arrays), state.dtypes])})


def _bfloat16_bits(array: NDArray[np.generic]) -> NDArray[np.uint16]:
    bits = np.asarray(array, np.float32).view(np.uint32)
    # Round to nearest even; values that came from bfloat16 have a zero low half and pass exactly.
    rounded = bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
    quiet_nan = bits | np.uint32(0x400000)
    return np.asarray(np.where(np.isnan(array), quiet_nan, rounded) >> np.uint32(16)).astype(np.uint16)


def model_from_bytes(data: bytes) -> NamedArrays:
    """Read what :func:`model_bytes` wrote. Arrays own their memory and may be written to.

    Raises:
        WireError: not a safetensors blob of ours.
    """
    try:
        tensors = load(data)
        order, dtypes = json.loads(_metadata(data)["fedsim"])
    except (safetensors.SafetensorError, KeyError, TypeError, ValueError) as error:
        raise WireError(f"{len(data)} bytes are not a safetensors model ({error}): the message was damaged") from error
    if sorted(order) != sorted(tensors) or not set(dtypes) <= set(tensors):
        raise WireError("the model's list of names does not match its arrays: the message was damaged")
    for name in dtypes:
        tensors[name] = (tensors[name].astype(np.uint32) << np.uint32(16)).view(np.float32)
    return NamedArrays({name: tensors[name] for name in order}, dtypes)


def _metadata(data: bytes) -> dict[str, str]:
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    metadata = header.get("__metadata__", {})
    return metadata if isinstance(metadata, dict) else {}


def blob(data: bytes, stype: str) -> Array:
    """Wrap bytes as one opaque Flower array."""
    return Array(dtype="uint8", shape=(len(data),), stype=stype, data=data)


def model_record(state: NamedArrays) -> ArrayRecord:
    """Return the whole state as a record of one blob."""
    return ArrayRecord({"model": blob(model_bytes(state), MODEL_STYPE)})


def read_model(record: ArrayRecord) -> NamedArrays:
    """Read a state from a record: ours (one blob), or an ordinary one of a numpy array per name.

    Raises:
        WireError: an array that is neither.
    """
    if set(record) == {"model"} and record["model"].stype == MODEL_STYPE:
        return model_from_bytes(record["model"].data)
    try:
        return NamedArrays({name: array.numpy() for name, array in record.items()})
    except _NOT_NUMPY as error:
        raise WireError(f"a model record must hold numpy arrays: {error}") from error


def array_record(state: NamedArrays) -> ArrayRecord:
    """Return an ordinary Flower record, a numpy array per name; bfloat16 arrays become float32."""
    return ArrayRecord({name: Array(np.ascontiguousarray(a).reshape(a.shape)) for name, a in state.arrays.items()})


def sealed_record(parts: list[bytes]) -> ArrayRecord:
    """Return sealed parts as a record, one blob per aggregator."""
    return ArrayRecord({str(i): blob(part, SEALED_STYPE) for i, part in enumerate(parts)})


def read_sealed(record: ArrayRecord, aggregators: int) -> list[bytes]:
    """Return the sealed parts in aggregator order.

    Raises:
        WireError: not one blob of ours per aggregator.
    """
    if set(record) != {str(i) for i in range(aggregators)}:
        raise WireError(f"sealed parts {sorted(record)}: expected one for each of {aggregators} aggregators")
    for name, array in record.items():
        if array.stype != SEALED_STYPE:
            raise WireError(f"part {name} has type '{array.stype}': expected '{SEALED_STYPE}'")
    return [record[str(i)].data for i in range(aggregators)]


def wire_bytes(content: RecordDict) -> int:
    """Return the bytes that Flower moves for a message's content: every object of the tree, headers included.

    The same total as the sum over Flower's serialised objects, found from lengths alone. Objects with identical bytes,
    which Flower sends once, are counted each time they occur.
    """
    references = {name: "0" * _ID_CHARS for name in content}
    total = _object_bytes("RecordDict", len(content), len(json.dumps(references)))
    for record in content.values():
        total += _record_bytes(record)
    return total


def _record_bytes(record: ArrayRecord | MetricRecord | ConfigRecord) -> int:
    if not isinstance(record, ArrayRecord):
        return len(record.deflate())
    references = {name: "0" * _ID_CHARS for name in record}
    return _object_bytes("ArrayRecord", len(record), len(json.dumps(references))) + sum(
        map(_array_bytes, record.values())
    )


def _array_bytes(array: Array) -> int:
    size = len(array.data)
    chunks = math.ceil(size / _CHUNK_BYTES)
    metadata: Mapping[str, object] = {
        "dtype": array.dtype,
        "shape": array.shape,
        "stype": array.stype,
        "arraychunk_ids": list(range(chunks)),
    }
    total = _object_bytes("Array", chunks, len(json.dumps(metadata)))
    for start in range(0, size, _CHUNK_BYTES):
        total += _object_bytes("ArrayChunk", 0, min(_CHUNK_BYTES, size - start))
    return total


def _object_bytes(kind: str, children: int, body: int) -> int:
    ids = children * _ID_CHARS + max(0, children - 1)
    # Flower's head: type, divider, child ids, divider, body length; then one byte before the body.
    return len(kind) + 1 + ids + 1 + len(str(body)) + 1 + body


__all__ = [
    "MODEL_STYPE",
    "SEALED_STYPE",
    "NamedArrays",
    "array_record",
    "blob",
    "model_bytes",
    "model_from_bytes",
    "model_record",
    "read_model",
    "read_sealed",
    "sealed_record",
    "wire_bytes",
]
