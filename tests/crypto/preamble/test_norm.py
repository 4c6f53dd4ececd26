"""Norm proofs on real shares: short payloads pass, long or forged ones do not, whatever the client changes."""

from dataclasses import replace

import numpy as np
import pytest

from crypto.errors import InputError, WireError
from crypto.preamble import dpf, norm, reference
from crypto.preamble.dpf import PRIME, Group, Report, Shape
from crypto.preamble.norm import NormCircuit, ProofShare

SHAPE = Shape(group=Group.FIELD64, groups=2, blocks=5, length=3)
CIRCUIT = NormCircuit(length=6, word_bits=6, bound=900)
KEY = b"k" * 16
Pair = tuple[Report, Report]


def sharded(rng: np.random.Generator, payload: list[int]) -> Pair:
    words = np.array([x % PRIME for x in payload], np.uint64).reshape(2, 3)
    nonce, seeds = rng.bytes(16), (rng.bytes(16), rng.bytes(16))
    indices = rng.integers(0, 5, 2).astype(np.uint32)
    body = dpf.shard(SHAPE, bytes(16), nonce, seeds, indices, words)
    return Report(SHAPE, bytes(16), nonce, seeds[0], body), Report(SHAPE, bytes(16), nonce, seeds[1], body)


def short(rng: np.random.Generator) -> list[int]:
    return [int(x) for x in rng.integers(-12, 13, 6)]


def prove(rng: np.random.Generator, pair: Pair, payload: list[int]) -> tuple[ProofShare, ProofShare]:
    coins = [rng.bytes(16) for _ in range(5)]
    parts = norm.prove(CIRCUIT, payload, pair[0].digest, (pair[0].seed, pair[1].seed), coins)
    assert [len(part) for part in parts] == [CIRCUIT.leader_bytes, CIRCUIT.helper_bytes]
    return norm.decode_share(CIRCUIT, 0, parts[0]), norm.decode_share(CIRCUIT, 1, parts[1])


def decide(pair: Pair, shares: tuple[ProofShare, ProofShare]) -> bool:
    messages = []
    for server, (report, share) in enumerate(zip(pair, shares, strict=True)):
        sums = dpf.block_sums(report, server).reshape(-1).tolist()
        x = [(-1) ** server * s % PRIME for s in sums]
        message = norm.query(CIRCUIT, server, x, share, report.digest, report.seed, KEY, report.nonce)
        sent = norm.encode_message(message)
        assert norm.decode_message(CIRCUIT, sent) == message and len(sent) == CIRCUIT.message_bytes
        messages.append(message)
    return norm.decide(CIRCUIT, *messages)


