"""FedLUAR under sums that the clients open: they choose the layers, alike and without the server."""

from dataclasses import replace
from math import ceil

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from crypto.base import Plan
from crypto.errors import BackendUnavailable
from fedsim.protections import fresh_keys
from strategies.errors import Disagreement, Incompatible
from strategies.fedluar import FedLUAR, LuarClient
from strategies.fedluar_sealed import SealedFedLUAR, SealedLuarClient
from strategies.keyed import KeyedProtection
from strategies.nodes import Participation
from strategies.plan import BufferRule
from strategies.protection import Plain
from strategies.records import NamedArrays, model_record
from strategies.state import state_arrays
from tests.strategies.watching import Watch

SHAPES = {"a.weight": (200, 100), "a.bias": (100,), "b.weight": (100, 100), "c.weight": (100, 50)}
SIZES = {n: int(np.prod(s)) for n, s in SHAPES.items()}
START = NamedArrays({n: np.random.default_rng(1).normal(0, 0.1, s).astype(np.float32) for n, s in SHAPES.items()})


def move(client, arrays, server_round):
    rng = np.random.default_rng([client, server_round])
    return {n: (a + rng.normal(0.001, 0.01, a.shape)).astype(a.dtype) for n, a in arrays.items()}


def run(toy_grid, toy_handler, method, *, clients=3, rounds=5, client=None, update=move, halves=None, **common):
    """Return the strategy, its records and the models that clients trained from: (round, client) -> arrays."""
    seen = {}

    def noting(number, arrays, server_round):
        seen[server_round, number] = {n: a.copy() for n, a in arrays.items()}
        return update(number, arrays, server_round)

    halves = halves or [SealedLuarClient(method)] * clients
    apps = [toy_handler(noting, half=half, protection=client or common.get("protection")) for half in halves]
    grid = toy_grid(clients, lambda message, context: apps[context.node_config["partition-id"]](message, context))
    strategy = SealedFedLUAR(**method, **common)
    strategy.observer = Watch()
    strategy.start(grid, model_record(START), num_rounds=rounds, timeout=60)
    return strategy, strategy.observer.records, seen


@pytest.fixture
def bfv():
    """Return both sides of an exact sum whose secret key only the clients have."""
    about = KeyedProtection("bfv", "crypto.he_seal:BfvSum", (), 1.0)
    try:
        length = SealedFedLUAR(protection=about).longest(START.layout).length
    except BackendUnavailable as error:
        pytest.skip(str(error))
    with fresh_keys(about, Plan(length=length, clients=3, bound=1.0)) as ring:
        yield replace(about, keys=ring.server, role="server"), replace(about, keys=ring.clients)


OPTIONS = [{}, {"drop": True}, {"optimizer": "adam", "server_lr": 0.05}, {"group": "module", "max_staleness": 1}]


@pytest.mark.parametrize("more", OPTIONS)
def test_clients_come_to_the_model_that_the_server_would_make(toy_grid, toy_handler, more):
    """With layers that do not depend on a seed both ways are one, up to weights being sent as changes."""
    method = {"delta": 1, "sampler": "round_robin", **more}
    _, _, seen = run(toy_grid, toy_handler, method, weighting="uniform")
    open_seen = {}

    def noting(client, arrays, server_round):
        open_seen[server_round, client] = arrays
        return move(client, arrays, server_round)

    strategy = FedLUAR(**method)
    strategy.start(toy_grid(3, toy_handler(noting, half=LuarClient())), model_record(START), num_rounds=5, timeout=60)
    assert seen.keys() == open_seen.keys() and len(seen) == 15
    for key, arrays in seen.items():
        for name in SHAPES:
            np.testing.assert_allclose(arrays[name], open_seen[key][name], atol=2e-6)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(faults=st.sets(st.tuples(st.integers(1, 3), st.integers(1, 6)), max_size=6), seed=st.integers(0, 9))
