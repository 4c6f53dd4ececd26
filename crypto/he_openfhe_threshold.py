"""Homomorphic sums whose key nobody holds: a committee of 2 to 10 opens them together (n of n).

``openfhe-threshold`` on BGV (exact, the default) or CKKS. Everyone seals under the joint public key as with one key;
the aggregator adds residues; opening takes a message round more: each member turns the round's total into a partial
decryption with its own share, and whoever collects all of them (the server) fuses the sum. No set of fewer than all
members can open.

**Set-up.** Members stand in a chain. The first calls :func:`setup_first`, every next one :func:`setup_next` with its
predecessor's message; the last message holds the joint public key, and everyone calls :func:`setup_finish` with it. A
share never leaves its member::

    message, share_0 = setup_first(scheme)
    message, share_1 = setup_next(scheme, message)          # ... up to the last member
    bundle_0 = setup_finish(scheme, message, share_0)       # KeyBundle of role committee-0

**What it withholds.** The server learns sums, members learn nothing but what the server tells. It assumes that the
server asks for partial decryptions of true totals: a committee cannot see whether a ciphertext is the sum of many
clients, so a member answers one total a round only (and the same bytes when asked for it again, as fresh noise on the
same total would average out). Noise that a member adds to its partial decryption hides its share: heuristically by
default, statistically with ``flooding="statistical"`` at three times the bytes; see :mod:`crypto._openfhe.params`.

**Prefer BGV.** A CKKS sum opens with its noise, and here the server sees both ciphertexts and opened sums, which is the
setting of Li and Micciancio's key recovery; heuristic flooding and rounding are all that stands against it.

**Lost members.** All members are needed, unless they shared pieces of their shares beforehand: see
:mod:`crypto.he_openfhe_recovery`.
"""

import struct
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crypto import wire
from crypto._committee import CommitteeSum
from crypto._one_key import make_bundle
from crypto._openfhe import bridge
from crypto._openfhe.params import Flooding, Ring
from crypto._openfhe.residues import Residues
from crypto.base import Plan, Tag
from crypto.errors import InputError, WireError
from crypto.he_openfhe import MEMORY_LIMIT_BYTES, OpenFheBgv, OpenFheCkks, OpenFheSum, ckks_ring
from crypto.keys import CLIENTS, SERVER, KeyBundle, committee, key_id

MIN_PARTIES, MAX_PARTIES = 2, 10
#: Position in the chain, number of members.
_SETUP = struct.Struct("<BB")
_SETUP_TAG = Tag(round=0, layout_hash=bytes(16), length=1)


class ThresholdSum(CommitteeSum, OpenFheSum):
    """What the threshold sums share: a committee instead of a key holder."""

    def __init__(
        self,
        plan: Plan,
        parties: int,
        ring: Ring | None = None,
        *,
        python: str | None = None,
        timeout_s: float = bridge.DEFAULT_TIMEOUT_S,
    ) -> None:
        if not MIN_PARTIES <= parties <= MAX_PARTIES:
            raise InputError(f"committee of {parties}: must have {MIN_PARTIES} to {MAX_PARTIES} members")
        self.parties = parties
        super().__init__(plan, ring, python=python, timeout_s=timeout_s)

    def make_keys(self, memory_limit_bytes: int = MEMORY_LIMIT_BYTES) -> tuple[KeyBundle, ...]:
        """Play all members' set-up in one place, for simulations.

        Returns:
            The server's and the clients' bundles (joint public key only), then one for each member with its share.
        """
        message, share = setup_first(self, memory_limit_bytes)
        shares = [share]
        while len(shares) < self.parties:
            message, share = setup_next(self, message, memory_limit_bytes)
            shares.append(share)
        return (
            public_bundle(self, message, SERVER),
            public_bundle(self, message, CLIENTS),
            *(setup_finish(self, message, share) for share in shares),
        )

    def body_bytes(self, length: int, polynomials: int = 2) -> int:
        """See :meth:`crypto._committee.CommitteeSum.body_bytes`."""
        return OpenFheSum.body_bytes(self, length, polynomials)

    def member_secret(self, bundle: KeyBundle) -> Residues:
        """See :meth:`crypto._committee.CommitteeSum.member_secret`."""
        return self.unpack_key(bundle.secret, 1)

    def partial_body(self, total: memoryview, secret: Residues, member: int) -> bytearray:
        """See :meth:`crypto._committee.CommitteeSum.partial_body`."""
        parts = bytearray()
        for batch in self.batches(self.unpack(total, 2)):
            parts += self.pack(self.call("partial", secret, batch, lead=member == 0)[0])
        return parts

    def read_partial(self, body: memoryview) -> Residues:
        """See :meth:`crypto._committee.CommitteeSum.read_partial`."""
        return self.unpack(body, 1)

    def fuse_partials(self, partials: list[Residues], length: int, count: int) -> NDArray[np.float64]:
        """See :meth:`crypto._committee.CommitteeSum.fuse_partials`."""
        opened = []
        for batches in zip(*(self.batches(partial) for partial in partials), strict=True):
            opened.append(self.call("fuse", *batches)[0])
        return self.values(opened, length, count)


class ThresholdBgv(ThresholdSum, OpenFheBgv):
    """``openfhe-threshold`` on BGV: exact sums; refuses what :class:`~crypto.he_openfhe.OpenFheBgv` refuses."""

    scheme = "ofhe-tbgv"

    def _default_ring(self) -> Ring:
        return bgv_ring("heuristic")


