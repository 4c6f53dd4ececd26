"""Block-sparse DPF: exact at every point, equal to the slow reference on every instruction set, and hiding."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from crypto import _native, prg
from crypto.errors import InputError
from crypto.preamble import dpf, reference, wire
from crypto.preamble.dpf import PRIME, Group, Report, Shape, Words

VECTORS = Path(__file__).parents[2] / "vectors" / "preamble" / "v1"
TASK = bytes(range(16))


@pytest.fixture(params=["generic", "aesni", "vaes", "armv8"])
def isa(request: pytest.FixtureRequest) -> str:
    if request.param not in prg.isas():
        pytest.skip(f"this processor has no {request.param}: the kernels are compiled but NOT run here")
    return str(request.param)


def random_words(rng: np.random.Generator, group: Group, size: tuple[int, ...]) -> Words:
    return rng.integers(0, group.order, size, dtype=np.uint64).astype(group.dtype)


def make(
    rng: np.random.Generator, shape: Shape, indices: list[int], payload: Words, isa: str = ""
) -> tuple[Report, Report]:
    nonce, seed0, seed1 = rng.bytes(16), rng.bytes(16), rng.bytes(16)
    body = dpf.shard(shape, TASK, nonce, (seed0, seed1), np.array(indices, np.uint32), payload, isa)
    return Report(shape, TASK, nonce, seed0, body), Report(shape, TASK, nonce, seed1, body)


def reconstruct(shape: Shape, reports: tuple[Report, Report], isa: str = "", threads: int = 1) -> Words:
    totals = [dpf.empty_total(shape) for _ in range(2)]
    for server in range(2):
        dpf.accumulate(shape, server, [reports[server]], totals[server], threads, isa)
    return dpf.unshard(shape, *totals)


def expected(shape: Shape, indices: list[int], payload: Words) -> Words:
    out = dpf.empty_total(shape)
    for g, j in enumerate(indices):
        out[g, j] = payload[g]
    return out


@pytest.mark.report(
    "U33", "the shares add up to the payload at the point and to 0 at all others, at both edges of the domain"
)
@pytest.mark.parametrize("group", Group)
@pytest.mark.parametrize("blocks", [1, 2, 3, 5, 7, 8, 12, 31, 64, 100])
def test_shares_add_up_to_the_block_vector_at_every_point(group: Group, blocks: int) -> None:
    rng = np.random.default_rng(blocks)
    for length in (1, 4, 16, 64):
        shape = Shape(group=group, groups=2, blocks=blocks, length=length)
        for alpha in {0, blocks // 2, blocks - 1}:
            indices = [alpha, blocks - 1 - alpha]
            payload = random_words(rng, group, (2, length))
            assert np.array_equal(
                reconstruct(shape, make(rng, shape, indices, payload)), expected(shape, indices, payload)
            )


@pytest.mark.report("U34", "exhaustive for domains of 2 to 64 blocks: every point against every position")
@pytest.mark.parametrize("group", Group)
def test_every_position_of_every_small_domain_is_told_from_all_others(group: Group) -> None:
    rng = np.random.default_rng(64)
    for blocks in range(2, 65):
        shape = Shape(group=group, groups=blocks, blocks=blocks, length=1)
        payload = np.maximum(random_words(rng, group, (blocks, 1)), 1).astype(group.dtype)
        # Group g hides the point g, so that one report has every position of the domain.
        opened = reconstruct(shape, make(rng, shape, list(range(blocks)), payload))
        assert np.array_equal(opened[:, :, 0], np.diag(payload[:, 0])), blocks


@settings(max_examples=60, deadline=None)
@given(
    group=st.sampled_from(list(Group)),
    groups=st.integers(1, 4),
    blocks=st.integers(1, 20),
    length=st.integers(1, 40),
    seed=st.integers(0, 2**32),
    data=st.data(),
)
def test_native_equals_the_reference_on_every_isa(
    group: Group, groups: int, blocks: int, length: int, seed: int, data: st.DataObject
) -> None:
    rng = np.random.default_rng(seed)
    shape = Shape(group=group, groups=groups, blocks=blocks, length=length)
    indices = [data.draw(st.integers(0, blocks - 1)) for _ in range(groups)]
    payload = random_words(rng, group, (groups, length))
    nonce, seeds = rng.bytes(16), (rng.bytes(16), rng.bytes(16))
    body = reference.shard(shape, TASK, nonce, seeds, indices, payload)
    for isa in prg.isas():
        assert dpf.shard(shape, TASK, nonce, seeds, np.array(indices, np.uint32), payload, isa) == body
        for server in range(2):
            report = Report(shape, TASK, nonce, seeds[server], body)
            start = random_words(rng, group, (groups, blocks, length))
            total = start.copy()
            dpf.accumulate(shape, server, [report], total, isa=isa)
            assert np.array_equal(total, reference.accumulate(shape, server, [report], start))
            assert dpf.prove(shape, server, [report], isa=isa) == [reference.prove(report, server)]


@pytest.mark.parametrize("group", Group)
@pytest.mark.parametrize("length", [1, 31, 32, 33, 63, 64, 65, 4095, 4096, 4097, 9000])
def test_every_isa_agrees_around_vector_and_tile_lengths(group: Group, length: int) -> None:
    rng = np.random.default_rng(length)
    shape = Shape(group=group, groups=1, blocks=3, length=length)
    payload = random_words(rng, group, (1, length))
    reports = make(rng, shape, [1], payload)
    for isa in prg.isas():
        assert np.array_equal(reconstruct(shape, reports, isa), expected(shape, [1], payload)), isa


@pytest.mark.parametrize("group", Group)
def test_many_reports_and_threads_give_the_same_total(group: Group) -> None:
    rng = np.random.default_rng(1)
    shape = Shape(group=group, groups=3, blocks=5, length=70)
    sent, pairs = dpf.empty_total(shape), []
    for _ in range(70):
        indices, payload = rng.integers(0, 5, 3).tolist(), random_words(rng, group, (3, 70))
        pairs.append(make(rng, shape, indices, payload))
        sent = reference.add(group, sent, expected(shape, indices, payload))
    for threads in (1, 2, 7, 64):
        totals = [dpf.empty_total(shape) for _ in range(2)]
        for server in range(2):
            dpf.accumulate(shape, server, [p[server] for p in pairs], totals[server], threads)
        assert np.array_equal(dpf.unshard(shape, *totals), sent)


def test_one_block_in_each_group_and_one_block_groups() -> None:
    rng = np.random.default_rng(2)
    for blocks in (1, 6):
        shape = Shape(group=Group.Z64, groups=5, blocks=blocks, length=8)
        payload = random_words(rng, Group.Z64, (5, 8)) | np.uint64(1)
        out = reconstruct(shape, make(rng, shape, [blocks // 2] * 5, payload))
        assert ((out != 0).any(axis=2).sum(axis=1) == 1).all()
        assert np.array_equal(out.sum(axis=1, dtype=np.uint64), payload)


@pytest.mark.parametrize("group", Group)
def test_a_zero_payload_gives_zeros_behind_a_random_looking_share(group: Group) -> None:
    rng = np.random.default_rng(3)
    shape = Shape(group=group, groups=2, blocks=9, length=64)
    zero = make(rng, shape, [0, 8], np.zeros((2, 64), group.dtype))
    full = make(rng, shape, [0, 8], random_words(rng, group, (2, 64)))
    assert not reconstruct(shape, zero).any()
    assert len(zero[0].body) == len(full[0].body) == shape.body_bytes
    assert stats.chisquare(np.bincount(np.frombuffer(zero[0].body[-500:], np.uint8), minlength=256)).pvalue > 1e-4


def test_key_length_is_the_formulas() -> None:
    shape = Shape(group=Group.Z64, groups=64, blocks=64, length=2048)
    assert shape.size == 2**23
    assert shape.public_bytes == 1_054_848 + 16 + 64 * 64
    for groups, blocks, length in [(1, 1, 1), (2, 3, 5), (7, 100, 64)]:
        for group in Group:
            shape = Shape(group=group, groups=groups, blocks=blocks, length=length)
            h = int(np.ceil(np.log2(blocks)))
            per_group = 16 * h + -(-2 * h // 8) + 64 + length * group.dtype.itemsize
            assert shape.body_bytes == groups * per_group == _native.dpf_public_bytes(*shape.codes)


@pytest.mark.report("U35")
def test_single_leaf_equals_all_leaves() -> None:
    rng = np.random.default_rng(4)
    for blocks in (1, 2, 7, 12, 64):
        shape = Shape(group=Group.Z32, groups=1, blocks=blocks, length=4)
        reports = make(rng, shape, [blocks - 1], random_words(rng, Group.Z32, (1, 4)))
        for server in range(2):
            everything = reference.leaves(reports[server], server, 0)
            seeds, bits = np.empty(16 * blocks, np.uint8), np.empty(blocks, np.uint8)
            keys, roots, body = reports[server].tree_keys, reports[server].roots(server), reports[server].body
            _native.dpf_expand_tree(1, blocks, 4, 1, server, 0, keys, roots, body, seeds, bits)
            for j in range(blocks):
                assert reference.leaf(reports[server], server, 0, j) == everything[j]
                native = int.from_bytes(seeds[16 * j : 16 * j + 16].tobytes(), "little"), int(bits[j])
                assert native == everything[j]


@pytest.mark.report("U35", "all points are evaluated in one pass of two AES calls a node")
@pytest.mark.parametrize("blocks, calls", [(1, 0), (2, 2), (64, 126), (100, 204)])
def test_tree_costs_two_aes_calls_a_node(blocks: int, calls: int) -> None:
    rng = np.random.default_rng(5)
    shape = Shape(group=Group.Z32, groups=1, blocks=blocks, length=1)
    report = make(rng, shape, [0], random_words(rng, Group.Z32, (1, 1)))[0]
    tree = reference.Tree(report.tree_keys)
    reference.leaves(report, 0, 0, tree)
    assert tree.aes_calls == calls


def names(pattern: str) -> list[str]:
    return sorted(p.name for p in VECTORS.glob(pattern))


def shape_of(vector: dict[str, Any]) -> Shape:
    s = vector["shape"]
    return Shape(group=Group[s["group"]], groups=s["groups"], blocks=s["blocks"], length=s["length"])


@pytest.mark.parametrize("name", [n for n in names("*_t*.json") if not n.startswith("bad_")])
def test_stored_vectors(name: str, isa: str) -> None:
    vector = json.loads((VECTORS / name).read_text())
    shape, task, nonce = shape_of(vector), bytes.fromhex(vector["task"]), bytes.fromhex(vector["nonce"])
    seeds = bytes.fromhex(vector["seeds"][0]), bytes.fromhex(vector["seeds"][1])
    payload = np.frombuffer(bytes.fromhex(vector["payload"]), shape.group.dtype).reshape(shape.groups, shape.length)
    body = dpf.shard(shape, task, nonce, seeds, np.array(vector["indices"], np.uint32), payload, isa)
    assert body.hex() == vector["body"]
    assert wire.decode_leader(bytes.fromhex(vector["leader"]), shape, task).body == body
    for server in range(2):
        report = Report(shape, task, nonce, seeds[server], body)
        total = dpf.empty_total(shape)
        dpf.accumulate(shape, server, [report], total, isa=isa)
        assert total.tobytes().hex() == vector["expansions"][server]
        assert dpf.prove(shape, server, [report], isa=isa)[0].hex() == vector["proof"]
        assert report.digest.hex() == vector["digest"]


@pytest.mark.parametrize("name", names("field64_rejection_*.json"))
def test_words_at_or_above_p_are_skipped(name: str, isa: str) -> None:
    vector = json.loads((VECTORS / name).read_text())
    seed, at, words = bytes.fromhex(vector["seed"]), vector["rejected_at"], 4096
    raw, out = np.empty(8 * words, np.uint8), np.empty(8 * words, np.uint8)
    _native.aes_stream(seed, bytes(16), raw, isa)
    assert raw.view("<u8")[at] >= PRIME
    _native.dpf_stretch(3, seed, out, isa)
    assert out.view("<u8")[at - 1 : at + 2].tolist() == vector["around"]
    assert hashlib.sha256(out.tobytes()).hexdigest() == vector["sha256"]
    # The fused path adds first and mends afterwards: one block, so that the root is the leaf.
    rng = np.random.default_rng(at)
    start = random_words(rng, Group.FIELD64, (words,))
    total, body = start.copy(), bytes(_native.dpf_public_bytes(3, 1, 1, words))
    _native.dpf_accumulate(3, 1, 1, words, 0, [bytes(32)], [bytes(32)], [seed], [body], total.view(np.uint8), 1, isa)
    assert np.array_equal(total, reference.add(Group.FIELD64, start, out.view("<u8")))
    # So does key generation, whichever of the two leaves it is.
    shape, alpha, other = (
        Shape(group=Group.FIELD64, groups=1, blocks=1, length=words),
        np.zeros(1, np.uint32),
        bytes(16),
    )
    for roots in ((seed, other), (other, seed)):
        body = _native.dpf_generate(3, 1, 1, words, bytes(32), bytes(32), *roots, alpha, start.view(np.uint8), isa)
        x0, x1 = (reference.stretch(Group.FIELD64, int.from_bytes(root, "little"), words) for root in roots)
        difference = reference.add(
            Group.FIELD64, reference.add(Group.FIELD64, start, reference.negate(Group.FIELD64, x0)), x1
        )
        correction = np.frombuffer(body[-8 * words :], "<u8")
        assert np.array_equal(correction, reference.negate(Group.FIELD64, difference)), shape


@pytest.mark.parametrize("size", [0, 1, 127, 128, 129, 256, 1000])
def test_native_hash_equals_hashlib(size: int) -> None:
    data = np.random.default_rng(size).bytes(size)
    for digest_bytes in (16, 32, 64):
        expected = hashlib.blake2b(data, digest_size=digest_bytes, person=b"preamble-leaf/1").digest()
        assert _native.blake2b(data, digest_bytes, "preamble-leaf/1") == expected


@pytest.mark.parametrize("alpha", [0, 15])
def test_a_single_share_looks_random(alpha: int) -> None:
    rng = np.random.default_rng(6)
    shape = Shape(group=Group.Z64, groups=1, blocks=16, length=512)
    reports = make(rng, shape, [alpha], np.zeros((1, 512), np.uint64))
    for server in range(2):
        share = reference.expand(reports[server], server)
        p = stats.chisquare(np.bincount(share.view(np.uint8).reshape(-1), minlength=256)).pvalue
        assert 1e-4 <= p <= 1 - 1e-4


def test_control_bits_are_even() -> None:
    rng = np.random.default_rng(7)
    shape = Shape(group=Group.Z32, groups=40, blocks=64, length=1)
    reports = make(rng, shape, [0] * 40, np.zeros((40, 1), np.uint32))
    bits = [bit for g in range(40) for _, bit in reference.leaves(reports[0], 0, g)]
    assert abs(np.mean(bits) - 0.5) < 4 / np.sqrt(4 * len(bits))


def views_of_server(alpha: int, count: int, seed: int, shape: Shape) -> np.ndarray:
    """Return what server 0 sees of `count` reports: private seed and public share, as bits."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        report = make(rng, shape, [alpha], np.full((1, shape.length), 5, shape.group.dtype))[0]
        rows.append(np.frombuffer(report.seed + report.body, np.uint8))
    return np.unpackbits(np.array(rows), axis=1).astype(np.float64)