def test_clients_hold_the_same_bits_whoever_was_away(toy_grid, toy_handler, faults, seed):
    def update(client, arrays, server_round):
        if (client, server_round) in faults:
            raise KeyError("gone")
        return move(client, arrays, server_round)

    common = {"participation": Participation(fraction=0.75), "seed": seed, "evaluate_fraction": 0.5}
    try:
        _, _, seen = run(toy_grid, toy_handler, {"delta": 2}, clients=4, rounds=6, update=update, **common)
    except ValueError:
        return  # a round of nobody
    for server_round in range(1, 7):
        models = [a for (r, _), a in seen.items() if r == server_round]
        assert all(np.array_equal(a, models[0][n]) for model in models[1:] for n, a in model.items())


def test_ciphertexts_fall_with_the_recycled_share_and_the_server_learns_no_more(toy_grid, toy_handler, bfv):
    server, client = bfv
    method = {"delta": 1}
    strategy, records, seen = run(
        toy_grid, toy_handler, method, client=client, protection=server, evaluate_fraction=1.0
    )
    assert all(np.array_equal(a, START.arrays[n]) for n, a in strategy.state.arrays.items())
    slots = server.secure_sum(strategy._secure_plan).slots
    whole = ceil(sum(SIZES.values()) / slots)
    uploads = [r.delivered[0].sealed_bytes for r in records]
    for server_round, size in enumerate(uploads, 1):
        assert size / uploads[0] in [pytest.approx(n / whole, rel=0.03) for n in range(1, whole + 1)]
        assert server_round == 1 or size < uploads[0]
    down = [b for r in records for _, b in r.evaluate_downloads.values()]
    assert max(down[-3:]) < 0.9 * max(down)
    assert len(seen) == 15


def test_layers_depend_on_the_clients_secret(toy_grid, toy_handler):
    class Secret(Plain):
        def secret(self, plan):
            return b"s" * 32

    def lengths(protection):
        method = {"delta": 2, "sampler": "uniform"}
        _, records, _ = run(toy_grid, toy_handler, method, rounds=8, client=protection)
        return [r.delivered[0].sealed_bytes for r in records]

    one = lengths(Plain())
    assert one == lengths(Plain()) and one != lengths(Secret())


def test_clients_with_other_options_are_found_before_they_are_added(toy_grid, toy_handler):
    halves = [SealedLuarClient({"delta": 1}), SealedLuarClient({"delta": 1}), SealedLuarClient({"delta": 2})]
    with pytest.raises(Disagreement, match="hold different states"):
        run(toy_grid, toy_handler, {"delta": 1}, halves=halves)


def test_refuses_what_cannot_be_carried(toy_grid, toy_handler):
    with pytest.raises(Incompatible, match="below the model's number of layers, 3"):
        run(toy_grid, toy_handler, {"delta": 3})
    with pytest.raises(Incompatible, match=r"'norm.mean' does not travel .*norm = group"):
        SealedFedLUAR(buffers=BufferRule(names=frozenset(["norm.mean"])))
    with pytest.raises(Incompatible, match="same bits"):
        SealedFedLUAR(protection=KeyedProtection("ckks", "x:y", (), 1.0, repeatable=False))
    with pytest.raises(ValueError, match="delta -1"):
        SealedFedLUAR(delta=-1)
    with pytest.raises(TypeError, match="deltas"):
        SealedFedLUAR(deltas=1)


def test_untrained_state_is_each_clients_own():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Linear(3, 2))
    half = SealedLuarClient({"delta": 1, "learning_rate": float})
    half.shape(model)
    state = NamedArrays(state_arrays(model))
    mine = NamedArrays(state.arrays | {"1.running_mean": np.ones(2, np.float32)})
    other = NamedArrays(state.arrays | {"1.bias": np.ones(2, np.float32)})
    assert half.digest(state) == half.digest(mine) != half.digest(other)
    assert list(half.first(state)) == [f"model/{n}" for n, _ in model.named_parameters()]
    assert half.digest(state) != SealedLuarClient({"delta": 2}).digest(state)
