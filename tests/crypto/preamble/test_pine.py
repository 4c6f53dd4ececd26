"""Wrap-around tests: short payloads of any length pass, squares that wrap modulo p do not."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crypto.errors import InputError, WireError
from crypto.preamble import dpf, norm, pine
from crypto.preamble.dpf import PRIME, Group, Report, Shape
from crypto.preamble.norm import ProofShare
from crypto.preamble.pine import WrapCircuit

KEY = b"k" * 16
#: A square root of -1 modulo p: 2^96 = -1.
ROOT = 1 << 48
Pair = tuple[Report, Report]


def sharded(rng: np.random.Generator, payload: list[int], groups: int = 2) -> Pair:
    shape = Shape(group=Group.FIELD64, groups=groups, blocks=3, length=len(payload) // groups)
    words = np.array([x % PRIME for x in payload], np.uint64).reshape(groups, -1)
    nonce, seeds = rng.bytes(16), (rng.bytes(16), rng.bytes(16))
    body = dpf.shard(shape, bytes(16), nonce, seeds, rng.integers(0, 3, groups).astype(np.uint32), words)
    return Report(shape, bytes(16), nonce, seeds[0], body), Report(shape, bytes(16), nonce, seeds[1], body)


def prove(
    circuit: WrapCircuit, rng: np.random.Generator, pair: Pair, payload: list[int]
) -> tuple[ProofShare, ProofShare]:
    coins = [rng.bytes(16) for _ in range(5)]
    parts = norm.prove(circuit, payload, pair[0].digest, (pair[0].seed, pair[1].seed), coins)
    assert [len(part) for part in parts] == [circuit.leader_bytes, circuit.helper_bytes]
    return norm.decode_share(circuit, 0, parts[0]), norm.decode_share(circuit, 1, parts[1])


def decide(circuit: WrapCircuit, pair: Pair, shares: tuple[ProofShare, ProofShare]) -> bool:
    messages = []
    for server, (report, share) in enumerate(zip(pair, shares, strict=True)):
        sums = dpf.block_sums(report, server).reshape(-1).tolist()
        x = [(-1) ** server * s % PRIME for s in sums]
        message = norm.query(circuit, server, x, share, report.digest, report.seed, KEY, report.nonce)
        sent = norm.encode_message(message)
        assert norm.decode_message(circuit, sent) == message and len(sent) == circuit.message_bytes
        messages.append(message)
    return norm.decide(circuit, *messages)


@pytest.mark.parametrize(("length", "size"), [(2, 1), (2, 2**23), (40, 1000), (600, 30)])
def test_short_payloads_pass_up_to_the_bound(length: int, size: int) -> None:
    rng = np.random.default_rng(length)
    for _ in range(3):
        payload = [int(x) for x in rng.integers(-size, size + 1, length)]
        circuit = WrapCircuit(length=length, bound=max(1, sum(x * x for x in payload)))
        pair = sharded(rng, payload)
        assert decide(circuit, pair, prove(circuit, rng, pair, payload))


def test_the_prover_refuses_a_long_payload_or_another_length() -> None:
    rng, circuit = np.random.default_rng(1), WrapCircuit(length=2, bound=100)
    for payload in ([10, 1], [0, 0, 0]):
        pair = sharded(rng, payload, 1)
        with pytest.raises(InputError, match="must be 2 integers with squares <= 100"):
            prove(circuit, rng, pair, payload)


def forced(circuit: WrapCircuit, payload: list[int], rows: Any) -> list[int]:
    """Encode what a cheat would: true squares modulo p, and the nearest thing to the tests' results."""
    half, width = 1 << (circuit.test_bits - 1), circuit.test_bits
    square = sum(x * x for x in payload) % PRIME
    results = [(y + half) % PRIME for y in pine.products(rows, [x % PRIME for x in payload])]
    words = [(square, circuit.norm_bits), (circuit.bound - square, circuit.norm_bits), *((y, width) for y in results)]
    return [word >> i & 1 for word, size in words for i in range(size)]


