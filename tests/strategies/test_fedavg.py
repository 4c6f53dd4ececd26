"""FedAvg and its server optimisers against their equations, and what must never change or spoil a sum."""

import hashlib
import re

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord

from strategies.errors import EmptyRound, NoSuchNodes, TooFewReplies
from strategies.fedavg import FedAdam, FedAvg, FedAvgM, FedProx
from strategies.nodes import Participation
from strategies.plan import BufferRule
from strategies.records import NamedArrays, array_record, model_bytes, model_record

INITIAL = NamedArrays({"w": np.zeros((2, 2), np.float32), "b": np.ones(3, np.float32)})


def add_client_number(client, arrays, server_round):
    return {name: (a + client).astype(a.dtype) for name, a in arrays.items()}


def run(strategy, grid, rounds=1, initial=INITIAL):
    strategy.start(grid, model_record(initial), num_rounds=rounds, timeout=20)
    return strategy.state.arrays


def weighted_mean(values, weights):
    return sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)


def test_fedavg_is_the_mean_weighted_by_examples(toy_grid, toy_handler):
    got = run(FedAvg(), toy_grid(5, toy_handler(add_client_number)), rounds=2)
    step = weighted_mean(range(5), [1, 2, 3, 4, 5])
    np.testing.assert_allclose(got["w"], np.full((2, 2), 2 * step), rtol=1e-6)
    np.testing.assert_allclose(got["b"], np.full(3, 1 + 2 * step), rtol=1e-6)


def test_uniform_weighting_ignores_examples(toy_grid, toy_handler):
    got = run(FedAvg(weighting="uniform"), toy_grid(5, toy_handler(add_client_number)))
    np.testing.assert_allclose(got["w"], 2.0)


@pytest.mark.report("U55", "100 orders of arrival give the same bits")
@pytest.mark.report("T4", "sums are formed over fixed chunks in a fixed order")
def test_one_hundred_orders_of_arrival_give_the_same_bits(toy_grid, toy_handler):
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(20, 2, 2)).astype(np.float32)

    def update(client, arrays, server_round):
        return {"w": arrays["w"] + noise[client], "b": arrays["b"] * np.float32(1 + client / 7)}

    digests = set()
    for order in range(100):
        grid = toy_grid(20, toy_handler(update), shuffle=order, at_once=7)
        strategy = FedAvg()
        run(strategy, grid)
        digests.add(hashlib.sha256(model_bytes(strategy.state)).hexdigest())
    assert len(digests) == 1


@pytest.mark.report("U54", "two identical rounds give identical results")
def test_two_identical_rounds_give_identical_results(toy_grid, toy_handler):
    def constant(client, arrays, server_round):
        return {name: np.full_like(a, client) for name, a in arrays.items()}

    one = run(FedAvg(), toy_grid(4, toy_handler(constant)), rounds=1)
    two = run(FedAvg(), toy_grid(4, toy_handler(constant)), rounds=2)
    np.testing.assert_array_equal(one["w"], two["w"])


def test_fedprox_tells_the_clients_mu(toy_grid, toy_handler):
    grid = toy_grid(2, toy_handler(add_client_number))
    run(FedProx(mu=0.25), grid)
    assert grid.pushed[-1].content["config"]["x.proximal-mu"] == 0.25
    with pytest.raises(ValueError, match="at least 0"):
        FedProx(mu=-1.0)


def test_fedavgm_follows_its_equations(toy_grid, toy_handler):
    got = run(FedAvgM(server_lr=0.5, server_momentum=0.9), toy_grid(3, toy_handler(add_client_number)), rounds=3)
    d = weighted_mean(range(3), [1, 2, 3])
    x, v = 0.0, 0.0
    for _ in range(3):
        v = 0.9 * v + d
        x += 0.5 * v
    np.testing.assert_allclose(got["w"], x, rtol=1e-6)


