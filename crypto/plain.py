"""The reference secure sum: it hides nothing and adds in float64.

Every other scheme is tested against this one. The wire carries float32; the running sum is float64, so that a total is
exact to about 1e-16 of the sum of absolute values, in the order in which the parts are added.
"""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from crypto import wire
from crypto.base import Adder, Budget, FloatVector, Opener, Plan, Sealer, SecureSum, Tag
from crypto.errors import EmptySum, InputError, WireError


class PlainSum(SecureSum):
    """Sums in the clear. Any finite float32 vector fits; the plan's bound only sizes the error bound."""

    scheme = "plain"

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    @cached_property
    def budget(self) -> Budget:
        """float32 rounding of each vector plus float64 rounding of the sum."""
        n, length = self.plan.clients, self.plan.length
        return Budget(
            upload_bytes=wire.HEADER_BYTES + 4 * length,
            download_bytes=wire.HEADER_BYTES + 8 * length,
            error_bound=n * self.plan.bound * (2.0**-24 + n * 2.0**-53),
            headroom_bits=float("inf"),
            security_bits=0,
            memory_bytes=8 * length,
        )

    def sealer(self) -> "PlainSealer":
        """Return a client's role."""
        return PlainSealer()

    def adder(self, tag: Tag) -> "PlainAdder":
        """Return an empty running sum."""
        return PlainAdder(tag)

    def opener(self) -> "PlainOpener":
        """Return the role that reads a total."""
        return PlainOpener()


def _header(tag: Tag) -> wire.Header:
    return wire.Header(scheme=PlainSum.scheme, params_hash=bytes(16), key_id=wire.NO_KEY, tag=tag)


class PlainSealer(Sealer):
    """Frames a float32 vector."""

    def seal(self, vector: FloatVector, tag: Tag) -> list[bytes]:
        """See :meth:`crypto.base.Sealer.seal`."""
        check_vector(vector, tag)
        with np.errstate(over="ignore"):
            body = np.ascontiguousarray(vector, dtype="<f4")
        if not np.isfinite(body.sum(dtype=np.float64)):
            check_finite(body)
        return [wire.encode(_header(tag), wire.PART, 1, body.data.cast("B"))]


class PlainAdder(Adder):
    """Running float64 sum."""

    def __init__(self, tag: Tag) -> None:
        self._tag = tag
        self._sum: NDArray[np.float64] | None = None
        self._count = 0

    @property
    def count(self) -> int:
        """See :attr:`crypto.base.Adder.count`."""
        return self._count

    def add(self, part: bytes) -> None:
        """See :meth:`crypto.base.Adder.add`; a part with a NaN or an infinity is refused."""
        self._accumulate(read_part(part, self._tag), 1)

    def merge(self, total: bytes) -> None:
        """See :meth:`crypto.base.Adder.merge`."""
        frame = wire.decode(total, _header(self._tag), wire.TOTAL, 8 * self._tag.length)
        self._accumulate(np.frombuffer(frame.body, "<f8"), frame.count)

    def _accumulate(self, values: NDArray[np.floating], count: int) -> None:
        with np.errstate(invalid="ignore", over="ignore"):
            suspicious = not np.isfinite(values.sum(dtype=np.float64))
        if suspicious and not np.isfinite(values).all():
            at = int(np.flatnonzero(~np.isfinite(values))[0])
            raise WireError(f"coordinate {at} is {values[at]}: a vector must be finite; the sender is left out")
        if self._sum is None:
            self._sum = values.astype(np.float64)
        else:
            self._sum += values
        self._count += count

    def total(self) -> bytes:
        """See :meth:`crypto.base.Adder.total`."""
        if self._sum is None:
            raise EmptySum("the sum of no vectors was asked for: at least one client must deliver")
        return wire.encode(_header(self._tag), wire.TOTAL, self._count, self._sum.astype("<f8").data.cast("B"))


class PlainOpener(Opener):
    """Reads a total."""

    def open(self, totals: list[bytes], tag: Tag) -> NDArray[np.float64]:
        """See :meth:`crypto.base.Opener.open`."""
        if len(totals) != 1:
            raise WireError(f"{len(totals)} totals: the plain sum has one aggregator")
        frame = wire.decode(totals[0], _header(tag), wire.TOTAL, 8 * tag.length)
        return np.frombuffer(frame.body, "<f8").astype(np.float64)


def read_part(part: bytes, tag: Tag) -> NDArray[np.float32]:
    """Return one client's vector, a read-only view, float32 of shape ``(tag.length,)``.

    Raises:
        WireError: it is no part of this round.
    """
    frame = wire.decode(part, _header(tag), wire.PART, 4 * tag.length)
    return np.frombuffer(frame.body, "<f4")


def check_vector(vector: FloatVector, tag: Tag) -> None:
    """Raise :class:`~crypto.errors.InputError` unless `vector` is a float vector of the tag's length."""
    if vector.dtype.kind != "f" or vector.shape != (tag.length,):
        raise InputError(
            f"vector of dtype {vector.dtype}, shape {vector.shape}: must be floats of shape ({tag.length},)"
        )


def check_finite(vector: NDArray[np.floating]) -> None:
    """Raise :class:`~crypto.errors.InputError` naming the first coordinate that is not finite."""
    bad = np.flatnonzero(~np.isfinite(vector))
    if bad.size:
        raise InputError(
            f"coordinate {int(bad[0])} is {vector[bad[0]]} ({bad.size} such values): values must be finite in float32"
        )


__all__ = ["PlainAdder", "PlainOpener", "PlainSealer", "PlainSum", "check_finite", "check_vector", "read_part"]
