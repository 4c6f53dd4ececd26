"""Two servers end to end: exact sums without noise, the predicted error with it, and what each party refuses."""

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from crypto import wire as frames
from crypto.base import Plan, Tag
from crypto.errors import BudgetExceeded, EmptySum, InputError, KeyMismatch, LayoutMismatch, ReplayError, WireError
from crypto.preamble import sizing, wire
from crypto.preamble.aggregator import AlreadyReleased, HelperAdder, LeaderAdder
from crypto.preamble.dpf import Group
from crypto.preamble.noise import NoNoiseForTests
from crypto.preamble.norm import NormCircuit
from crypto.preamble.pine import WrapCircuit
from crypto.preamble.scheme import Parameters, PreambleSum

KEY = X25519PrivateKey.from_private_bytes(bytes(range(32)))
RUN = b"r" * 16
TAG = Tag(round=2, layout_hash=b"l" * 16, length=300)
PARAMETERS = Parameters(norm_bound=1.0, block_size=8, groups=4, sigma=0.01, fraction_bits=16, batch=8)


def scheme(length: int = 300, clients: int = 50, **changes: Any) -> PreambleSum:
    return PreambleSum(
        Plan(length=length, clients=clients, bound=1.0),
        replace(PARAMETERS, **changes),
        helper_key=KEY.public_key().public_bytes_raw(),
        run=RUN,
    )


def servers(secure_sum: PreambleSum, tag: Tag = TAG) -> tuple[LeaderAdder, HelperAdder]:
    return secure_sum.leader(tag, NoNoiseForTests()), secure_sum.helper(tag, KEY, NoNoiseForTests())


def settle(leader: LeaderAdder, helper: HelperAdder) -> int:
    proofs = leader.verify_init(), helper.verify_init()
    mine, theirs = leader.settle(proofs[1]), helper.settle(proofs[0])
    assert mine.accepted == theirs.accepted
    return len(mine.accepted)


def vector(rng: np.random.Generator, length: int = 300) -> np.ndarray:
    v = rng.normal(size=length)
    return v / np.linalg.norm(v)


@pytest.mark.parametrize("rotated", [True, False])
@pytest.mark.parametrize("group", Group)
@pytest.mark.parametrize("length", [1, 31, 32, 33, 300])
def test_the_opened_sum_is_the_sum_of_the_chosen_blocks_exactly(group: Group, length: int, rotated: bool) -> None:
    rng = np.random.default_rng(length)
    secure_sum = scheme(length, group=group, fraction_bits=12, rotated=rotated)
    tag = replace(TAG, length=length)
    sampler, sealer = secure_sum.sampler(tag), secure_sum.sealer(rng.bytes)
    leader, helper = servers(secure_sum, tag)
    sent = np.zeros(sampler.shape.padded_length, np.int64)
    for _ in range(5):
        selection = sampler.select(vector(rng, length), rng.bytes)
        sampler.scatter(selection, sent)
        parts = wire.encode(sealer.shard(selection, tag), KEY.public_key())
        header = secure_sum.header(tag)
        framed = [frames.encode(header, frames.PART, 1, part) for part in (parts.leader, parts.helper)]
        helper.add(leader.add_and_relay(*framed))
    assert settle(leader, helper) == 5 == leader.count == helper.count
    opened = secure_sum.opener().open([leader.total(), helper.total()], tag)
    assert np.array_equal(opened, sampler.decode(sent))


def test_sealed_parts_are_exactly_as_long_as_the_budget_says() -> None:
    for group in Group:
        secure_sum = scheme(group=group)
        parts = secure_sum.sealer().seal(vector(np.random.default_rng(1)).astype(np.float32), TAG)
        assert len(parts) == secure_sum.aggregators == 2
        assert sum(len(p) for p in parts) == secure_sum.budget.upload_bytes
        assert sum(len(server.total()) for server in filled(secure_sum)) == secure_sum.budget.download_bytes


def filled(secure_sum: PreambleSum, clients: int = 3, tag: Tag = TAG) -> tuple[LeaderAdder, HelperAdder]:
    rng = np.random.default_rng(2)
    leader, helper = servers(secure_sum, tag)
    for _ in range(clients):
        helper.add(leader.add_and_relay(*secure_sum.sealer().seal(vector(rng, tag.length), tag)))
    settle(leader, helper)
    return leader, helper