def test_fedavgm_without_momentum_is_fedavg(toy_grid, toy_handler):
    one = run(FedAvgM(server_lr=1.0, server_momentum=0.0), toy_grid(4, toy_handler(add_client_number)), rounds=2)
    two = run(FedAvg(), toy_grid(4, toy_handler(add_client_number)), rounds=2)
    np.testing.assert_allclose(one["w"], two["w"], rtol=1e-6)


def test_fedadam_follows_its_equations(toy_grid, toy_handler):
    strategy = FedAdam(server_lr=0.1, beta1=0.8, beta2=0.95, tau=1e-2)
    got = run(strategy, toy_grid(3, toy_handler(add_client_number)), rounds=3)
    d = weighted_mean(range(3), [1, 2, 3])
    x, m, u = 0.0, 0.0, 1e-4
    for _ in range(3):
        m = 0.8 * m + 0.2 * d
        u = 0.95 * u + 0.05 * d * d
        x += 0.1 * m / (u**0.5 + 1e-2)
    np.testing.assert_allclose(got["w"], x, rtol=1e-6)


def test_server_optimiser_resumes_to_the_same_bits(toy_grid, toy_handler):
    whole, first, second = FedAdam(), FedAdam(), FedAdam()
    run(whole, toy_grid(3, toy_handler(add_client_number)), rounds=4)
    run(first, toy_grid(3, toy_handler(add_client_number)), rounds=2)
    second.load_state_dict({k: v.copy() for k, v in first.state_dict().items()})
    second.start(
        toy_grid(3, toy_handler(add_client_number)), model_record(first.state), num_rounds=4, timeout=20, first_round=3
    )
    assert model_bytes(whole.state) == model_bytes(second.state)


@pytest.mark.report("U43", "10 and 30 give 20, in int64, rounded half to even")
@pytest.mark.report("T1", "20 as int64")
@pytest.mark.parametrize(
    ("values", "dtype", "want"),
    [((10, 30), np.int64, 20), ((10, 13), np.int64, 12), ((0.0, 1.0), np.float16, 0.5), ((1, 2), np.uint8, 2)],
)
def test_buffers_average_with_documented_rounding_and_keep_dtype(toy_grid, toy_handler, values, dtype, want):
    def set_value(client, arrays, server_round):
        return {"n": np.array(values[client], dtype)}

    initial = NamedArrays({"n": np.array(0, dtype)})
    got = run(FedAvg(), toy_grid(2, toy_handler(set_value, examples=lambda c: 7)), initial=initial)["n"]
    assert got.dtype == dtype and got.shape == () and got == want


@pytest.mark.report("U44", "means 0 and 2 weighted 1:3 give 1.5; `federation.buffers` chooses average, local or first")
def test_running_means_zero_and_two_weighted_one_to_three_give_one_and_a_half(toy_grid, toy_handler):
    def set_mean(client, arrays, server_round):
        return {"mean": np.full(4, 2.0 * client, np.float32)}

    initial = NamedArrays({"mean": np.zeros(4, np.float32)})
    handler = toy_handler(set_mean, examples=lambda c: (1, 3)[c])
    np.testing.assert_array_equal(run(FedAvg(), toy_grid(2, handler), initial=initial)["mean"], 1.5)


@pytest.mark.report("U44")
@pytest.mark.parametrize(("mode", "want"), [("average", 1.5), ("first", 0.0), ("local", -1.0)])
def test_buffer_rules(toy_grid, toy_handler, mode, want):
    names = frozenset(["mean"])

    def set_mean(client, arrays, server_round):
        return {"w": arrays["w"] + 1, "mean": np.full(2, 2.0 * client, np.float32)}

    initial = NamedArrays({"w": np.zeros(1, np.float32), "mean": np.full(2, -1.0, np.float32)})
    handler = toy_handler(set_mean, examples=lambda c: (1, 3)[c], buffer_names=names)
    strategy = FedAvg(buffers=BufferRule(mode=mode, names=names))
    got = run(strategy, toy_grid(2, handler), initial=initial)
    np.testing.assert_array_equal(got["mean"], want)
    np.testing.assert_allclose(got["w"], 1.0)


