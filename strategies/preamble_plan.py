"""PREAMBLE's numbers: from settings and a plan to blocks, noise and guarantees, alike at every party."""

from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import ceil, floor, inf, log2, log10, sqrt
from pathlib import Path
from typing import Literal

from crypto import BudgetExceeded, InputError, wire
from crypto.base import Plan, Tag
from crypto.keys import CLIENTS
from crypto.preamble import wire as reports
from crypto.preamble.blocks import BlockShape
from crypto.preamble.dpf import Group
from crypto.preamble.pine import WRAP_NORM_STEPS
from crypto.preamble.privacy import Guarantee, Mechanism, guarantee
from crypto.preamble.rotation import padded_length
from crypto.preamble.scheme import MAX_NORM_BITS, Parameters, PreambleSum
from crypto.preamble.sizing import Choice, evaluate, size
from strategies.preamble_keys import helper_key

#: What the aggregators check, in words for a run's record.
VERIFICATION = {
    "strict": "V0: encoding, replay set and the same public share at both; a client can spoil the sum",
    "blocks": "V0 and V1: one block a group at most; its size is not checked, so a client can spoil the sum",
    "norm": "V0, V1 and V3 (V4 for payloads above 8192 bits): one block a group, and the norm of all blocks together",
}
#: The default byte budget is this share of a dense two-server share.
DEFAULT_SAVING = 8
# What the sampler and the noise take at most, see crypto.preamble.blocks and crypto.preamble.noise.
_BLOCK_BITS, _SIGMA_BITS, _MOST_FRACTION_BITS = 31, 28, 40


@dataclass(frozen=True, kw_only=True)
class PreambleSettings:
    """The numbers of a run under PREAMBLE, before anything is chosen for it.

    Attributes:
        run: 16 bytes that name the run; see :func:`strategies.preamble.run_id`.
        rounds: rounds of the run, over which the guarantee is composed.
        epsilon, delta: the target, of a round or of the whole run.
        per: what the target is for.
        clip_norm: C, the Euclidean norm to which a client's change is clipped.
        clip_factor: c, a block is clipped to c times its expected norm.
        block_size, blocks: B and k; both or neither, then the sizing tool chooses.
        byte_budget: largest report for the sizing tool; ``None`` for an eighth of a dense share.
        dense: all coordinates are one block, neither sampled nor rotated: the dense Gaussian mechanism with the same
            clipping, aggregators and noise of each, to compare with; the other choices of blocks do not count.
        word_bits: bits of the words in which shares are added.
        rotated: whether vectors are rotated; off only where they are flat already.
        verify: what the aggregators check of a report: ``strict``, ``blocks`` or ``norm``.
        fraction_bits: one step of the sum is ``2^-fraction_bits``; ``None`` for as many as fit.
        minimum_cohort: the helper hands out no total of fewer reports.
        noisy: whether both aggregators add noise; without it there is no privacy at all.
        keys: folder of this party's keys; ``None`` where none are needed (sizing).
        role: whose keys to take: ``server`` or ``clients``.
        transport: how the leader reaches the helper: ``direct``, on a connection of its own, or ``relay``, through a
            node of the helper's owner.
        timeout_s: longest wait for one answer of the helper.
        journal: file in which the leader notes a round before it asks for the total.
    """

    run: bytes
    rounds: int
    epsilon: float
    delta: float
    per: Literal["round", "run"] = "round"
    clip_norm: float = 1.0
    clip_factor: float = 1.0
    block_size: int | None = None
    blocks: int | None = None
    byte_budget: int | None = None
    dense: bool = False
    word_bits: int = 64
    fraction_bits: int | None = None
    rotated: bool = True
    verify: Literal["strict", "blocks", "norm"] = "blocks"
    minimum_cohort: int = 2
    noisy: bool = True
    keys: str | None = None
    role: str = CLIENTS
    transport: Literal["direct", "relay"] = field(default="direct", compare=False)
    timeout_s: float = field(default=300.0, compare=False)
    journal: str | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Sized:
    """A protection's numbers for a plan.

    Attributes:
        choice: blocks, noise and predicted error.
        parameters: what servers and clients run.
        round_guarantee, run_guarantee: for one report, and for one report in each round.
    """

    choice: Choice
    parameters: Parameters
    round_guarantee: Guarantee
    run_guarantee: Guarantee


