"""PREAMBLE under any strategy: clipped changes of weights, block-sparse shares for two servers, differential privacy.

The leader is the server of the federation; the helper is a party of its own (:mod:`strategies.helper_link`). Clients
find the helper's pinned public key in their own folder of keys; the server's folder holds the same public key and says
where the helper listens.
"""

import hashlib
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from math import ceil, floor, inf, log2, log10, sqrt
from pathlib import Path
from typing import Literal

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from crypto import BudgetExceeded, InputError, KeyMismatch, wire
from crypto.base import FloatVector, Opener, Plan, Sealer, Tag
from crypto.keys import CLIENTS, HELPER, SERVER, KeyBundle, key_id, load_key
from crypto.preamble import wire as reports
from crypto.preamble.aggregator import LeaderAdder
from crypto.preamble.blocks import BlockShape
from crypto.preamble.dpf import Group
from crypto.preamble.noise import NoNoiseForTests
from crypto.preamble.pine import WRAP_NORM_STEPS
from crypto.preamble.privacy import Guarantee, Mechanism, guarantee
from crypto.preamble.rotation import padded_length
from crypto.preamble.scheme import MAX_NORM_BITS, Parameters, PreambleSum
from crypto.preamble.sizing import Choice, evaluate, size
from strategies.errors import HelperLost
from strategies.helper_link import ADDRESS_FILE, HelperLink, Transport, connect
from strategies.helper_relay import Relay
from strategies.protection import Protection
from strategies.verified_fold import Journal, VerifiedFold

SCHEME = "preamble"
#: Keys depend on the sealing suite alone, so one key pair serves any run.
KEY_PARAMS = wire.params_hash(SCHEME, "X25519, HKDF-SHA256, ChaCha20-Poly1305", 1)
#: What the aggregators check, in words for a run's record.
VERIFICATION = {
    "strict": "V0: encoding, replay set and the same public share at both; a client can spoil the sum",
    "blocks": "V0 and V1: one block a group at most; its size is not checked, so a client can spoil the sum",
    "norm": "V0, V1 and V3 (V4 for payloads above 8192 bits): one block a group, and the norm of all blocks together",
}
#: The leader's account of released rounds, in a run's folder.
JOURNAL_FILE = "releases.csv"
#: The default byte budget is this share of a dense two-server share.
DEFAULT_SAVING = 8
# What the sampler and the noise take at most, see crypto.preamble.blocks and crypto.preamble.noise.
_BLOCK_BITS, _SIGMA_BITS, _MOST_FRACTION_BITS = 31, 28, 40
_RUN = b"preamble-run/1"


