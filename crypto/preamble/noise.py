"""Exact discrete Gaussian noise for aggregate shares.

Each aggregator adds its own full noise once per batch, so that one honest aggregator suffices; the released sum then
carries twice the variance. The discrete Gaussian (Canonne, Kamath, Steinke 2020) keeps the guarantees of the continuous
one of the same variance and has no floating-point tail to attack: samples are made by integer arithmetic alone.
"""

import logging
import secrets
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, isfinite

import numpy as np
from numpy.typing import NDArray

from crypto import _native, prg
from crypto.errors import BudgetExceeded, InputError

logger = logging.getLogger(__name__)

#: Largest variance of the native sampler, whose products must fit 128 bits.
MAX_VARIANCE = 1 << 56


class Noise(ABC):
    """What an aggregator adds to its share of a batch, once."""

    @property
    @abstractmethod
    def variance(self) -> int:
        """Variance of one coordinate, in squared integer steps."""

    @abstractmethod
    def draw(self, count: int) -> NDArray[np.int64]:
        """Return `count` fresh independent samples, shape ``(count,)``, owned by the caller."""


@dataclass(frozen=True, slots=True)
class DiscreteGaussian(Noise):
    """``P(x) ~ exp(-x^2 / (2 variance))`` over the integers.

    Attributes:
        squared_scale: the distribution's parameter sigma^2, an integer in [1, 2^56]; its variance is at most that.
        threads: native threads; the samples of a seed do not depend on their number.
    """

    squared_scale: int
    threads: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.squared_scale <= MAX_VARIANCE:
            raise BudgetExceeded(
                f"noise of variance {self.squared_scale} squared steps: must lie in [1, 2^56]; use other fraction bits"
            )

    @classmethod
    def of(cls, sigma: float, fraction_bits: int, threads: int = 1) -> "DiscreteGaussian":
        """Return the noise of standard deviation at least `sigma` on the grid ``2^-fraction_bits``.

        The variance is rounded up to a whole number of squared steps, so privacy never falls short.

        Raises:
            InputError: sigma is not finite and positive.
            BudgetExceeded: the grid is too fine for the sampler.
        """
        if not (isfinite(sigma) and sigma > 0):
            raise InputError(f"sigma {sigma} must be finite and positive; use NoNoiseForTests where tests want none")
        return cls(ceil((Fraction(sigma) * Fraction(2) ** fraction_bits) ** 2), threads)

    @property
    def variance(self) -> int:
        """See :attr:`Noise.variance`."""
        return self.squared_scale

    def draw(self, count: int) -> NDArray[np.int64]:
        """See :meth:`Noise.draw`; seeded by the operating system."""
        return self.draw_with(secrets.token_bytes(prg.SEED_BYTES), count)

    def draw_with(self, seed: bytes, count: int, isa: str = "") -> NDArray[np.int64]:
        """Return the samples that a 16-byte seed stands for; the deterministic core of :meth:`draw`.

        A seed must be secret and used once: equal seeds give equal noise, which cancels in differences.
        """
        out = np.empty(count, np.int64)
        _native.discrete_gaussian(prg.stream_key(seed, prg.NOISE), self.squared_scale, out, self.threads, isa)
        return out


@dataclass(frozen=True, slots=True)
class NoNoiseForTests(Noise):
    """NO PRIVACY: adds nothing. Exists so that tests can compare exact sums; every draw logs a warning."""

    @property
    def variance(self) -> int:
        """Zero."""
        return 0

    def draw(self, count: int) -> NDArray[np.int64]:
        """Return zeros and log a warning."""
        logger.warning(
            "NO NOISE is added to %d coordinates: this sum has NO DIFFERENTIAL PRIVACY; for tests only", count
        )
        return np.zeros(count, np.int64)