@pytest.mark.parametrize("group", Group)
@pytest.mark.parametrize("blocks", [1, 3, 70])
def test_block_sums_are_shares_of_the_payload(group: Group, blocks: int) -> None:
    rng = np.random.default_rng(blocks)
    shape = Shape(group=group, groups=2, blocks=blocks, length=37)
    payload = rng.integers(0, group.order, (2, 37), dtype=np.uint64).astype(group.dtype)
    nonce, seeds = rng.bytes(16), (rng.bytes(16), rng.bytes(16))
    body = dpf.shard(shape, bytes(16), nonce, seeds, np.full(2, blocks // 2, np.uint32), payload)
    sums = [dpf.block_sums(Report(shape, bytes(16), nonce, s, body), b) for b, s in enumerate(seeds)]
    assert np.array_equal(reference.add(group, sums[0], reference.negate(group, sums[1])), payload)


def test_short_payloads_pass() -> None:
    rng = np.random.default_rng(1)
    for payload in [[0] * 6, [30, 0, 0, 0, 0, 0], [-30, 0, 0, 0, 0, 0]] + [short(rng) for _ in range(40)]:
        pair = sharded(rng, payload)
        assert decide(pair, prove(rng, pair, payload))


@pytest.mark.parametrize("payload", [[31, 0, 0, 0, 0, 0], [32, 0, 0, 0, 0, 0], [-33] + [0] * 5, [13] * 6, [1] * 5])
def test_the_prover_refuses_a_false_statement(payload: list[int]) -> None:
    with pytest.raises(InputError, match="squares <= 900"):
        CIRCUIT.encode(payload)


@pytest.mark.parametrize("real", [[31, 0, 0, 0, 0, 0], [13] * 6, [2**40] + [0] * 5, [PRIME // 2] * 6])
def test_a_long_payload_with_the_proof_of_a_short_one_is_refused(real: list[int]) -> None:
    rng = np.random.default_rng(2)
    pair = sharded(rng, real)
    assert not decide(pair, prove(rng, pair, [1, 2, 3, 4, 5, 6]))


@pytest.mark.parametrize("bit", [2, PRIME - 1, 12345])
def test_values_that_are_not_bits_are_refused(bit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slack's first bit takes any value that makes the norm equation true: only the bit check stands in the way."""
    rng = np.random.default_rng(3)
    payload, encode = short(rng), NormCircuit.encode
    pair = sharded(rng, payload)

    def cheat(circuit: NormCircuit, values: list[int], rows: object) -> list[int]:
        bits = encode(circuit, values)
        at = circuit.length * circuit.word_bits
        slack = sum(b << i for i, b in enumerate(bits[at:]))
        return bits[:at] + [(slack - 2 * bit) % PRIME, bit] + [0] * (circuit.slack_bits - 2)

    monkeypatch.setattr(NormCircuit, "encode", cheat)
    assert not decide(pair, prove(rng, pair, payload))


def test_a_changed_block_correction_passes_the_one_block_proof_and_fails_here() -> None:
    rng = np.random.default_rng(4)
    payload = short(rng)
    pair = sharded(rng, payload)
    shares = prove(rng, pair, payload)
    body = bytearray(pair[0].body)
    body[-6] ^= 1
    changed = replace(pair[0], body=bytes(body)), replace(pair[1], body=bytes(body))
    assert dpf.prove(SHAPE, 0, [changed[0]]) == dpf.prove(SHAPE, 1, [changed[1]])
    assert decide(pair, shares) and not decide(changed, shares)


def test_any_changed_element_of_a_proof_is_refused() -> None:
    rng = np.random.default_rng(5)
    payload = short(rng)
    pair = sharded(rng, payload)
    shares = prove(rng, pair, payload)
    refused = 0
    for at in range(CIRCUIT.proof_length):
        proofs = [list(p) for p in shares[0].proofs]
        proofs[at % norm.REPETITIONS][at] = (proofs[at % norm.REPETITIONS][at] + 1) % PRIME
        refused += not decide(pair, (replace(shares[0], proofs=proofs), shares[1]))
    for at in range(CIRCUIT.bits):
        bits = list(shares[1].bits)
        bits[at] = (bits[at] + 1) % PRIME
        refused += not decide(pair, (shares[0], replace(shares[1], bits=bits)))
    assert refused == CIRCUIT.proof_length + CIRCUIT.bits


def test_servers_that_derive_other_joint_randomness_refuse() -> None:
    rng = np.random.default_rng(6)
    payload = short(rng)
    pair = sharded(rng, payload)
    first, second = prove(rng, pair, payload)
    for forged in (
        (replace(first, blind=b"x" * 16), second),
        (first, replace(second, other_part=b"x" * 32)),
    ):
        assert not decide(pair, forged)


def test_the_leaders_share_of_the_bits_looks_random() -> None:
    rng = np.random.default_rng(7)
    lows = []
    for payload in ([0] * 6, [12] * 6):
        pair = sharded(rng, payload)
        words = [w for _ in range(30) for w in prove(rng, pair, payload)[0].bits]
        lows.append(np.mean([w / PRIME for w in words]))
    assert all(abs(low - 0.5) < 5 / np.sqrt(12 * 30 * CIRCUIT.bits) for low in lows)


@pytest.mark.parametrize("length, word_bits, bound", [(0, 6, 1), (1, 0, 1), (1, 6, -1)])
def test_refuses_an_empty_statement(length: int, word_bits: int, bound: int) -> None:
    with pytest.raises(InputError, match="must be at least"):
        NormCircuit(length=length, word_bits=word_bits, bound=bound)


def test_refuses_a_statement_whose_squares_could_wrap() -> None:
    with pytest.raises(InputError, match="could wrap in Field64"):
        NormCircuit(length=4, word_bits=32, bound=100)
    NormCircuit(length=4, word_bits=31, bound=100)


def test_lagrange_weights_evaluate_polynomials() -> None:
    coefficients = [5, PRIME - 3, 7, 11]

    def at(t: int) -> int:
        return sum(c * pow(t, i, PRIME) for i, c in enumerate(coefficients)) % PRIME

    for point in (0, 2, 3, 4, 9, 2**63, PRIME - 1):
        weights = norm._lagrange(3, point)
        assert sum(w * at(i) for i, w in enumerate(weights)) % PRIME == at(point)


def test_damaged_encodings_are_refused() -> None:
    rng = np.random.default_rng(8)
    payload = short(rng)
    pair = sharded(rng, payload)
    parts = norm.prove(CIRCUIT, payload, pair[0].digest, (pair[0].seed, pair[1].seed), [rng.bytes(16)] * 5)
    high = PRIME.to_bytes(8, "little")
    for server, bad in ((0, parts[0][:-1]), (1, parts[1] + b"x"), (0, high + parts[0][8:])):
        with pytest.raises(WireError, match="use one config|not canonical"):
            norm.decode_share(CIRCUIT, server, bad)
    for message in (b"", bytes(CIRCUIT.message_bytes - 8) + high):
        with pytest.raises(WireError, match="verifier message of 0 bytes|not canonical"):
            norm.decode_message(CIRCUIT, message)
