"""Discrete Gaussian noise: the native sampler equals exact rationals word by word, and its law is the stated one."""

import json
import logging
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from crypto import _native, prg
from crypto.errors import BudgetExceeded, InputError
from crypto.preamble.noise import DiscreteGaussian, NoNoiseForTests

VECTORS = Path(__file__).parents[2] / "vectors" / "preamble" / "v1" / "noise.json"
CHUNK = 1 << 14


class SlowSampler:
    """Canonne, Kamath, Steinke 2020, algorithms 1-3, in rationals, on the words that the native sampler reads."""

    def __init__(self, seed, variance, chunk=0):
        self.key, self.block = prg.stream_key(seed, prg.NOISE), chunk << 64
        self.variance = variance
        self.words = iter(())

    def word(self):
        try:
            return next(self.words)
        except StopIteration:
            out = np.empty(1 << 12, np.uint8)
            _native.aes_stream(self.key, self.block.to_bytes(16, "big"), out)
            self.block += out.size // 16
            self.words = iter(out.view("<u8").tolist())
            return next(self.words)

    def bernoulli(self, p):
        """Compare the digits of p with random ones, 64 at a time."""
        while p < 1:
            digits, p = divmod(p * 2**64, 1)
            word = self.word()
            if word != digits:
                return word < digits
        return True

    def bernoulli_exp_minus(self, gamma):
        for _ in range(math.floor(gamma)):
            if not self.bernoulli(EXP_MINUS_ONE):
                return False
        gamma, k = gamma - math.floor(gamma), 1
        while self.bernoulli(gamma / k):
            k += 1
        return k % 2 == 1

    def laplace(self, t):
        while True:
            u = self.word() % (1 << (t - 1).bit_length())
            while u >= t:
                u = self.word() % (1 << (t - 1).bit_length())
            if not self.bernoulli_exp_minus(Fraction(u, t)):
                continue
            v = 0
            while self.bernoulli(EXP_MINUS_ONE):
                v += 1
            negative = self.word() % 2
            if negative and u + t * v == 0:
                continue
            return -(u + t * v) if negative else u + t * v

    def draw(self):
        t = math.isqrt(self.variance) + 1
        while True:
            y = self.laplace(t)
            gamma = (abs(y) - Fraction(self.variance, t)) ** 2 / (2 * self.variance)
            if self.bernoulli_exp_minus(gamma):
                return y


def exp_minus_one(terms=80):
    """Partial sum of the alternating series, cut to 256 binary digits."""
    total = sum(Fraction((-1) ** i, math.factorial(i)) for i in range(terms))
    return Fraction(math.floor(total * 2**256), 2**256)


EXP_MINUS_ONE = exp_minus_one()


def seed(i):
    return i.to_bytes(16, "little")


@pytest.mark.parametrize("variance", [1, 2, 3, 4, 5, 17, 255, 256, 10**6, 3**30, 2**56 - 1, 2**56])
def test_native_equals_exact_rationals(variance):
    slow = SlowSampler(seed(variance % 97), variance)
    expected = [slow.draw() for _ in range(300)]
    assert DiscreteGaussian(variance).draw_with(seed(variance % 97), 300).tolist() == expected


def test_later_chunks_equal_exact_rationals():
    slow = SlowSampler(seed(4), 50, chunk=2)
    expected = [slow.draw() for _ in range(40)]
    assert DiscreteGaussian(50).draw_with(seed(4), 2 * CHUNK + 40)[2 * CHUNK :].tolist() == expected


def test_equals_the_stored_vectors():
    for case in json.loads(VECTORS.read_text())["cases"]:
        samples = DiscreteGaussian(case["variance"]).draw_with(bytes.fromhex(case["seed"]), len(case["samples"]))
        assert samples.tolist() == case["samples"]


@pytest.mark.parametrize("isa", _native.isas())
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_and_instruction_sets_do_not_matter(isa, threads):
    count = 3 * CHUNK + 17
    expected = DiscreteGaussian(1000).draw_with(seed(1), count)
    assert np.array_equal(DiscreteGaussian(1000, threads).draw_with(seed(1), count, isa), expected)


@pytest.mark.parametrize("count", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1])
def test_longer_draws_continue_shorter_ones(count):
    long = DiscreteGaussian(9).draw_with(seed(2), CHUNK + 1)
    assert np.array_equal(DiscreteGaussian(9).draw_with(seed(2), count), long[:count])


