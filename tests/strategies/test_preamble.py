"""Strategies over PREAMBLE with a real helper: exact without noise, noise of the right size, cheats, lost helpers."""

from dataclasses import replace

import numpy as np
import pytest
from flwr.app import MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from crypto import BudgetExceeded, InputError, KeyMismatch, wire
from crypto.base import Plan, Tag
from crypto.preamble import wire as reports
from crypto.preamble.privacy import gaussian_sigma
from fedsim.protections import fresh_keys
from strategies.errors import HelperLost, Incompatible, TooFewReplies
from strategies.fedavg import FedAdam, FedAvg, FedAvgM, FedProx
from strategies.nodes import Participation
from strategies.preamble import PreambleProtection, of_round, run_id, sized
from strategies.records import NamedArrays, array_record, read_sealed, sealed_record
from tests.strategies.watching import Watch

LENGTH, CLIENTS, C = 1000, 5, 1.0
PLAN = Plan(length=LENGTH, clients=CLIENTS, bound=C)
#: One block of the whole rotated vector: nothing is sampled and no block is shorter than the vector.
WHOLE = PreambleProtection(
    run=run_id("test"), rounds=3, epsilon=1.0, delta=1e-5, clip_norm=C, block_size=1024, blocks=1, noisy=False
)


def start():
    return {"a": np.linspace(-1, 1, 600).reshape(20, 30), "b": np.linspace(0, 2, 400)}


def change(client, server_round):
    rng = np.random.default_rng([client, server_round])
    size = 10.0 if client % 2 else 0.01
    return {"a": size * rng.standard_normal((20, 30)) / 30, "b": size * rng.standard_normal(400) / 30}


def clipped(delta):
    norm = np.sqrt(sum((d**2).sum() for d in delta.values()))
    return {k: d * min(1.0, C / norm) for k, d in delta.items()}


def raw_update(client, arrays, server_round):
    return {k: arrays[k] + d for k, d in change(client, server_round).items()}


def clipped_update(client, arrays, server_round):
    return {k: arrays[k] + d for k, d in clipped(change(client, server_round)).items()}


@pytest.fixture
def parties():
    """Return both sides' protections around a helper process that lives until the test ends."""
    with_helper = []

    def make(protection=WHOLE, plan=PLAN):
        context = fresh_keys(protection, plan)
        ring = context.__enter__()
        with_helper.append(context)
        return replace(protection, keys=ring.server, role="server"), replace(protection, keys=ring.clients)

    yield make
    for context in with_helper:
        context.__exit__(None, None, None)


def rounds_of(kind, grid, protection, count, **more):
    watch = Watch()
    strategy = kind(
        protection=protection,
        weighting="uniform",
        participation=Participation(min_nodes=CLIENTS),
        observer=watch,
        **more,
    )
    result = strategy.start(grid, array_record(NamedArrays(start())), num_rounds=count)
    return {k: a.numpy() for k, a in result.arrays.items()}, watch.records


@pytest.mark.parametrize("kind", [FedAvg, FedProx, FedAvgM, FedAdam])
def test_without_noise_every_strategy_is_itself_on_clipped_changes(toy_grid, toy_handler, parties, kind):
    server, client = parties()
    got, records = rounds_of(kind, toy_grid(CLIENTS, toy_handler(raw_update, protection=client)), server, 2)
    want, _ = rounds_of(kind, toy_grid(CLIENTS, toy_handler(clipped_update)), None, 2)
    for name in want:
        np.testing.assert_allclose(got[name], want[name], atol=1e-5 if kind is FedAdam else 1e-7)
    assert [r.accepted for r in records] == [CLIENTS, CLIENTS]
    assert all(r.helper.received_bytes > CLIENTS * 8192 and r.helper.busy_s > 0 for r in records)


@pytest.mark.parametrize("blocks", [(1024, 1), (16, 8)])
def test_the_released_error_is_that_of_noise_and_sampling(toy_grid, toy_handler, parties, blocks):
    shaped = replace(WHOLE, block_size=blocks[0], blocks=blocks[1], noisy=True, clip_factor=2.0, epsilon=2.0)
    server, client = parties(shaped)
    found, scheme = sized(shaped, PLAN), server.secure_sum(PLAN)
    vector = np.full(LENGTH, C / np.sqrt(LENGTH))
    errors = [noisy_sum(server, client, [vector] * CLIENTS, r) - CLIENTS * vector for r in (1, 2, 3)]
    spread = scheme.sampler(Tag(round=1, layout_hash=bytes(16), length=LENGTH)).shape.spread_length
    predicted = 2 * found.parameters.sigma**2 + CLIENTS * (found.choice.shape.blocks_per_group - 1) * C**2 / spread
    assert np.mean(np.square(errors)) == pytest.approx(predicted, rel=0.12)


