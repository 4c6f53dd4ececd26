"""Flower messages between processes without copies of array data.

``flwr.app.Array`` keeps its data as ``bytes``, which pickle writes in band: every hop copies them twice. Here they
travel out of band (pickle protocol 5, PEP 574), so that a store such as Ray's maps them read-only into the receiver.
A received array copies once, when it is read.
"""

import copyreg
import io
import math
import pickle
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.app.error import Error
from flwr.app.message.typeddict import TypedDict
from flwr.app.metadata import Metadata
from numpy.typing import NDArray

# Below this an own buffer costs more than the copy it saves.
OUT_OF_BAND_BYTES = 16 * 1024

_NUMPY_STYPE = "numpy.ndarray"
_Record = TypeVar("_Record", bound=ArrayRecord | ConfigRecord | MetricRecord)


class SharedArray(Array):
    """An ``Array`` whose data may lie in a read-only buffer of another owner, e.g. Ray's object store.

    ``numpy()`` returns a private, writable copy. ``data`` turns the buffer into ``bytes`` at first use and lets go of
    it.
    """

    def __init__(self, dtype: str, shape: tuple[int, ...], stype: str, buffer: Any) -> None:
        self.__dict__.update(dtype=dtype, shape=shape, stype=stype, _buffer=buffer)

    @property
    def buffer(self) -> bytes | memoryview:
        """The serialised array where it lies."""
        return cast("bytes | memoryview", self.__dict__["_buffer"])

    @property
    def data(self) -> bytes:
        """The serialised array, as in ``flwr.app.Array``."""
        buffer = self.__dict__["_buffer"]
        if not isinstance(buffer, bytes):
            buffer = self.__dict__["_buffer"] = bytes(buffer)
        return buffer

    @data.setter
    def data(self, value: bytes) -> None:
        self.__dict__["_buffer"] = value

    def numpy(self) -> NDArray[Any]:
        """See ``flwr.app.Array.numpy``; one copy instead of two."""
        if self.stype != _NUMPY_STYPE:
            return super().numpy()
        return view_npy(self.__dict__["_buffer"]).copy(order="K")

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return SharedArray, (self.dtype, self.shape, self.stype, self.data)

    def deflate(self) -> bytes:
        """See ``flwr.app.Array.deflate``; the class name on the wire stays ``Array``."""
        return plain_array(self).deflate()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Array):
            return NotImplemented
        mine, theirs = (self.dtype, self.shape, self.stype), (other.dtype, other.shape, other.stype)
        return mine == theirs and memoryview(raw_data(self)) == memoryview(raw_data(other))

    __hash__ = None  # type: ignore[assignment]


def raw_data(array: Array) -> bytes | memoryview:
    """Return the array's serialised data without copying them."""
    if isinstance(array, SharedArray):
        return cast("bytes | memoryview", array.__dict__["_buffer"])
    return array.data


def plain_array(array: Array) -> Array:
    """Return an ``Array`` that owns its bytes, so that nothing of a shared buffer stays referenced."""
    if not isinstance(array, SharedArray):
        return array
    return Array(dtype=array.dtype, shape=tuple(array.shape), stype=array.stype, data=array.data)


def view_npy(buffer: Any) -> NDArray[Any]:
    """Return a read-only array over data in NumPy's ``.npy`` format, without copying them.

    Raises:
        ValueError: The data are not in that format, or hold Python objects.
    """
    view = memoryview(buffer)
    start = 10 + int.from_bytes(view[8:10], "little")
    if bytes(view[:8]) != b"\x93NUMPY\x01\x00":  # newer formats are rare: field names beyond latin-1
        return cast("NDArray[Any]", np.load(io.BytesIO(view), allow_pickle=False))
    shape, fortran, dtype = _read_header(bytes(view[8:start]))
    if dtype.hasobject:
        raise ValueError(f"array of dtype {dtype}: Python objects are not allowed; send numbers")
    count = math.prod(shape)
    flat = np.frombuffer(view, dtype=dtype, count=count, offset=start) if count else np.empty(0, dtype)
    flat.flags.writeable = False
    return flat.reshape(shape, order="F" if fortran else "C")


@lru_cache(maxsize=4096)
def _read_header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """The clients of a round send the same few headers; NumPy parses each as Python source."""
    return np.lib.format.read_array_header_1_0(io.BytesIO(header))


class Packed:
    """A pickled object and its large buffers; pickles again without copying them."""

    __slots__ = ("buffers", "meta")

    def __init__(self, meta: Any, buffers: Sequence[Any]) -> None:
        self.meta = meta
        self.buffers = buffers

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        meta = pickle.PickleBuffer(self.meta) if len(self.meta) >= OUT_OF_BAND_BYTES else bytes(self.meta)
        return Packed, (meta, [pickle.PickleBuffer(b) for b in self.buffers])

    @property
    def size_bytes(self) -> int:
        """Bytes that travel."""
        return len(self.meta) + sum(memoryview(b).nbytes for b in self.buffers)

    def same_as(self, other: "Packed") -> bool:
        """Return whether both hold equal bytes."""
        mine, theirs = (self.meta, *self.buffers), (other.meta, *other.buffers)
        return len(mine) == len(theirs) and all(
            memoryview(a) == memoryview(b) for a, b in zip(mine, theirs, strict=True)
        )


