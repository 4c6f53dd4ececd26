"""``rlwe-threshold``: exact for 3, 10 and 50 members, set up by messages, and no view of fewer tells anything."""

from functools import cache
from math import sqrt

import numpy as np
import pytest

from crypto import wire
from crypto._committee import MissingPartials, fuse
from crypto.base import Plan, Tag
from crypto.errors import BudgetExceeded, InputError, IntegrityError, KeyMismatch, ReplayError, WireError
from crypto.keys import KeyBundle
from crypto.rlwe import reference
from crypto.rlwe.engine import native_ring, secret_multiplier, unpacked
from crypto.rlwe.threshold import RlweThreshold, Share, commitment, public_bundle, setup, setup_finish

LONGEST = 5000
SEED = bytes(range(16))


def tag(length: int, round_: int = 1) -> Tag:
    return Tag(round=round_, layout_hash=bytes(range(16)), length=length)


@cache
def committee(parties: int, length: int = LONGEST):
    """Return (sum bound to the key, server's, clients' and members' bundles)."""
    sum_ = RlweThreshold(Plan(length=length, clients=100, bound=2.0), parties, openings=50)
    server, clients, *members = sum_.make_keys()
    return sum_.with_key(server.key_id), server, clients, members


def sealed_total(sum_: RlweThreshold, clients: KeyBundle, vectors: list[np.ndarray], here: Tag) -> bytes:
    adder, sealer = sum_.adder(here), sum_.sealer(clients)
    for vector in vectors:
        adder.add(sealer.seal(vector, here)[0])
    return adder.total()


def partials_of(sum_, members, total: bytes, here: Tag) -> list[bytes]:
    return [sum_.partial_opener(member).partial(total, here) for member in members]


@pytest.mark.parametrize("parties", [2, 3, 10, 50])
def test_all_members_open_the_exact_sum_at_its_worst(parties: int) -> None:
    sum_, _, clients, members = committee(parties)
    here, step = tag(LONGEST), sum_.codec.step
    rng = np.random.default_rng(parties)
    vectors = [rng.integers(-2 / step, 2 / step, LONGEST, endpoint=True) * step for _ in range(98)]
    vectors += [np.full(LONGEST, 2.0), np.full(LONGEST, 2.0)]
    for vector in vectors:
        vector[:100], vector[100:200] = 2.0, -2.0
    total = sealed_total(sum_, clients, vectors, here)
    partials = partials_of(sum_, members, total, here)
    np.testing.assert_array_equal(fuse(sum_, partials[::-1], here, total), np.sum(vectors, axis=0))


@pytest.mark.parametrize("length", [1, 4096, 4097])
def test_rounds_shorter_than_the_plan_open(length: int) -> None:
    sum_, _, clients, members = committee(3)
    here = tag(length)
    total = sealed_total(sum_, clients, [np.full(length, k / 4, np.float32) for k in range(1, 9)], here)
    np.testing.assert_array_equal(fuse(sum_, partials_of(sum_, members, total, here), here), np.full(length, 9.0))


def set_up(parties: int = 3):
    sum_ = RlweThreshold(Plan(length=5, clients=8, bound=2.0), parties)
    return sum_, *zip(*(setup(sum_, SEED, member) for member in range(parties)), strict=True)


def test_members_set_up_by_messages_and_open() -> None:
    sum_, messages, shares = set_up()
    commitments = [commitment(m) for m in messages]
    members = [setup_finish(sum_, messages, share, commitments) for share in shares]
    clients = public_bundle(sum_, messages)
    assert [m.role for m in members] == ["committee-0", "committee-1", "committee-2"] and clients.secret == b""
    assert len({m.key_id for m in [*members, clients]}) == 1 and len({m.secret for m in members}) == 3
    sum_, here = sum_.with_key(clients.key_id), tag(5)
    total = sealed_total(sum_, clients, [np.full(5, 1.5), np.full(5, -0.25)], here)
    np.testing.assert_array_equal(fuse(sum_, partials_of(sum_, members, total, here), here, total), np.full(5, 1.25))