@pytest.mark.slow
def test_a_thousand_clients_err_as_predicted_within_5_percent(parties):
    length, clients = 2**14, 1000
    plan, tag = Plan(length=length, clients=clients, bound=C), Tag(round=1, layout_hash=bytes(16), length=length)
    chosen = PreambleProtection(run=run_id("error"), rounds=1, epsilon=1.0, delta=1e-6)
    server, client = parties(chosen, plan)
    rng, want = np.random.default_rng(0), np.zeros(length)
    fold, sealer = server.fold(plan, tag), client.sealer(plan)
    for _ in range(clients):
        vector = rng.standard_normal(length)
        vector /= np.linalg.norm(vector)
        want += vector
        assert "rejected" not in relay(fold, sealer.seal(vector, tag))
        if fold._leader.waiting == server.secure_sum(plan).parameters.batch:
            fold._settle()
    fold._settle()
    got = server.opener(plan).open(fold.totals(), tag)
    assert np.sum((got - want) ** 2) == pytest.approx(sized(chosen, plan).choice.error.total, rel=0.05)


def noisy_sum(server, client, vectors, server_round):
    tag = Tag(round=server_round, layout_hash=bytes(16), length=LENGTH)
    fold = server.fold(PLAN, tag)
    for vector in vectors:
        relay(fold, client.sealer(PLAN).seal(vector, tag))
    fold._settle()
    return server.opener(PLAN).open(fold.totals(), tag)


def relay(fold, parts):
    content = RecordDict({"sealed": sealed_record(parts), "metrics": MetricRecord({"num-examples": 1})})
    fold._relay(content)
    return content.config_records["folded"]


# ------------------------------------------------------------------------------------------------- cheats


def reframed(secure, tag, part, tamper):
    """Return a part whose body was changed and whose frame fits it again."""
    header = secure.header(tag)
    return wire.encode(header, wire.PART, 1, tamper(bytearray(wire.decode(part, header, wire.PART).body)))


def flip(at):
    def tamper(body):
        body[at] ^= 1
        return bytes(body)

    return tamper


def with_a_false_check(client, tag, vector):
    """Seal as a client does that lies consistently to both aggregators: the share's check is wrong at both."""
    secure = client.secure_sum(PLAN)
    sealer = secure.sealer()
    shares = sealer.shard(secure.sampler(tag).select(vector), tag)
    shape = shares[0].shape
    at = shape.groups * (16 * shape.depth + shape.bit_bytes)
    wrong = tuple(replace(s, body=flip(at)(bytearray(s.body))) for s in shares)
    both = reports.encode(wrong, sealer._key)
    return [wire.encode(secure.header(tag), wire.PART, 1, body) for body in (both.leader, both.helper)]


CHEATS = {
    "damaged frame": (lambda s, t, p: [flip(-1)(bytearray(p[0])), p[1]], "checksum"),
    "leader's part": (lambda s, t, p: [reframed(s, t, p[0], flip(-1)), p[1]], "public share differs"),
    "leader's seed": (lambda s, t, p: [reframed(s, t, p[0], flip(40)), p[1]], "proofs differ"),
    "helper's part": (lambda s, t, p: [p[0], reframed(s, t, p[1], flip(-1))], "does not open"),
    "cut helper's part": (lambda s, t, p: [p[0], reframed(s, t, p[1], lambda b: bytes(b[:-1]))], "bytes"),
}


@pytest.mark.report("U36")
@pytest.mark.parametrize("cheat", CHEATS)
def test_a_cheat_is_named_and_dropped_by_both_and_the_others_count(toy_grid, toy_handler, parties, cheat):
    server, client = parties(replace(WHOLE, block_size=256, blocks=2))
    spoil, words = CHEATS[cheat]
    honest = toy_handler(raw_update, protection=client)

    def handler(message, context):
        reply = honest(message, context)
        if message.metadata.message_type == "train" and context.node_config["partition-id"] == 2:
            secure = client.secure_sum(PLAN)
            config = message.content["config"]
            tag = Tag(round=1, layout_hash=config["layout-hash"], length=LENGTH)
            parts = read_sealed(reply.content["sealed"], 2)
            reply.content["sealed"] = sealed_record(spoil(secure, tag, parts))
        return reply

    _, (record,) = rounds_of(FedAvg, toy_grid(CLIENTS, handler), server, 1)
    assert record.accepted == CLIENTS - 1
    (line,) = record.failures
    assert "client 2" in line and words in line