class ThresholdCkks(ThresholdSum, OpenFheCkks):
    """``openfhe-threshold`` on CKKS: the flooding noise stays in the sum; its error bound counts it."""

    scheme = "ofhe-tckks"

    def _default_ring(self) -> Ring:
        return ckks_ring(self.plan)


def bgv_ring(flooding: Flooding) -> Ring:
    """Return the default ring of a threshold BGV sum: N=4096 with one prime, or N=8192 with three."""
    return Ring("bgv", 8192 if flooding == "statistical" else 4096, 60, plain_bits=31, flooding=flooding)


def threshold_sum(
    plan: Plan, parties: int, base: str = "bgv", flooding: Flooding = "heuristic", python: str | None = None
) -> ThresholdSum:
    """Return the threshold sum that ``openfhe-threshold`` names.

    Args:
        plan: what the federation will ask.
        parties: members of the committee, 2 to 10.
        base: ``"bgv"`` or ``"ckks"``.
        flooding: see :mod:`crypto._openfhe.params`; ``"statistical"`` needs BGV.
        python: interpreter of the worker.

    Raises:
        BudgetExceeded: the plan does not fit.
        InputError: another base, or a committee of another size.
    """
    if base == "bgv":
        return ThresholdBgv(plan, parties, bgv_ring(flooding), python=python)
    if base != "ckks":
        raise InputError(f"threshold base '{base}': must be bgv or ckks")
    if flooding != "heuristic":
        raise InputError("statistical flooding for CKKS: OpenFHE has none; use base bgv")
    return ThresholdCkks(plan, parties, python=python)


@dataclass(frozen=True, slots=True)
class Share:
    """A member's secret share of the key, before the joint public key is known."""

    member: int
    secret: bytes = field(repr=False)


def setup_first(sum_: ThresholdSum, memory_limit_bytes: int = MEMORY_LIMIT_BYTES) -> tuple[bytes, Share]:
    """Start the chain: make member 0's share.

    Returns:
        The message for member 1, and the share to keep.
    """
    sum_.check_memory(memory_limit_bytes)
    return _link(sum_, 0, sum_.call("keygen"))


def setup_next(sum_: ThresholdSum, message: bytes, memory_limit_bytes: int = MEMORY_LIMIT_BYTES) -> tuple[bytes, Share]:
    """Continue the chain with one more member's share.

    Args:
        sum_: the common description.
        message: the predecessor's message.
        memory_limit_bytes: see :meth:`crypto.he_openfhe.OpenFheSum.check_memory`.

    Returns:
        The message for the next member (for everyone, from the last), and the share to keep.

    Raises:
        WireError: (or a subclass) not a set-up message of this committee, or already the last.
    """
    sum_.check_memory(memory_limit_bytes)
    position, public = _read_setup(sum_, message)
    if position + 1 >= sum_.parties:
        raise WireError(f"set-up message of member {position}, the last of {sum_.parties}: the key is complete")
    return _link(sum_, position + 1, sum_.call("join", public))


def setup_finish(sum_: ThresholdSum, message: bytes, share: Share) -> KeyBundle:
    """Return a member's key bundle, from the last member's message and its own share."""
    public, identity = _joint(sum_, message)
    return make_bundle(sum_, committee(share.member), identity, public, share.secret)


def public_bundle(sum_: ThresholdSum, message: bytes, role: str = CLIENTS) -> KeyBundle:
    """Return the bundle of who holds the joint public key only, from the last member's message."""
    public, identity = _joint(sum_, message)
    return make_bundle(sum_, role, identity, public)


def _link(sum_: ThresholdSum, member: int, pair: list[Any]) -> tuple[bytes, Share]:
    public, secret = (sum_.pack(part) for part in pair)
    body = _SETUP.pack(member, sum_.parties) + public
    return wire.encode(_setup_header(sum_), wire.KEY, 1, body), Share(member, secret)


def _joint(sum_: ThresholdSum, message: bytes) -> tuple[bytes, bytes]:
    position, residues = _read_setup(sum_, message)
    if position != sum_.parties - 1:
        raise WireError(
            f"set-up message of member {position}: the key is complete after member {sum_.parties - 1} only"
        )
    public = sum_.pack(residues)
    return public, key_id(sum_.scheme, sum_.key_params_hash, public)


def _read_setup(sum_: ThresholdSum, message: bytes) -> tuple[int, Residues]:
    frame = wire.decode(message, _setup_header(sum_), wire.KEY, _SETUP.size + sum_.ring.bytes_of(2))
    position, parties = _SETUP.unpack(frame.body[: _SETUP.size])
    if parties != sum_.parties or position >= parties:
        raise WireError(f"set-up message of member {position} of {parties}: this committee has {sum_.parties}")
    return position, sum_.unpack(frame.body[_SETUP.size :], 2)


def _setup_header(sum_: ThresholdSum) -> wire.Header:
    return wire.Header(scheme=sum_.scheme, params_hash=sum_.key_params_hash, key_id=wire.NO_KEY, tag=_SETUP_TAG)


__all__ = [
    "Share",
    "ThresholdBgv",
    "ThresholdCkks",
    "ThresholdSum",
    "bgv_ring",
    "public_bundle",
    "setup_finish",
    "setup_first",
    "setup_next",
    "threshold_sum",
]
