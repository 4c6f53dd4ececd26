"""Sums that a committee opens: set-up, partial decryptions, fusion, and everything that must not open."""

import pickle
from functools import cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crypto import wire
from crypto._committee import MissingPartials, PartialOpener, fuse
from crypto._openfhe.find import find_python
from crypto.base import Plan, Tag
from crypto.errors import BackendFailed, BackendUnavailable, IntegrityError, KeyMismatch, ReplayError, WireError
from crypto.he_openfhe_threshold import (
    public_bundle,
    setup_finish,
    setup_first,
    setup_next,
    threshold_sum,
)
from crypto.keys import KeyBundle

try:
    PYTHON, REASON = find_python(), ""
except BackendUnavailable as error:
    PYTHON, REASON = "", str(error)
pytestmark = pytest.mark.skipif(bool(REASON), reason=f"OPENFHE IS NOT TESTED HERE: {REASON}")

CASES = [("bgv", "heuristic"), ("bgv", "statistical"), ("ckks", "heuristic")]
each_case = pytest.mark.parametrize(("base", "flooding"), CASES)
LONGEST = 4200


@cache
def committee(base: str, flooding: str, parties: int = 3):  # type: ignore[no-untyped-def]
    plan = Plan(length=LONGEST, clients=100, bound=10.0)
    sum_ = threshold_sum(plan, parties, base, flooding, python=PYTHON)  # type: ignore[arg-type]
    server, clients, *members = sum_.make_keys()
    return sum_.with_key(server.key_id), server, clients, members


def tag(length: int, round_: int = 0) -> Tag:
    return Tag(round=round_, layout_hash=bytes(range(16)), length=length)


def sealed_total(sum_, clients: KeyBundle, vectors: list[np.ndarray], here: Tag) -> bytes:  # type: ignore[no-untyped-def]
    adder, sealer = sum_.adder(here), sum_.sealer(clients)
    for vector in vectors:
        adder.add(sealer.seal(vector, here)[0])
    return bytes(adder.total())


@pytest.mark.report("U15", "three members set up by messages and open the sum of [1..8] as 36")
@each_case
def test_three_members_set_up_by_messages_and_open_1_to_8_as_36(base: str, flooding: str) -> None:
    plan = Plan(length=5, clients=8, bound=8.0)
    sum_ = threshold_sum(plan, 3, base, flooding, python=PYTHON)  # type: ignore[arg-type]
    message_0, share_0 = setup_first(sum_)
    message_1, share_1 = setup_next(sum_, message_0)
    message_2, share_2 = setup_next(sum_, message_1)
    members = [setup_finish(sum_, message_2, share) for share in (share_0, share_1, share_2)]
    clients = public_bundle(sum_, message_2)
    assert [m.role for m in members] == ["committee-0", "committee-1", "committee-2"] and clients.secret == b""
    assert len({m.key_id for m in [*members, clients]}) == 1 and len({m.secret for m in members}) == 3
    sum_ = sum_.with_key(clients.key_id)
    here = tag(5)
    total = sealed_total(sum_, clients, [np.full(5, k, np.float32) for k in range(1, 9)], here)
    partials = [sum_.partial_opener(member).partial(total, here) for member in members]
    assert np.abs(fuse(sum_, partials[::-1], here, total) - 36).max() <= 1e-4


@each_case
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_opened_sum_equals_the_plain_sum_within_the_bound(base: str, flooding: str, data: st.DataObject) -> None:
    sum_, _, clients, members = committee(base, flooding)
    length = data.draw(st.sampled_from([1, 2, sum_.ring.slots - 1, LONGEST]).filter(lambda n: n <= LONGEST))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    vectors = [rng.uniform(-10, 10, length).astype(np.float32) for _ in range(data.draw(st.integers(1, 5)))]
    here = tag(length)
    total = sealed_total(sum_, clients, vectors, here)
    partials = [sum_.partial_opener(member).partial(total, here) for member in members]
    expected = np.sum([v.astype(np.float64) for v in vectors], axis=0)
    assert np.abs(fuse(sum_, partials, here) - expected).max() <= sum_.budget.error_bound


