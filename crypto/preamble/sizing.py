"""Choosing blocks and noise: (dimension, clients, epsilon, delta, rounds, byte budget) -> (B, k, sigma, error, bytes).

Larger payloads C = k B cost bytes; larger blocks cost noise, about ``1 + B D / (4 sigma^2 C^2)``; smaller blocks cost
correction words and clip more of a rotated vector, about ``1 / (4 B)`` of its squared length. The tool tries all powers
of two within the budget, ranks them by the predicted error with closed forms, and computes the noise of the best one
with the accountant.
"""

from dataclasses import dataclass
from math import exp, inf, sqrt

from crypto.errors import BudgetExceeded, InputError
from crypto.preamble.blocks import BlockShape
from crypto.preamble.privacy import Guarantee, Mechanism, central_limit_ratio, gaussian_sigma, guarantee, noise_ratio

NONCE_BYTES = 16
SEED_BYTES = 16
CORRECTION_SEED_BYTES = 16
CHECK_BYTES = 64

#: Smallest block that :func:`size` proposes: below it clipping takes more than 1e-3 of the squared length.
LEAST_BLOCK = 1 << 8
# A candidate's noise is estimated by a central limit, poor where r is small; such candidates are never the best.
_LEAST_RATIO = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Error:
    """Predicted mean squared error of a released sum for clients of norm C, over all D rotated coordinates together.

    Attributes:
        noise: of all aggregators' noise, ``parties sigma^2 D``.
        sampling: of the clients' choices of blocks, ``n (t - 1) C^2``.
        clipping_bound: largest squared bias of clipping, all clients pointing the same way.
    """

    noise: float
    sampling: float
    clipping_bound: float

    @property
    def total(self) -> float:
        """Noise and sampling together; clipping adds at most its bound (and what it correlates)."""
        return self.noise + self.sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A sized round.

    Attributes:
        shape: B and k (and t) for the given dimension.
        sigma: standard deviation of each aggregator's noise, in the units of the vectors.
        sensitivity: s, the norm of a sent block.
        guarantee: what it promises over all rounds.
        gaussian_sigma: what the dense Gaussian mechanism would need for the same promise.
        noise_ratio: ``sigma / gaussian_sigma``, the price of hiding among blocks.
        error_ratio: standard deviation of the whole error over the dense mechanism's, both with noise of all parties.
        error: the predicted squared error.
        upload_bytes: a client's report: public share and one private share per aggregator, without frames or sealing.
        dense_bytes: a dense two-server share of the same dimension.
    """

    shape: BlockShape
    sigma: float
    sensitivity: float
    guarantee: Guarantee
    gaussian_sigma: float
    noise_ratio: float
    error_ratio: float
    error: Error
    upload_bytes: int
    dense_bytes: int


def size(
    length: int,
    clients: int,
    epsilon: float,
    delta: float,
    rounds: int,
    byte_budget: int,
    *,
    word_bits: int = 64,
    verified: bool = True,
    clip_factor: float = 1.0,
    norm_bound: float = 1.0,
    rotated: bool = True,
    parties: int = 2,
) -> Choice:
    """Return the blocks of least predicted error whose report fits a byte budget.

    Args:
        length: D, coordinates of the vector.
        clients: n, reports of a round.
        epsilon: for all rounds together, one report a round.
        delta: likewise.
        rounds: T.
        byte_budget: largest :attr:`Choice.upload_bytes`.
        word_bits: bits of a group element, 32 or 64.
        verified: reports carry the block check.
        clip_factor: c.
        norm_bound: C.
        rotated: vectors are rotated.
        parties: aggregators that add noise; one honest one is enough for the guarantee.

    Raises:
        InputError: a count, epsilon or delta is out of range.
        BudgetExceeded: no report fits, or none gives a useful noise; says what would.
    """
    _check_counts(length, clients, rounds, word_bits)
    plain = gaussian_sigma(epsilon, delta, rounds)
    best: tuple[float, int, BlockShape] | None = None
    least_bytes = inf
    for shape in _shapes(length, rotated):
        upload = report_bytes(shape, word_bits, verified)
        least_bytes = min(least_bytes, upload)
        ratio = central_limit_ratio(plain, blocks_per_group=shape.blocks_per_group, groups=shape.groups)
        if upload > byte_budget or ratio < _LEAST_RATIO:
            continue
        sigma = ratio * sensitivity(shape, clip_factor, norm_bound)
        error = predict_error(shape, clients, sigma, clip_factor, norm_bound, parties)
        candidate = (error.total + error.clipping_bound, upload, shape)
        best = candidate if best is None or candidate[:2] < best[:2] else best
    if best is None:
        raise BudgetExceeded(
            f"{byte_budget} bytes a report for {length} coordinates at epsilon {epsilon:g}: the smallest report has "
            f"{least_bytes:.0f} bytes and useful ones need more noise per block; raise the budget or lower epsilon"
        )
    return evaluate(
        best[2],
        clients,
        epsilon,
        delta,
        rounds,
        word_bits=word_bits,
        verified=verified,
        clip_factor=clip_factor,
        norm_bound=norm_bound,
        parties=parties,
    )


def evaluate(
    shape: BlockShape,
    clients: int,
    epsilon: float,
    delta: float,
    rounds: int,
    *,
    word_bits: int = 64,
    verified: bool = True,
    clip_factor: float = 1.0,
    norm_bound: float = 1.0,
    parties: int = 2,
) -> Choice:
    """Return noise, error and bytes of a given shape; arguments and errors as in :func:`size`."""
    _check_counts(shape.length, clients, rounds, word_bits)
    hidden = noise_ratio(epsilon, delta, blocks_per_group=shape.blocks_per_group, groups=shape.groups, rounds=rounds)
    s = sensitivity(shape, clip_factor, norm_bound)
    plain = gaussian_sigma(epsilon, delta, rounds) * norm_bound
    error = predict_error(shape, clients, hidden * s, clip_factor, norm_bound, parties)
    mechanism = Mechanism(ratio=hidden, blocks_per_group=shape.blocks_per_group, groups=shape.groups, rounds=rounds)
    return Choice(
        shape=shape,
        sigma=hidden * s,
        sensitivity=s,
        guarantee=guarantee(mechanism, delta),
        gaussian_sigma=plain,
        noise_ratio=hidden * s / plain,
        error_ratio=sqrt(error.total / (parties * plain**2 * shape.spread_length)),
        error=error,
        upload_bytes=report_bytes(shape, word_bits, verified),
        dense_bytes=shape.length * word_bits // 8 + 2 * SEED_BYTES,
    )


def report_bytes(shape: BlockShape, word_bits: int, verified: bool) -> int:
    """Return the bytes of a report: nonce, k block-DPF keys (correction words, payload, check) and two seeds."""
    depth = (shape.blocks_per_group - 1).bit_length()
    key = CORRECTION_SEED_BYTES * depth + -(-2 * depth // 8) + shape.block_size * word_bits // 8
    return NONCE_BYTES + shape.groups * (key + (CHECK_BYTES if verified else 0)) + 2 * SEED_BYTES


def sensitivity(shape: BlockShape, clip_factor: float, norm_bound: float) -> float:
    """Return ``s = t c C sqrt(B / D)``; equals ``Sampler.sensitivity``."""
    return shape.blocks_per_group * clip_factor * norm_bound * sqrt(shape.block_size / shape.spread_length)


def predict_error(
    shape: BlockShape, clients: int, sigma: float, clip_factor: float, norm_bound: float, parties: int
) -> Error:
    """Return the predicted squared error of a sum of vectors of norm `norm_bound`.

    A rotated block's length is near normal with relative deviation ``1 / sqrt(2 B)``; at c = 1 clipping shortens it by
    0.4 of that on average, and by less for c > 1.
    """
    deviation = 1 / sqrt(2 * shape.block_size)
    over = (clip_factor - 1) / deviation
    # E[(Z - over)+] of a standard normal Z is at most its density at `over`.
    shrink = deviation * (0.4 * exp(-(over**2) / 2) if over >= 0 else 0.4 - over)
    return Error(
        noise=parties * sigma**2 * shape.spread_length,
        sampling=clients * (shape.blocks_per_group - 1) * norm_bound**2,
        clipping_bound=(clients * norm_bound * shrink) ** 2 if shape.rotated else 0.0,
    )


def _shapes(length: int, rotated: bool) -> list[BlockShape]:
    top = (length - 1).bit_length()
    least = min(LEAST_BLOCK.bit_length() - 1, top)
    return [
        BlockShape(length=length, block_size=1 << block, groups=1 << payload - block, rotated=rotated)
        for payload in range(least, top + 1)
        for block in range(least, payload + 1)
    ]


def _check_counts(length: int, clients: int, rounds: int, word_bits: int) -> None:
    if min(length, clients, rounds) < 1:
        raise InputError(f"{length} coordinates, {clients} clients, {rounds} rounds: each must be at least 1")
    if word_bits not in (32, 64):
        raise InputError(f"{word_bits} bits a word: must be 32 or 64")