@pytest.mark.report("U56", "float16 2.0 from two clients with 60,000 samples is 2.0")
@pytest.mark.report("T3", "2.0")
def test_float16_models_survive_large_example_counts(toy_grid, toy_handler):
    initial = NamedArrays({"w": np.zeros(1, np.float16)})
    handler = toy_handler(lambda c, a, r: {"w": np.array([2.0], np.float16)}, examples=lambda c: 60_000)
    got = run(FedAvg(), toy_grid(2, handler), initial=initial)["w"]
    assert got.dtype == np.float16 and got[0] == 2.0


@pytest.mark.report("U48")
def test_bfloat16_stays_exact_through_a_round(toy_grid, toy_handler):
    values = np.array([1.0, -0.15625, 3.0e20], np.float32)
    initial = NamedArrays({"w": np.zeros(3, np.float32)}, {"w": "bfloat16"})
    handler = toy_handler(lambda c, a, r: {"w": values}, examples=lambda c: 2)
    strategy = FedAvg()
    np.testing.assert_array_equal(run(strategy, toy_grid(4, handler), initial=initial)["w"], values)
    assert strategy.state.dtypes == {"w": "bfloat16"}


@pytest.mark.report("U17")
@pytest.mark.report(
    "U51", "refused by name and left out; strategies that send parts average each array over those who sent it"
)
@pytest.mark.report("T2", "another shape is refused by the layout's hash; a number of samples must be positive")
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (lambda a: {"w": a["w"]}, "'b' is not in the layout"),
        (lambda a: {**a, "w": np.zeros((1, 2), np.float32)}, "layout"),
        (lambda a: {**a, "w": np.full((2, 2), np.nan, np.float32)}, r"'w' holds nan at index \(0, 0\)"),
        (lambda a: {**a, "w": a["w"].astype(np.float64)}, "layout"),
    ],
)
def test_a_client_with_bad_arrays_is_named_and_left_out(toy_grid, toy_handler, fault, words):
    def update(client, arrays, server_round):
        arrays = add_client_number(client, arrays, server_round)
        return fault(arrays) if client == 1 else arrays

    records = []
    strategy = FedAvg(observer=Watch(records))
    got = run(strategy, toy_grid(3, toy_handler(update)))
    np.testing.assert_allclose(got["w"], weighted_mean([0, 2], [1, 3]), rtol=1e-6)
    assert records[0].accepted == 2
    (line,) = records[0].failures
    assert line.startswith("round 1, client 1:")
    assert re.search(words, line)


class Watch:
    def __init__(self, records):
        self.records = records

    def evaluate(self, server_round, state):
        return {"mean": float(state.arrays["w"].mean())}

    def round_done(self, record, strategy):
        self.records.append(record)


@pytest.mark.report(
    "U41", "a client without samples is left out by name; a round of such clients is `EmptyRound` and the model stays"
)
@pytest.mark.report("U75")
def test_zero_samples_do_not_count(toy_grid, toy_handler):
    def set_w(client, arrays, server_round):
        return {"w": np.full((2, 2), [1.0, 3.0][client], np.float32), "b": arrays["b"]}

    got = run(FedAvg(), toy_grid(2, toy_handler(set_w, examples=lambda c: [0, 5][c])))
    np.testing.assert_array_equal(got["w"], 3.0)


@pytest.mark.report("U41")
def test_a_round_of_nobody_is_an_error_and_keeps_the_model(toy_grid, toy_handler):
    strategy = FedAvg()
    with pytest.raises(EmptyRound, match="none of 2 clients delivered"):
        run(strategy, toy_grid(2, toy_handler(add_client_number, examples=lambda c: 0)))
    assert model_bytes(strategy.state) == model_bytes(INITIAL)


