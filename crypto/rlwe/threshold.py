"""``rlwe-threshold``: exact sums whose key nobody holds; a committee of 2 to 50 opens them together (n of n).

Everyone seals under the joint public key; the server adds; each member turns the total into a partial decryption with
its share, and whoever collects all of them fuses the sum. No set of fewer than all members can open. Needs no library.
Not audited.

**Set-up.** All members know one public seed, from which the uniform polynomial a follows. Each makes a share s_i and
publishes ``b_i = e_i - a s_i``; the joint key is the sum of the b_i, its secret the sum of the s_i, which nobody knows.
A member that waits for the others' messages could publish its own less theirs, and alone own the key: members
therefore first publish :func:`commitment` of their messages, and :func:`setup_finish` checks them::

    message, share = setup(scheme, seed, member=0)
    # commitment(message) of all, then message of all
    bundle = setup_finish(scheme, messages, share, commitments)  # KeyBundle of role committee-0

**Opening.** Member i sends ``c1 s_i + x_i`` (member 0 adds c0), with x_i the smudging of
:mod:`crypto.rlwe.parameters`: all it ever sends is within statistical distance ``2^-smudging_bits`` of what follows
from the opened sums, given that AES and BLAKE2b are pseudorandom. That counts `openings` rounds; a member refuses to
answer beyond. As with every committee, a member cannot see whether a ciphertext is the sum of many clients; it answers
one total a round only.
"""

import hashlib
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from crypto import wire
from crypto._committee import CommitteeSum
from crypto._native import RlweMultiplier
from crypto._one_key import make_bundle
from crypto.base import Plan, Tag
from crypto.bfv import VALUE_BITS, codec
from crypto.errors import InputError, IntegrityError, ReplayError, WireError
from crypto.keys import CLIENTS, SERVER, KeyBundle, committee, key_id
from crypto.prg import RLWE_SMUDGE, stream_key
from crypto.rlwe import parameters as rlwe
from crypto.rlwe.engine import (
    Plane,
    checked_plane,
    empty_words,
    native_ring,
    packed,
    public_key,
    secret_multiplier,
)
from crypto.rlwe.parameters import SEED_BYTES
from crypto.rlwe.scheme import AdditiveRlwe, split_planes

MIN_PARTIES, MAX_PARTIES = 2, 50
#: Rounds that one key opens, unless told otherwise.
OPENINGS = 1000
#: Member, number of members.
_SETUP = struct.Struct("<BB")
#: What keyed BLAKE2b is used for when it derives smudging from a share and a total.
_ANSWER = b"rlwe-answer/1"
_SETUP_TAG = Tag(round=0, layout_hash=bytes(16), length=1)


