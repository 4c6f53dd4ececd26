"""Opening by a committee, for any scheme: members turn a total into partial decryptions, and all of these give the sum.

A member answers one total a round only, with the same bytes when it is asked again; a fuser takes one answer a member
and names those that are missing.
"""

import hashlib
import struct
from abc import abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crypto import wire
from crypto._one_key import check_count, check_length
from crypto.base import Opener, Tag
from crypto.errors import CryptoError, IntegrityError, KeyMismatch, ReplayError, WireError
from crypto.keys import KeyBundle, KeyedSum, committee

#: Member, number of members, reserved, digest of the total that was partially decrypted.
_PARTIAL = struct.Struct("<BBH16s")
PARTIAL_HEAD_BYTES = _PARTIAL.size


class MissingPartials(CryptoError, ValueError):
    """A sum cannot be opened yet: members of the committee have not answered. What has arrived is kept."""


class CommitteeSum(KeyedSum):
    """A sum that all members of a committee open together."""

    opened_by = "committee"
    parties: int

    @abstractmethod
    def body_bytes(self, length: int, polynomials: int = 2) -> int:
        """Return the bytes of a total's body (2), or of a partial decryption's (1)."""

    @abstractmethod
    def member_secret(self, bundle: KeyBundle) -> Any:
        """Return a member's share as :meth:`partial_body` takes it.

        Raises:
            KeyMismatch: the share is not one of these parameters.
        """

    @abstractmethod
    def partial_body(self, total: memoryview, secret: Any, member: int) -> bytes | bytearray:
        """Return a total's partial decryption.

        Raises:
            WireError: the total is not well-formed.
        """

    @abstractmethod
    def read_partial(self, body: memoryview) -> Any:
        """Return a partial decryption as :meth:`fuse_partials` takes it.

        Raises:
            WireError: it is not well-formed.
        """

    @abstractmethod
    def fuse_partials(self, partials: list[Any], length: int, count: int) -> NDArray[np.float64]:
        """Return the sum of `count` vectors, shape ``(length,)``, from all members' partial decryptions.

        Raises:
            IntegrityError: what was opened cannot be such a sum.
        """

    def check_round(self, tag: Tag) -> None:
        """Raise :class:`~crypto.errors.ReplayError` where a member must not answer for a round; all are fine here."""
        return None

    @property
    def partial_bytes(self) -> int:
        """Bytes of one member's framed partial decryption of the plan's longest vector."""
        return wire.HEADER_BYTES + PARTIAL_HEAD_BYTES + self.body_bytes(self.plan.length, 1)

    def opener(self, bundle: KeyBundle) -> Opener:
        """Refuse: nobody opens alone."""
        raise KeyMismatch(
            f"'{self.scheme}' is opened by a committee of {self.parties}: no bundle opens alone; take "
            "partial_opener(bundle) at each member and fuser(tag) where the partial decryptions meet"
        )

    def partial_opener(self, bundle: KeyBundle) -> "PartialOpener":
        """Return a member's role.

        Raises:
            KeyMismatch: the bundle is of another scheme, key or parameters, or not a member's.
        """
        member = self.member_of(bundle)
        return PartialOpener(self.with_key(bundle.key_id), member, self.member_secret(bundle))

    def member_of(self, bundle: KeyBundle) -> int:
        """Return a member's number, or raise :class:`~crypto.errors.KeyMismatch` for any other bundle."""
        bundle.require(self.scheme, self.key_params_hash, self.key_id)
        for member in range(self.parties):
            if bundle.role == committee(member) and bundle.secret:
                return member
        raise KeyMismatch(
            f"the '{bundle.role}' bundle is none of this committee's {self.parties} members: load committee-<member>"
        )

    def fuser(self, tag: Tag, total: bytes | None = None) -> "Fuser":
        """Return the role that collects a round's partial decryptions and opens the sum; it holds no secret."""
        return Fuser(self, tag, total)


