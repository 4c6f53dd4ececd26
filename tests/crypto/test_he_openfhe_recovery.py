"""t of n: pieces of shares rebuild an absent member's share, and fewer than t do not."""

from functools import cache
from itertools import combinations

import numpy as np
import pytest

from crypto import wire
from crypto._committee import fuse
from crypto._openfhe.find import find_python
from crypto.base import Plan, Tag
from crypto.errors import BackendFailed, BackendUnavailable, InputError, IntegrityError, KeyMismatch, WireError
from crypto.he_openfhe_recovery import MissingPieces, recover_share, split_share
from crypto.he_openfhe_threshold import threshold_sum

try:
    PYTHON, REASON = find_python(), ""
except BackendUnavailable as error:
    PYTHON, REASON = "", str(error)
pytestmark = pytest.mark.skipif(bool(REASON), reason=f"OPENFHE IS NOT TESTED HERE: {REASON}")

HERE = Tag(round=2, layout_hash=bytes(16), length=6)


@cache
def committee(base: str, flooding: str, parties: int):  # type: ignore[no-untyped-def]
    sum_ = threshold_sum(Plan(length=6, clients=5, bound=4.0), parties, base, flooding, python=PYTHON)  # type: ignore[arg-type]
    server, clients, *members = sum_.make_keys()
    return sum_.with_key(server.key_id), clients, members


@pytest.mark.parametrize(("base", "flooding"), [("bgv", "heuristic"), ("bgv", "statistical"), ("ckks", "heuristic")])
@pytest.mark.parametrize(("parties", "threshold"), [(3, 2), (5, 3), (10, 9)])
def test_any_t_members_rebuild_an_absent_share_and_open(base: str, flooding: str, parties: int, threshold: int) -> None:
    sum_, clients, members = committee(base, flooding, parties)
    absent = parties // 2 - 1  # the leading member 0 among them
    pieces = split_share(sum_, members[absent], threshold)
    assert sorted(pieces) == [m for m in range(parties) if m != absent]
    for holders in list(combinations(sorted(pieces), threshold))[:: max(1, parties // 2)]:
        rescuer = members[holders[-1]]
        found = recover_share(sum_, rescuer, [pieces[m] for m in reversed(holders)])
        assert found == members[absent]
    adder = sum_.adder(HERE)
    adder.add(sum_.sealer(clients).seal(np.full(6, 3.0, np.float32), HERE)[0])
    bundles = [member for member in members if member is not members[absent]] + [found]
    partials = [sum_.partial_opener(bundle).partial(adder.total(), HERE) for bundle in bundles]
    assert np.abs(fuse(sum_, partials, HERE) - 3.0).max() <= sum_.budget.error_bound


@pytest.mark.report("U39")
def test_fewer_than_t_pieces_do_not_rebuild_the_share() -> None:
    sum_, _, members = committee("bgv", "heuristic", 5)
    pieces = split_share(sum_, members[0], 3)
    for count in range(3):
        with pytest.raises(MissingPieces, match=f"{count} pieces of"):
            recover_share(sum_, members[1], [pieces[m] for m in (1, 2, 3)[:count]])
    # Past the face: the library refuses two as two, and two declared enough give another share.
    size = sum_.ring.bytes_of(1)
    two = sum_.unpack(memoryview(b"".join(pieces[m][-size:] for m in (1, 2))), 1)
    with pytest.raises(BackendFailed, match="less than threshold"):
        sum_.call("recover", two, holders=[1, 2], parties=5, threshold=3)
    forced = np.concatenate([two, np.zeros_like(two[:1])])
    assert sum_.pack(sum_.call("recover", forced, holders=[1, 2, 3], parties=5, threshold=3)[0]) != members[0].secret


def test_pieces_are_uniform_and_tell_nothing_of_unreduced_sums() -> None:
    sum_, _, members = committee("bgv", "heuristic", 5)
    size = sum_.ring.bytes_of(1)
    pieces = split_share(sum_, members[0], 3).values()
    residues = np.concatenate([sum_.unpack(memoryview(p[-size:]), 1).ravel() for p in pieces])
    quarters = np.bincount((residues // np.uint64(sum_.ring.moduli[0] // 4 + 1)).astype(int), minlength=4)
    assert quarters.size == 4 and np.abs(quarters / residues.size - 0.25).max() < 0.02


@pytest.mark.report("U39")
def test_refuses_mixed_damaged_doubled_and_wrong_pieces() -> None:
    sum_, clients, members = committee("bgv", "heuristic", 5)
    own, other = split_share(sum_, members[0], 3), split_share(sum_, members[1], 3)
    again = split_share(sum_, members[0], 4)
    for mixed in ([own[1], own[2], other[3]], [own[1], own[2], again[3]]):
        with pytest.raises(WireError, match="all must be of one cut of one share"):
            recover_share(sum_, members[2], mixed)
    with pytest.raises(WireError, match="drop the copies"):
        recover_share(sum_, members[2], [own[1], own[1], own[2]])
    damaged = bytearray(own[3])
    damaged[500] ^= 1
    with pytest.raises(IntegrityError, match="checksum"):
        recover_share(sum_, members[2], [own[1], own[2], bytes(damaged)])
    body = bytearray(own[3][wire.HEADER_BYTES :])
    body[1000] ^= 1
    here = Tag(round=0, layout_hash=bytes(16), length=1)
    header = wire.Header(scheme=sum_.scheme, params_hash=sum_.key_params_hash, key_id=sum_.key_id, tag=here)
    forged = wire.encode(header, wire.KEY, 1, body)
    with pytest.raises(IntegrityError, match=r"by members \[1, 2, 3\] rebuild another share than member 0's"):
        recover_share(sum_, members[2], [own[1], own[2], forged])
    foreign, _, strangers = committee("bgv", "heuristic", 3)
    with pytest.raises(KeyMismatch, match="use one config"):
        recover_share(foreign, strangers[1], [own[1], own[2], own[3]])
    with pytest.raises(KeyMismatch, match="none of this committee's 5 members"):
        recover_share(sum_, clients, [own[1], own[2], own[3]])


@pytest.mark.parametrize(("parties", "threshold"), [(3, 1), (3, 3), (5, 2), (10, 5), (10, 10)])
def test_refuses_thresholds_out_of_range(parties: int, threshold: int) -> None:
    sum_, _, members = committee("bgv", "heuristic", parties)
    with pytest.raises(InputError, match=f"threshold {threshold} of a committee of {parties}: must be more than half"):
        split_share(sum_, members[0], threshold)
