"""The contract of a secure sum: three roles and their law.

========== ================================= =========================================== ======================
role       who holds it                      can                                         holds
========== ================================= =========================================== ======================
`Sealer`   a client                          float32 vector -> sealed parts, one for     public key, or nothing
                                             each aggregator
`Adder`    an aggregator                     add sealed parts as they arrive, merge      nothing secret
                                             partial totals, hand out the total
`Opener`   whoever may read the sum          one total per aggregator -> float64 vector  secret key, or a share
========== ================================= =========================================== ======================

**Law.** For vectors within the declared bound, ``open(add(seal(v_1), ..., seal(v_n))) == sum(v_i)`` up to
``Budget.error_bound`` per coordinate, for any n up to the declared number of clients and any grouping by `merge`.

A :class:`SecureSum` is the public description that all roles share (scheme, parameters, declared plan); it states its
:class:`Budget` and refuses, at construction, a plan that does not fit. It never holds a secret.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

FloatVector = NDArray[np.float32] | NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a federation will ask of a secure sum, known before round 1.

    Attributes:
        length: number of coordinates of the longest round's vector.
        clients: the largest number of vectors that will be summed.
        bound: each client promises ``abs(v_j) <= bound`` for every coordinate j; must be finite and positive.
    """

    length: int
    clients: int
    bound: float

    def __post_init__(self) -> None:
        if self.length < 1 or self.clients < 1:
            raise ValueError(f"plan of {self.length} coordinates, {self.clients} clients: both must be at least 1")
        if not (np.isfinite(self.bound) and self.bound > 0):
            raise ValueError(f"bound {self.bound} must be finite and positive; give the largest absolute value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a secure sum costs and guarantees for a declared plan.

    Attributes:
        upload_bytes: bytes that one client sends, all parts and frames included.
        download_bytes: bytes of the total that one opener receives, frames included.
        error_bound: largest absolute error of one coordinate of the sum.
        headroom_bits: spare bits between the largest possible sum and the point where it would wrap;
            ``inf`` for schemes that cannot wrap.
        security_bits: claimed classical security; 0 for schemes that hide nothing.
        memory_bytes: peak extra memory of an aggregator, independent of the number of clients.
    """

    upload_bytes: int
    download_bytes: int
    error_bound: float
    headroom_bits: float
    security_bits: int
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tag:
    """What a sealed vector is for; it travels in the frame and is checked before anything is parsed.

    Attributes:
        round: server round, from 0; a part of another round is a replay.
        layout_hash: 16 bytes, :attr:`crypto.packing.Layout.hash` of the round's layout.
        length: number of coordinates of this round's vector, at most the plan's length.
    """

    round: int
    layout_hash: bytes
    length: int

    def __post_init__(self) -> None:
        if not 0 <= self.round < 2**32:
            raise ValueError(f"round {self.round} must lie in [0, 2^32)")
        if len(self.layout_hash) != 16:
            raise ValueError(f"layout hash of {len(self.layout_hash)} bytes: must be 16")
        if not 1 <= self.length < 2**48:
            raise ValueError(f"length {self.length} must lie in [1, 2^48)")


class Sealer(ABC):
    """A client's role. Holds public material only (or, in symmetric schemes, the clients' common key)."""

    @abstractmethod
    def seal(self, vector: FloatVector, tag: Tag) -> list[bytes]:
        """Seal one vector.

        Args:
            vector: shape ``(tag.length,)``, float32 or float64; not modified.
            tag: the round and layout that the vector belongs to.

        Returns:
            One framed part per aggregator, in aggregator order.

        Raises:
            InputError: a value is not finite or exceeds the declared bound (schemes that clip count instead,
                see :attr:`clipped`), or the length differs from the tag's.
        """

    @property
    def clipped(self) -> int:
        """Number of coordinates that the last :meth:`seal` clipped to the bound; 0 where a scheme refuses instead."""
        return 0


class Adder(ABC):
    """An aggregator's role for one round: a running sum in memory of one total. Holds nothing secret."""

    @abstractmethod
    def add(self, part: bytes) -> None:
        """Add one client's part.

        Raises:
            WireError: (or a subclass) the bytes are not a part of this scheme, key, round or layout; the running
                sum is unchanged.
        """

    @abstractmethod
    def merge(self, total: bytes) -> None:
        """Add a partial total, as another adder of the same round handed it out.

        Raises:
            WireError: as in :meth:`add`.
        """

    @abstractmethod
    def total(self) -> bytes:
        """Return the framed total of everything added so far; may be called repeatedly.

        Raises:
            EmptySum: nothing was added.
        """

    @property
    @abstractmethod
    def count(self) -> int:
        """Number of client vectors in the running sum, those of merged partial totals included."""


class Opener(ABC):
    """The role of whoever may read the sum."""

    @abstractmethod
    def open(self, totals: list[bytes], tag: Tag) -> NDArray[np.float64]:
        """Open a round's totals, one per aggregator in aggregator order.

        Returns:
            The sum, shape ``(tag.length,)``; owned by the caller.

        Raises:
            WireError: (or a subclass) a total is not of this scheme, key, round or layout.
        """


class SecureSum(ABC):
    """Public description of a secure sum for a declared plan; builds the roles. Picklable, never secret.

    Concrete classes take a :class:`Plan` and their parameters and raise :class:`~crypto.errors.BudgetExceeded`
    when the plan does not fit.
    """

    #: Name on the command line and in frames.
    scheme: ClassVar[str]
    #: Number of aggregators; the number of parts that :meth:`Sealer.seal` returns.
    aggregators: ClassVar[int] = 1
    #: Who opens: ``"server"`` (anyone holding the totals), ``"clients"``, ``"committee"``.
    opened_by: ClassVar[str] = "server"

    plan: Plan

    @property
    def slots(self) -> int:
        """Values that are sealed as one: a vector costs as much as the next multiple; 1 where nothing is padded."""
        return 1

    @property
    @abstractmethod
    def budget(self) -> Budget:
        """What one round costs and guarantees under the declared plan."""

    @abstractmethod
    def adder(self, tag: Tag) -> Adder:
        """Return an empty running sum for one round."""


__all__ = ["Adder", "Budget", "FloatVector", "Opener", "Plan", "Sealer", "SecureSum", "Tag"]