@dataclass(frozen=True, kw_only=True)
class PreambleProtection(Protection):
    """PREAMBLE, as a strategy sees it.

    Attributes:
        run: 16 bytes that name the run; see :func:`run_id`.
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
        journal: file in which the leader notes a round before it asks for the total; see :meth:`journaled`.
    """

    name = SCHEME
    payload = "delta"
    uniform_only = True
    spends = True

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

    @property
    def bound(self) -> float:
        """The norm bounds each coordinate."""
        return self.clip_norm

    def clip(self, vector: FloatVector) -> tuple[FloatVector, float]:
        """Scale a vector down to the norm C where it is longer.

        Raises:
            InputError: a value is not finite; names the first.
        """
        bad = np.flatnonzero(~np.isfinite(vector))
        if bad.size:
            raise InputError(f"coordinate {bad[0]} is {vector[bad[0]]} ({bad.size} such values): must be finite")
        wide = vector.astype(np.float64)
        norm = sqrt(float(np.einsum("i,i->", wide, wide)))  # not BLAS, whose order of sums depends on its threads
        factor = min(1.0, self.clip_norm / norm) if norm > 0 else 1.0
        return wide * factor, factor

    def secure_sum(self, plan: Plan) -> PreambleSum:
        """See :meth:`~strategies.protection.Protection.secure_sum`; without keys, good for its budget alone."""
        return _sum(self, plan)

    def sealer(self, plan: Plan) -> Sealer:
        """See :meth:`~strategies.protection.Protection.sealer`."""
        if self.keys is None:
            raise KeyMismatch(
                "protection 'preamble' needs the helper's public key and no folder of keys was given: name it "
                "(node config 'keys', or FEDSIM_KEYS)"
            )
        return _RoundSealer(self, plan)

    def opener(self, plan: Plan) -> Opener:
        """See :meth:`~strategies.protection.Protection.opener`; whoever holds both totals can."""
        return _RoundOpener(self, plan)

    @property
    def relayed(self) -> bool:
        """See :attr:`~strategies.protection.Protection.relayed`."""
        return self.transport == "relay"

    def fold(self, plan: Plan, tag: Tag, relay: Relay | None = None) -> VerifiedFold:
        """See :meth:`~strategies.protection.Protection.fold`: verified together with the helper.

        Raises:
            HelperLost: there is no helper, or it refuses the round.
            BudgetExceeded: the round's vector is longer than the plan's.
        """
        secure, whole = of_round(self, plan, tag)
        # The helper is greeted with the plan's parameters and derives the round's itself.
        link = self._link(self.secure_sum(plan), tag, self._transport(tag.round, relay))
        return VerifiedFold(partial(self.leader, secure, whole), link, tag, secure.parameters.batch, self._journal)

    def leader(self, secure: PreambleSum, tag: Tag, verify_key: bytes) -> LeaderAdder:
        """Return the leader's adder of a round, with its noise."""
        return secure.leader(tag, None if self.noisy else NoNoiseForTests(), verify_key=verify_key)

    def journaled(self, folder: Path) -> "PreambleProtection":
        """See :meth:`~strategies.protection.Protection.journaled`; the account is ``releases.csv``."""
        return replace(self, journal=str(folder / JOURNAL_FILE))

    @property
    def _journal(self) -> Journal | None:
        return None if self.journal is None else Journal(Path(self.journal))

    def last_opened(self) -> int:
        """See :meth:`~strategies.protection.Protection.last_opened`."""
        return 0 if self._journal is None else self._journal.last_released()

    def greet(self, plan: Plan) -> None:
        """Ask the helper whether it holds the pinned key and runs these parameters.

        Raises:
            HelperLost: it does not answer, or says no and why.
        """
        tag = Tag(round=0, layout_hash=bytes(16), length=plan.length)
        self._link(self.secure_sum(plan), tag, self._transport(tag.round, None)).close()

    def _link(self, secure: PreambleSum, tag: Tag, transport: Transport) -> HelperLink:
        header = secure.header(tag)
        return HelperLink(transport, header.key_id, header.params_hash)

    def _transport(self, server_round: int, relay: Relay | None) -> Transport:
        if not self.relayed:
            return connect(self._address(), Path(self.keys or "") / SERVER, self.timeout_s)
        if relay is None:
            raise HelperLost(
                "protection.transport is relay: the leader reaches the helper inside a run alone, through the node of "
                "its owner; ask on that machine (`fedsim helper alive --listen SOCKET`), or set transport = direct"
            )
        return relay.transport(server_round, self.timeout_s)

    def _address(self) -> str:
        path = Path(self.keys or "") / ADDRESS_FILE
        if self.keys is None or not path.is_file():
            raise HelperLost(
                f"the server knows no helper ({path} is not there): start the helper and write its address there, a "
                "socket's path or tls://HOST:PORT"
            )
        return path.read_text(encoding="utf-8").strip()

    def round_facts(self, plan: Plan, tag: Tag) -> dict[str, float]:
        """Return a round's blocks, noise and epsilon: what shorter rounds than the plan's change."""
        secure, _ = of_round(self, plan, tag)
        p = secure.parameters
        known = {"preamble_blocks": float(p.groups), "preamble_sigma": p.sigma}
        if not self.noisy:
            return known
        return known | {"preamble_epsilon": _round_epsilon(_public(self), plan, secure.plan.length)}

    def facts(self, plan: Plan) -> dict[str, object]:
        """Return the guarantee and what it costs; see :func:`describe`."""
        return describe(self, plan)


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
def _sized(protection: PreambleProtection, plan: Plan) -> Sized:
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


def sized(protection: PreambleProtection, plan: Plan) -> Sized:
    """Return blocks, noise and guarantees for a plan; depends on nothing but the settings and the plan.

    Raises:
        BudgetExceeded: no report fits the byte budget, or the sum does not fit a word.
        InputError: a setting is out of range, or only one of block size and blocks is given.
    """
    return _sized(_public(protection), plan)


def _public(protection: PreambleProtection) -> PreambleProtection:
    return replace(protection, keys=None, role=CLIENTS)


def _choose(p: PreambleProtection, plan: Plan) -> Choice:
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


def _evaluated(p: PreambleProtection, plan: Plan, rounds: int, shape: BlockShape) -> Choice:
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


