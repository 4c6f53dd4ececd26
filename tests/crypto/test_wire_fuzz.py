"""10,000 damaged messages a scheme: none crashes the process, none is accepted, the sum is untouched."""

import random

import numpy as np
import pytest

from crypto import wire
from crypto.base import Plan, Tag
from crypto.errors import CryptoError, WireError
from crypto.keys import KeyedSum
from crypto.plain import PlainSum

LENGTH = 100
TAG = Tag(round=7, layout_hash=b"layout-hash-0123", length=LENGTH)


def make(scheme: str):
    """Return (description, sealer, opener)."""
    plan = Plan(length=LENGTH, clients=100, bound=1.0)
    if scheme == "plain":
        plain = PlainSum(plan)
        return plain, plain.sealer(), plain.opener()
    pytest.importorskip("tenseal", reason="tenseal is not installed: pip install 'fedsim[tenseal]'")
    from crypto.he_seal import BfvSum
    from crypto.he_tenseal import CkksSum

    sum_: KeyedSum = BfvSum(plan, stochastic=False) if scheme == "bfv" else CkksSum(plan)
    _, key = sum_.make_keys()
    bound = sum_.with_key(key.key_id)
    return bound, bound.sealer(key), bound.opener(key)


def damaged(good: bytes, coin: random.Random) -> bytes:
    """Return `good` with one kind of damage; never equal to it."""
    kind = coin.randrange(6)
    bad = bytearray(good)
    if kind == 0:
        bad[coin.randrange(len(bad))] ^= 1 << coin.randrange(8)
    elif kind == 1:
        del bad[coin.randrange(len(bad)) :]
    elif kind == 2:
        bad += coin.randbytes(coin.randrange(1, 50))
    elif kind == 3:
        at, size = coin.randrange(len(bad)), coin.randrange(1, 100)
        bad[at : at + size] = coin.randbytes(size)
    elif kind == 4:
        bad[coin.randrange(wire.HEADER_BYTES)] = coin.randrange(256)
    else:
        at = coin.randrange(len(bad))
        del bad[at : at + coin.randrange(1, 100)]
    return bytes(bad)


@pytest.mark.parametrize("scheme", ["plain", "bfv", "ckks"])
def test_10_000_damaged_messages_are_all_refused(scheme: str) -> None:
    sum_, sealer, opener = make(scheme)
    coin = random.Random(2024)
    adder = sum_.adder(TAG)
    good = sealer.seal(np.full(LENGTH, 0.5, np.float32), TAG)[0]
    adder.add(good)
    total = adder.total()
    refused = 0
    while refused < 10_000:
        as_total = coin.random() < 0.3
        source = total if as_total else good
        bad = damaged(source, coin)
        if bad == source:
            continue
        with pytest.raises(WireError):
            adder.merge(bad) if as_total else adder.add(bad)
        refused += 1
    assert adder.count == 1
    adder.add(good)
    np.testing.assert_allclose(opener.open([adder.total()], TAG), np.ones(LENGTH), atol=1e-6)


@pytest.mark.parametrize("scheme", ["bfv", "ckks"])
def test_damage_under_a_forged_checksum_never_crashes_the_library(scheme: str) -> None:
    sum_, sealer, opener = make(scheme)
    coin = random.Random(2025)
    good = sealer.seal(np.full(LENGTH, 0.5, np.float32), TAG)[0]
    body = bytes(wire.decode(good, sum_.header(TAG), wire.PART).body)
    outcomes = {"refused": 0, "found when opening": 0, "opened": 0}
    for _ in range(150):
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
        except CryptoError:
            outcomes["found when opening"] += 1
            continue
        outcomes["opened"] += 1
        assert np.all(np.abs(opened) <= 2 + 1e-6)
    assert outcomes["refused"] > 30 and outcomes["opened"] <= 15, outcomes


@pytest.mark.parametrize("scheme", ["bfv", "ckks"])
def test_random_bytes_as_a_body_never_crash_the_library(scheme: str) -> None:
    sum_, _, _ = make(scheme)
    coin = random.Random(2026)
    adder = sum_.adder(TAG)
    for _ in range(200):
        noise = coin.randbytes(coin.randrange(20_000))
        framed = len(noise).to_bytes(4, "little") + noise
        with pytest.raises(WireError):
            adder.add(wire.encode(sum_.header(TAG), wire.PART, 1, framed))
    assert adder.count == 0