@pytest.mark.parametrize("payload", [[1, ROOT], [ROOT, 3], [5 * ROOT % PRIME, 5], [1 << 32, (1 << 32) * ROOT % PRIME]])
def test_squares_that_wrap_are_refused_by_the_tests_and_by_nothing_else(
    payload: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sum(x * x for x in payload) % PRIME <= 100
    rng, circuit = np.random.default_rng(2), WrapCircuit(length=2, bound=100)
    pair = sharded(rng, payload, 1)
    monkeypatch.setattr(WrapCircuit, "encode", forced)
    shares = prove(circuit, rng, pair, payload)
    assert not decide(circuit, pair, shares)
    # The same proof without the tests' equations: the squares modulo p are fine, so nobody notices.
    ties = WrapCircuit.ties

    def without_tests(circuit: WrapCircuit, x: Any, bits: Any, random: Any, rows: Any, server: int) -> int:
        half = (1 << (circuit.test_bits - 1)) * (1 - server)
        claimed = [w - half for w in words(circuit, bits[2 * circuit.norm_bits :])]
        with monkeypatch.context() as patch:
            patch.setattr(pine, "products", lambda rows, x: claimed)
            return ties(circuit, x, bits, random, rows, server)

    monkeypatch.setattr(WrapCircuit, "ties", without_tests)
    assert decide(circuit, pair, shares)


def words(circuit: WrapCircuit, bits: list[int]) -> list[int]:
    width = circuit.test_bits
    return [sum(bits[i + j] << j for j in range(width)) for i in range(0, len(bits), width)]


def test_a_long_payload_with_the_proof_of_a_short_one_is_refused() -> None:
    rng, circuit = np.random.default_rng(3), WrapCircuit(length=40, bound=4000)
    payload = [10] * 40
    shares = prove(circuit, rng, sharded(rng, payload), payload)
    for real in ([11] * 40, [1000, *payload[1:]]):
        assert not decide(circuit, sharded(rng, real), shares)


def test_changed_bits_proofs_and_randomness_are_refused() -> None:
    rng, circuit = np.random.default_rng(4), WrapCircuit(length=6, bound=900)
    payload = [int(x) for x in rng.integers(-12, 13, 6)]
    pair = sharded(rng, payload)
    first, second = prove(circuit, rng, pair, payload)
    assert decide(circuit, pair, (first, second))
    for at in range(0, circuit.bits, 97):
        bits = list(second.bits)
        bits[at] = (bits[at] + 1) % PRIME
        assert not decide(circuit, pair, (first, replace(second, bits=bits)))
    for at in range(0, circuit.proof_length, 13):
        proofs = [list(p) for p in first.proofs]
        proofs[at % 3][at] = (proofs[at % 3][at] + 1) % PRIME
        assert not decide(circuit, pair, (replace(first, proofs=proofs), second))
    for changed in ({"other_tests": b"x" * 32}, {"other_part": b"x" * 32}, {"blind": b"x" * 16}):
        assert not decide(circuit, pair, (replace(first, **changed), second))
        assert not decide(circuit, pair, (first, replace(second, **changed)))


def test_servers_that_derived_other_tests_notice_whatever_the_client_says() -> None:
    """The client names both parts of the joint randomness, so only the tests' own seed can tell the servers apart."""
    rng, circuit = np.random.default_rng(6), WrapCircuit(length=2, bound=100)
    payload = [3, 4]
    pair = sharded(rng, payload, 1)
    first, second = prove(circuit, rng, pair, payload)
    second = replace(second, other_tests=b"x" * 32)
    digest = pair[0].digest
    seeds = [norm.tests_seed(norm.tests_part(0, digest, pair[0].seed, first.blind), first.other_tests)]
    seeds.append(norm.tests_seed(b"x" * 32, norm.tests_part(1, digest, pair[1].seed, second.blind)))
    parts = [
        norm.joint_part(v, digest, pair[v].seed, share.blind, share.bits, seeds[v])
        for v, share in enumerate((first, second))
    ]
    lying = replace(first, other_part=parts[1]), replace(second, other_part=parts[0])
    messages = [
        norm.query(circuit, v, [0, 0], share, digest, pair[v].seed, KEY, pair[v].nonce) for v, share in enumerate(lying)
    ]
    assert messages[0].joint != messages[1].joint


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 50), st.integers(0, 2**32))
def test_products_equal_exact_integers(length: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = [int(v) for v in rng.integers(0, PRIME, length, dtype=np.uint64)]
    rows = rng.integers(-1, 2, (7, length)).astype(np.int8)
    assert pine.products(rows, x) == [sum(int(z) * v for z, v in zip(row, x, strict=True)) % PRIME for row in rows]


def test_tests_are_drawn_as_stated_and_bind_their_seed() -> None:
    circuit = WrapCircuit(length=2000, bound=1)
    rows = norm.random_rows(circuit, bytes(16))
    assert rows is not None and rows.shape == (100, 2000)
    for value, share in ((-1, 0.25), (0, 0.5), (1, 0.25)):
        assert abs(np.mean(rows == value) - share) < 5 * np.sqrt(share * (1 - share) / rows.size)
    other = norm.random_rows(circuit, b"\1" + bytes(15))
    assert other is not None and np.mean(rows == other) < 0.4


def test_the_range_of_a_test_leaves_honest_clients_in_and_the_field_room() -> None:
    for bound in (1, 2, 100, 2**46, int(pine.WRAP_NORM_STEPS) ** 2):
        half = 1 << (WrapCircuit(length=1, bound=bound).test_bits - 1)
        assert 8.7 * bound**0.5 <= half and 81 * half * half <= PRIME and half & (half - 1) == 0
    with pytest.raises(InputError, match="too small to tell squares that wrap"):
        WrapCircuit(length=1, bound=2**50)


def test_damaged_encodings_are_refused() -> None:
    rng, circuit = np.random.default_rng(5), WrapCircuit(length=2, bound=100)
    pair = sharded(rng, [1, 2], 1)
    coins = [rng.bytes(16) for _ in range(5)]
    leader, helper = norm.prove(circuit, [1, 2], pair[0].digest, (pair[0].seed, pair[1].seed), coins)
    for server, part in ((0, leader[:-1]), (1, helper + b"x"), (0, helper), (0, b"\xff" * len(leader))):
        with pytest.raises(WireError):
            norm.decode_share(circuit, server, part)
