"""Frames: every field is checked, and damage is found before a body is used."""

import pickle
import random

import pytest

from crypto import IntegrityError, KeyMismatch, LayoutMismatch, ReplayError, WireError, wire
from crypto.base import Tag

TAG = Tag(round=7, layout_hash=b"L" * 16, length=3)
HEADER = wire.Header(scheme="plain", params_hash=b"P" * 16, key_id=b"K" * 8, tag=TAG)
BODY = bytes(range(40))
FRAME = wire.encode(HEADER, wire.PART, 1, BODY)


def other(**changes):
    fields = {"scheme": "plain", "params_hash": b"P" * 16, "key_id": b"K" * 8, "tag": TAG}
    return wire.Header(**{**fields, **changes})


def test_round_trip():
    frame = wire.decode(FRAME, HEADER, wire.PART, len(BODY))
    assert frame.count == 1 and bytes(frame.body) == BODY
    assert len(FRAME) == wire.HEADER_BYTES + len(BODY)


@pytest.mark.parametrize(
    ("header", "error"),
    [
        (other(scheme="bfv"), WireError),
        (other(params_hash=b"Q" * 16), KeyMismatch),
        (other(key_id=b"J" * 8), KeyMismatch),
        (other(tag=Tag(round=8, layout_hash=b"L" * 16, length=3)), ReplayError),
        (other(tag=Tag(round=7, layout_hash=b"M" * 16, length=3)), LayoutMismatch),
    ],
)
def test_refuses_a_frame_of_something_else(header, error):
    with pytest.raises(error):
        wire.decode(FRAME, header, wire.PART)


def test_refuses_another_kind_and_length():
    with pytest.raises(WireError, match="kind"):
        wire.decode(FRAME, HEADER, wire.TOTAL)
    with pytest.raises(WireError, match="exactly 41"):
        wire.decode(FRAME, HEADER, wire.PART, 41)


@pytest.mark.parametrize("kind, count", [(wire.PART, 0), (wire.PART, 2), (wire.TOTAL, 0)])
def test_refuses_impossible_counts(kind, count):
    with pytest.raises(WireError, match="count"):
        wire.decode(wire.encode(HEADER, kind, count, BODY), HEADER, kind)


def test_refuses_truncation_at_every_length_and_trailing_bytes():
    for length in range(len(FRAME)):
        with pytest.raises(WireError):
            wire.decode(FRAME[:length], HEADER, wire.PART)
    with pytest.raises(WireError):
        wire.decode(FRAME + b"\0", HEADER, wire.PART)


@pytest.mark.report("U13", "`IntegrityError` before anything is decrypted")
@pytest.mark.report("T6", "every flipped bit is found by the frame's checksum, before the library sees it")
def test_finds_every_flipped_bit():
    for bit in range(8 * len(FRAME)):
        damaged = bytearray(FRAME)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(WireError):
            wire.decode(bytes(damaged), HEADER, wire.PART)


def test_finds_damage_of_many_bytes():
    rng = random.Random(1)
    for _ in range(2000):
        damaged = bytearray(FRAME)
        for _ in range(rng.randint(1, 9)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        if bytes(damaged) != FRAME:
            with pytest.raises(WireError):
                wire.decode(bytes(damaged), HEADER, wire.PART)


def test_damage_in_the_body_is_an_integrity_error():
    with pytest.raises(IntegrityError, match="damaged on the way"):
        wire.decode(FRAME[:-1] + b"\xff", HEADER, wire.PART)


@pytest.mark.parametrize("fields", [{"round": -1}, {"round": 2**32}, {"layout_hash": b"x"}, {"length": 0}])
def test_tags_refuse_impossible_values(fields):
    with pytest.raises(ValueError, match="must"):
        Tag(**{"round": 1, "layout_hash": bytes(16), "length": 1, **fields})


def test_a_frame_of_this_process_is_ordinary_bytes_elsewhere():
    frame = wire.encode(HEADER, wire.PART, 1, b"body")
    sent = pickle.loads(pickle.dumps(frame))
    assert type(sent) is bytes and sent == frame and type(frame[:-1] + frame[-1:]) is bytes
    assert bytes(wire.decode(frame, HEADER, wire.PART).body) == b"body"
    with pytest.raises(IntegrityError):
        wire.decode(frame[:-1] + b"!", HEADER, wire.PART)