def test_a_member_that_chooses_its_message_after_the_others_is_caught() -> None:
    sum_, messages, shares = set_up()
    commitments = [commitment(m) for m in messages]
    # Its own message less the others': the joint key would be one whose secret it alone knows.
    late, _ = setup(sum_, SEED, 2)
    with pytest.raises(IntegrityError, match="not the one that was committed to"):
        setup_finish(sum_, [*messages[:2], late], shares[0], commitments)


def test_refuses_set_ups_that_are_not_whole() -> None:
    sum_, messages, shares = set_up()
    other, _ = setup(sum_, bytes(16), 2)
    cases = [
        (WireError, "2 set-up messages", messages[:2]),
        (WireError, "set-up message of member 1 of 3: expected member 0", [messages[1], messages[0], messages[2]]),
        (WireError, "2 public seeds", [*messages[:2], other]),
        (IntegrityError, "checksum", [*messages[:2], messages[2][:-1] + bytes([messages[2][-1] ^ 1])]),
    ]
    for error, text, given in cases:
        with pytest.raises(error, match=text):
            setup_finish(sum_, given, shares[0], [commitment(m) for m in given])
    with pytest.raises(InputError, match="members are 0 to 2"):
        setup(sum_, SEED, 3)
    with pytest.raises(InputError, match="seeds have 16 bytes"):
        setup(sum_, b"abc", 0)
    assert "secret" not in repr(Share(1, b"0123456789abcdef"))