def _group(p: PreambleProtection) -> Group:
    if p.verify == "norm":
        return Group.FIELD64
    return Group.Z32 if p.word_bits == 32 else Group.Z64


def _fraction_bits(p: PreambleProtection, sensitivity: float, sigma: float, clients: int, shape: BlockShape) -> int:
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
def _sum(protection: PreambleProtection, plan: Plan) -> PreambleSum:
    key = bytes(32) if protection.keys is None else helper_key(Path(protection.keys), protection.role)
    return PreambleSum(plan, sized(protection, plan).parameters, helper_key=key, run=protection.run)


def of_round(protection: PreambleProtection, plan: Plan, tag: Tag) -> tuple[PreambleSum, Tag]:
    """Return a round's secure sum and the tag of its vectors, filled up with zeros to whole groups of blocks.

    See :meth:`crypto.preamble.scheme.PreambleSum.shortened`.

    Raises:
        BudgetExceeded: the round's vectors are longer than the plan's.
    """
    secure = _shortened(protection, plan, tag.length)
    return secure, replace(tag, length=secure.plan.length)


@lru_cache(maxsize=64)
def _shortened(protection: PreambleProtection, plan: Plan, length: int) -> PreambleSum:
    return _sum(protection, plan).shortened(length)


@lru_cache(maxsize=64)
def _round_epsilon(protection: PreambleProtection, plan: Plan, length: int) -> float:
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


class _RoundSealer(Sealer):
    def __init__(self, protection: PreambleProtection, plan: Plan) -> None:
        self._protection, self._plan, self._clipped = protection, plan, 0

    def seal(self, vector: FloatVector, tag: Tag) -> list[bytes]:
        if vector.shape != (tag.length,):
            raise InputError(f"vector of shape {vector.shape}: the round's has ({tag.length},); use the round's layout")
        secure, whole = of_round(self._protection, self._plan, tag)
        sealer = secure.sealer()
        parts = sealer.seal(np.pad(vector.astype(np.float64, copy=False), (0, whole.length - tag.length)), whole)
        self._clipped = sealer.clipped
        return parts

    @property
    def clipped(self) -> int:
        return self._clipped


class _RoundOpener(Opener):
    def __init__(self, protection: PreambleProtection, plan: Plan) -> None:
        self._protection, self._plan = protection, plan

    def open(self, totals: list[bytes], tag: Tag) -> NDArray[np.float64]:
        secure, whole = of_round(self._protection, self._plan, tag)
        return secure.opener().open(totals, whole)[: tag.length].copy()


def run_id(*public: object) -> bytes:
    """Return the 16 bytes that name a run, from public values with a stable ``repr``."""
    return hashlib.blake2b(repr(public).encode(), person=_RUN, digest_size=16).digest()


def make_keys() -> tuple[KeyBundle, ...]:
    """Make the helper's key pair: public bundles for server and clients, the private one for the helper alone."""
    private = X25519PrivateKey.generate()
    public = private.public_key().public_bytes_raw()
    identity = key_id(SCHEME, KEY_PARAMS, public)

    def bundle(role: str, secret: bytes = b"") -> KeyBundle:
        return KeyBundle(
            role=role, scheme=SCHEME, params_hash=KEY_PARAMS, key_id=identity, public=public, secret=secret
        )

    return bundle(SERVER), bundle(CLIENTS), bundle(HELPER, private.private_bytes_raw())


def helper_key(root: Path, role: str) -> bytes:
    """Return the helper's public key, 32 bytes, as this role's folder of keys pins it.

    Raises:
        FileNotFoundError, WireError: see :func:`crypto.keys.load_key`.
        KeyMismatch: the key is not one of this scheme.
    """
    bundle = load_key(root, role, SCHEME)
    bundle.require(SCHEME, KEY_PARAMS)
    return bundle.public


def describe(protection: PreambleProtection, plan: Plan) -> dict[str, object]:
    """Return a run's guarantee, noise, blocks and bytes as plain values for its record."""
    found = sized(protection, plan)
    choice, p = found.choice, found.parameters
    secure = protection.secure_sum(plan)
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
    "JOURNAL_FILE",
    "KEY_PARAMS",
    "SCHEME",
    "VERIFICATION",
    "PreambleProtection",
    "Sized",
    "describe",
    "helper_key",
    "make_keys",
    "of_round",
    "run_id",
    "sized",
]
