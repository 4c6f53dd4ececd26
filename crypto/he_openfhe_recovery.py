"""A committee that survives absent members: t of n, for :mod:`crypto.he_openfhe_threshold`.

After set-up each member cuts its share into Shamir pieces, one for every other member (:func:`split_share`). If a
member is gone when a sum is to be opened, any t others send the piece of its share that they hold to one of them, who
rebuilds it (:func:`recover_share`) and answers in its place::

    pieces = split_share(scheme, bundle_0, threshold=2)           # at member 0; pieces[m] goes to member m, secretly
    bundle = recover_share(scheme, bundle_1, [from_1, from_2])     # at member 1, when 0 is gone
    partial = scheme.partial_opener(bundle).partial(total, tag)    # in the place of member 0

What this costs: any t members together can now rebuild everybody's share, hence the key; and who rebuilt a share keeps
knowing it, so a run should make new keys after a recovery. **Pieces are secrets**: they must reach their holders over
channels that the server cannot read. The library wants ``n/2 < t``; nobody holds a piece of their own, so ``t < n``.

OpenFHE's bindings share and recover keys but serialise no polynomial, and leave sums of Shamir's terms unreduced; the
worker carries pieces in ciphertexts of a single element and reduces them before they leave it.
"""

import hashlib
import struct

from crypto import wire
from crypto.base import Tag
from crypto.errors import InputError, IntegrityError, WireError
from crypto.he_openfhe_threshold import ThresholdSum
from crypto.keys import KeyBundle, committee

#: Owner of the share, holder of the piece, members, threshold, digest of the share.
_PIECE = struct.Struct("<BBBB16s")
_TAG = Tag(round=0, layout_hash=bytes(16), length=1)


class MissingPieces(WireError):
    """Fewer pieces of a share than the threshold; what was given is not wrong, only too little."""


def split_share(sum_: ThresholdSum, bundle: KeyBundle, threshold: int) -> dict[int, bytes]:
    """Cut a member's share into pieces, any `threshold` of which rebuild it.

    Args:
        sum_: the description.
        bundle: the member's own.
        threshold: t, with ``parties / 2 < t < parties``.

    Returns:
        For every other member its piece, a secret message.

    Raises:
        InputError: a threshold out of range.
        KeyMismatch: the bundle is not a member's.
    """
    if not sum_.parties / 2 < threshold < sum_.parties:
        raise InputError(
            f"threshold {threshold} of a committee of {sum_.parties}: must be more than half and less than all; "
            f"use {sum_.parties // 2 + 1} to {sum_.parties - 1} (3 members at least)"
        )
    owner = sum_.member_of(bundle)
    secret = sum_.unpack_key(bundle.secret, 1)
    pieces = sum_.call("split", secret, parties=sum_.parties, threshold=threshold, member=owner)[0]
    packed, size = sum_.pack(pieces), sum_.ring.bytes_of(1)
    header = _header(sum_, bundle)
    messages = {}
    for at, holder in enumerate(m for m in range(sum_.parties) if m != owner):
        head = _PIECE.pack(owner, holder, sum_.parties, threshold, _digest(bundle))
        messages[holder] = wire.encode(header, wire.KEY, 1, head + packed[at * size : (at + 1) * size])
    return messages


def recover_share(sum_: ThresholdSum, bundle: KeyBundle, pieces: list[bytes]) -> KeyBundle:
    """Rebuild an absent member's share from pieces of it.

    Args:
        sum_: the description.
        bundle: that of the member who rebuilds.
        pieces: messages of :func:`split_share` of one owner, as different members hold them, in any order.

    Returns:
        The absent member's bundle, as good as its own.

    Raises:
        MissingPieces: fewer than the threshold.
        IntegrityError: the pieces do not rebuild the share that they were cut from.
        WireError: (or a subclass) not pieces of one share of this key; a holder twice.
    """
    header = _header(sum_, bundle)
    sum_.member_of(bundle)
    size = _PIECE.size + sum_.ring.bytes_of(1)
    bodies = [wire.decode(piece, header, wire.KEY, size).body for piece in pieces]
    if not bodies:
        raise MissingPieces("0 pieces of a share: at least the threshold is needed; ask the other members")
    fields = [_PIECE.unpack(body[: _PIECE.size]) for body in bodies]
    owner, _, parties, threshold, digest = fields[0]
    holders = [holder for _, holder, *_ in fields]
    if any((o, n, t, d) != (owner, parties, threshold, digest) for o, _, n, t, d in fields):
        raise WireError(f"pieces of members {sorted({f[0] for f in fields})}: all must be of one cut of one share")
    if parties != sum_.parties or max(owner, *holders) >= parties or owner in holders:
        raise WireError(f"pieces of member {owner} of {parties} held by {holders}: this committee has {sum_.parties}")
    if len(set(holders)) != len(holders):
        raise WireError(f"pieces of member {owner} held by {holders}: one of each holder; drop the copies")
    if len(holders) < threshold:
        raise MissingPieces(
            f"{len(holders)} pieces of member {owner}'s share: {threshold} are needed; ask more members"
        )
    packed = b"".join(bytes(body[_PIECE.size :]) for body in bodies)
    residues = sum_.unpack(memoryview(packed), 1)
    shares = sum_.call("recover", residues, holders=holders, parties=parties, threshold=threshold)
    found = KeyBundle(
        role=committee(owner),
        scheme=bundle.scheme,
        params_hash=bundle.params_hash,
        key_id=bundle.key_id,
        public=bundle.public,
        secret=sum_.pack(shares[0]),
    )
    if _digest(found) != digest:
        raise IntegrityError(f"pieces by members {holders} rebuild another share than member {owner}'s: one is wrong")
    return found


def _header(sum_: ThresholdSum, bundle: KeyBundle) -> wire.Header:
    return wire.Header(scheme=sum_.scheme, params_hash=sum_.key_params_hash, key_id=bundle.key_id, tag=_TAG)


def _digest(bundle: KeyBundle) -> bytes:
    # The share has thousands of random coefficients: its digest tells nothing that could be searched for.
    return hashlib.sha256(b"fedsim-share-v1" + bundle.key_id + bundle.secret).digest()[:16]