def test_the_joint_key_belongs_to_the_sum_of_the_shares() -> None:
    sum_, messages, shares = set_up()
    p = sum_.parameters
    clients = public_bundle(sum_, messages)
    a = reference.uniform(p, clients.public[:16], b"rlwe-key/1", 0)
    (b,) = reference.unpack(p, clients.public[16:])
    s = sum(reference.secret(p, share.secret) for share in shares)
    rows = [reference.inverse((x + y * reference.forward(s, q)) % q, q) for x, y, q in zip(b, a, p.moduli, strict=True)]
    error = reference.combine(p, np.array(rows, object))
    centred = np.where(error > p.modulus // 2, error - p.modulus, error)
    assert np.abs(centred).max() <= 21 * sum_.parties


def test_partial_decryptions_are_the_references() -> None:
    sum_, _, clients, members = committee(3)
    p, here = sum_.parameters, tag(10)
    total = sealed_total(sum_, clients, [np.ones(10)], here)
    body = total[wire.HEADER_BYTES :]
    (c0,), (c1,) = (reference.unpack(p, half) for half in (body[: len(body) // 2], body[len(body) // 2 :]))
    for member in (0, 1):
        secret = members[member].secret
        made = sum_.partial_with(memoryview(body), secret_multiplier(p, secret), member, SEED)
        noise = reference.residues(p, reference.smudging(p, SEED, 0))
        plain = reference.product(p, c1, reference.secret(p, secret)) + noise + (c0 if member == 0 else 0)
        assert made == reference.pack(p, [np.array([x % q for x, q in zip(plain, p.moduli, strict=True)], object)])


def uniform_score(words: np.ndarray, prime: int, cells: int = 64) -> float:
    """Return the chi-squared statistic of uniformity in standard deviations from its mean."""
    observed = np.bincount((words.astype(object) * cells // prime).astype(int), minlength=cells)
    expected = words.size / cells
    return (((observed - expected) ** 2).sum() / expected - (cells - 1)) / sqrt(2 * (cells - 1))


@pytest.mark.parametrize("parties", [3, 10])
@pytest.mark.parametrize("absent", [0, 1])
def test_the_view_of_all_members_but_one_looks_uniform(parties: int, absent: int) -> None:
    """All shares but one, the total, and everybody else's answers: what is left of the sum is uniform noise."""
    sum_, _, clients, members = committee(parties)
    p, here = sum_.parameters, tag(LONGEST)
    total = sealed_total(sum_, clients, [np.full(LONGEST, 2.0)] * 3, here)
    ring = native_ring(p)
    words = np.zeros(p.ciphertexts(LONGEST) * len(p.moduli) * p.ring, np.uint64)
    planes = np.frombuffer(total, np.uint8)[wire.HEADER_BYTES :]
    first, second = planes[: planes.size // 2], planes[planes.size // 2 :]
    ring.add_plane(first, words)
    for number, member in enumerate(members):
        if number != absent:
            ring.add_product(second, secret_multiplier(p, member.secret), words)
    for limb, prime in enumerate(p.moduli):
        seen = words.reshape(-1, len(p.moduli), p.ring)[:, limb].reshape(-1)
        assert abs(uniform_score(seen, prime)) < 4
    out = np.empty(LONGEST)
    largest, noise = ring.decode(words, 1.0, out)
    assert largest > 100 * sum_.codec.max_value and abs(np.corrcoef(out, np.arange(LONGEST))[0, 1]) < 0.1


def test_partial_decryptions_look_uniform_and_are_smudged() -> None:
    sum_, _, clients, members = committee(3)
    p, here = sum_.parameters, tag(LONGEST)
    body = memoryview(sealed_total(sum_, clients, [np.zeros(LONGEST)], here))[wire.HEADER_BYTES :]
    share = secret_multiplier(p, members[1].secret)
    one, other = (
        unpacked(p, np.frombuffer(sum_.partial_with(body, share, 1, seed), np.uint8)) for seed in (SEED, bytes(16))
    )
    for limb, prime in enumerate(p.moduli):
        seen = one.reshape(-1, len(p.moduli), p.ring)[:, limb].reshape(-1)
        assert abs(uniform_score(seen, prime)) < 4
    # Under two seeds they differ by smudging alone.
    rows = [x.reshape(-1, len(p.moduli), p.ring)[0].astype(object) for x in (one, other)]
    apart = reference.combine(p, np.array([(a - b) % q for a, b, q in zip(*rows, p.moduli, strict=True)], object))
    centred = np.where(apart > p.modulus // 2, apart - p.modulus, apart).astype(float)
    assert centred.std() == pytest.approx(2.0**p.smudge_bits * sqrt(2), rel=0.05)


def test_missing_members_are_named_and_what_arrived_is_kept() -> None:
    sum_, _, clients, members = committee(10)
    here = tag(7)
    total = sealed_total(sum_, clients, [np.ones(7)], here)
    partials = partials_of(sum_, members, total, here)
    fuser = sum_.fuser(here, total)
    for number in (0, 1, 2, 4, 5, 6, 7, 9):
        fuser.add(partials[number])
    assert fuser.missing == (3, 8)
    with pytest.raises(MissingPartials, match=r"members \[3, 8\] are missing: all 10 are needed"):
        fuser.open()
    for number in (8, 3):
        fuser.add(partials[number])
    np.testing.assert_array_equal(fuser.open(), np.ones(7))


def test_a_member_answers_one_total_a_round_with_the_same_bytes() -> None:
    sum_, _, clients, members = committee(3)
    here = tag(7, 3)
    total, other = (sealed_total(sum_, clients, [np.full(7, v)], here) for v in (1.0, 2.0))
    opener = sum_.partial_opener(members[1])
    answer = opener.partial(total, here)
    assert opener.partial(total, here) == answer
    # A member that was started again: noise of its own on the same total would average out.
    assert sum_.partial_opener(members[1]).partial(total, here) == answer
    with pytest.raises(ReplayError, match="each round is opened once"):
        opener.partial(other, here)
    with pytest.raises(ReplayError, match="up to round 3"):
        opener.partial(sealed_total(sum_, clients, [np.ones(7)], tag(7, 2)), tag(7, 2))
    assert members[1].secret.hex() not in repr(opener)


def test_a_member_refuses_rounds_that_its_noise_is_not_sized_for() -> None:
    sum_, _, clients, members = committee(3)
    late = tag(7, 51)
    total = sealed_total(sum_, clients, [np.ones(7)], late)
    with pytest.raises(ReplayError, match="round 51: .* sized for 50 openings"):
        sum_.partial_opener(members[0]).partial(total, late)
    last = tag(7, 50)
    sum_.partial_opener(members[0]).partial(sealed_total(sum_, clients, [np.ones(7)], last), last)


def test_refuses_partials_of_other_totals_rounds_members_and_damaged_ones() -> None:
    sum_, _, clients, members = committee(3)
    here = tag(7)
    total, other = (sealed_total(sum_, clients, [np.full(7, v)], here) for v in (1.0, 2.0))
    mine = partials_of(sum_, members, total, here)
    fuser = sum_.fuser(here, total)
    fuser.add(mine[0])
    bad = [
        (ReplayError, mine[0]),
        (IntegrityError, sum_.partial_opener(members[1]).partial(other, here)),
        (WireError, mine[1][:-1]),
        (IntegrityError, mine[1][:-1] + bytes([mine[1][-1] ^ 1])),
        (WireError, total),
        (WireError, wire.encode(sum_.header(here), wire.PARTIAL, 1, b"\x09" + mine[1][wire.HEADER_BYTES + 1 :])),
        (WireError, wire.encode(sum_.header(here), wire.PARTIAL, 1, mine[1][wire.HEADER_BYTES : -9] + b"\xff" * 9)),
    ]
    for error, message in bad:
        with pytest.raises(error):
            fuser.add(message)
    assert fuser.missing == (1, 2)


def test_nobody_opens_alone_and_only_members_answer() -> None:
    sum_, server, clients, members = committee(3)
    for bundle in (server, clients, members[0]):
        with pytest.raises(KeyMismatch, match="opened by a committee of 3"):
            sum_.opener(bundle)
    for bundle in (server, clients):
        with pytest.raises(KeyMismatch, match="is none of this committee's 3 members"):
            sum_.partial_opener(bundle)
    other = committee(2)[3][0]
    with pytest.raises(KeyMismatch):
        sum_.partial_opener(other)


def test_a_wrong_share_is_found_when_fusing() -> None:
    sum_, _, clients, members = committee(3)
    here = tag(7)
    total = sealed_total(sum_, clients, [np.ones(7)], here)
    wrong = KeyBundle(
        role="committee-1",
        scheme=sum_.scheme,
        params_hash=sum_.key_params_hash,
        key_id=members[1].key_id,
        public=members[1].public,
        secret=bytes(16),
    )
    partials = partials_of(sum_, [members[0], wrong, members[2]], total, here)
    with pytest.raises(IntegrityError, match="sums of 1 clients stay within"):
        fuse(sum_, partials, here, total)


@pytest.mark.parametrize("parties", [1, 51])
def test_refuses_committees_of_other_sizes(parties: int) -> None:
    with pytest.raises(InputError, match=f"committee of {parties}: must have 2 to 50 members"):
        RlweThreshold(Plan(length=5, clients=8, bound=2.0), parties)


def test_refuses_what_no_ring_carries() -> None:
    plan = Plan(length=10**9, clients=1000, bound=1.0)
    with pytest.raises(BudgetExceeded, match="lower value_bits, smudging_bits, the number of rounds or of clients"):
        RlweThreshold(plan, 50, value_bits=30)
    with pytest.raises(InputError, match="0 openings"):
        RlweThreshold(plan, 3, openings=0)


def test_messages_have_exactly_the_bytes_of_the_budget() -> None:
    sum_, _, clients, members = committee(3)
    here = tag(LONGEST)
    total = sealed_total(sum_, clients, [np.ones(LONGEST)], here)
    assert len(total) == sum_.budget.download_bytes
    assert len(sum_.sealer(clients).seal(np.ones(LONGEST), here)[0]) == sum_.budget.upload_bytes
    assert len(sum_.partial_opener(members[0]).partial(total, here)) == sum_.partial_bytes