@pytest.mark.report("U52", "`federation.min_replies` decides; the ledger and the report name who was missing")
def test_too_few_replies_stop_the_run_at_the_last_good_model(toy_grid, toy_handler):
    def fails_in_round_two(client, arrays, server_round):
        if server_round == 2 and client:
            raise KeyError("x")
        return add_client_number(client, arrays, server_round)

    strategy, one = FedAvg(participation=Participation(min_replies=2)), FedAvg()
    with pytest.raises(TooFewReplies, match=r"round 2: 1 of 3 clients delivered(.|\n)*client 1: KeyError: 'x'"):
        run(strategy, toy_grid(3, toy_handler(fails_in_round_two)), rounds=3)
    run(one, toy_grid(3, toy_handler(add_client_number)), rounds=1)
    assert model_bytes(strategy.state) == model_bytes(one.state)


@pytest.mark.report("U52")
def test_a_silent_client_is_late_and_the_round_goes_on(toy_grid, toy_handler):
    records = []
    strategy = FedAvg(participation=Participation(deadline_s=0.3), observer=Watch(records))
    run(strategy, toy_grid(3, toy_handler(add_client_number), silent=[101]))
    assert records[0].accepted == 2
    assert records[0].failures == ["round 1, client 1: no reply before the deadline"]


@pytest.mark.report("U62")
def test_sampling_depends_on_seed_and_round_alone(toy_grid, toy_handler):
    def sampled(seed):
        records = []
        strategy = FedAvg(participation=Participation(fraction=0.3), seed=seed, observer=Watch(records))
        run(strategy, toy_grid(20, toy_handler(add_client_number)), rounds=3)
        return [[n.partition_id for n in r.nodes] for r in records]

    one = sampled(1)
    assert one == sampled(1) and one != sampled(2)
    assert all(len(r) == 6 and r == sorted(r) for r in one) and one[0] != one[1]


def test_waits_for_nodes_no_longer_than_told(toy_grid, toy_handler):
    strategy = FedAvg(participation=Participation(min_nodes=5, connect_s=0.1))
    with pytest.raises(NoSuchNodes, match="2 nodes after 0.1 s: the plan needs 5"):
        run(strategy, toy_grid(2, toy_handler(add_client_number)))


@pytest.mark.report("U83", "two nodes that claim one number are refused")
@pytest.mark.report("D18")
def test_two_nodes_that_claim_one_partition_are_refused(toy_grid, toy_handler):
    grid = toy_grid(3, toy_handler(add_client_number))
    grid.contexts[102].node_config["partition-id"] = 0
    with pytest.raises(NoSuchNodes, match="100 and 102 both claim partition 0"):
        run(FedAvg(), grid)


def test_client_side_evaluation_sees_the_new_model(toy_grid, toy_handler):
    records = []
    run(FedAvg(evaluate_fraction=1.0, observer=Watch(records)), toy_grid(3, toy_handler(add_client_number)))
    step = weighted_mean(range(3), [1, 2, 3])
    assert records[0].metrics["client_mean"] == pytest.approx((step + 1 + step) / 2)
    assert records[0].metrics["server_mean"] == pytest.approx(step)
    assert set(records[0].evaluated) == {0, 1, 2}


def test_works_in_flowers_own_loop(toy_grid, toy_handler):
    """The four methods of Flower's interface give what our loop gives."""
    ours, theirs = FedAvg(), FedAvg()
    run(ours, toy_grid(4, toy_handler(add_client_number)), rounds=2)
    grid, arrays = toy_grid(4, toy_handler(add_client_number), shuffle=3), array_record(INITIAL)
    for server_round in (1, 2):
        messages = theirs.configure_train(server_round, arrays, ConfigRecord(), grid)
        arrays, metrics = theirs.aggregate_train(server_round, grid.send_and_receive(messages))
        assert isinstance(arrays, ArrayRecord) and metrics["train_loss"] == pytest.approx(2.0)
    assert model_bytes(theirs.state) == model_bytes(ours.state)


@pytest.mark.report("U59", "one running total however many clients; only the batches in flight wait")
def test_memory_of_a_round_does_not_grow_with_the_cohort(toy_grid, toy_handler):
    """Of a large cohort only the batches that may be in flight wait at once, not all replies."""
    grid = toy_grid(600, toy_handler(add_client_number, examples=lambda c: 1))
    strategy = FedAvg(chunk=4)
    run(strategy, grid)
    assert 0 < grid.most_waiting <= 68
