"""Privacy losses of random allocation, on grids: the numerical core of :mod:`crypto.preamble.privacy`.

The pair is ``Q = N(0, I_t)``, ``P = 1/t sum_j N(e_j / r, I_t)``, composed k times. Its likelihood ratio is
``S = 1/t sum_i Y_i`` with ``Y_i = exp(x_i / r - 1 / (2 r^2))``, lognormal of mean 1 under Q, one of them tilted
(``x ~ N(1/r, 1)``) under P. Two steps, each a power of a discrete Fourier transform:

1. the law of S under P and Q, from that of Y on a linear grid;
2. the k-fold sum of ``log S``, on another linear grid.

Every move of mass to a grid point splits it between the two neighbours so that its masses under P *and* under Q stay:
a mean-preserving spread of the likelihood ratio, which can only raise a hockey-stick divergence ("connect the dots",
arXiv 2207.04380). Mass that leaves a grid is counted as an infinite loss. Both make the result an upper bound, up to
float64 rounding (about 1e-11 in delta).
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, exp, expm1, floor, inf, log, sqrt

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]

# Points of the grids of S and of the loss. More sharpen the bound, fewer only loosen it.
_RATIO_POINTS = 1 << 17
_LOSS_POINTS = 1 << 16
# Nodes and exponents of Chernoff's bound; coarse ones only widen a window.
_NODES = 2001
_EXPONENTS = 64
_BINS = 1 << 12


@dataclass(frozen=True, slots=True)
class Losses:
    """A privacy loss distribution.

    Attributes:
        values: finite losses, ascending.
        mass: their probabilities.
        infinite: probability of an infinite loss.
    """

    values: Vector
    mass: Vector
    infinite: float

    def delta(self, epsilon: float) -> float:
        """Return the hockey-stick divergence ``infinite + E[(1 - exp(epsilon - loss))+]``."""
        gap = np.maximum(self.values - epsilon, 0.0)
        return self.infinite + float(self.mass @ -np.expm1(-gap))

    def epsilon(self, delta: float) -> float:
        """Return the least epsilon >= 0 whose divergence is at most `delta`; infinite where there is none."""
        if self.infinite > delta:
            return inf
        if self.delta(0.0) <= delta:
            return 0.0
        values, mass = self.values[self.values > 0], self.mass[self.values > 0]
        # Between two losses the divergence is infinite + above - exp(epsilon) * scaled, sums over the losses above.
        above = np.cumsum(mass[::-1])[::-1]
        scaled = np.cumsum((mass * np.exp(-values))[::-1])[::-1]
        at_values = self.infinite + above - np.exp(values) * scaled
        first = int(np.argmax(at_values <= delta))
        return max(0.0, log((self.infinite + above[first] - delta) / scaled[first]))


def losses(ratio: float, count: int, compositions: int, tail: float) -> tuple[Losses, Losses]:
    """Return the composed losses of P against Q and of Q against P.

    Args:
        ratio: r, noise over sensitivity.
        count: t, positions among which one is chosen.
        compositions: k.
        tail: probability that may be cut off and counted as infinite loss, over all compositions.
    """
    share = tail / (4 * compositions)
    points, under_p, under_q = _mean_of_lognormals(ratio, count, share)
    with np.errstate(divide="ignore"):
        logs = np.log(points)
    # 3 * share: the cut of single summands and of the two ends of their sum.
    remove = _compose(logs, under_p, 3 * share, compositions, tail / 8)
    add = _compose(-logs[::-1], under_q[::-1], 3 * share, compositions, tail / 8)
    return remove, add


def _mean_of_lognormals(ratio: float, count: int, tail: float) -> tuple[Vector, Vector, Vector]:
    """Return points of S, ascending, with their masses under P and Q; at most 3 `tail` of either is missing."""
    from scipy.special import ndtri

    # The tilted summand exceeds the top with half the tail; the others, less likely to by far, share the other half.
    top = exp((max(-ndtri(tail / 2), -ndtri(tail / (2 * count)) - 1 / ratio) + 1 / ratio) / ratio - 1 / (2 * ratio**2))
    low, high = _sum_window(ratio, count, top, tail)
    step = (high - low) / (_RATIO_POINTS - 4)
    start = floor(low / step)
    plain, tilted = _lognormal_grid(ratio, step, ceil(top / step) + 2)
    spectrum = np.fft.rfft(_fold(plain, 0, _RATIO_POINTS))
    others = spectrum ** (count - 1)
    under_q = _unfold(np.fft.irfft(others * spectrum, _RATIO_POINTS), start)
    under_p = _unfold(np.fft.irfft(others * np.fft.rfft(_fold(tilted, 0, _RATIO_POINTS)), _RATIO_POINTS), start)
    points = _grid(start, step / count, _RATIO_POINTS)
    return points, under_p, under_q


def _lognormal_grid(ratio: float, step: float, size: int) -> tuple[Vector, Vector]:
    """Return masses of Y at ``0, step, 2 step, ...`` under N(0, 1) and N(1/r, 1): bins keep their masses and means."""
    edges = step * np.arange(size)
    with np.errstate(divide="ignore"):
        at = ratio * np.log(edges) + 1 / (2 * ratio)
    mass, mean = _normal_between(at), _normal_between(at - 1 / ratio)
    upper = np.clip(mean / step - mass * np.arange(size - 1), 0.0, mass)
    plain = np.zeros(size)
    plain[:-1] += mass - upper
    plain[1:] += upper
    return plain, plain * edges


def _normal_between(edges: Vector) -> Vector:
    """Return the standard normal's mass between neighbours of ascending edges, accurate in the tails too."""
    from scipy.special import ndtr

    below, beyond = ndtr(edges), ndtr(-edges)
    return np.asarray(np.where(edges[:-1] > 0, beyond[:-1] - beyond[1:], below[1:] - below[:-1]), np.float64)


