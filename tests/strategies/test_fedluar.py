"""FedLUAR's rounds. "Check N" names the rule of the method that a test stands for."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strategies.errors import EmptyRound, Incompatible
from strategies.fedavg import FedAdam, FedAvg, FedAvgM
from strategies.fedluar import FedLUAR, LuarClient
from strategies.nodes import Participation
from strategies.plan import BufferRule
from strategies.protection import Plain
from strategies.records import NamedArrays, model_bytes, model_record, read_sealed

SHAPES = {"a.weight": (4, 3), "a.bias": (3,), "b.weight": (3, 5), "c.weight": (2, 2, 2), "d.weight": (7, 2)}
KERNELS = ["a.weight", "b.weight", "c.weight", "d.weight"]


def start_model(seed=0, shapes=SHAPES):
    rng = np.random.default_rng(seed)
    return NamedArrays({n: rng.normal(size=s).astype(np.float32) for n, s in shapes.items()})


def move(client, arrays, server_round, noisy=()):
    """A client's training: every array changes, by its own amount in every round."""
    rng = np.random.default_rng([client, server_round])
    moved = {}
    for i, (n, a) in enumerate(arrays.items()):
        size = 0.02 * (i + 1)
        moved[n] = (a + rng.normal(size * 0.5, size, a.shape)).astype(a.dtype)
        if n in noisy:
            moved[n] = moved[n] + np.random.default_rng(client).normal(size=a.shape).astype(a.dtype)
    return moved


class Watch:
    """Keeps what each round did: its layers, the model before and after, scores, record."""

    def __init__(self):
        self.records, self.models, self.scores, self.chosen, self.longest = [], [], [], [], 0

    def evaluate(self, server_round, state):
        return {}

    def round_done(self, record, strategy):
        self.records.append(record)
        self.models.append(strategy.state.arrays)
        self.scores.append(strategy.luar.scores.copy())
        self.chosen.append(strategy.luar.recycled)
        self.longest = max(self.longest, *strategy.luar.ages.astype(int))


def run(strategy, grid, rounds, initial=None, first=1):
    strategy.observer = Watch()
    strategy.start(grid, model_record(initial or start_model()), num_rounds=rounds, timeout=20, first_round=first)
    return strategy.observer


def forced(layers, **options):
    """A strategy whose draw is given: round -> layers."""
    strategy = FedLUAR(**options)
    strategy.luar.draw = lambda server_round: tuple(layers.get(server_round, ()))
    return strategy


def clients(toy_grid, toy_handler, number=3, update=move, **options):
    return toy_grid(number, toy_handler(update, half=LuarClient(), **options))


@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_without_recycling_every_bit_is_fedavgs(toy_grid, toy_handler, weighting):
    """Check 1."""
    luar, avg = FedLUAR(delta=0, weighting=weighting), FedAvg(weighting=weighting)
    run(luar, clients(toy_grid, toy_handler), 5)
    avg.start(toy_grid(3, toy_handler(move)), model_record(start_model()), num_rounds=5, timeout=20)
    assert model_bytes(luar.state) == model_bytes(avg.state)


def test_first_round_uploads_all_and_scores_all(toy_grid, toy_handler):
    """Check 2."""
    strategy, grid = FedLUAR(delta=2), clients(toy_grid, toy_handler)
    watch = run(strategy, grid, 1)
    assert grid.pushed[-1].content["config"]["names"].count('"') == 2 * len(SHAPES)
    assert np.isfinite(watch.scores[0]).all() and (watch.scores[0] > 0).all()


