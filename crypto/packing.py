"""Layout of a round: named arrays <-> one flat float vector.

All arrays of a round are packed, across tensors, into one vector, so that a bias of ten values does not cost a
ciphertext of its own. Client and server derive the layout from the round's plan; its hash travels with every sealed
vector, and a mismatch names the first difference.

Arrays that are not floats (BatchNorm's counters) are carried as floats and rounded half to even when unpacked; their
shape and dtype are kept. float32 carries integers exactly up to 2^24.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from crypto.errors import InputError, LayoutMismatch

#: dtypes that a segment may name. bfloat16 has no numpy type: it is carried as float32, which holds it exactly.
DTYPES = frozenset(
    ["float16", "bfloat16", "float32", "float64", "bool", "uint8", "uint16", "uint32", "uint64"]
    + ["int8", "int16", "int32", "int64"]
)


@lru_cache(maxsize=64)
def _dtype_name(dtype: "np.dtype[np.generic]") -> str:
    return str(dtype.newbyteorder("="))


@dataclass(frozen=True, slots=True)
class Segment:
    """One array's share of the vector.

    Attributes:
        name: the array's name.
        shape: its full shape; ``()`` is a scalar and stays one.
        dtype: one of :data:`DTYPES`.
        coordinates: which entries of the flattened (C order) array travel: sorted distinct int64 indices, or
            ``None`` for all.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    coordinates: NDArray[np.int64] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise InputError(f"array '{self.name}' has dtype {self.dtype}: must be one of {sorted(DTYPES)}; cast it")
        c = self.coordinates
        if c is not None and c.size and (np.any(np.diff(c) <= 0) or c[0] < 0 or c[-1] >= prod(self.shape)):
            raise InputError(
                f"coordinates of '{self.name}' must be sorted, distinct and within [0, {prod(self.shape)})"
            )

    @property
    def size(self) -> int:
        """Number of coordinates that travel."""
        return prod(self.shape) if self.coordinates is None else int(self.coordinates.size)

    def describe(self) -> list[object]:
        """Return a JSON-able identity; equal iff the segments are interchangeable."""
        digest = None
        if self.coordinates is not None:
            digest = hashlib.sha256(np.ascontiguousarray(self.coordinates, dtype="<i8").tobytes()).hexdigest()
        return [self.name, list(self.shape), self.dtype, digest]