def test_total_is_the_same_bytes_on_every_call_and_closes_the_round() -> None:
    secure_sum = scheme()
    leader, helper = secure_sum.leader(TAG), secure_sum.helper(TAG, KEY)
    for _ in range(2):
        helper.add(leader.add_and_relay(*secure_sum.sealer().seal(vector(np.random.default_rng(3)), TAG)))
    settle(leader, helper)
    assert leader.total() == leader.total()
    with pytest.raises(AlreadyReleased, match="open a new round"):
        leader.add(secure_sum.sealer().seal(vector(np.random.default_rng(3)), TAG)[0])
    with pytest.raises(AlreadyReleased, match="open a new round"):
        leader.settle(b"")


def test_each_server_adds_its_own_noise() -> None:
    secure_sum = scheme(clients=4, sigma=1.0)
    errors = []
    for _ in range(6):
        leader, helper = secure_sum.leader(TAG), secure_sum.helper(TAG, KEY)
        for _ in range(2):
            helper.add(leader.add_and_relay(*secure_sum.sealer().seal(np.zeros(300), TAG)))
        settle(leader, helper)
        errors.append(secure_sum.opener().open([leader.total(), helper.total()], TAG))
    spread = np.concatenate(errors)
    assert abs(np.sqrt(np.mean(spread**2)) / np.sqrt(2) - 1) < 5 / np.sqrt(2 * spread.size)


@pytest.mark.report("U36", "both servers drop the client; the others' sum is unchanged")
@pytest.mark.parametrize("verify, accepted", [("blocks", 2), ("strict", 3)])
def test_a_tampered_report_is_dropped_by_both_and_the_rest_counts(verify: str, accepted: int) -> None:
    secure_sum = scheme(verify=verify)
    rng = np.random.default_rng(4)
    leader, helper = servers(secure_sum)
    sealer, sampler = secure_sum.sealer(rng.bytes), secure_sum.sampler(TAG)
    for bad in (False, True, False):
        reports = sealer.shard(sampler.select(vector(rng), rng.bytes), TAG)
        if bad:  # the client lies about a seed correction, consistently towards both
            body = bytearray(reports[0].body)
            body[1] ^= 1
            reports = replace(reports[0], body=bytes(body)), replace(reports[1], body=bytes(body))
        parts = wire.encode(reports, KEY.public_key())
        framed = [frames.encode(secure_sum.header(TAG), frames.PART, 1, p) for p in (parts.leader, parts.helper)]
        helper.add(leader.add_and_relay(*framed))
    proofs = leader.verify_init(), helper.verify_init()
    mine, theirs = leader.settle(proofs[1]), helper.settle(proofs[0])
    assert mine == theirs and len(mine.accepted) == accepted and len(mine.rejected) == 3 - accepted
    assert leader.count == helper.count == accepted
    secure_sum.opener().open([leader.total(), helper.total()], TAG)


def test_a_report_that_only_one_server_has_is_dropped() -> None:
    secure_sum = scheme()
    leader, helper = servers(secure_sum)
    parts = [secure_sum.sealer().seal(vector(np.random.default_rng(i)), TAG) for i in range(3)]
    for i, pair in enumerate(parts):
        relayed = leader.add_and_relay(*pair)
        if i != 1:
            helper.add(relayed)
    assert settle(leader, helper) == 2


def test_replays_are_refused_within_and_across_batches() -> None:
    secure_sum = scheme()
    leader, helper = servers(secure_sum)
    parts = secure_sum.sealer().seal(vector(np.random.default_rng(5)), TAG)
    relayed = leader.add_and_relay(*parts)
    helper.add(relayed)
    for _ in range(2):
        with pytest.raises(ReplayError, match="counts once"):
            leader.add_and_relay(*parts)
        with pytest.raises(ReplayError, match="counts once"):
            helper.add(relayed)
        assert settle(leader, helper) in (0, 1)
    assert leader.count == helper.count == 1


def test_other_rounds_layouts_and_runs_are_refused() -> None:
    secure_sum = scheme()
    part = secure_sum.sealer().seal(vector(np.random.default_rng(6)), TAG)[0]
    for tag, error in ((replace(TAG, round=3), ReplayError), (replace(TAG, layout_hash=b"m" * 16), LayoutMismatch)):
        with pytest.raises(error):
            secure_sum.leader(tag).add(part)
    other = PreambleSum(secure_sum.plan, PARAMETERS, helper_key=secure_sum.helper_key, run=b"q" * 16)
    with pytest.raises(KeyMismatch):
        other.leader(TAG).add(part)


