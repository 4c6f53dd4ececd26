"""Wire format: one encoding for each report, everything else is refused by name and nothing crashes."""

import json
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from crypto import errors
from crypto.errors import IntegrityError, ReplayError, WireError
from crypto.preamble import dpf, wire
from crypto.preamble.dpf import Group, Report, Shape

VECTORS = Path(__file__).parents[2] / "vectors" / "preamble" / "v1"
TASK = bytes(range(16))
SHAPE = Shape(group=Group.FIELD64, groups=2, blocks=5, length=3)
KEY = X25519PrivateKey.from_private_bytes(bytes(range(32)))


def make(shape: Shape = SHAPE, nonce: bytes = bytes(16)) -> tuple[tuple[Report, Report], wire.Parts]:
    payload = np.ones((shape.groups, shape.length), shape.group.dtype)
    seeds = (b"\1" * 16, b"\2" * 16)
    body = dpf.shard(shape, TASK, nonce, seeds, np.zeros(shape.groups, np.uint32), payload)
    reports = Report(shape, TASK, nonce, seeds[0], body), Report(shape, TASK, nonce, seeds[1], body)
    return reports, wire.encode(reports, KEY.public_key())


REPORTS, PARTS = make()
RELAYED = wire.relay(REPORTS[0], PARTS.helper)


@pytest.mark.parametrize("group", Group)
@pytest.mark.parametrize("blocks", [1, 2, 5, 16])
def test_both_servers_read_what_the_client_wrote(group: Group, blocks: int) -> None:
    shape = Shape(group=group, groups=3, blocks=blocks, length=4)
    reports, parts = make(shape, b"n" * 16)
    assert wire.decode_leader(parts.leader, shape, TASK) == reports[0]
    relayed = wire.relay(reports[0], parts.helper)
    assert wire.decode_relayed(relayed, shape, TASK, KEY) == reports[1]
    assert len(parts.leader) == wire.leader_bytes(shape) and len(parts.helper) == wire.helper_bytes()
    assert len(relayed) == wire.relayed_bytes(shape)


def test_length_and_layout_depend_on_public_parameters_only() -> None:
    lengths = set()
    for alpha in range(5):
        for value in (0, 1, 2**63):
            payload = np.full((2, 3), value, np.uint64)
            body = dpf.shard(SHAPE, TASK, bytes(16), (TASK, TASK), np.full(2, alpha, np.uint32), payload)
            wire.check_body(SHAPE, body)
            lengths.add(len(body))
    assert lengths == {SHAPE.body_bytes}


@pytest.mark.parametrize("name", sorted(p.name for p in VECTORS.glob("bad_*.json")))
def test_bad_vectors_are_refused(name: str) -> None:
    vector = json.loads((VECTORS / name).read_text())
    s = vector["shape"]
    shape = Shape(group=Group[s["group"]], groups=s["groups"], blocks=s["blocks"], length=s["length"])
    with pytest.raises(WireError, match=vector["match"]) as caught:
        wire.decode_leader(bytes.fromhex(vector["leader"]), shape, bytes.fromhex(vector["task"]))
    assert type(caught.value) is getattr(errors, vector["error"])


def test_the_helper_refuses_another_key_task_or_shape() -> None:
    other = X25519PrivateKey.from_private_bytes(b"\7" * 32)
    with pytest.raises(IntegrityError, match="does not open"):
        wire.decode_relayed(RELAYED, SHAPE, TASK, other)
    with pytest.raises(ReplayError, match="old messages"):
        wire.decode_relayed(RELAYED, SHAPE, b"t" * 16, KEY)
    moved = bytearray(RELAYED)
    moved[2:18] = b"t" * 16
    with pytest.raises(IntegrityError, match="does not open"):
        wire.decode_relayed(bytes(moved), SHAPE, b"t" * 16, KEY)


def test_the_helper_refuses_a_public_share_that_the_leader_changed() -> None:
    for at in (20, len(RELAYED) - 1):  # the nonce, the last block correction
        changed = bytearray(RELAYED)
        changed[at] ^= 1
        with pytest.raises(IntegrityError, match="changed on the way"):
            wire.decode_relayed(bytes(changed), SHAPE, TASK, KEY)


def test_the_leader_cannot_find_the_helpers_seed_in_what_it_relays() -> None:
    seen = PARTS.leader + PARTS.helper + RELAYED
    assert REPORTS[1].seed not in seen and REPORTS[0].seed in seen


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_flipped_bit_is_refused_by_the_helper(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, 8 * len(RELAYED) - 1))
    changed = bytearray(RELAYED)
    changed[at // 8] ^= 1 << at % 8
    with pytest.raises(WireError):
        wire.decode_relayed(bytes(changed), SHAPE, TASK, KEY)


@settings(max_examples=300, deadline=None)
@given(data=st.one_of(st.binary(max_size=400), st.binary(min_size=len(PARTS.leader), max_size=len(PARTS.leader))))
def test_random_bytes_are_refused_and_never_crash(data: bytes) -> None:
    for decode in (
        lambda: wire.decode_leader(data, SHAPE, TASK),
        lambda: wire.decode_relayed(data, SHAPE, TASK, KEY),
        lambda: wire.relay(REPORTS[0], data),
    ):
        with pytest.raises(WireError):
            decode()


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_mutated_leader_part_is_refused_or_read_canonically(data: st.DataObject) -> None:
    changed = bytearray(PARTS.leader)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    try:
        report = wire.decode_leader(bytes(changed), SHAPE, TASK)
    except WireError:
        return
    again = wire.encode((report, report), KEY.public_key())
    assert again.leader == bytes(changed)
    total = dpf.empty_total(SHAPE)
    dpf.accumulate(SHAPE, 0, [report], total)
    assert (total < np.uint64(dpf.PRIME)).all()


def test_a_nonce_counts_once() -> None:
    seen = wire.Seen()
    seen.add(b"a" * 16)
    seen.add(b"b" * 16)
    with pytest.raises(ReplayError, match="a report counts once"):
        seen.add(b"a" * 16)
    assert len(seen) == 2