class PartialOpener:
    """A member's role: its share turns a total into a partial decryption, once a round."""

    def __init__(self, sum_: CommitteeSum, member: int, secret: Any) -> None:
        self._sum, self.member, self._secret = sum_, member, secret
        self._answered: tuple[int, bytes, bytes] | None = None

    def __repr__(self) -> str:
        return f"PartialOpener({self._sum.scheme}, member {self.member}, share [redacted])"

    def partial(self, total: bytes, tag: Tag) -> bytes:
        """Partially decrypt a round's total.

        Args:
            total: the adder's framed total.
            tag: the round's.

        Returns:
            A framed partial decryption; the same bytes when the same total is asked for again.

        Raises:
            WireError: (or a subclass) not a total of this scheme, key, round or layout.
            ReplayError: a total other than the first of this round, or a round before the last answered: two totals of
                one round would tell their difference.
        """
        check_length(tag, self._sum.plan)
        self._sum.check_round(tag)
        frame = wire.decode(total, self._sum.header(tag), wire.TOTAL, self._sum.body_bytes(tag.length))
        digest = _digest(total)
        if self._answered is not None and tag.round <= self._answered[0]:
            if (tag.round, digest) == self._answered[:2]:
                return self._answered[2]
            raise ReplayError(
                f"total of round {tag.round}: member {self.member} has answered another one up to round "
                f"{self._answered[0]}; each round is opened once"
            )
        head = _PARTIAL.pack(self.member, self._sum.parties, 0, digest)
        body = self._sum.partial_body(frame.body, self._secret, self.member)
        answer = wire.encode(self._sum.header(tag), wire.PARTIAL, frame.count, b"".join((head, body)))
        self._answered = (tag.round, digest, answer)
        return answer


class Fuser:
    """Collects a round's partial decryptions and opens the sum; holds no secret.

    Args:
        sum_: the description, bound to the key.
        tag: the round's.
        total: the framed total; given it, a partial decryption of anything else is refused, else the first one decides.
    """

    def __init__(self, sum_: CommitteeSum, tag: Tag, total: bytes | None = None) -> None:
        check_length(tag, sum_.plan)
        self._sum, self._tag, self._header = sum_, tag, sum_.header(tag)
        self._digest = None if total is None else _digest(total)
        self._count: int | None = None
        self._partials: dict[int, Any] = {}

    @property
    def missing(self) -> tuple[int, ...]:
        """Members whose partial decryption has not arrived."""
        return tuple(m for m in range(self._sum.parties) if m not in self._partials)

    def add(self, partial: bytes) -> int:
        """Take one member's partial decryption.

        Returns:
            The member's number.

        Raises:
            WireError: (or a subclass) not a partial decryption of this round; nothing changes.
            IntegrityError: of another total.
            ReplayError: the member's has arrived already.
        """
        size = PARTIAL_HEAD_BYTES + self._sum.body_bytes(self._tag.length, 1)
        frame = wire.decode(partial, self._header, wire.PARTIAL, size)
        member, parties, reserved, digest = _PARTIAL.unpack(frame.body[:PARTIAL_HEAD_BYTES])
        if parties != self._sum.parties or member >= parties or reserved:
            raise WireError(
                f"partial decryption of member {member} of {parties}: this committee has {self._sum.parties}"
            )
        if member in self._partials:
            raise ReplayError(
                f"partial decryption of member {member}: it has arrived already; each member answers once"
            )
        if self._digest is not None and digest != self._digest:
            raise IntegrityError(
                f"partial decryption by member {member} of total {digest.hex()[:8]}: the others opened "
                f"{self._digest.hex()[:8]}; send all members the same total"
            )
        check_count(frame.count, self._sum.plan)
        if self._count is not None and frame.count != self._count:
            raise IntegrityError(
                f"partial decryption by member {member} of {frame.count} vectors: others say {self._count}"
            )
        self._partials[member] = self._sum.read_partial(frame.body[PARTIAL_HEAD_BYTES:])
        self._digest, self._count = digest, frame.count
        return int(member)

    def open(self) -> NDArray[np.float64]:
        """Return the sum, shape ``(tag.length,)``.

        Raises:
            MissingPartials: a member has not answered; names them. What has arrived is kept.
        """
        if self.missing or self._count is None:
            raise MissingPartials(
                f"partial decryptions of members {list(self.missing)} are missing: all {self._sum.parties} are "
                "needed; ask them again, those that arrived are kept"
            )
        partials = [self._partials[m] for m in range(self._sum.parties)]
        return self._sum.fuse_partials(partials, self._tag.length, self._count)


def fuse(sum_: CommitteeSum, partials: list[bytes], tag: Tag, total: bytes | None = None) -> NDArray[np.float64]:
    """Open a round's sum from all members' partial decryptions, in any order; see :class:`Fuser`."""
    fuser = sum_.fuser(tag, total)
    for partial in partials:
        fuser.add(partial)
    return fuser.open()


def _digest(total: bytes) -> bytes:
    return hashlib.sha256(b"fedsim-partial-v1" + total).digest()[:16]