def test_a_consistent_lie_fails_the_block_check_at_both(parties):
    server, client = parties(replace(WHOLE, block_size=256, blocks=2))
    tag = Tag(round=1, layout_hash=bytes(16), length=LENGTH)
    vector = np.full(LENGTH, 0.01)
    fold = server.fold(PLAN, tag)
    notes = [relay(fold, client.sealer(PLAN).seal(vector, tag)) for _ in range(2)]
    notes.append(relay(fold, with_a_false_check(client, tag, vector)))
    fold._settle()
    assert ["rejected" in n for n in notes] == [False, False, True]
    assert "proofs differ" in notes[2]["rejected"]
    assert fold._leader.count == 2
    server.opener(PLAN).open(fold.totals(), tag)  # both counted the same reports, or this refuses


@pytest.mark.parametrize(("length", "block_size"), [(60, 8), (LENGTH, 512)])
def test_norms_are_proven_where_asked_and_a_false_proof_does_not_count(parties, length, block_size):
    plan, tag = Plan(length=length, clients=CLIENTS, bound=C), Tag(round=1, layout_hash=bytes(16), length=length)
    server, client = parties(replace(WHOLE, verify="norm", block_size=block_size, blocks=1), plan)
    assert sized(server, plan).parameters.fraction_bits >= 20
    fold = server.fold(plan, tag)
    parts = [client.sealer(plan).seal(np.full(length, 0.1 / np.sqrt(length)), tag) for _ in range(3)]
    parts[2][0] = reframed(client.secure_sum(plan), tag, parts[2][0], flip(-8))
    notes = [relay(fold, p) for p in parts]
    fold._settle()
    assert ["rejected" in n for n in notes] == [False, False, True]
    assert server.opener(plan).open(fold.totals(), tag).shape == (length,)


def test_replays_within_a_round_and_across_rounds_do_not_count(parties):
    server, client = parties()
    first, second = (Tag(round=r, layout_hash=bytes(16), length=LENGTH) for r in (1, 2))
    parts = [client.sealer(PLAN).seal(np.full(LENGTH, 0.01), first) for _ in range(2)]
    fold = server.fold(PLAN, first)
    notes = [relay(fold, p) for p in (*parts, parts[0])]
    assert "seen before" in notes[2]["rejected"] and "rejected" not in notes[0]
    fold._settle()
    fold.totals()
    fold = server.fold(PLAN, second)
    assert "round" in relay(fold, parts[0])["rejected"]
    fresh = client.sealer(PLAN).seal(np.full(LENGTH, 0.01), second)
    assert "rejected" in relay(fold, [fresh[0], parts[1][1]])
    assert "rejected" not in relay(fold, fresh)


def test_a_cohort_below_the_minimum_gets_no_total(toy_grid, toy_handler, parties):
    server, client = parties(replace(WHOLE, minimum_cohort=CLIENTS + 1))
    with pytest.raises(TooFewReplies, match=r"cohort of 5 reports: fewer than 6"):
        rounds_of(FedAvg, toy_grid(CLIENTS, toy_handler(raw_update, protection=client)), server, 1)


# ------------------------------------------------------------------------------------------------- refusals


def test_a_server_without_a_helper_says_so(toy_grid, toy_handler, parties, tmp_path):
    server, client = parties()
    handler = toy_handler(raw_update, protection=client)
    with pytest.raises(FileNotFoundError, match="no key at"):
        rounds_of(FedAvg, toy_grid(CLIENTS, handler), replace(server, keys=str(tmp_path)), 1)
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "preamble.key").write_bytes(
        (tmp_path / server.keys / "server" / "preamble.key").read_bytes()
    )
    with pytest.raises(HelperLost, match="knows no helper"):
        rounds_of(FedAvg, toy_grid(CLIENTS, handler), replace(server, keys=str(tmp_path)), 1)
    (tmp_path / "helper.address").write_text(str(tmp_path / "nobody"))
    with pytest.raises(HelperLost, match="no helper listens"):
        rounds_of(FedAvg, toy_grid(CLIENTS, handler), replace(server, keys=str(tmp_path)), 1)


def test_weighting_by_examples_is_refused():
    with pytest.raises(Incompatible, match="stated per client"):
        FedAvg(protection=WHOLE, weighting="examples")


