"""Algebraic sketch: agrees with the definition of one block, in the clear and between two servers."""

import numpy as np
import pytest

from crypto.preamble import dpf, sketch
from crypto.preamble.dpf import PRIME, Group, Report, Shape

SHAPE = Shape(group=Group.FIELD64, groups=1, blocks=6, length=3)


def elements(rng: np.random.Generator, count: int) -> list[int]:
    return [int(x) for x in rng.integers(0, PRIME, count, dtype=np.uint64)]


def vector(rng: np.random.Generator, blocks: int) -> np.ndarray:
    out = np.zeros((6, 3), np.uint64)
    for j in rng.choice(6, blocks, replace=False):
        out[j] = rng.integers(1, PRIME, 3, dtype=np.uint64)
    return out


def split(rng: np.random.Generator, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    first = rng.integers(0, PRIME, values.shape, dtype=np.uint64)
    second = ((values.astype(object) - first.astype(object)) % PRIME).astype(np.uint64)
    return first, second


def test_no_false_verdict_in_ten_thousand_and_both_forms_agree() -> None:
    rng = np.random.default_rng(1)
    for trial in range(10_000):
        blocks = trial % 4
        z, rho = elements(rng, 6), elements(rng, 3)
        values = vector(rng, blocks)
        plain = sketch.one_block(sketch.moments(values, z, rho))
        assert plain == (blocks <= 1)
        if trial % 10 == 0:
            shares = tuple(sketch.moments(s, z, rho) for s in split(rng, values))
            correlations = sketch.correlate(elements(rng, 7))
            assert sketch.exchange((shares[0], shares[1]), correlations) == plain


@pytest.mark.parametrize("blocks", [1, 2])
def test_a_wrong_correlation_is_refused(blocks: int) -> None:
    rng = np.random.default_rng(2)
    for _ in range(200):
        z, rho = elements(rng, 6), elements(rng, 3)
        first, second = (sketch.moments(s, z, rho) for s in split(rng, vector(rng, blocks)))
        good, other = sketch.correlate(elements(rng, 7))
        wrong = sketch.Correlation(other.a, (other.c + 1) % PRIME)
        assert not sketch.exchange((first, second), (good, wrong))


def test_agrees_with_the_hash_proofs_on_real_shares() -> None:
    rng = np.random.default_rng(3)
    task, nonce, seeds = rng.bytes(16), rng.bytes(16), (rng.bytes(16), rng.bytes(16))
    payload = rng.integers(0, PRIME, (1, 3), dtype=np.uint64)
    body = dpf.shard(SHAPE, task, nonce, seeds, np.array([4], np.uint32), payload)
    z, rho = sketch.challenge(rng.bytes(16), 6, 3)
    for change in (0, 1):
        bad = bytearray(body)
        bad[0] ^= 2 * change
        reports = [Report(SHAPE, task, nonce, s, bytes(bad)) for s in seeds]
        shares = []
        for server, report in enumerate(reports):
            total = dpf.empty_total(SHAPE)
            dpf.accumulate(SHAPE, server, [report], total)
            signed = total[0] if server == 0 else ((-total[0].astype(object)) % PRIME).astype(np.uint64)
            shares.append(sketch.moments(signed, z, rho))
        passes = sketch.exchange((shares[0], shares[1]), sketch.correlate(elements(rng, 7)))
        proofs = [dpf.prove(SHAPE, server, [r]) for server, r in enumerate(reports)]
        assert passes == (proofs[0] == proofs[1]) == (change == 0)


@pytest.mark.report(
    "U37", "challenges are field elements, drawn after the client has sent, from a seed that only the servers share"
)
def test_the_challenge_is_common_and_canonical() -> None:
    z, rho = sketch.challenge(bytes(16), 6, 3)
    assert (z, rho) == sketch.challenge(bytes(16), 6, 3)
    assert len(z) == 6 and len(rho) == 3 and max(z + rho) < PRIME