@dataclass(frozen=True)
class Layout:
    """An ordered list of segments with distinct names.

    Example:
        >>> layout = Layout.of({"w": np.zeros((2, 3), np.float32), "b": np.zeros(3, np.float32)})
        >>> layout.length
        9
    """

    segments: tuple[Segment, ...]

    def __post_init__(self) -> None:
        names = [s.name for s in self.segments]
        if len(set(names)) != len(names):
            twice = next(n for n in names if names.count(n) > 1)
            raise InputError(f"array '{twice}' stands twice in a layout: names must be distinct")

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[np.generic]], dtypes: Mapping[str, str] | None = None) -> "Layout":
        """Lay out whole arrays in the mapping's order; `dtypes` overrides the recorded dtype by name."""
        dtypes = dtypes or {}
        return _whole(tuple((n, a.shape, dtypes.get(n) or _dtype_name(a.dtype)) for n, a in arrays.items()))

    @cached_property
    def length(self) -> int:
        """Number of coordinates of the flat vector."""
        return sum(s.size for s in self.segments)

    @cached_property
    def hash(self) -> bytes:
        """16 bytes that identify names, shapes, dtypes, coordinates and their order."""
        text = json.dumps([s.describe() for s in self.segments], separators=(",", ":"))
        return hashlib.sha256(b"fedsim-layout-v1" + text.encode()).digest()[:16]

    @property
    def names(self) -> tuple[str, ...]:
        """Array names in order."""
        return tuple(s.name for s in self.segments)

    def only(self, names: Iterable[str]) -> "Layout":
        """Return the layout of these arrays alone, in this layout's order.

        Raises:
            LayoutMismatch: a name is not in this layout.
        """
        wanted, own = set(names), set(self.names)
        if wanted == own:
            return self
        missing = sorted(wanted - own)
        if missing:
            raise LayoutMismatch(f"array '{missing[0]}' is not in the layout; it has {list(self.names)[:5]}...")
        return Layout(tuple(s for s in self.segments if s.name in wanted))

    def pack(
        self,
        arrays: Mapping[str, NDArray[np.generic]],
        scale: float = 1.0,
        scales: Mapping[str, float] | None = None,
    ) -> NDArray[np.float32]:
        """Return ``scale * arrays`` as one float32 vector of shape ``(length,)``; the product is formed in float64.

        Arrays may be strided, 0-d or big-endian; extra names are ignored. `scales` overrides `scale` by name.

        Raises:
            LayoutMismatch: a name is missing or a shape differs.
            InputError: a value is NaN or infinite, or leaves float32's range; names the array and the index.
        """
        out = np.empty(self.length, np.float32)
        flats = []
        at = 0
        with np.errstate(over="ignore", invalid="ignore"):
            for segment in self.segments:
                factor = scale if scales is None else scales.get(segment.name, scale)
                flat = self._flat(segment, arrays)
                end = at + flat.size
                out[at:end] = flat if factor == 1.0 else np.multiply(flat, factor, dtype=np.float64)
                flats.append((segment, flat, at, end))
                at = end
        if not np.isfinite(out.sum(dtype=np.float64)):
            for segment, flat, start, end in flats:
                self._refuse(segment, flat, out[start:end])
        return out

    def _flat(self, segment: Segment, arrays: Mapping[str, NDArray[np.generic]]) -> NDArray[np.generic]:
        if segment.name not in arrays:
            raise LayoutMismatch(
                f"array '{segment.name}' is missing: the round's layout wants {len(self.segments)} arrays; send all"
            )
        array = arrays[segment.name]
        if array.shape != segment.shape:
            raise LayoutMismatch(
                f"array '{segment.name}' has shape {array.shape}: the round's layout says {segment.shape}"
            )
        flat = array.reshape(-1)
        return flat if segment.coordinates is None else flat[segment.coordinates]

    @staticmethod
    def _refuse(segment: Segment, flat: NDArray[np.generic], values: NDArray[np.float32]) -> None:
        bad = np.flatnonzero(~np.isfinite(values))
        if not bad.size:
            return
        at = int(bad[0]) if segment.coordinates is None else int(segment.coordinates[bad[0]])
        index = tuple(int(i) for i in np.unravel_index(at, segment.shape)) if segment.shape else ()
        raise InputError(
            f"array '{segment.name}' holds {flat[bad[0]]} at index {index} ({bad.size} such values): an update must be "
            "finite in float32; lower the learning rate or clip gradients"
        )

    def unpack(self, vector: NDArray[np.floating]) -> dict[str, NDArray[np.generic]]:
        """Return the arrays that `vector` lays out, with their shapes and dtypes.

        Integer and boolean arrays are rounded half to even and clamped to their range. A segment with coordinates
        comes back as a flat array of its travelling entries only. bfloat16 comes back as float32.

        Raises:
            LayoutMismatch: the vector's length differs.
        """
        if vector.shape != (self.length,):
            raise LayoutMismatch(f"vector of shape {vector.shape}: the layout has {self.length} coordinates")
        arrays: dict[str, NDArray[np.generic]] = {}
        at = 0
        for segment in self.segments:
            part = vector[at : at + segment.size]
            if segment.coordinates is None:
                part = part.reshape(segment.shape)
            arrays[segment.name] = cast(part, segment.dtype)
            at += segment.size
        return arrays

    def check_same(self, other: "Layout") -> None:
        """Raise :class:`~crypto.errors.LayoutMismatch` naming the first difference, or return."""
        for mine, theirs in zip(self.segments, other.segments, strict=False):
            if mine.describe() != theirs.describe():
                raise LayoutMismatch(f"layouts differ first at {theirs.describe()[:3]}: expected {mine.describe()[:3]}")
        if len(self.segments) != len(other.segments):
            raise LayoutMismatch(f"layout of {len(other.segments)} arrays: expected {len(self.segments)}")


@lru_cache(maxsize=64)
def _whole(segments: tuple[tuple[str, tuple[int, ...], str], ...]) -> Layout:
    """Return the layout of whole arrays; a run's clients share one, and with it its hash."""
    return Layout(tuple(Segment(*segment) for segment in segments))


def cast(values: NDArray[np.floating], dtype: str) -> NDArray[np.generic]:
    """Return a copy of `values` in `dtype`; integers are rounded half to even and clamped, bfloat16 is float32."""
    if dtype == "bfloat16":
        return values.astype(np.float32)
    target = np.dtype(dtype)
    if target.kind == "b":
        return np.asarray(np.rint(values) >= 1)
    if target.kind in "iu":
        info = np.iinfo(target)
        # float64(2^63 - 1) rounds up to 2^63, which does not fit: step down to the largest float below.
        top = np.nextafter(float(info.max), 0) if info.bits == 64 else float(info.max)
        return np.asarray(np.clip(np.rint(values), float(info.min), top)).astype(target)
    return values.astype(target)


__all__ = ["DTYPES", "Layout", "Segment", "cast"]