@pytest.mark.parametrize("base", ["bgv", "ckks"])
def test_ten_members_and_a_hundred_clients(base: str) -> None:
    sum_, _, clients, members = committee(base, "heuristic", 10)
    here, rng = tag(40), np.random.default_rng(2)
    vectors = [rng.uniform(-10, 10, 40).astype(np.float32) for _ in range(100)]
    total = sealed_total(sum_, clients, vectors, here)
    partials = [sum_.partial_opener(member).partial(total, here) for member in members]
    assert len(partials[0]) == wire.HEADER_BYTES + 20 + sum_.body_bytes(40, 1)
    expected = np.sum([v.astype(np.float64) for v in vectors], axis=0)
    assert np.abs(fuse(sum_, partials, here) - expected).max() <= sum_.budget.error_bound


@each_case
@pytest.mark.parametrize("absent", [0, 1, 2])
def test_two_of_three_cannot_open_and_nothing_is_lost(base: str, flooding: str, absent: int) -> None:
    sum_, _, clients, members = committee(base, flooding)
    here = tag(50)
    total = sealed_total(sum_, clients, [np.full(50, 3.0, np.float32)], here)
    partials = [sum_.partial_opener(member).partial(total, here) for member in members]
    fuser = sum_.fuser(here, total)
    for member in range(3):
        if member != absent:
            assert fuser.add(partials[member]) == member
    with pytest.raises(MissingPartials, match=rf"members \[{absent}\] are missing: all 3 are needed"):
        fuser.open()
    # Even past the face of it: two members' partial decryptions fuse to noise.
    two = [fuser._partials[m] for m in range(3) if m != absent]
    try:
        forced = sum_.values(sum_.call("fuse", *two), 50, 1)
    except (BackendFailed, IntegrityError) as error:  # CKKS may notice in the library, both by the range
        assert "approximation error" in str(error) or "opened sum reaches" in str(error)
    else:
        assert np.median(np.abs(forced - 3.0)) > 1.0
    fuser.add(partials[absent])
    assert np.abs(fuser.open() - 3.0).max() <= 1e-3


@pytest.mark.report("U39", "no share is the secret; too few, mixed and repeated pieces are errors")
@each_case
def test_no_share_and_no_pair_of_shares_is_the_key(base: str, flooding: str) -> None:
    sum_, server, clients, members = committee(base, flooding)
    here = tag(50)
    total = sealed_total(sum_, clients, [np.full(50, 3.0, np.float32)], here)
    sealed = sum_.unpack(wire.decode(total, sum_.header(here), wire.TOTAL).body, 2)
    shares = [sum_.unpack_key(member.secret, 1) for member in members]
    moduli = sum_.ring.moduli_array[:, None]

    def opens(key: np.ndarray) -> bool:
        try:
            opened = sum_.values(sum_.call("decrypt", np.ascontiguousarray(key), sealed), 50, 1)
        except (BackendFailed, IntegrityError) as error:
            assert "approximation error" in str(error) or "opened sum reaches" in str(error)
            return False
        return bool(np.abs(opened - 3.0).max() < 1e-3)

    assert not any(opens(share) for share in shares)
    assert not any(opens((shares[i] + shares[j]) % moduli) for i, j in [(0, 1), (0, 2), (1, 2)])
    assert opens(((shares[0] + shares[1]) % moduli + shares[2]) % moduli)  # the check above can fail
    assert server.secret == clients.secret == b""
    held = pickle.dumps(sum_) + server.encode() + clients.encode() + total + repr(members).encode()
    assert all(member.secret[500:516] not in held for member in members)


def test_no_bundle_opens_alone_and_only_members_answer() -> None:
    sum_, server, clients, members = committee("bgv", "heuristic")
    for bundle in (server, clients, *members):
        with pytest.raises(KeyMismatch, match="no bundle opens alone"):
            sum_.opener(bundle)
    for bundle in (server, clients):
        with pytest.raises(KeyMismatch, match="none of this committee's 3 members"):
            sum_.partial_opener(bundle)
    assert "redacted" in repr(sum_.partial_opener(members[0]))