def pack(value: Any, shared: Mapping[int, int] | None = None) -> Packed:
    """Pickle messages and records.

    Args:
        value: A message, a record, or containers of them; its array data are referred to, not copied.
        shared: ``id`` of an ``ArrayRecord`` inside the value -> number under which the receiver gets it separately.

    Raises:
        Exception: As pickle does, when the value holds something that cannot be pickled.
    """
    out = io.BytesIO()
    buffers: list[Any] = []
    keep = lambda buffer: buffers.append(buffer.raw())  # noqa: E731
    pickler = _SharingPickler(out, shared, keep) if shared else _Pickler(out, protocol=5, buffer_callback=keep)
    pickler.dump(value)
    return Packed(out.getvalue(), buffers)


def unpack(packed: Packed, shared: Sequence[ArrayRecord] = ()) -> Any:
    """Return what was packed. Every call returns new records; the shared ones are copied down to their arrays."""
    if not shared:
        return pickle.loads(packed.meta, buffers=packed.buffers)
    unpickler = pickle.Unpickler(io.BytesIO(packed.meta), buffers=packed.buffers)
    unpickler.persistent_load = lambda number: copy_record(shared[number])  # type: ignore[method-assign]
    return unpickler.load()


def copy_content(content: RecordDict) -> RecordDict:
    """Return new records over the same array data, so that a client's changes stay its own."""
    return cast("RecordDict", _rebuild(RecordDict, {name: copy_record(record) for name, record in content.items()}))


def copy_record(record: _Record) -> _Record:
    """Return a new record over the same array data."""
    data: dict[str, Any] = record.__dict__["_data"]
    if isinstance(record, ArrayRecord):
        return cast("_Record", _rebuild(ArrayRecord, {name: _copy_array(array) for name, array in data.items()}))
    copied = {name: list(value) if isinstance(value, list) else value for name, value in data.items()}
    return cast("_Record", _rebuild(type(record), copied))


def make_message(metadata: dict[str, Any], content: RecordDict | None, error: tuple[int, str | None] | None) -> Message:
    """Return a message of exactly these parts; ``metadata`` is the ``__dict__`` of a ``Metadata``."""
    meta = Metadata.__new__(Metadata)
    meta.__dict__.update(metadata)
    new = Message.__new__(Message)
    new.__dict__.update(_metadata=meta, _content=content, _error=None if error is None else Error(*error))
    return new


def own_content(message: Message) -> None:
    """Make the message own its array data, so that no shared buffer stays referenced through it."""
    if message.has_content():
        for record in message.content.array_records.values():
            for name, array in record.items():
                record[name] = plain_array(array)


def content_bytes(content: RecordDict) -> int:
    """Return the bytes of the content's arrays."""
    return sum(record_bytes(r) for r in content.values() if isinstance(r, ArrayRecord))


def record_bytes(record: ArrayRecord) -> int:
    """Return the bytes of the record's arrays."""
    return sum(len(raw_data(array)) for array in record.values())


def _copy_array(array: Array) -> Array:
    return SharedArray(array.dtype, array.shape, array.stype, raw_data(array))


def _template(kind: type) -> dict[str, Any]:
    """The checks that a record class keeps in each instance."""
    return {k: v for k, v in kind().__dict__.items() if k != "_data"}


_TEMPLATES = {kind: _template(kind) for kind in (RecordDict, ArrayRecord, ConfigRecord, MetricRecord)}


def _rebuild(kind: Any, data: dict[str, Any]) -> Any:
    new = kind.__new__(kind)
    new.__dict__.update(_TEMPLATES[kind])
    new.__dict__["_data"] = data
    return new


def _reduce_record(record: TypedDict[Any, Any]) -> tuple[Any, ...]:
    return _rebuild, (type(record), record.__dict__["_data"])


def _reduce_array(array: Array) -> tuple[Any, ...]:
    data = raw_data(array)
    large = len(data) >= OUT_OF_BAND_BYTES
    return SharedArray, (array.dtype, array.shape, array.stype, pickle.PickleBuffer(data) if large else bytes(data))


def _reduce_message(message: Message) -> tuple[Any, ...]:
    content = message.content if message.has_content() else None
    error = (message.error.code, message.error.reason) if message.has_error() else None
    return make_message, (message.metadata.__dict__, content, error)


_Reducer = Callable[[Any], Any]
_DISPATCH: dict[type, _Reducer] = {
    **copyreg.dispatch_table,
    Array: _reduce_array,
    SharedArray: _reduce_array,
    Message: _reduce_message,
    **{kind: _reduce_record for kind in _TEMPLATES},
}


class _Pickler(pickle.Pickler):
    dispatch_table = _DISPATCH


class _SharingPickler(_Pickler):
    """Leaves out the array records that travel separately."""

    def __init__(self, out: io.BytesIO, shared: Mapping[int, int], keep: Callable[[pickle.PickleBuffer], Any]) -> None:
        super().__init__(out, protocol=5, buffer_callback=keep)
        self._shared = shared

    def persistent_id(self, value: Any) -> int | None:
        """See ``pickle.Pickler.persistent_id``."""
        return self._shared.get(id(value)) if type(value) is ArrayRecord else None