@lru_cache(maxsize=16)
def _sized(protection: PreambleSettings, plan: Plan) -> Sized:
    choice = _choose(protection, plan)
    shape, s = choice.shape, choice.sensitivity
    # Four digits, rounded up: parties that compute it apart agree, and the noise never falls short.
    sigma = _rounded_up(choice.sigma)
    one, whole = (
        guarantee(
            Mechanism(ratio=sigma / s, blocks_per_group=shape.blocks_per_group, groups=shape.groups, rounds=rounds),
            protection.delta,
        )
        for rounds in (1, protection.rounds)
    )
    most = _fraction_bits(protection, s, sigma, plan.clients, shape)
    parameters = Parameters(
        norm_bound=protection.clip_norm,
        block_size=shape.block_size,
        groups=shape.groups,
        sigma=sigma if protection.noisy else 0.0,
        fraction_bits=most if protection.fraction_bits is None else protection.fraction_bits,
        group=_group(protection),
        clip_factor=protection.clip_factor,
        rotated=shape.rotated,
        verify=protection.verify,
        minimum_cohort=protection.minimum_cohort,
    )
    return Sized(choice, parameters, one, whole)


def sized(protection: PreambleSettings, plan: Plan) -> Sized:
    """Return blocks, noise and guarantees for a plan; depends on nothing but the settings and the plan.

    Raises:
        BudgetExceeded: no report fits the byte budget, or the sum does not fit a word.
        InputError: a setting is out of range, or only one of block size and blocks is given.
    """
    return _sized(without_keys(protection), plan)


def without_keys(protection: PreambleSettings) -> PreambleSettings:
    """Return the settings that all parties share."""
    return replace(protection, keys=None, role=CLIENTS)


def _choose(p: PreambleSettings, plan: Plan) -> Choice:
    rounds = p.rounds if p.per == "run" else 1
    if p.dense:
        return _evaluated(
            p, plan, rounds, BlockShape(length=plan.length, block_size=plan.length, groups=1, rotated=False)
        )
    if (p.block_size is None) != (p.blocks is None):
        raise InputError(f"block size {p.block_size}, blocks {p.blocks}: give both, or neither to have them chosen")
    if p.block_size is not None and p.blocks is not None:
        shape = BlockShape(length=plan.length, block_size=p.block_size, groups=p.blocks, rotated=p.rotated)
        return _evaluated(p, plan, rounds, shape)
    spread = padded_length(plan.length) if p.rotated else plan.length
    budget = p.byte_budget or spread * p.word_bits // 8 // DEFAULT_SAVING
    try:
        return size(
            plan.length,
            plan.clients,
            p.epsilon,
            p.delta,
            rounds,
            budget,
            word_bits=p.word_bits,
            clip_factor=p.clip_factor,
            norm_bound=p.clip_norm,
            rotated=p.rotated,
        )
    except BudgetExceeded as error:
        raise BudgetExceeded(f"{error} (protection.byte_budget), or set protection.block_size and .blocks") from error


def _evaluated(p: PreambleSettings, plan: Plan, rounds: int, shape: BlockShape) -> Choice:
    return evaluate(
        shape,
        plan.clients,
        p.epsilon,
        p.delta,
        rounds,
        word_bits=p.word_bits,
        clip_factor=p.clip_factor,
        norm_bound=p.clip_norm,
    )


def _rounded_up(value: float, digits: int = 4) -> float:
    exponent = floor(log10(value)) - digits + 1
    return float(f"{ceil(value / 10.0**exponent)}e{exponent}")


def _group(p: PreambleSettings) -> Group:
    if p.verify == "norm":
        return Group.FIELD64
    return Group.Z32 if p.word_bits == 32 else Group.Z64


