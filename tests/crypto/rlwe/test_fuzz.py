"""Damaged messages of every kind: none is accepted, none crashes the process, the sum is untouched."""

import random
from collections.abc import Callable

import numpy as np
import pytest

from crypto import wire
from crypto.base import Plan, Tag
from crypto.errors import CryptoError, IntegrityError, WireError
from crypto.keys import KeyBundle
from crypto.rlwe.scheme import RlweSum
from crypto.rlwe.threshold import RlweThreshold, Share, commitment, setup, setup_finish

LENGTH = 100
TAG = Tag(round=7, layout_hash=b"layout-hash-0123", length=LENGTH)
PLAN = Plan(length=LENGTH, clients=100, bound=1.0)


def damaged(good: bytes, coin: random.Random) -> bytes:
    """Return `good` with one kind of damage; never equal to it."""
    bad = bytearray(good)
    while bad == good:
        kind, at = coin.randrange(6), coin.randrange(len(good))
        if kind == 0:
            bad[at] ^= 1 << coin.randrange(8)
        elif kind == 1:
            del bad[at:]
        elif kind == 2:
            bad += coin.randbytes(coin.randrange(1, 50))
        elif kind == 3:
            bad[at : at + coin.randrange(1, 100)] = coin.randbytes(coin.randrange(1, 100))
        elif kind == 4:
            bad[at % wire.HEADER_BYTES] = coin.randrange(256)
        else:
            del bad[at : at + coin.randrange(1, 100)]
    return bytes(bad)


def finish(committee: RlweThreshold, messages: list[bytes], share: Share) -> KeyBundle:
    return setup_finish(committee, messages, share, [commitment(message) for message in messages])


def targets() -> list[tuple[bytes, Callable[[bytes], object]]]:
    """Return each kind of message with what reads it."""
    found: list[tuple[bytes, Callable[[bytes], object]]] = []
    for mode in ("symmetric", "public"):
        sum_ = RlweSum(PLAN, value_bits=12, mode=mode)  # type: ignore[arg-type]
        _, key = sum_.make_keys()
        sum_ = sum_.with_key(key.key_id)
        adder = sum_.adder(TAG)
        part = sum_.sealer(key).seal(np.full(LENGTH, 0.5), TAG)[0]
        adder.add(part)
        opener = sum_.opener(key)
        found += [(part, adder.add), (adder.total(), adder.merge)]
        found += [
            (adder.total(), lambda data, opener=opener: opener.open([data], TAG)),
            (key.encode(), KeyBundle.decode),
        ]
    committee = RlweThreshold(PLAN, 2, value_bits=12, openings=10)
    made = [setup(committee, bytes(16), m) for m in range(2)]
    messages, share = [m for m, _ in made], made[0][1]
    _, clients, member, _ = committee.make_keys()
    bound = committee.with_key(clients.key_id)
    adder = bound.adder(TAG)
    adder.add(bound.sealer(clients).seal(np.zeros(LENGTH), TAG)[0])
    total = adder.total()
    partial = bound.partial_opener(member).partial(total, TAG)
    found += [(total, lambda data: bound.partial_opener(member).partial(data, TAG))]
    found += [(partial, lambda data: bound.fuser(TAG, total).add(data))]
    found += [(messages[1], lambda data: finish(committee, [messages[0], data], share))]
    return found


def fuzz(count: int) -> None:
    coin, kinds = random.Random(2026), targets()
    for _ in range(count):
        good, read = kinds[coin.randrange(len(kinds))]
        with pytest.raises(WireError):
            read(damaged(good, coin))
    for good, read in kinds:
        if getattr(read, "__name__", "") == "add":
            assert read.__self__.count == 1  # type: ignore[attr-defined]
            read(good)


def test_5_000_damaged_messages_are_all_refused() -> None:
    fuzz(5_000)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_100_000_damaged_messages_are_all_refused() -> None:
    fuzz(100_000)


def test_damage_under_a_forged_checksum_is_refused_found_or_bounded() -> None:
    """Who can write checksums can change a sum, within what one client may send; nothing crashes."""
    sum_ = RlweSum(PLAN, value_bits=12)
    _, key = sum_.make_keys()
    sum_ = sum_.with_key(key.key_id)
    opener, coin = sum_.opener(key), random.Random(2027)
    good = sum_.sealer(key).seal(np.full(LENGTH, 0.5), TAG)[0]
    body = good[wire.HEADER_BYTES :]
    outcomes = {"refused": 0, "found": 0, "opened": 0}
    for _ in range(400):
        adder = sum_.adder(TAG)
        adder.add(good)
        try:
            adder.add(wire.encode(sum_.header(TAG), wire.PART, 1, damaged(body, coin)))
        except WireError:
            outcomes["refused"] += 1
            assert adder.count == 1
            continue
        try:
            opened = opener.open([adder.total()], TAG)
        except IntegrityError:
            outcomes["found"] += 1
            continue
        outcomes["opened"] += 1
        assert np.abs(opened).max() <= 2 + sum_.budget.error_bound
    assert outcomes["refused"] > 100 and outcomes["found"] > 50, outcomes


def test_random_bytes_of_the_right_length_never_crash() -> None:
    for kind, read in targets():
        coin = random.Random(5)
        for _ in range(20):
            with pytest.raises(CryptoError):
                read(kind[: wire.HEADER_BYTES] + coin.randbytes(len(kind) - wire.HEADER_BYTES))