def test_a_member_answers_one_total_a_round_with_the_same_bytes() -> None:
    sum_, _, clients, members = committee("bgv", "heuristic")
    one, other = (sealed_total(sum_, clients, [np.full(4, v, np.float32)], tag(4, 5)) for v in (1, 2))
    member: PartialOpener = sum_.partial_opener(members[1])
    answer = member.partial(one, tag(4, 5))
    assert member.partial(one, tag(4, 5)) == answer
    with pytest.raises(ReplayError, match="each round is opened once"):
        member.partial(other, tag(4, 5))
    old = sealed_total(sum_, clients, [np.ones(4, np.float32)], tag(4, 4))
    with pytest.raises(ReplayError, match="total of round 4: member 1 has answered another one up to round 5"):
        member.partial(old, tag(4, 4))
    new = sealed_total(sum_, clients, [np.ones(4, np.float32)], tag(4, 6))
    assert member.partial(new, tag(4, 6)) != answer


@pytest.mark.report("U39")
def test_refuses_duplicates_other_totals_rounds_and_parts() -> None:
    sum_, _, clients, members = committee("bgv", "heuristic")
    here = tag(4, 7)
    one, other = (sealed_total(sum_, clients, [np.full(4, v, np.float32)], here) for v in (1, 2))
    fuser = sum_.fuser(here, one)
    answer = sum_.partial_opener(members[0]).partial(one, here)
    fuser.add(answer)
    with pytest.raises(ReplayError, match="member 0: it has arrived already"):
        fuser.add(answer)
    with pytest.raises(IntegrityError, match="send all members the same total"):
        fuser.add(sum_.partial_opener(members[1]).partial(other, here))
    with pytest.raises(ReplayError, match="round 7: this is round 8"):
        sum_.fuser(tag(4, 8)).add(answer)
    with pytest.raises(WireError):
        fuser.add(one)
    with pytest.raises(WireError, match="kind 1: expected"):
        sum_.partial_opener(members[1]).partial(sum_.sealer(clients).seal(np.ones(4, np.float32), here)[0], here)
    assert fuser.missing == (1, 2)


def test_refuses_every_damaged_partial_decryption() -> None:
    sum_, _, clients, members = committee("bgv", "heuristic")
    here = tag(4)
    total = sealed_total(sum_, clients, [np.ones(4, np.float32)], here)
    good = sum_.partial_opener(members[0]).partial(total, here)
    fuser, rng, accepted = sum_.fuser(here, total), np.random.default_rng(3), 0
    for i in range(10_000):
        bad = bytearray(good)
        at = int(rng.integers(len(bad))) if i % 2 else int(rng.integers(wire.HEADER_BYTES + 20))
        if i % 4:
            bad[at] ^= int(rng.integers(1, 256))
        else:
            del bad[at:]
        try:
            fuser.add(bytes(bad))
            accepted += 1
        except WireError:
            pass
    assert accepted == 0 and fuser.missing == (0, 1, 2)
    body = bytearray(wire.decode(good, sum_.header(here), wire.PARTIAL).body)
    for position, value, message in [
        (0, 3, "member 3 of 3"),
        (1, 4, "member 0 of 4"),
        (2, 1, "of this|committee has 3"),
    ]:
        forged = bytearray(body)
        forged[position] = value
        with pytest.raises(WireError, match=message):
            fuser.add(wire.encode(sum_.header(here), wire.PARTIAL, 1, forged))


def test_set_up_refuses_damaged_foreign_and_misplaced_messages() -> None:
    sum_, *_ = committee("bgv", "heuristic")
    first, share = setup_first(sum_)
    with pytest.raises(WireError, match="complete after member 2 only"):
        setup_finish(sum_, first, share)
    last, _ = setup_next(sum_, setup_next(sum_, first)[0])
    with pytest.raises(WireError, match="the last of 3: the key is complete"):
        setup_next(sum_, last)
    other, *_ = committee("bgv", "heuristic", 10)
    with pytest.raises(KeyMismatch, match="use one config"):
        setup_next(other, first)
    for at in (0, 5, 40, 81, 90, len(first) - 1):
        bad = bytearray(first)
        bad[at] ^= 1
        with pytest.raises(WireError):
            setup_next(sum_, bytes(bad))
    assert "secret" not in repr(share)