def _fraction_bits(p: PreambleSettings, sensitivity: float, sigma: float, clients: int, shape: BlockShape) -> int:
    """Return as many bits after the point as the word, the sampler, the noise and the norm proof all carry."""
    largest, words, blocks = clients * sensitivity + 8 * sqrt(2) * sigma, shape.payload_length, shape.groups
    ring_bits = {Group.Z32: 32, Group.Z64: 64, Group.FIELD64: 63}[_group(p)]
    limits = [ring_bits - 1 - log2(largest), _BLOCK_BITS - log2(sensitivity), _SIGMA_BITS - log2(sigma)]
    if p.verify == "norm":
        # Ranges: bits of a word, sign included, few enough to prove, and no sum of squares may wrap in the field.
        word_bits = min(MAX_NORM_BITS // words, floor((64 - log2(words)) / 2))
        # Wrap-around tests: the norm of all blocks may have so many steps.
        steps = log2(WRAP_NORM_STEPS) - log2(blocks) / 2
        limits.append(max(word_bits - 2, steps) - log2(sensitivity))
    # A hair below, so that no party's rounding of the logarithm decides.
    return min(_MOST_FRACTION_BITS, floor(min(limits) - 1e-6))


@lru_cache(maxsize=16)
def secure_sum(protection: PreambleSettings, plan: Plan) -> PreambleSum:
    """Return the sum of a plan; without keys, good for its budget alone."""
    key = bytes(32) if protection.keys is None else helper_key(Path(protection.keys), protection.role)
    return PreambleSum(plan, sized(protection, plan).parameters, helper_key=key, run=protection.run)


def of_round(protection: PreambleSettings, plan: Plan, tag: Tag) -> tuple[PreambleSum, Tag]:
    """Return a round's secure sum and the tag of its vectors, filled up with zeros to whole groups of blocks.

    See :meth:`crypto.preamble.scheme.PreambleSum.shortened`.

    Raises:
        BudgetExceeded: the round's vectors are longer than the plan's.
    """
    secure = _shortened(protection, plan, tag.length)
    return secure, replace(tag, length=secure.plan.length)


@lru_cache(maxsize=64)
def _shortened(protection: PreambleSettings, plan: Plan, length: int) -> PreambleSum:
    return secure_sum(protection, plan).shortened(length)


@lru_cache(maxsize=64)
def round_epsilon(protection: PreambleSettings, plan: Plan, length: int) -> float:
    """Return epsilon of one round, by the accountant for its own blocks; never above that of the plan's rounds."""
    found = sized(protection, plan)
    if length == plan.length:
        return found.round_guarantee.epsilon
    secure = _shortened(protection, plan, length)
    whole = Tag(round=0, layout_hash=bytes(16), length=length)
    mechanism = Mechanism(
        ratio=found.parameters.sigma / found.choice.sensitivity,
        blocks_per_group=secure.shape(whole).blocks,
        groups=secure.parameters.groups,
    )
    return min(found.round_guarantee.epsilon, guarantee(mechanism, protection.delta).epsilon)


def describe(protection: PreambleSettings, plan: Plan) -> dict[str, object]:
    """Return a run's guarantee, noise, blocks and bytes as plain values for its record."""
    found = sized(protection, plan)
    choice, p = found.choice, found.parameters
    secure = secure_sum(protection, plan)
    tag = Tag(round=0, layout_hash=bytes(16), length=plan.length)
    shape, proof = secure.shape(tag), secure.proof_bytes(tag)
    private = protection.noisy

    def promised(value: float) -> float | str:
        return value if private and value < inf else "none"

    return {
        "private": private,
        "unit": "one client's update (added or removed), of the sum that is opened; not losses, counts or timings",
        "delta": protection.delta,
        "epsilon_round": promised(found.round_guarantee.epsilon),
        "epsilon_run": promised(found.run_guarantee.epsilon),
        "rounds": protection.rounds,
        "clip_norm": protection.clip_norm,
        "sensitivity": choice.sensitivity,
        "sigma_each_aggregator": p.sigma,
        "noise_ratio": p.sigma / choice.gaussian_sigma,
        "error_ratio": choice.error_ratio,
        "mean_noise_per_coordinate": sqrt(2) * p.sigma / plan.clients,
        "block_size": p.block_size,
        "blocks": p.groups,
        "blocks_per_group": choice.shape.blocks_per_group,
        "padded_length": choice.shape.padded_length,
        "fraction_bits": p.fraction_bits,
        "word_bits": protection.word_bits,
        "leader_part_bytes": wire.HEADER_BYTES + reports.leader_bytes(shape, proof),
        "helper_part_bytes": wire.HEADER_BYTES + reports.helper_bytes(proof),
        "dense_share_bytes": choice.dense_bytes,
        "minimum_cohort": p.minimum_cohort,
        "transport": protection.transport,
        "verification": VERIFICATION[protection.verify],
    }


__all__ = [
    "DEFAULT_SAVING",
    "VERIFICATION",
    "PreambleSettings",
    "Sized",
    "describe",
    "of_round",
    "round_epsilon",
    "secure_sum",
    "sized",
    "without_keys",
]
