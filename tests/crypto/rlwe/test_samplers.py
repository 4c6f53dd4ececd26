"""What is drawn has the law that the bounds assume, and ciphertexts look uniform. Seeds are fixed: nothing is flaky."""

from math import comb, sqrt

import numpy as np
import pytest

from crypto import prg
from crypto.fixed_point import FixedPoint
from crypto.lattice import ERROR_STD, batching_prime_below
from crypto.rlwe.engine import PublicEncryptor, Seeds, SymmetricEncryptor, native_ring, public_key, unpacked
from crypto.rlwe.parameters import SMUDGE_INFORMATION, RlweParameters


def parameters(ring: int, bits: tuple[int], plain_bits: int, **more) -> RlweParameters:
    return RlweParameters(ring, (batching_prime_below(ring, 2 ** bits[0]),), plain_bits, "symmetric", **more)


P = parameters(2048, (40,), 29)
KEY = bytes(range(16))
DRAWS = 200


def chi_squared(observed: np.ndarray, expected: np.ndarray) -> float:
    """Return the statistic in standard deviations from its mean, at least 50 expected a cell."""
    assert expected.min() >= 50
    degrees = observed.size - 1
    return (((observed - expected) ** 2 / expected).sum() - degrees) / sqrt(2 * degrees)


def uniform_score(values: np.ndarray, prime: int, cells: int = 256) -> float:
    observed = np.bincount((values.astype(object) * cells // prime).astype(int), minlength=cells)
    return chi_squared(observed, np.full(cells, values.size / cells))


def low_bits_score(values: np.ndarray, bits: int = 6) -> float:
    observed = np.bincount((values & np.uint64(2**bits - 1)).astype(int), minlength=2**bits)
    return chi_squared(observed, np.full(2**bits, values.size / 2**bits))


def drawn(name: str) -> np.ndarray:
    key, out = prg.stream_key(KEY, b"test/1"), np.empty(P.ring, np.int64)
    found = []
    for index in range(DRAWS):
        getattr(native_ring(P), name)(key, index, out)
        found.append(out.copy())
    return np.concatenate(found)


def test_errors_are_centred_binomial() -> None:
    values = drawn("errors")
    assert np.abs(values).max() <= 21
    expected = np.array([comb(42, 21 + k) for k in range(-11, 12)]) / 2**42 * values.size
    observed = np.array([np.count_nonzero(values == k) for k in range(-11, 12)])
    assert abs(chi_squared(observed, expected)) < 4
    assert values.std() == pytest.approx(ERROR_STD, rel=0.01) and abs(values.mean()) < 4 * ERROR_STD / sqrt(values.size)


def test_secrets_are_uniform_ternary() -> None:
    values = drawn("ternary")
    observed = np.bincount(values + 1, minlength=3)
    assert abs(chi_squared(observed, np.full(3, values.size / 3))) < 4


@pytest.mark.parametrize("bits", [7, 23, 40])
def test_uniform_polynomials_are_uniform_below_the_prime(bits: int) -> None:
    p = parameters(16 if bits == 7 else 1024, (bits,), 2)
    out, found = np.empty(p.ring, np.uint64), []
    for index in range(2000 if bits == 7 else 100):
        native_ring(p).uniform(prg.stream_key(KEY, b"test/1"), index, out)
        found.append(out.copy())
    values = np.concatenate(found)
    (q,) = p.moduli
    assert values.max() < q
    if bits == 7:
        assert abs(chi_squared(np.bincount(values.astype(int), minlength=q), np.full(q, values.size / q))) < 4
    else:
        assert abs(uniform_score(values, q)) < 4 and abs(low_bits_score(values)) < 4


def test_coefficients_are_not_correlated_with_their_neighbours() -> None:
    for name in ("errors", "ternary"):
        x = drawn(name).astype(float)
        for lag in (1, 2, P.ring):
            assert abs(np.corrcoef(x[:-lag], x[lag:])[0, 1]) < 4 / sqrt(x.size)


CODEC = FixedPoint.fitting(bound=1.0, clients=1, ring_bits=20)


@pytest.mark.parametrize("value", [0.0, 1.0, -1.0])
def test_symmetric_ciphertexts_of_a_constant_look_uniform(value: float) -> None:
    encryptor = SymmetricEncryptor(P, KEY)
    x = np.full(64 * P.ring, value, np.float32)
    body, _ = encryptor.encrypt(x, CODEC, Seeds(b"p" * 16, b"s" * 16))
    c0 = unpacked(P, np.frombuffer(body, np.uint8)[16:])
    assert abs(uniform_score(c0, P.moduli[0])) < 4 and abs(low_bits_score(c0)) < 4


def test_public_ciphertexts_and_keys_look_uniform() -> None:
    public = KEY + public_key(P, KEY, b"k" * 16)
    x = np.ones(64 * P.ring, np.float32)
    body, _ = PublicEncryptor(P, public).encrypt(x, CODEC, Seeds(b"p" * 16, b"s" * 16))
    halves = np.split(unpacked(P, np.frombuffer(body, np.uint8)), 2)
    for half in halves:
        assert abs(uniform_score(half, P.moduli[0])) < 4 and abs(low_bits_score(half)) < 4
    keys = np.concatenate(
        [unpacked(P, np.frombuffer(public_key(P, KEY, bytes([i]) * 16), np.uint8)) for i in range(32)]
    )
    assert abs(uniform_score(keys, P.moduli[0])) < 4


def test_ciphertexts_of_one_vector_share_no_stream() -> None:
    body, _ = SymmetricEncryptor(P, KEY).encrypt(np.zeros(4 * P.ring), CODEC, Seeds(b"p" * 16, b"s" * 16))
    rows = unpacked(P, np.frombuffer(body, np.uint8)[16:]).reshape(4, P.ring)
    for i in range(4):
        for j in range(i):
            assert np.count_nonzero(rows[i] == rows[j]) == 0
            apart = (rows[i].astype(object) - rows[j]) % P.moduli[0]
            assert abs(uniform_score(np.array(apart, np.uint64), P.moduli[0], 32)) < 4


def smudges(p: RlweParameters, count: int) -> np.ndarray:
    total = np.zeros(count * p.ring, np.uint64)
    native_ring(p).add_smudging(prg.stream_key(KEY, prg.RLWE_SMUDGE), p.smudge_bits, total)
    (q,) = p.moduli
    return np.where(total > q // 2, total.astype(np.int64) - q, total.astype(np.int64)).astype(float)


def test_smudging_has_its_declared_deviation_and_no_mean() -> None:
    p = parameters(2048, (40,), 2, parties=2, smudge_bits=20)
    x = smudges(p, 50) / 2.0**20
    assert x.std() == pytest.approx(1, rel=0.02) and abs(x.mean()) < 4 / sqrt(x.size) and np.abs(x).max() <= 6
    # Near the Gaussian's, as sums of 12 are: kurtosis 3 - 1.2 / 12.
    assert (x**4).mean() == pytest.approx(2.9, abs=0.1)


def test_the_information_of_smudging_is_below_its_declared_bound() -> None:
    """The squared Hellinger distance of neighbouring shifts, exactly, times 8 and the variance."""
    found = []
    for bits in (4, 6, 8, 10):
        one = np.full(2**bits, 2.0**-bits)
        law = one
        for _ in range(11):
            law = np.convolve(law, one)
        distance = 0.5 * ((np.sqrt(np.append(law, 0)) - np.sqrt(np.insert(law, 0, 0))) ** 2).sum()
        found.append(8 * distance * 4.0**bits)
    assert max(found) <= SMUDGE_INFORMATION
    assert found == sorted(found, reverse=True) and found[-1] == pytest.approx(found[-2], rel=1e-3)