def test_two_indices_give_the_same_distribution_of_views() -> None:
    shape = Shape(group=Group.Z32, groups=1, blocks=4, length=2)
    first, second = (views_of_server(a, 1500, a + 10, shape).mean(axis=0) for a in (0, 3))
    moving = (first > 0) & (first < 1)
    z = (first - second)[moving] / np.sqrt(0.25 * 2 / 1500)
    assert stats.chi2(moving.sum()).sf(float((z**2).sum())) > 1e-4
    assert moving.sum() >= 8 * (shape.body_bytes + 16) - 2 * shape.depth - 8


def test_a_classifier_on_one_view_guesses() -> None:
    from sklearn.linear_model import LogisticRegression

    shape = Shape(group=Group.Z32, groups=1, blocks=4, length=2)
    x = np.concatenate([views_of_server(a, 700, a + 20, shape) for a in range(4)])
    y = np.repeat(np.arange(4), 700)
    order = np.random.default_rng(8).permutation(len(y))
    train, test = order[:1400], order[1400:]
    accuracy = LogisticRegression(max_iter=200).fit(x[train], y[train]).score(x[test], y[test])
    assert abs(accuracy - 0.25) < 4 * np.sqrt(0.25 * 0.75 / len(test))


@pytest.mark.parametrize(
    "act, text",
    [
        (lambda: Shape(group=Group.Z32, groups=0, blocks=1, length=1), "each must be at least 1"),
        (lambda: Shape(group=Group.Z32, groups=1, blocks=2**30 + 1, length=1), "at most 2\\^30"),
        (lambda: Report(SHAPE, b"x", bytes(16), bytes(16), b"").binding, "both must have 16"),
        (lambda: shard(indices=np.array([3, 0])), "numbers below 3"),
        (lambda: shard(indices=np.array([0])), "must be 2 numbers"),
        (lambda: shard(payload=np.zeros((2, 4), np.uint64)), "must be \\(2, 5\\)"),
        (lambda: shard(payload=np.zeros((2, 5), np.int64)), "dtype int64"),
        (lambda: shard(payload=np.full((2, 5), PRIME, np.uint64)), "at or above p"),
        (lambda: shard(seeds=(bytes(16), bytes(15))), "private seeds of \\[16, 15\\]"),
        (lambda: dpf.accumulate(SHAPE, 0, [], dpf.empty_total(SHAPE)[:, :, ::2]), "must be C-contiguous"),
        (lambda: dpf.accumulate(SHAPE, 2, [], dpf.empty_total(SHAPE)), "server 2: must be 0 or 1"),
        (lambda: dpf.accumulate(SHAPE, 0, [], np.zeros(3, np.uint64)), "total of 24 bytes: must be 240"),
        (lambda: dpf.prove(SHAPE, 0, [Report(SHAPE, TASK, TASK, TASK, b"12")]), "public share of 2 bytes"),
    ],
)
def test_refuses_bad_input(act: Any, text: str) -> None:
    with pytest.raises((InputError, ValueError), match=text):
        act()


SHAPE = Shape(group=Group.FIELD64, groups=2, blocks=3, length=5)


def shard(**changes: Any) -> bytes:
    arguments: dict[str, Any] = {
        "seeds": (bytes(16), bytes(16)),
        "indices": np.array([0, 1]),
        "payload": np.zeros((2, 5), np.uint64),
    }
    return dpf.shard(SHAPE, TASK, bytes(16), **(arguments | changes))


def test_repr_hides_the_seed() -> None:
    assert "abab" not in repr(Report(SHAPE, TASK, bytes(16), b"\xab" * 16, b""))
