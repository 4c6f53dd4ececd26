"""Named arrays <-> Flower records.

A whole model travels as one Flower `Array` (a blob in the safetensors format), because Flower's deployment runtime pays
a request per `Array`; a sealed vector travels as one blob per aggregator.
"""

import json
import tokenize
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeVar

import numpy as np
import safetensors
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray
from safetensors.numpy import load, save

from crypto import InputError, Layout, WireError
from crypto.packing import DTYPES
from crypto.texts import json_of
from strategies.wire_size import buffer_of, inside, wire_bytes

__all__ = [
    "MODEL_STYPE",
    "NamedArrays",
    "SEALED_STYPE",
    "array_record",
    "blob",
    "config_record",
    "find",
    "inside",
    "metric_record",
    "model_bytes",
    "model_from_bytes",
    "model_record",
    "need",
    "put",
    "read_model",
    "read_sealed",
    "read_shared_model",
    "record_dict",
    "sealed_record",
    "wire_bytes",
]

#: Serialisation types of our blobs; Flower's own decoder refuses them rather than misread them.
MODEL_STYPE = "fedsim/safetensors"
SEALED_STYPE = "fedsim/sealed"
# What numpy's reader raises, depending on which part of a header was damaged.
_NOT_NUMPY = (TypeError, ValueError, EOFError, OverflowError, MemoryError, SyntaxError, tokenize.TokenError)


_Record = TypeVar("_Record", bound=ArrayRecord | MetricRecord | ConfigRecord)


def find(content: RecordDict, name: str, kind: type[_Record]) -> _Record | None:
    """Return a content's record if it is there and of this kind.

    ``content.array_records`` and its like make a new dictionary of all records at each use.
    """
    record = inside(content).get(name)
    return record if isinstance(record, kind) else None


def need(content: RecordDict, name: str, kind: type[_Record]) -> _Record:
    """Return a content's record of this kind.

    Raises:
        KeyError: there is none.
    """
    record = find(content, name, kind)
    if record is None:
        raise KeyError(name)
    return record


def metric_record(values: dict[str, int | float]) -> MetricRecord:
    """Return a record of numbers that are known to be plain ones; Flower's constructor asks of each what it is."""
    record = MetricRecord()
    record.__dict__["_data"] = values
    return record


def config_record(values: dict[str, int | float | str]) -> ConfigRecord:
    """Return a record of values that are known to be plain ones."""
    record = ConfigRecord()
    record.__dict__["_data"] = values
    return record


def record_dict(records: dict[str, ArrayRecord | MetricRecord | ConfigRecord]) -> RecordDict:
    """Return a content of records that are known to be such."""
    content = RecordDict()
    content.__dict__["_data"] = records
    return content


def put(content: RecordDict, name: str, record: ArrayRecord | MetricRecord | ConfigRecord) -> None:
    """Put a record into a content."""
    content.__dict__["_data"][name] = record


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
        order, dtypes = json_of(_metadata(data)["fedsim"])
    except (safetensors.SafetensorError, KeyError, TypeError, ValueError) as error:
        raise WireError(f"{len(data)} bytes are not a safetensors model ({error}): the message was damaged") from error
    if sorted(order) != sorted(tensors) or not set(dtypes) <= set(tensors):
        raise WireError("the model's list of names does not match its arrays: the message was damaged")
    for name in dtypes:
        tensors[name] = (tensors[name].astype(np.uint32) << np.uint32(16)).view(np.float32)
    return NamedArrays({name: tensors[name] for name in order}, dtypes)


def _metadata(data: bytes) -> dict[str, str]:
    length = int.from_bytes(data[:8], "little")
    header = json_of(data[8 : 8 + length])
    metadata = header.get("__metadata__", {})
    return metadata if isinstance(metadata, dict) else {}


def blob(data: bytes, stype: str) -> Array:
    """Wrap bytes as one opaque Flower array."""
    array = Array.__new__(Array)
    array.__dict__.update(dtype="uint8", shape=(len(data),), stype=stype, data=data)
    return array


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


class _Blob:
    """Bytes by identity: equal only to themselves, and alive as long as they are a key."""

    __slots__ = ("data",)

    def __init__(self, data: bytes | memoryview) -> None:
        self.data = data

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Blob) and self.data is other.data

    def __hash__(self) -> int:
        return id(self.data)


def read_shared_model(record: ArrayRecord) -> NamedArrays:
    """Read a state as :func:`read_model` does, once for all clients of this process that got the same bytes.

    Arrays are read-only: others have them too.

    Raises:
        WireError: see :func:`read_model`.
    """
    if set(record) == {"model"} and record["model"].stype == MODEL_STYPE:
        state = _shared(_Blob(buffer_of(record["model"])))
        return NamedArrays(dict(state.arrays), dict(state.dtypes))
    return read_model(record)


@lru_cache(maxsize=1)
def _shared(blob: _Blob) -> NamedArrays:
    state = model_from_bytes(bytes(blob.data))
    for array in state.arrays.values():
        array.flags.writeable = False
    return state


def array_record(state: NamedArrays) -> ArrayRecord:
    """Return an ordinary Flower record, a numpy array per name; bfloat16 arrays become float32."""
    return ArrayRecord({name: Array(np.ascontiguousarray(a).reshape(a.shape)) for name, a in state.arrays.items()})


def sealed_record(parts: list[bytes]) -> ArrayRecord:
    """Return sealed parts as a record, one blob per aggregator."""
    record = ArrayRecord()
    record.__dict__["_data"] = {str(i): blob(part, SEALED_STYPE) for i, part in enumerate(parts)}
    return record


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