def test_the_helper_wants_the_pinned_key_and_the_leaders_relay() -> None:
    secure_sum = scheme()
    with pytest.raises(KeyMismatch, match="pinned public key"):
        secure_sum.helper(TAG, X25519PrivateKey.generate())
    leader, helper = servers(secure_sum)
    parts = secure_sum.sealer().seal(vector(np.random.default_rng(7)), TAG)
    with pytest.raises(WireError):
        helper.add(parts[1])
    with pytest.raises(WireError):
        leader.add_and_relay(parts[0], parts[0])
    assert leader.waiting == 0, "a bad helper part must not count the leader part"
    leader.add_and_relay(*parts)


def test_small_cohorts_and_open_batches_are_not_released() -> None:
    secure_sum = scheme(minimum_cohort=3)
    leader, helper = servers(secure_sum)
    with pytest.raises(EmptySum, match="no reports"):
        leader.total()
    for i in range(2):
        helper.add(leader.add_and_relay(*secure_sum.sealer().seal(vector(np.random.default_rng(i)), TAG)))
    with pytest.raises(BudgetExceeded, match="2 reports wait"):
        helper.total()
    settle(leader, helper)
    with pytest.raises(BudgetExceeded, match="cohort of 2 reports: fewer than 3"):
        helper.total()


def test_a_full_batch_must_be_settled_first() -> None:
    secure_sum = scheme(batch=1)
    leader, helper = servers(secure_sum)
    parts = [secure_sum.sealer().seal(vector(np.random.default_rng(i)), TAG) for i in range(2)]
    helper.add(leader.add_and_relay(*parts[0]))
    with pytest.raises(BudgetExceeded, match="settle the batch"):
        leader.add_and_relay(*parts[1])
    settle(leader, helper)
    helper.add(leader.add_and_relay(*parts[1]))
    assert settle(leader, helper) == 1 and leader.count == 2


def test_totals_of_different_cohorts_do_not_open() -> None:
    secure_sum = scheme()
    first, second = filled(secure_sum), filled(secure_sum)
    with pytest.raises(WireError, match="different cohorts"):
        secure_sum.opener().open([first[0].total(), second[1].total()], TAG)
    with pytest.raises(WireError, match="1 totals"):
        secure_sum.opener().open([first[0].total()], TAG)


def test_totals_do_not_merge_and_bad_proof_lists_settle_nothing() -> None:
    secure_sum = scheme()
    leader, helper = servers(secure_sum)
    helper.add(leader.add_and_relay(*secure_sum.sealer().seal(vector(np.random.default_rng(8)), TAG)))
    with pytest.raises(WireError, match="do not merge"):
        leader.merge(b"x")
    with pytest.raises(WireError, match="must be 48 for each report"):
        leader.settle(b"x")
    assert settle(leader, helper) == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_vector_that_is_not_finite_is_refused(bad: float) -> None:
    v = np.zeros(300)
    v[7] = bad
    with pytest.raises(InputError, match="coordinate 7"):
        scheme().sealer().seal(v, TAG)


def test_a_plan_that_could_wrap_is_refused() -> None:
    with pytest.raises(BudgetExceeded, match="32-bit ring"):
        scheme(clients=10**6, group=Group.Z32, fraction_bits=16)
    with pytest.raises(InputError, match="must be at least 1"):
        scheme(batch=0)


def test_the_description_is_picklable_and_holds_no_secret() -> None:
    data = pickle.dumps(scheme())
    assert KEY.private_bytes_raw() not in data
    assert pickle.loads(data).task(TAG) == scheme().task(TAG)


def test_error_of_a_thousand_clients_is_the_predicted_one() -> None:
    rng = np.random.default_rng(9)
    length, clients = 2**14, 1000
    parameters = Parameters(
        norm_bound=1.0, block_size=256, groups=8, sigma=0.5, fraction_bits=20, clip_factor=1.25, batch=250
    )
    secure_sum = PreambleSum(
        Plan(length=length, clients=clients, bound=1.0),
        parameters,
        helper_key=KEY.public_key().public_bytes_raw(),
        run=RUN,
    )
    tag = Tag(round=0, layout_hash=bytes(16), length=length)
    leader, helper = secure_sum.leader(tag), secure_sum.helper(tag, KEY)
    sealer, total = secure_sum.sealer(), np.zeros(length)
    for _ in range(clients):
        v = vector(rng, length)
        total += v
        helper.add(leader.add_and_relay(*sealer.seal(v, tag)))
        if leader.waiting == parameters.batch:
            assert settle(leader, helper) == 250
    opened = secure_sum.opener().open([leader.total(), helper.total()], tag)
    blocks = secure_sum.shape(tag).blocks
    predicted = 2 * parameters.sigma**2 * length + clients * (blocks - 1)
    assert abs(np.sum((opened - total) ** 2) / predicted - 1) < 0.05
    assert np.abs(opened - total).max() < secure_sum.budget.error_bound


