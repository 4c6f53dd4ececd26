"""A bound on each client's change: honest clients keep it, and what breaks it does not count where it can be seen."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsim.config import load_config
from fedsim.measure.ledger import Ledger
from fedsim.runner import simulate
from strategies.clipping import clip_change
from strategies.fedavg import FedAvg, FedAvgM
from strategies.records import NamedArrays, model_record
from tests.strategies.watching import Watch

INITIAL = NamedArrays({"w": np.zeros((2, 2), np.float32), "n": np.array(3, np.int64)})


@given(scale=st.floats(0, 1e6), limit=st.floats(1e-3, 1e3))
def test_a_change_is_shortened_to_the_bound_and_keeps_its_direction(scale, limit):
    change = np.array([[3.0, 4.0], [0.0, 12.0]]) * scale
    after = NamedArrays({"w": change.astype(np.float32), "n": np.array(9, np.int64)})
    kept, factor = clip_change(INITIAL, after, ("w", "n"), limit)
    norm = np.linalg.norm(kept.arrays["w"].astype(np.float64))
    assert norm <= limit * (1 + 1e-5) and 0 < factor <= 1 and kept.arrays["n"] == 9
    assert (factor == 1) == (np.linalg.norm(after.arrays["w"].astype(np.float64)) <= limit)
    np.testing.assert_allclose(kept.arrays["w"], factor * after.arrays["w"], rtol=1e-5)


@pytest.mark.report("U46")
def test_a_change_of_zeros_passes():
    kept, factor = clip_change(INITIAL, INITIAL, ("w", "n"), 5.0)
    assert factor == 1.0 and not kept.arrays["w"].any()


def fight(toy_grid, toy_handler, strategy_class, honest=9, **more):
    """Nine honest clients send a change of norm 1, one ignores the bound and sends 1000 times as much."""

    def update(client, arrays, server_round):
        return {"w": arrays["w"] + np.full((2, 2), 0.5, np.float32), "n": arrays["n"]}

    watch = Watch()
    strategy = strategy_class(clip_norm=1.0, observer=watch, **more)
    handler = toy_handler(update, examples=lambda c: 5)
    attack = toy_handler(lambda c, a, r: {"w": a["w"] - np.float32(500), "n": a["n"]}, examples=lambda c: 5)

    def mixed(message, context):
        evil = context.node_config["partition-id"] == honest
        if evil and message.metadata.message_type.startswith("train"):
            # A client that leaves the clipping out of its program.
            del message.content["config"]["x.clip-norm"]
            return attack(message, context)
        return handler(message, context)

    grid = toy_grid(honest + 1, mixed)
    original = grid.push_messages

    def own_copies(messages):
        from fedsim.simulation.inline import own_copy

        return original([own_copy(m) for m in messages])

    grid.push_messages = own_copies
    strategy.start(grid, model_record(INITIAL), num_rounds=1, timeout=5)
    return strategy.state.arrays["w"], watch.records[0]


@pytest.mark.report("D14", "under `federation.update_norm` plain servers leave it out; honest clients clip")
@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_a_server_that_sees_updates_leaves_out_what_is_too_long(toy_grid, toy_handler, weighting):
    state, record = fight(toy_grid, toy_handler, FedAvg, weighting=weighting)
    np.testing.assert_allclose(state, 0.5, rtol=1e-5)
    assert record.accepted == 9
    assert record.failures == ["round 1, client 9: change of norm 1e+03: at most 1 counts (federation.update_norm)"]


def test_server_optimisers_are_themselves_under_a_bound_that_nobody_reaches(toy_grid, toy_handler):
    def update(client, arrays, server_round):
        return {"w": arrays["w"] + np.float32(client), "n": arrays["n"]}

    got = []
    for clip in (None, 1e6):
        strategy = FedAvgM(clip_norm=clip)
        strategy.start(toy_grid(3, toy_handler(update)), model_record(INITIAL), num_rounds=2, timeout=5)
        got.append(strategy.state.arrays["w"])
    np.testing.assert_allclose(got[0], got[1], rtol=1e-6)


@pytest.mark.report("D14")
@pytest.mark.parametrize("protection", ["plain", "bfv"])
def test_honest_clients_of_a_run_keep_the_bound(tmp_path, protection):
    if protection == "bfv":
        pytest.importorskip("tenseal", reason="tenseal is not installed: pip install 'fedsim[tenseal]'")
    more = ["task.name=digits", "model.name=logistic", "federation.num_clients=4", "federation.rounds=1", "seed=1"]
    more += [f"output.folder={tmp_path}", "engine.name=inline", "output.report=false", f"protection.name={protection}"]
    states = {}
    for norm in ("0.001", "1000"):
        config = load_config(None, [*more, f"federation.update_norm={norm}", f"output.name=n{norm}"])
        result = simulate(config)
        states[norm] = result
        assert result.metrics["train_clipped_clients"] == (1.0 if norm == "0.001" else 0.0)
        assert all(t["outcome"] == "ok" for t in Ledger.read(result.folder).clients().to_pylist())
    start = simulate(load_config(None, [*more, "training.lr=1e-30", "output.name=start"]))
    for norm, bound in (("0.001", 0.001), ("1000", 1000)):
        moved = [states[norm].state.arrays[n].astype(float) - a for n, a in start.state.arrays.items()]
        total = np.sqrt(sum((m**2).sum() for m in moved))
        assert total <= bound * 1.01 + (2e-3 if protection == "bfv" else 0) and total > 0
