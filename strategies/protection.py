"""How a strategy's vectors are protected: both ends of a secure sum, as a strategy sees them.

A :class:`Protection` is a small picklable description. The server calls :meth:`Protection.secure_sum` for its adder; a
client calls :meth:`Protection.sealer`; whoever may read the sum calls :meth:`Protection.opener`. Keys are found by the
party that owns them, never sent with the description.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from crypto.base import FloatVector, Opener, Plan, Sealer, SecureSum, Tag
from crypto.errors import KeyMismatch
from crypto.plain import PlainSum
from strategies.plan import Payload

if TYPE_CHECKING:
    from strategies.fold import Fold
    from strategies.helper_relay import Relay

OpenedBy = Literal["server", "clients", "committee"]


class Protection(ABC):
    """Both ends of one secure sum.

    Attributes:
        name: its name on the command line.
        opened_by: who reads the sum: the ``server`` (then the model is in the clear there), the ``clients`` (the server
            hands the sealed total on), or a ``committee`` (an extra message round).
        members: size of the committee, 0 without one.
        bounded: whether vectors must keep a declared bound, so that weights are scaled into (0, 1].
        payload: what clients must send, whatever the strategy; ``None`` leaves it to the strategy.
        uniform_only: every client counts the same, because the sensitivity of the sum is stated per client.
        repeatable: every client that opens a total gets the same bits.
        spends: each opened sum spends a privacy budget, so that no round may be opened twice.
    """

    name: ClassVar[str]
    opened_by: ClassVar[OpenedBy] = "server"
    bounded: ClassVar[bool] = True
    payload: ClassVar[Payload | None] = None
    uniform_only: ClassVar[bool] = False
    repeatable: bool = True
    spends: ClassVar[bool] = False
    members: int = 0

    @property
    def one_sum(self) -> bool:
        """Whether a round opens one sum of all; else it may have several, each of some of the clients.

        A committee answers once a round, or differences of its answers would tell on clients; so does what spends a
        privacy budget.
        """
        return self.opened_by == "committee" or self.spends

    @property
    def bound(self) -> float:
        """Largest absolute value of a coordinate that a client may send."""
        return 1.0

    @abstractmethod
    def secure_sum(self, plan: Plan) -> SecureSum:
        """Return the public description of the sum.

        Raises:
            BudgetExceeded: the plan does not fit.
            BackendUnavailable: the library does not load here.
        """

    @property
    def clients_open(self) -> bool:
        """Whether a client can open a total that the server hands on."""
        return self.opened_by == "clients"

    def secret(self, plan: Plan) -> bytes:
        """Return 32 bytes that all clients know and the server does not, made from the clients' key.

        A protection without such a key returns a constant: it keeps no secret from the server.
        """
        return bytes(32)

    def public(self, plan: Plan) -> "Protection":
        """Return the description as aggregators anywhere need it, independent of this party's files."""
        return self

    @property
    def relayed(self) -> bool:
        """Whether the server reaches a second aggregator through a node of the federation, which must be there."""
        return False

    def fold(self, plan: Plan, tag: Tag, relay: "Relay | None" = None) -> "Fold | None":
        """Return this party's way to add up a round's replies; ``None`` for sums that any worker may do a part of.

        Args:
            plan: what the sum was sized for.
            tag: the round.
            relay: the node to a second aggregator, where :attr:`relayed`.
        """
        return None

    def round_facts(self, plan: Plan, tag: Tag) -> dict[str, float]:
        """Return what a round's metrics say of its protection, where rounds differ."""
        return {}

    def facts(self, plan: Plan) -> dict[str, object]:
        """Return what a run's record should say of the protection beside its budget, as plain values."""
        return {}

    def journaled(self, folder: Path) -> "Protection":
        """Return the server's protection as it keeps account in a run's folder of what it opens, if it must."""
        return self

    def last_opened(self) -> int:
        """Return the last round whose sum was opened, by this run's account; 0 for none, or where nobody counts."""
        return 0

    def clip(self, vector: FloatVector) -> tuple[FloatVector, float]:
        """Return a client's vector as it may be sealed, and the factor in (0, 1] by which it was scaled."""
        return vector, 1.0

    @abstractmethod
    def sealer(self, plan: Plan) -> Sealer:
        """Return the client's role; finds its key material itself."""

    @abstractmethod
    def opener(self, plan: Plan) -> Opener:
        """Return the role that reads totals.

        Raises:
            CryptoError: this party holds no key that opens.
        """

    def partial(self, total: bytes, plan: Plan, member: int, tag: Tag) -> bytes:
        """Return a committee member's partial decryption of a round's total.

        Raises:
            KeyMismatch: the sum is not opened by a committee, or this party is not of it.
        """
        raise KeyMismatch(f"'{self.name}' is opened by the {self.opened_by}: it has no partial decryptions")

    def fuse(self, partials: list[bytes], total: bytes, plan: Plan, tag: Tag) -> NDArray[np.float64]:
        """Return the sum from all members' partial decryptions, shape ``(tag.length,)``.

        Raises:
            CryptoError: partial decryptions are missing, damaged or of another total.
        """
        raise KeyMismatch(f"protection '{self.name}' is opened by the {self.opened_by}: there is nothing to fuse")


@dataclass(frozen=True)
class Plain(Protection):
    """No protection: the server sees each update."""

    name = "plain"
    bounded = False

    @property
    def clients_open(self) -> bool:
        """Nothing is hidden, so clients read totals too."""
        return True

    def secure_sum(self, plan: Plan) -> PlainSum:
        """See :meth:`Protection.secure_sum`."""
        return _plain(plan)

    def sealer(self, plan: Plan) -> Sealer:
        """See :meth:`Protection.sealer`."""
        return _plain(plan).sealer()

    def opener(self, plan: Plan) -> Opener:
        """See :meth:`Protection.opener`."""
        return _plain(plan).opener()


@lru_cache(maxsize=8)
def _plain(plan: Plan) -> PlainSum:
    return PlainSum(plan)


__all__ = ["OpenedBy", "Plain", "Protection"]