def test_shorter_rounds_give_their_sum_and_longer_ones_are_refused(parties):
    server, client = parties()
    tag = Tag(round=1, layout_hash=bytes(16), length=10)
    fold = server.fold(PLAN, tag)
    sealed = [client.sealer(PLAN).seal(np.full(10, v), tag) for v in (0.1, 0.2)]
    assert all("rejected" not in relay(fold, parts) for parts in sealed)
    assert len({len(p) for parts in sealed for p in parts}) == 2
    fold._settle()
    np.testing.assert_allclose(server.opener(PLAN).open(fold.totals(), tag), np.full(10, 0.3), atol=1e-6)
    with pytest.raises(BudgetExceeded, match=r"a round of 1001 coordinates: the plan's longest round has 1000"):
        of_round(server, PLAN, Tag(round=3, layout_hash=bytes(16), length=LENGTH + 1))
    with pytest.raises(InputError, match=r"vector of shape \(9,\)"):
        client.sealer(PLAN).seal(np.zeros(9), tag)


def test_sealing_without_keys_is_refused():
    with pytest.raises(KeyMismatch, match="no folder of keys"):
        WHOLE.sealer(PLAN)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"byte_budget": 100, "block_size": None, "blocks": None}, BudgetExceeded, "protection.byte_budget"),
        ({"blocks": None}, InputError, "give both, or neither"),
        ({"fraction_bits": 30, "word_bits": 32}, BudgetExceeded, "fraction bits"),
        ({"verify": "norm", "block_size": 2**15}, BudgetExceeded, "at most 16384 words"),
    ],
)
def test_what_does_not_fit_is_refused_before_round_1(changes, error, words):
    with pytest.raises(error, match=words):
        replace(WHOLE, **changes).secure_sum(PLAN)


# ------------------------------------------------------------------------------------------------- numbers


def test_blocks_are_chosen_within_the_budget_and_the_target_is_met():
    plan = Plan(length=20_000, clients=100, bound=C)
    one = PreambleProtection(run=bytes(16), rounds=5, epsilon=1.0, delta=1e-6)
    whole = replace(one, per="run")
    a, b = sized(one, plan), sized(whole, plan)
    for found in (a, b):
        assert found.choice.upload_bytes <= 32768 * 8 // 8
        assert found.choice.sigma <= found.parameters.sigma <= found.choice.sigma * 1.001
    assert 0.99 < a.round_guarantee.epsilon <= 1.0 < a.run_guarantee.epsilon
    assert b.round_guarantee.epsilon < 0.99 < b.run_guarantee.epsilon <= 1.0
    assert sized(replace(one, keys="x", role="server"), plan) is a


def test_dense_is_the_gaussian_mechanism_with_two_noises(parties):
    dense = replace(WHOLE, dense=True, block_size=None, blocks=None, noisy=True, word_bits=32)
    found = sized(dense, PLAN)
    assert found.choice.shape.blocks_per_group == found.parameters.groups == 1
    assert found.parameters.sigma == pytest.approx(gaussian_sigma(dense.epsilon, dense.delta) * C, rel=1e-3)
    assert found.round_guarantee.epsilon == pytest.approx(dense.epsilon, rel=1e-3)
    # A float32 vector and what any report carries.
    assert 4 * LENGTH < dense.secure_sum(PLAN).budget.upload_bytes < 4 * LENGTH + 512
    server, client = parties(dense)
    vector = np.full(LENGTH, C / np.sqrt(LENGTH))
    errors = [noisy_sum(server, client, [vector] * CLIENTS, r) - CLIENTS * vector for r in (1, 2, 3)]
    assert np.std(errors) == pytest.approx(np.sqrt(2) * found.parameters.sigma, rel=0.08)


def test_facts_say_what_is_promised_and_that_nothing_is_without_noise():
    noisy = replace(WHOLE, noisy=True).facts(PLAN)
    assert noisy["private"] is True and noisy["epsilon_round"] == pytest.approx(1.0, rel=1e-3)
    silent = WHOLE.facts(PLAN)
    assert (silent["private"], silent["epsilon_round"], silent["sigma_each_aggregator"]) == (False, "none", 0.0)
    assert noisy["leader_part_bytes"] + noisy["helper_part_bytes"] == WHOLE.secure_sum(PLAN).budget.upload_bytes


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-1e150, 1e150), max_size=20), st.floats(1e-3, 1e3))
def test_clipping_keeps_the_norm_and_the_direction(values, bound):
    vector = np.array(values, np.float64)
    scaled, factor = replace(WHOLE, clip_norm=bound).clip(vector)
    norm = float(np.linalg.norm(vector))
    assert 0 < factor <= 1.0 or norm > bound
    assert np.linalg.norm(scaled) <= bound * (1 + 1e-9)
    np.testing.assert_array_equal(scaled, vector * factor)
    assert factor == 1.0 or norm > bound


def test_clipping_refuses_what_is_not_finite():
    with pytest.raises(InputError, match="coordinate 1 is nan"):
        WHOLE.clip(np.array([0.0, np.nan]))