def _sum_window(ratio: float, count: int, top: float, tail: float) -> tuple[float, float]:
    """Return bounds of ``sum_i Y_i``, all at most `top`, that hold but for `tail` on either side, under P and Q."""
    reach = 9 + 1 / ratio
    x = np.linspace(-9, reach, _NODES)
    y = np.minimum(np.exp(x / ratio - 1 / (2 * ratio**2)), top)
    plain = np.exp(-(x**2) / 2)
    plain /= plain.sum()
    deviation = sqrt(count * expm1(1 / ratio**2))
    exponents = np.geomspace(1e-4, 1e3, _EXPONENTS) / deviation
    grown = np.maximum(_log_mean(exponents, y, plain * y), 0.0) + (count - 1) * _log_mean(exponents, y, plain)
    high = float(np.min((grown - log(tail / 8)) / exponents))
    shrunk = count * _log_mean(-exponents, y, plain)
    low = float(np.max(-(shrunk - log(tail / 8)) / exponents))
    return max(0.0, low), high


def _log_mean(exponents: Vector, values: Vector, mass: Vector) -> Vector:
    """Return ``log sum mass exp(exponent * value)`` for each exponent."""
    powers = exponents[:, None] * values
    largest = powers.max(axis=1)
    return np.asarray(largest + np.log(np.exp(powers - largest[:, None]) @ mass), np.float64)


def _compose(values: Vector, mass: Vector, cut: float, compositions: int, tail: float) -> Losses:
    """Return the `compositions`-fold sum of a loss with the given ascending values; `cut` is missing from each."""
    present = (mass > 0) & (values > -inf)
    # A loss of minus infinity never counts; one of plus infinity always does.
    endless = float(mass[values == inf].sum())
    present &= values < inf
    values, mass = values[present], mass[present]
    low, high = _loss_window(values, mass, compositions, tail)
    step = (high - low) / (_LOSS_POINTS - 4)
    start = floor(low / step)
    first, single = _loss_grid(values, mass, step)
    spectrum = np.fft.rfft(_fold(single, first, _LOSS_POINTS)) ** compositions
    total = _unfold(np.fft.irfft(spectrum, _LOSS_POINTS), start)
    return Losses(
        values=_grid(start, step, _LOSS_POINTS),
        mass=total,
        infinite=compositions * (cut + endless) + 2 * tail,
    )


def _loss_grid(values: Vector, mass: Vector, step: float) -> tuple[int, Vector]:
    """Return the first grid index and the masses; each loss is split so that ``mass`` and ``mass exp(-loss)`` stay."""
    index = np.floor(values / step).astype(np.int64)
    upper = mass * np.clip(np.expm1(index * step - values) / expm1(-step), 0.0, 1.0)
    first = int(index[0])
    size = int(index[-1]) - first + 2
    grid = np.zeros(size)
    grid += np.bincount(index - first, mass - upper, size)
    grid += np.bincount(index - first + 1, upper, size)
    return first, grid


def _loss_window(values: Vector, mass: Vector, compositions: int, tail: float) -> tuple[float, float]:
    """Return bounds of the sum of losses that hold but for `tail` on either side (Chernoff)."""
    edges = np.linspace(values[0], values[-1], _BINS)
    bins = np.searchsorted(edges, values, side="right")
    binned = np.zeros(_BINS + 1)
    binned += np.bincount(bins, mass, _BINS + 1)
    width = edges[1] - edges[0]
    centre = float(mass @ values)
    spread = sqrt(float(mass @ (values - centre) ** 2) * compositions)
    exponents = np.geomspace(1e-2, 1e2, _EXPONENTS) / spread

    def reach(sign: float) -> float:
        # Bins are read at their far edge, which only widens the window.
        at = np.arange(_BINS + 1) * width + values[0] - (width if sign < 0 else 0.0) - centre
        grown = compositions * _log_mean(sign * exponents, at[binned > 0], binned[binned > 0])
        return float(np.min((grown - log(tail)) / exponents))

    return compositions * centre - reach(-1.0), compositions * centre + reach(1.0)


def _fold(mass: Vector, first: int, size: int) -> Vector:
    """Return masses at indices ``first, first + 1, ...`` summed modulo `size`."""
    return np.asarray(np.bincount((first + np.arange(mass.size)) % size, mass, size), np.float64)


def _grid(first: int, step: float, size: int) -> Vector:
    return np.asarray((first + np.arange(size)) * step, np.float64)


def _unfold(mass: Vector, first: int) -> Vector:
    """Return masses at ``first, first + 1, ...`` from masses modulo their number; rounding below zero is removed."""
    return np.maximum(np.roll(mass, -(first % mass.size)), 0.0)


def least(true_above: Callable[[float], bool], low: float, high: float, width: float = 0.0) -> float:
    """Return, by bisection to `width` (or float precision), a point above which a monotone condition holds.

    `high` must satisfy it; so does the result.
    """
    while high - low > width:
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (low, middle) if true_above(middle) else (middle, high)
    return high