def test_a_sized_round_becomes_parameters_and_its_bytes_are_the_reports() -> None:
    choice = sizing.size(2**14, 1000, 1.0, 1e-6, 1, 40_000, norm_bound=2.0)
    parameters = Parameters.of(choice, norm_bound=2.0, minimum_cohort=10)
    secure_sum = PreambleSum(
        Plan(length=2**14, clients=1000, bound=1.0),
        parameters,
        helper_key=KEY.public_key().public_bytes_raw(),
        run=RUN,
    )
    shape = secure_sum.shape(replace(TAG, length=2**14))
    assert choice.upload_bytes == shape.public_bytes + 2 * 16
    assert parameters.sigma == choice.sigma and parameters.minimum_cohort == 10
    assert secure_sum.sampler(replace(TAG, length=2**14)).sensitivity == pytest.approx(choice.sensitivity)
    with pytest.raises(InputError, match="size the round with the same"):
        Parameters.of(choice, norm_bound=3.0)


@pytest.mark.parametrize(
    ("length", "block_size", "fraction_bits", "statement"), [(24, 4, 8, NormCircuit), (1000, 256, 18, WrapCircuit)]
)
def test_norms_are_proven_end_to_end_and_a_long_payload_is_dropped(
    length: int, block_size: int, fraction_bits: int, statement: type
) -> None:
    rng = np.random.default_rng(11)
    shaped: dict[str, Any] = {"block_size": block_size, "groups": 2, "fraction_bits": fraction_bits}
    secure_sum = scheme(length, clients=10, verify="norm", group=Group.FIELD64, sigma=1.0, **shaped)
    tag, key = replace(TAG, length=length), b"v" * 16
    assert isinstance(secure_sum.circuit(tag), statement)
    leader = secure_sum.leader(tag, NoNoiseForTests(), verify_key=key)
    helper = secure_sum.helper(tag, KEY, NoNoiseForTests(), verify_key=key)
    sealer, sampler, header = secure_sum.sealer(rng.bytes), secure_sum.sampler(tag), secure_sum.header(tag)
    for bad in (False, True, False):
        reports = sealer.shard(sampler.select(vector(rng, length), rng.bytes), tag)
        if bad:  # one word of a block correction grows, the same for both servers
            body = bytearray(reports[0].body)
            body[-3] ^= 0x40
            reports = replace(reports[0], body=bytes(body)), replace(reports[1], body=bytes(body))
        parts = wire.encode(reports, KEY.public_key())
        framed = [frames.encode(header, frames.PART, 1, p) for p in (parts.leader, parts.helper)]
        assert sum(map(len, framed)) == secure_sum.budget.upload_bytes
        helper.add(leader.add_and_relay(*framed))
    proofs = leader.verify_init(), helper.verify_init()
    mine, theirs = leader.settle(proofs[1]), helper.settle(proofs[0])
    assert mine == theirs and len(mine.accepted) == 2 and len(mine.rejected) == 1
    secure_sum.opener().open([leader.total(), helper.total()], tag)


def test_norm_proofs_want_a_key_a_field_and_a_small_payload() -> None:
    small: dict[str, Any] = {"verify": "norm", "group": Group.FIELD64, "block_size": 4, "groups": 2, "fraction_bits": 8}
    with pytest.raises(InputError, match="verify_key"):
        scheme(24, sigma=1.0, **small).leader(replace(TAG, length=24))
    for change, words in (
        ({"group": Group.Z64}, "need Field64 and at most"),
        ({"block_size": 2**14, "fraction_bits": 20}, "need Field64 and at most 16384 words"),
        ({"block_size": 512, "fraction_bits": 30}, "too many for the field; use fewer fraction bits"),
    ):
        with pytest.raises(BudgetExceeded, match=words):
            scheme(1000, sigma=1.0, **(small | change))
