"""Differential privacy of block sampling plus Gaussian noise.

Adjacency is add/remove (for replace-one, double the sensitivity); the unit of privacy is one report a round, composed
over rounds. Each of a report's k groups hides one block of norm at most s among t, under noise of standard deviation
``r s`` that one honest aggregator adds. The release satisfies every (epsilon, delta) of the k-fold composition of

    Q = N(0, I_t)        P = 1/t sum_j N(e_j / r, I_t)

in both directions: 1-out-of-t *random allocation* (arXiv 2502.08202). T rounds compose k T times. Against the
aggregators the guarantee is computational, because a distributed point function hides the choice of blocks.

:func:`guarantee` is an upper bound of ours (:mod:`crypto.preamble.allocation`); :func:`poisson_epsilon` and
:func:`certified_range` check it with independent packages.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import erfc, exp, expm1, inf, isfinite, log, sqrt

from crypto.errors import BackendUnavailable, InputError
from crypto.preamble.allocation import least, losses

# Below this much noise likelihood ratios span more than a grid holds; the plain Gaussian's bound is used.
_LEAST_GRID_RATIO = 0.3
# Share of delta that cut-off tails may take.
_TAIL_SHARE = 1e-4
_SOLVER_STEPS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanism:
    """k-fold composition of a Gaussian hidden among t positions, in each of T rounds.

    Attributes:
        ratio: r, one aggregator's noise over the sensitivity s of a sent block (``Sampler.sensitivity``).
        blocks_per_group: t.
        groups: k.
        rounds: T, how often a client reports.
    """

    ratio: float
    blocks_per_group: int
    groups: int
    rounds: int = 1

    def __post_init__(self) -> None:
        if not (isfinite(self.ratio) and self.ratio > 0):
            raise InputError(
                f"noise of {self.ratio} sensitivities must be finite and positive; without noise no privacy"
            )
        if min(self.blocks_per_group, self.groups, self.rounds) < 1:
            raise InputError(f"{self}: blocks per group, groups and rounds must be at least 1")

    @property
    def compositions(self) -> int:
        """Number of factors, ``k T``."""
        return self.groups * self.rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantee:
    """What a mechanism promises.

    Attributes:
        remove: epsilon for a report that is taken away.
        add: epsilon for a report that is added.
        delta: the delta of both.
    """

    remove: float
    add: float
    delta: float

    @property
    def epsilon(self) -> float:
        """The larger of the two."""
        return max(self.remove, self.add)


def guarantee(mechanism: Mechanism, delta: float) -> Guarantee:
    """Return a mechanism's guarantee at `delta`: an upper bound, tight to about 1e-4 for ``r >= 0.6``, ``t >= 8``.

    It is the smaller of the allocation's bound and of the plain Gaussian's, which holds because the hockey-stick
    divergence is jointly convex and is exact for t = 1.

    Raises:
        InputError: delta is outside (0, 1).
    """
    _check_delta(delta)
    plain = gaussian_epsilon(mechanism.ratio / sqrt(mechanism.compositions), delta)
    if mechanism.blocks_per_group == 1 or mechanism.ratio < _LEAST_GRID_RATIO:
        return Guarantee(remove=plain, add=plain, delta=delta)
    remove, add = losses(mechanism.ratio, mechanism.blocks_per_group, mechanism.compositions, _TAIL_SHARE * delta)
    return Guarantee(remove=min(plain, remove.epsilon(delta)), add=min(plain, add.epsilon(delta)), delta=delta)


def noise_ratio(
    epsilon: float, delta: float, *, blocks_per_group: int, groups: int, rounds: int = 1, tolerance: float = 1e-4
) -> float:
    """Return an r whose guarantee is at most `epsilon`, and at least ``(1 - tolerance) epsilon``.

    Raises:
        InputError: epsilon or delta is out of range.
    """

    def reached(ratio: float) -> float:
        mechanism = Mechanism(ratio=ratio, blocks_per_group=blocks_per_group, groups=groups, rounds=rounds)
        return log(max(guarantee(mechanism, delta).epsilon, 1e-9) / epsilon)

    sigma = gaussian_sigma(epsilon, delta, rounds)
    start = central_limit_ratio(sigma, blocks_per_group=blocks_per_group, groups=groups)
    low, high = -inf, inf
    at, excess = log(start), reached(start)
    slope = -1.2
    for _ in range(_SOLVER_STEPS):
        if -tolerance <= excess <= 0:
            return exp(at)
        low, high = (at, high) if excess > 0 else (low, at)
        # Aim a little to the safe side.
        step = at - (excess + tolerance / 2) / slope
        step = step if low < step < high else (low + high) / 2
        following = reached(exp(step))
        if step != at:
            slope = min((following - excess) / (step - at), -0.2)
        at, excess = step, following
    return exp(high)


def central_limit_ratio(sigma: float, *, blocks_per_group: int, groups: int) -> float:
    """Return the r at which ``(k / t) (exp(1 / r^2) - 1) = 1 / sigma^2``: the limit of many groups, for sizing only.

    Rounds enter through sigma, which is one round's plain Gaussian noise for sensitivity 1 (:func:`gaussian_sigma`).
    """
    return 1 / sqrt(log(1 + blocks_per_group / (groups * sigma**2)))


def overhead_bound(ratio: float) -> float:
    """Return ``r sqrt(exp(1 / r^2) - 1)``: more than the factor that hiding among blocks costs in noise.

    Args:
        ratio: r as it would be with the plain Gaussian's noise, ``gaussian_sigma / s``. For large r the value is near
            ``1 + 1 / (4 r^2)``, which gives the rule ``B <= 4 overhead sigma^2 C^2 / (c^2 D)``.
    """
    return ratio * sqrt(expm1(1 / ratio**2))


def gaussian_epsilon(sigma: float, delta: float) -> float:
    """Return the exact epsilon of the Gaussian mechanism of sensitivity 1 (Balle and Wang 2018, theorem 8)."""
    _check_delta(delta)

    def private(epsilon: float) -> bool:
        return _gaussian_delta(sigma, epsilon) <= delta

    return 0.0 if private(0.0) else least(private, 0.0, _doubled(private))


def gaussian_sigma(epsilon: float, delta: float, rounds: int = 1) -> float:
    """Return the exact noise of one release of the Gaussian mechanism of sensitivity 1, composed `rounds` times.

    Raises:
        InputError: epsilon is not positive or delta outside (0, 1).
    """
    _check_delta(delta)
    if not (isfinite(epsilon) and 0 < epsilon <= 500):
        raise InputError(f"epsilon {epsilon} must lie in (0, 500]; 1 to 10 is usual")

    def private(sigma: float) -> bool:
        return _gaussian_delta(sigma, epsilon) <= delta

    return least(private, 0.0, _doubled(private)) * sqrt(rounds)


def poisson_epsilon(mechanism: Mechanism, delta: float) -> float:
    """Return epsilon of Poisson subsampling at rate 1/t, composed t k T times: a sanity ceiling without a proof.

    Raises:
        BackendUnavailable: ``dp-accounting`` is not installed.
    """
    try:
        from dp_accounting.pld import privacy_loss_distribution
    except ImportError as error:
        raise BackendUnavailable(f"dp-accounting does not load ({error}); install fedsim[privacy]") from error
    rate = 1 / mechanism.blocks_per_group
    one = privacy_loss_distribution.from_gaussian_mechanism(mechanism.ratio, sampling_prob=rate)
    return float(one.self_compose(mechanism.blocks_per_group * mechanism.compositions).get_epsilon_for_delta(delta))


def certified_range(mechanism: Mechanism, delta: float) -> tuple[float, float]:
    """Return lower and upper bounds of epsilon by the package ``PLD-accounting``; minutes where k is large.

    Raises:
        BackendUnavailable: ``PLD-accounting`` is not installed.
    """
    try:
        from PLD_accounting import gaussian_allocation_epsilon_range
    except ImportError as error:
        raise BackendUnavailable(f"PLD-accounting does not load ({error}); pip install PLD-accounting") from error
    upper, lower = gaussian_allocation_epsilon_range(
        delta=delta,
        sigma=mechanism.ratio,
        num_steps=mechanism.blocks_per_group * mechanism.groups,
        num_selected=mechanism.groups,
        num_epochs=mechanism.rounds,
    )
    return float(lower), float(upper)


def _gaussian_delta(sigma: float, epsilon: float) -> float:
    if sigma <= 0:
        return 1.0
    below = _normal_cdf(-0.5 / sigma - epsilon * sigma)
    # exp(epsilon) alone may overflow; where `below` vanishes, leaving it out errs on the safe side.
    return _normal_cdf(0.5 / sigma - epsilon * sigma) - (exp(epsilon + log(below)) if below > 0 else 0.0)


def _normal_cdf(x: float) -> float:
    return 0.5 * erfc(-x / sqrt(2))


def _doubled(condition: Callable[[float], bool]) -> float:
    value = 1.0
    while not condition(value):
        value *= 2
    return value


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise InputError(f"delta {delta} must lie in (0, 1); far below one over the number of clients is usual")