def test_recycling_adds_the_same_update_again_whatever_clients_do(toy_grid, toy_handler):
    """Checks 3 and 4: after three recycled rounds x moved by three times the stored update; noise does not matter."""
    layers = {t: ("b.weight",) for t in (2, 3, 4)}
    one = run(forced(layers), clients(toy_grid, toy_handler), 4)
    two = run(
        forced(layers), clients(toy_grid, toy_handler, update=lambda c, a, r: move(c, a, r, ["b.weight"] * (r > 1))), 4
    )
    first = one.models[0]["b.weight"] - start_model().arrays["b.weight"]
    np.testing.assert_allclose(one.models[3]["b.weight"] - one.models[0]["b.weight"], 3 * first, atol=1e-6)
    for name in SHAPES:
        np.testing.assert_array_equal(one.models[3][name], two.models[3][name])


def reference(initial, layers, rounds, clients, drop=False):
    """The method as the paper's pseudo-code has it, slow and obvious."""
    x, scores, updates = {n: a.copy() for n, a in initial.items()}, {}, {}
    for t in range(1, rounds + 1):
        sent = [move(c, x, t) for c in range(clients)]
        new = {}
        for n, old in x.items():
            if n in layers.get(t, ()):
                new[n] = old if drop else (old.astype(np.float64) + updates[n]).astype(np.float32)
                continue
            new[n] = (sum(s[n].astype(np.float64) for s in sent) / clients).astype(np.float32)
            if n in KERNELS:
                updates[n] = new[n] - old
                scores[n] = np.linalg.norm(updates[n].ravel()) / (np.linalg.norm(old.ravel()) + 1e-6)
        x = new
    return x, scores, updates


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    plan=st.lists(st.sets(st.sampled_from(KERNELS), max_size=3), max_size=5),
    number=st.integers(1, 4),
    drop=st.booleans(),
)
def test_rounds_follow_the_pseudo_code(toy_grid, toy_handler, plan, number, drop):
    """Checks 3 and 5: models, updates and scores of any sequence of recycled layers against the slow reference."""
    layers = {t + 2: tuple(sorted(names)) for t, names in enumerate(plan)}
    strategy = forced(layers, drop=drop)
    run(strategy, clients(toy_grid, toy_handler, number), len(plan) + 1)
    x, scores, updates = reference(start_model().arrays, layers, len(plan) + 1, number, drop)
    for name in SHAPES:
        np.testing.assert_allclose(strategy.state.arrays[name], x[name], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(strategy.luar.scores, [scores[n] for n in KERNELS], rtol=1e-4)
    for name in KERNELS:
        np.testing.assert_allclose(strategy.luar.updates[name], updates[name], rtol=1e-4, atol=1e-6)


def test_a_recycled_layer_keeps_its_score_and_the_others_get_new_ones(toy_grid, toy_handler):
    """Check 5."""
    watch = run(FedLUAR(delta=2), clients(toy_grid, toy_handler), 6)
    for t in range(1, 6):
        for i, name in enumerate(KERNELS):
            assert (watch.scores[t][i] == watch.scores[t - 1][i]) == (name in watch.chosen[t - 1])


def test_biases_and_buffers_travel_every_round(toy_grid, toy_handler):
    """Check 6: nothing but kernels is ever recycled, and a counter is averaged as a whole number."""
    arrays = start_model().arrays | {"norm.mean": np.zeros((2, 2), np.float32), "norm.count": np.array(0, np.int64)}

    def update(client, arrays, server_round):
        counted = {n: np.array(a + 3) if n == "norm.count" else a for n, a in arrays.items()}
        return move(client, {n: a for n, a in counted.items() if n != "norm.count"}, server_round) | {
            "norm.count": counted["norm.count"]
        }

    names = frozenset(["norm.mean", "norm.count"])
    strategy = FedLUAR(delta=3, buffers=BufferRule(names=names))
    watch = run(
        strategy, clients(toy_grid, toy_handler, update=update, buffer_names=names), 8, initial=NamedArrays(arrays)
    )
    assert {n for chosen in watch.chosen for n in chosen} <= set(KERNELS)
    assert strategy.state.arrays["norm.count"] == 24 and strategy.state.arrays["norm.count"].dtype == np.int64
    for old, new in zip(watch.models, watch.models[1:], strict=False):
        assert all(not np.array_equal(old[n], new[n]) for n in ("a.bias", "norm.mean"))


@pytest.mark.report("U10")
def test_recycled_arrays_are_absent_from_the_wire(toy_grid, toy_handler):
    """Checks 9 and 21: each reply holds the bytes of the arrays that are not recycled, and no more."""
    replies = []
    inner = toy_handler(move, half=LuarClient())

    def handler(message, context):
        reply = inner(message, context)
        if message.metadata.message_type == "train":
            (part,) = read_sealed(reply.content["sealed"], 1)
            replies.append((int(message.metadata.group_id), len(part)))
        return reply

    strategy = FedLUAR(delta=2)
    watch = run(strategy, toy_grid(3, handler), 6)
    frame = 80
    sizes = {n: a.nbytes for n, a in start_model().arrays.items()}
    recycled = [(), *watch.chosen]
    for server_round, length in replies:
        assert length == frame + sum(s for n, s in sizes.items() if n not in recycled[server_round - 1])
    sent = sum(s for t in range(6) for n, s in sizes.items() if n not in recycled[t])
    assert watch.records[-1].metrics["server_luar_comm"] == pytest.approx(sent / (6 * sum(sizes.values())))
    assert len(replies) == 18 and sent < 6 * sum(sizes.values())
    assert [d.sealed_bytes for r in watch.records for d in r.delivered] == [length for _, length in sorted(replies)]


def test_all_clients_get_the_same_layers_and_seeds_decide_them(toy_grid, toy_handler):
    """Check 11."""

    def layers(seed, layer_seed, fraction=1.0):
        strategy = FedLUAR(
            delta=2, seed=seed, layer_seed=layer_seed, sampler="uniform", participation=Participation(fraction=fraction)
        )
        grid = clients(toy_grid, toy_handler, 4)
        chosen = run(strategy, grid, 6).chosen
        names = {}
        for m in grid.pushed:
            if m.metadata.message_type == "train":
                names.setdefault(m.metadata.group_id, set()).add(m.content["config"]["names"])
        assert all(len(found) == 1 for found in names.values())
        return chosen

    one = layers(1, 7)
    assert one == layers(1, 7) == layers(2, 7, 0.5) and one != layers(1, 8)
    assert len(set(one)) > 1


@pytest.mark.report("U51")
def test_partial_failure_averages_who_arrived(toy_grid, toy_handler):
    """Check 18: three of eight fail in every round."""

    def update(client, arrays, server_round):
        if client < 3:
            raise KeyError("gone")
        return move(client, arrays, server_round)

    def only_five(client, arrays, server_round):
        return move(client + 3, arrays, server_round)

    one, two = FedLUAR(delta=2), FedLUAR(delta=2)
    run(one, clients(toy_grid, toy_handler, 8, update), 4)
    run(two, clients(toy_grid, toy_handler, 5, only_five), 4)
    for name in SHAPES:
        np.testing.assert_allclose(one.state.arrays[name], two.state.arrays[name], rtol=1e-6, atol=1e-7)


def test_a_round_without_replies_changes_nothing(toy_grid, toy_handler):
    """Check 18: model, scores, updates and layers stay; recycled updates are not applied."""

    def update(client, arrays, server_round):
        if server_round == 3:
            raise KeyError("gone")
        return move(client, arrays, server_round)

    one, two = FedLUAR(delta=2), FedLUAR(delta=2)
    with pytest.raises(EmptyRound, match="round 3: none of 3 clients delivered"):
        run(one, clients(toy_grid, toy_handler, update=update), 4)
    run(two, clients(toy_grid, toy_handler), 2)
    assert model_bytes(one.state) == model_bytes(two.state) and one.luar.recycled == two.luar.recycled
    assert {k: a.tobytes() for k, a in one.state_dict().items()} == {
        k: a.tobytes() for k, a in two.state_dict().items()
    }


def test_clients_count_alike_unless_told_otherwise(toy_grid, toy_handler):
    """Check 19: clients of 10 and of 1000 samples."""

    def constant(client, arrays, server_round):
        return {n: np.full_like(a, client) for n, a in arrays.items()}

    def mean(**options):
        strategy = FedLUAR(delta=1, **options)
        run(strategy, clients(toy_grid, toy_handler, 2, constant, examples=lambda c: (10, 1000)[c]), 1)
        return strategy.state.arrays["a.weight"]

    np.testing.assert_allclose(mean(), 0.5)
    np.testing.assert_allclose(mean(weighting="examples"), 1000 / 1010, rtol=1e-6)


def test_server_rate_scales_recycled_layers_too(toy_grid, toy_handler):
    """Check 20: at rate 0.5 a recycled layer moves by half the mean update; at 1 it is plain FedLUAR."""
    layers, initial = {2: ("b.weight",)}, start_model()
    watch = run(forced(layers, server_lr=0.5), clients(toy_grid, toy_handler), 2)
    mean = np.mean([move(c, initial.arrays, 1)["b.weight"] for c in range(3)], axis=0) - initial.arrays["b.weight"]
    np.testing.assert_allclose(watch.models[1]["b.weight"] - watch.models[0]["b.weight"], 0.5 * mean, atol=1e-6)
    one = run(forced(layers, optimizer="momentum", server_momentum=0.0), clients(toy_grid, toy_handler), 3)
    two = run(forced(layers), clients(toy_grid, toy_handler), 3)
    np.testing.assert_allclose(one.models[2]["b.weight"], two.models[2]["b.weight"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("optimizer", "plain"), [("momentum", FedAvgM), ("adam", FedAdam)])
def test_without_recycling_server_optimisers_are_their_own(toy_grid, toy_handler, optimizer, plain):
    one, two = FedLUAR(delta=0, optimizer=optimizer, server_lr=0.1), plain(server_lr=0.1, weighting="uniform")
    run(one, clients(toy_grid, toy_handler), 3)
    two.start(toy_grid(3, toy_handler(move)), model_record(start_model()), num_rounds=3, timeout=20)
    assert model_bytes(one.state) == model_bytes(two.state)


def test_recycled_gradients_feed_momentum_and_recycled_steps_do_not(toy_grid, toy_handler):
    layers, initial = {2: ("b.weight",), 3: ("b.weight",)}, start_model()
    x = initial.arrays["b.weight"].astype(np.float64)
    gradient = np.mean([move(c, initial.arrays, 1)["b.weight"] for c in range(3)], axis=0) - x
    options = {"optimizer": "momentum", "server_momentum": 0.5}
    fed = run(forced(layers, **options), clients(toy_grid, toy_handler), 3).models[2]["b.weight"]
    np.testing.assert_allclose(fed, x + gradient * (1 + 1.5 + 1.75), atol=1e-6)
    still = run(forced(layers, recycle="step", **options), clients(toy_grid, toy_handler), 3).models[2]["b.weight"]
    np.testing.assert_allclose(still, x + gradient * 3, atol=1e-6)


def test_proximal_term_reaches_the_clients(toy_grid, toy_handler):
    grid = clients(toy_grid, toy_handler)
    run(FedLUAR(delta=1, mu=0.25), grid, 1)
    assert grid.pushed[-1].content["config"]["x.proximal-mu"] == 0.25


@pytest.mark.parametrize(
    "options",
    [{}, {"optimizer": "adam", "server_lr": 0.1}, {"optimizer": "momentum", "recycle": "step"}, {"downlink": "delta"}],
)
def test_resumes_to_the_same_bits(toy_grid, toy_handler, options):
    """Check 17: stop after round 7, resume, and compare with a run that never stopped."""
    whole, first, second = (FedLUAR(delta=2, max_staleness=4, **options) for _ in range(3))
    run(whole, clients(toy_grid, toy_handler), 12)
    run(first, clients(toy_grid, toy_handler), 7)
    second.load_state_dict({k: v.copy() for k, v in first.state_dict().items()})
    run(second, clients(toy_grid, toy_handler), 12, initial=first.state, first=8)
    assert model_bytes(whole.state) == model_bytes(second.state) and whole.luar.recycled == second.luar.recycled
    assert whole.state_dict().keys() == second.state_dict().keys()
    assert all(np.array_equal(a, second.state_dict()[k], equal_nan=True) for k, a in whole.state_dict().items())


@pytest.mark.parametrize("sampler", ["score", "deterministic", "uniform"])
def test_no_layer_is_recycled_longer_than_allowed(toy_grid, toy_handler, sampler):
    """Check 16: the longest run under a cap of 3."""
    assert run(FedLUAR(delta=3, sampler=sampler, max_staleness=3), clients(toy_grid, toy_handler), 20).longest <= 3
    assert run(FedLUAR(delta=3, sampler="deterministic"), clients(toy_grid, toy_handler), 20).longest > 3


def test_updates_of_another_learning_rate_are_not_recycled(toy_grid, toy_handler):
    def rate(server_round):
        return 0.1 if server_round < 5 else 0.01

    watch = run(FedLUAR(delta=3, learning_rate=rate), clients(toy_grid, toy_handler), 8)
    assert watch.chosen[3] == () and all(len(watch.chosen[t]) == 3 for t in (0, 1, 2, 4, 5, 6))
    kept = run(FedLUAR(delta=3, learning_rate=rate, refresh_on_lr_change=False), clients(toy_grid, toy_handler), 8)
    assert len(kept.chosen[3]) == 3


def test_slowly_falling_rates_refresh_only_old_updates(toy_grid, toy_handler):
    strategy = FedLUAR(delta=3, sampler="deterministic", learning_rate=lambda t: 0.9**t)
    watch = run(strategy, clients(toy_grid, toy_handler), 15)
    assert watch.longest == 6 and all(watch.chosen[:5])


def test_modules_are_recycled_whole(toy_grid, toy_handler):
    grid = clients(toy_grid, toy_handler)
    strategy = FedLUAR(delta=3, group="module")
    watch = run(strategy, grid, 6)
    assert {"a"} <= {n for chosen in watch.chosen for n in chosen} <= {"a", "b", "c", "d"}
    assert "a.bias" in strategy.luar.updates


@pytest.mark.parametrize("delta", [4, 9])
def test_refuses_to_recycle_all_layers(toy_grid, toy_handler, delta):
    with pytest.raises(Incompatible, match=rf"delta {delta}: must be below the model's number of layers, 4"):
        run(FedLUAR(delta=delta), clients(toy_grid, toy_handler), 1)


@pytest.mark.parametrize("options", [{"delta": -1}, {"mu": -0.1}, {"mu": float("nan")}, {"max_staleness": 0}])
def test_refuses_values_out_of_range(options):
    with pytest.raises(ValueError, match="must be at least 0"):
        FedLUAR(**options)


def test_refuses_the_state_of_another_model(toy_grid, toy_handler):
    first, second = FedLUAR(delta=1), FedLUAR(delta=1)
    run(first, clients(toy_grid, toy_handler), 2)
    second.load_state_dict(first.state_dict())
    fewer = start_model(shapes={n: SHAPES[n] for n in ("a.weight", "b.weight")})
    with pytest.raises(Incompatible, match="of 4 layers: the model has 2"):
        run(second, clients(toy_grid, toy_handler), 3, initial=fewer, first=3)


def test_refuses_sums_that_only_clients_can_open():
    class Opened(Plain):
        opened_by = "clients"

    with pytest.raises(Incompatible, match="only clients can open"):
        FedLUAR(protection=Opened())


def test_warns_where_most_layers_are_recycled(toy_grid, toy_handler, caplog):
    names = {**SHAPES, "e.weight": (2, 2)}
    run(FedLUAR(delta=4), clients(toy_grid, toy_handler), 1, initial=start_model(shapes=names))
    assert "4 of 5 layers" in caplog.text