def chi_square_p(samples, variance, least=20):
    """Chi-square against the pmf, tails pooled."""
    reach = math.ceil(12 * math.sqrt(variance)) + 2
    values = np.arange(-reach, reach + 1)
    pmf = np.exp(-(values**2.0) / (2 * variance))
    expected = pmf / pmf.sum() * samples.size
    keep = expected >= least
    low, high = values[keep][0], values[keep][-1]
    observed = np.bincount(np.clip(samples, low, high) - low, minlength=high - low + 1)
    pooled = expected[keep].copy()
    pooled[0], pooled[-1] = expected[values <= low].sum(), expected[values >= high].sum()
    return stats.chisquare(observed, pooled * samples.size / pooled.sum()).pvalue


@pytest.mark.parametrize("variance", [1, 2, 3, 5, 20, 400])
def test_law_is_the_discrete_gaussian(variance):
    samples = DiscreteGaussian(variance).draw_with(seed(variance), 400_000)
    assert 1e-4 < chi_square_p(samples, variance) < 1 - 1e-4


def test_a_rounded_continuous_gaussian_would_fail_that_test():
    rounded = np.rint(np.random.default_rng(0).standard_normal(400_000)).astype(np.int64)
    assert chi_square_p(rounded, 1) < 1e-6


@pytest.mark.parametrize("variance", [10**4, 2**40, 2**56])
def test_law_of_large_variances_is_gaussian(variance):
    samples = DiscreteGaussian(variance).draw_with(seed(3), 200_000) / math.sqrt(variance)
    assert 1e-4 < stats.kstest(samples, "norm").pvalue
    assert abs(samples.std() - 1) < 0.01 and abs(samples.mean()) < 5 / math.sqrt(200_000)


def test_two_servers_release_sqrt_two_sigma():
    sigma, bits, count = 0.37, 12, 200_000
    noise = DiscreteGaussian.of(sigma, bits)
    released = (noise.draw(count) + noise.draw(count)) * 2.0**-bits
    assert abs(released.std() / (math.sqrt(2) * sigma) - 1) < 0.01


def test_draws_are_fresh_and_independent():
    one, other = DiscreteGaussian(10**6).draw(100_000), DiscreteGaussian(10**6).draw(100_000)
    assert not np.array_equal(one, other)
    assert abs(np.corrcoef(one, other)[0, 1]) < 5 / math.sqrt(100_000)
    assert abs(np.corrcoef(one[:-1], one[1:])[0, 1]) < 5 / math.sqrt(100_000)


def test_variance_is_never_below_what_was_asked():
    for sigma, bits in [(0.1, 4), (4.2247, 0), (1 / 3, 20), (1e-3, 10)]:
        assert Fraction(DiscreteGaussian.of(sigma, bits).variance) >= (Fraction(sigma) * 2**bits) ** 2
    assert DiscreteGaussian.of(0.5, 4).variance == 64


def test_refuses_a_variance_that_the_sampler_cannot_make():
    for variance in (0, 2**56 + 1):
        with pytest.raises(BudgetExceeded, match=r"must lie in \[1, 2\^56\]; use other fraction bits"):
            DiscreteGaussian(variance)
    with pytest.raises(BudgetExceeded):
        DiscreteGaussian.of(1.0, 30)


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.nan, math.inf])
def test_refuses_a_senseless_sigma(sigma):
    with pytest.raises(InputError, match="must be finite and positive; use NoNoiseForTests"):
        DiscreteGaussian.of(sigma, 10)


def test_native_checks_its_arguments():
    out = np.empty(1, np.int64)
    with pytest.raises(ValueError, match="key of 15 bytes: must be 16"):
        _native.discrete_gaussian(bytes(15), 1, out)
    with pytest.raises(ValueError, match=r"variance 0: must lie in \[1, 2\^56\]"):
        _native.discrete_gaussian(bytes(16), 0, out)
    with pytest.raises(TypeError):
        _native.discrete_gaussian(bytes(16), 1, np.empty(1, np.int32))


def test_no_noise_says_so_every_time(caplog):
    with caplog.at_level(logging.WARNING):
        assert not NoNoiseForTests().draw(5).any()
        NoNoiseForTests().draw(5)
    assert NoNoiseForTests().variance == 0
    assert caplog.text.count("NO DIFFERENTIAL PRIVACY") == 2