class RlweThreshold(CommitteeSum, AdditiveRlwe):
    """Exact fixed-point sums that a committee opens.

    Args:
        plan: length, clients, bound; values beyond the bound are clipped and counted.
        parties: members, 2 to 50.
        openings: the last round that a member answers for; smudging is sized for so many.
        value_bits: bits of one value, sign included.
        smudging_bits: all that members send is within statistical distance ``2^-smudging_bits`` of harmless.
        stochastic: unbiased rounding, error at most one step a client; else to nearest, at most half a step.

    Raises:
        InputError: a committee of another size.
        BudgetExceeded: the plan does not fit at 128 bits of security.
    """

    scheme = "rlwe-t"

    def __init__(
        self,
        plan: Plan,
        parties: int,
        *,
        openings: int = OPENINGS,
        value_bits: int = VALUE_BITS,
        smudging_bits: int = rlwe.SMUDGING_BITS,
        stochastic: bool = True,
    ) -> None:
        if not MIN_PARTIES <= parties <= MAX_PARTIES:
            raise InputError(f"committee of {parties}: must have {MIN_PARTIES} to {MAX_PARTIES} members")
        if openings < 1 or not 1 <= smudging_bits <= 64:
            raise InputError(f"{openings} openings, {smudging_bits} smudging bits: must be at least 1, and 1 to 64")
        self.plan = plan
        self.parties = parties
        self.openings = openings
        self.mode = "public"
        self.codec = codec(plan, value_bits, stochastic)
        # Rounds count from 0 or 1: one more is counted.
        self.parameters = rlwe.fit_committee(plan, self.codec, parties, openings + 1, smudging_bits)

    def body_bytes(self, length: int, polynomials: int = 2) -> int:
        """See :meth:`crypto._committee.CommitteeSum.body_bytes`."""
        return polynomials * self.parameters.plane_bytes(length)

    def make_keys(self) -> tuple[KeyBundle, ...]:
        """Play all members' set-up in one place, for simulations.

        Returns:
            The server's and the clients' bundles (joint public key only), then one for each member with its share.
        """
        seed = os.urandom(SEED_BYTES)
        messages, shares = zip(*(setup(self, seed, member) for member in range(self.parties)), strict=True)
        public, identity = _joint(self, messages)
        return (
            make_bundle(self, SERVER, identity, public),
            make_bundle(self, CLIENTS, identity, public),
            *(make_bundle(self, committee(share.member), identity, public, share.secret) for share in shares),
        )

    def check_round(self, tag: Tag) -> None:
        """See :meth:`crypto._committee.CommitteeSum.check_round`."""
        if tag.round > self.openings:
            raise ReplayError(
                f"round {tag.round}: the noise that hides a member's share is sized for {self.openings} openings; "
                "make new keys, or declare more openings"
            )

    def member_secret(self, bundle: KeyBundle) -> "MemberSecret":
        """See :meth:`crypto._committee.CommitteeSum.member_secret`."""
        return MemberSecret(bundle.secret, secret_multiplier(self.parameters, bundle.secret))

    def partial_body(self, total: memoryview, secret: "MemberSecret", member: int) -> bytes:
        """See :meth:`crypto._committee.CommitteeSum.partial_body`.

        The smudging follows from share and total: a member that is started again, or answers from another process,
        sends the same bytes, and noise on one total never averages out.
        """
        seed = hashlib.blake2b(total, key=secret.seed, person=_ANSWER, digest_size=SEED_BYTES).digest()
        return self.partial_with(total, secret.share, member, seed)

    def partial_with(self, total: memoryview, secret: RlweMultiplier, member: int, seed: bytes) -> bytes:
        """Return the partial decryption whose smudging comes from `seed`; the deterministic core, for tests."""
        ring, (first, second) = native_ring(self.parameters), split_planes(self.parameters, total)
        words = empty_words(self.parameters, first.size // ring.polynomial_bytes)
        if member == 0:
            ring.add_plane(first, words)
        ring.add_product(second, secret, words)
        ring.add_smudging(stream_key(seed, RLWE_SMUDGE), self.parameters.smudge_bits, words)
        return packed(self.parameters, words)

    def read_partial(self, body: memoryview) -> Plane:
        """See :meth:`crypto._committee.CommitteeSum.read_partial`."""
        return checked_plane(self.parameters, body)

    def fuse_partials(self, partials: list[Plane], length: int, count: int) -> NDArray[np.float64]:
        """See :meth:`crypto._committee.CommitteeSum.fuse_partials`."""
        words = empty_words(self.parameters, self.parameters.ciphertexts(length))
        for plane in partials:
            native_ring(self.parameters).add_plane(plane, words)
        out = np.empty(length)
        self.check_opened(*native_ring(self.parameters).decode(words, self.codec.step, out), count)
        return out


@dataclass(frozen=True, slots=True)
class MemberSecret:
    """A member's share, as a seed and ready to multiply."""

    seed: bytes = field(repr=False)
    share: RlweMultiplier = field(repr=False)


@dataclass(frozen=True, slots=True)
class Share:
    """A member's secret share of the key, before the joint public key is known."""

    member: int
    secret: bytes = field(repr=False)


def setup(
    sum_: RlweThreshold, public_seed: bytes, member: int, secret_seed: bytes | None = None
) -> tuple[bytes, Share]:
    """Make a member's share.

    Args:
        sum_: the common description.
        public_seed: 16 random bytes that all members use.
        member: this member's number, from 0.
        secret_seed: the share, for tests; fresh by default.

    Returns:
        The message for everyone, and the share to keep.

    Raises:
        InputError: no such member, or a seed of another length.
    """
    if not 0 <= member < sum_.parties or len(public_seed) != SEED_BYTES:
        raise InputError(
            f"member {member} with a seed of {len(public_seed)} bytes: members are 0 to {sum_.parties - 1}, seeds have "
            f"{SEED_BYTES} bytes"
        )
    share = Share(member, os.urandom(SEED_BYTES) if secret_seed is None else secret_seed)
    body = _SETUP.pack(member, sum_.parties) + public_seed + public_key(sum_.parameters, public_seed, share.secret)
    return wire.encode(_setup_header(sum_), wire.KEY, 1, body), share


def commitment(message: bytes) -> bytes:
    """Return 32 bytes that bind a member to its set-up message before it sees the others'."""
    return hashlib.sha256(b"fedsim-rlwe-setup-v1" + message).digest()


def setup_finish(
    sum_: RlweThreshold, messages: Sequence[bytes], share: Share, commitments: Sequence[bytes]
) -> KeyBundle:
    """Return a member's key bundle.

    Args:
        sum_: the common description.
        messages: all members' messages, in the members' order.
        share: this member's own.
        commitments: all members' commitments, as they arrived before any message.

    Raises:
        WireError: (or a subclass) messages are missing, of another committee or seed, or not those committed to.
    """
    if [commitment(message) for message in messages] != list(commitments):
        raise IntegrityError("a set-up message is not the one that was committed to: start the set-up anew")
    public, identity = _joint(sum_, messages)
    return make_bundle(sum_, committee(share.member), identity, public, share.secret)


def public_bundle(sum_: RlweThreshold, messages: Sequence[bytes], role: str = CLIENTS) -> KeyBundle:
    """Return the bundle of who holds the joint public key only, from all members' messages."""
    public, identity = _joint(sum_, messages)
    return make_bundle(sum_, role, identity, public)


def _joint(sum_: RlweThreshold, messages: Sequence[bytes]) -> tuple[bytes, bytes]:
    if len(messages) != sum_.parties:
        raise WireError(f"{len(messages)} set-up messages: this committee has {sum_.parties} members; wait for all")
    p = sum_.parameters
    words, seeds = empty_words(p, 1), set()
    for expected, message in enumerate(messages):
        frame = wire.decode(
            message, _setup_header(sum_), wire.KEY, _SETUP.size + SEED_BYTES + native_ring(p).polynomial_bytes
        )
        member, parties = _SETUP.unpack(frame.body[: _SETUP.size])
        if (member, parties) != (expected, sum_.parties):
            raise WireError(
                f"set-up message of member {member} of {parties}: expected member {expected} of {sum_.parties}"
            )
        seeds.add(bytes(frame.body[_SETUP.size : _SETUP.size + SEED_BYTES]))
        native_ring(p).add_plane(checked_plane(p, frame.body[_SETUP.size + SEED_BYTES :]), words)
    if len(seeds) != 1:
        raise WireError(f"set-up messages with {len(seeds)} public seeds: all members must use one; start anew")
    public = seeds.pop() + packed(p, words)
    return public, key_id(sum_.scheme, sum_.key_params_hash, public)


def _setup_header(sum_: RlweThreshold) -> wire.Header:
    return wire.Header(scheme=sum_.scheme, params_hash=sum_.key_params_hash, key_id=wire.NO_KEY, tag=_SETUP_TAG)


__all__ = ["OPENINGS", "MemberSecret", "RlweThreshold", "Share", "commitment", "public_bundle", "setup", "setup_finish"]
