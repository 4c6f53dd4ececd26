"""What goes down under `downlink="delta"`: the same bits of every model, fewer bytes, whole models where in doubt."""

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crypto import LayoutMismatch
from strategies._luar_downlink import LuarClient, advance, change
from strategies.errors import Incompatible
from strategies.fedluar import FedLUAR
from strategies.nodes import Participation
from strategies.records import NamedArrays, model_bytes, model_record, read_model, wire_bytes
from tests.strategies.watching import Watch

SHAPES = {"a.weight": (20, 30), "a.bias": (30,), "b.weight": (30, 20), "c.weight": (20, 20), "d.weight": (20, 10)}
INITIAL = NamedArrays({n: np.random.default_rng(1).normal(size=s).astype(np.float32) for n, s in SHAPES.items()})


def move(client, arrays, server_round):
    rng = np.random.default_rng([client, server_round])
    return {n: a + rng.normal(0.01, 0.1, a.shape).astype(a.dtype) for n, a in arrays.items()}


def run(toy_grid, toy_handler, rounds=8, clients=4, update=move, initial=INITIAL, **options):
    """Return the strategy, its records, and the models that clients held: (round, client) -> arrays."""
    seen = {}

    def noting(client, arrays, server_round):
        seen[server_round, client] = {n: a.copy() for n, a in arrays.items()}
        return update(client, arrays, server_round)

    strategy, grid = FedLUAR(delta=2, **options), toy_grid(clients, toy_handler(noting, half=LuarClient()))
    strategy.observer = Watch()
    strategy.start(grid, model_record(initial), num_rounds=rounds, timeout=20)
    return strategy, strategy.observer.records, seen, grid


@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("fraction", [1.0, 0.5])
@pytest.mark.parametrize("group", ["tensor", "module"])
def test_clients_hold_the_servers_bits_whatever_was_left_out(toy_grid, toy_handler, drop, fraction, group):
    options = {"drop": drop, "group": group, "participation": Participation(fraction=fraction)}
    full, records, sent, _ = run(toy_grid, toy_handler, rounds=12, **options)
    less, fewer, made, _ = run(toy_grid, toy_handler, rounds=12, downlink="delta", **options)
    assert model_bytes(full.state) == model_bytes(less.state)
    assert sent.keys() == made.keys()
    assert all(np.array_equal(a, made[k][n]) for k, arrays in sent.items() for n, a in arrays.items())
    assert [list(a) for a in made.values()] == [list(SHAPES)] * len(made)
    whole = sum(b for r in records for _, b in (r.download(i) for i in range(len(r.nodes))))
    spared = sum(b for r in fewer for _, b in (r.download(i) for i in range(len(r.nodes))))
    assert spared < (0.8 if fraction == 1.0 else 1.0) * whole


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(faults=st.sets(st.tuples(st.integers(0, 3), st.integers(1, 7)), max_size=8), clients=st.integers(2, 6))
def test_any_pattern_of_absence_and_failure_leaves_the_bits(toy_grid, toy_handler, faults, clients):
    def update(client, arrays, server_round):
        if client and (client, server_round) in faults:
            raise KeyError("gone")
        return move(client, arrays, server_round)

    options = {"participation": Participation(fraction=0.7), "seed": len(faults)}
    try:
        full, _, sent, _ = run(toy_grid, toy_handler, rounds=7, clients=clients, update=update, **options)
    except ValueError:
        return  # a round of nobody, on either side
    less, _, made, _ = run(toy_grid, toy_handler, rounds=7, clients=clients, update=update, downlink="delta", **options)
    assert model_bytes(full.state) == model_bytes(less.state)
    assert all(np.array_equal(a, made[k][n]) for k, arrays in sent.items() for n, a in arrays.items())


def test_record_states_each_clients_own_bytes(toy_grid, toy_handler):
    _, records, _, grid = run(toy_grid, toy_handler, downlink="delta", participation=Participation(fraction=0.6))
    sent = iter([wire_bytes(m.content) for m in grid.pushed if m.metadata.message_type == "train"])
    sizes = [r.download(i)[0] for r in records for i in range(len(r.nodes))]
    assert sizes == list(sent) and len(set(sizes)) > 2


def test_a_client_that_failed_is_sent_the_whole_model(toy_grid, toy_handler):
    def update(client, arrays, server_round):
        if client == 1 and server_round == 4:
            raise KeyError("gone")
        return move(client, arrays, server_round)

    _, records, _, _ = run(toy_grid, toy_handler, update=update, downlink="delta")
    sizes = [[r.download(i)[1] for i in range(4)] for r in records]
    assert sizes[4][1] == sizes[0][1] > sizes[4][0] == sizes[4][2]
    assert sizes[5][1] == sizes[0][1], "it saw no update yet"


def test_a_client_that_lost_its_memory_is_left_out_once(toy_grid, toy_handler):
    strategy = FedLUAR(delta=2, downlink="delta")
    inner = toy_handler(move, half=LuarClient())

    def handler(message, context):
        if message.metadata.group_id == "4" and context.node_config["partition-id"] == 2:
            context.state.clear()
        return inner(message, context)

    strategy.observer = Watch()
    strategy.start(toy_grid(4, handler), model_record(INITIAL), num_rounds=6, timeout=20)
    failures = [r.failures for r in strategy.observer.records]
    assert [len(f) for f in failures] == [0, 0, 0, 1, 0, 0]
    assert "client 2" in failures[3][0] and "holds the model of round None" in failures[3][0]


def test_clients_that_evaluate_are_sent_what_they_lack_and_nothing_twice(toy_grid, toy_handler):
    options = {"evaluate_fraction": 0.75, "participation": Participation(fraction=0.75)}
    full, records, sent, _ = run(toy_grid, toy_handler, rounds=12, **options)
    less, fewer, made, grid = run(toy_grid, toy_handler, rounds=12, downlink="delta", **options)
    assert model_bytes(full.state) == model_bytes(less.state)
    assert all(np.array_equal(a, made[k][n]) for k, arrays in sent.items() for n, a in arrays.items())
    means = [[r.metrics["client_mean"] for r in found] for found in (records, fewer)]
    assert means[0] == means[1] and len(set(means[0])) == 12
    asked = [m for m in grid.pushed if m.metadata.message_type == "evaluate"]
    assert [w for r in fewer for w, _ in r.evaluate_downloads.values()] == [wire_bytes(m.content) for m in asked]
    whole = sum(b for r in records for _, b in r.evaluate_downloads.values())
    assert sum(b for r in fewer for _, b in r.evaluate_downloads.values()) < 0.75 * whole
    evaluated = {(int(m.metadata.group_id), m.metadata.dst_node_id) for m in asked}
    trained = [m for m in grid.pushed if m.metadata.message_type == "train"]
    again = [m for m in trained if (int(m.metadata.group_id) - 1, m.metadata.dst_node_id) in evaluated]
    assert again and all(read_model(m.content["model"]).arrays == {} for m in again)


def test_bfloat16_arrays_are_always_sent(toy_grid, toy_handler):
    initial = NamedArrays(INITIAL.arrays, {"a.weight": "bfloat16", "b.weight": "bfloat16"})
    _, _, _, grid = run(toy_grid, toy_handler, initial=initial, downlink="delta")
    for message in grid.pushed:
        if message.metadata.message_type == "train":
            assert {"a.weight", "b.weight"} <= set(read_model(message.content["model"]).arrays)


def test_steps_of_an_optimiser_can_be_repeated_and_gradients_cannot(toy_grid, toy_handler):
    options = {"optimizer": "adam", "server_lr": 0.05, "recycle": "step"}
    full, less = run(toy_grid, toy_handler, **options)[0], run(toy_grid, toy_handler, downlink="delta", **options)[0]
    assert model_bytes(full.state) == model_bytes(less.state)
    with pytest.raises(Incompatible, match="use recycle 'step', or downlink 'full'"):
        FedLUAR(downlink="delta", optimizer="momentum")


def test_a_damaged_note_is_refused():
    content = RecordDict({"held": ConfigRecord({"round": 3, "base": "2", "steps": 1})})
    with pytest.raises(LayoutMismatch, match="field 'base' is '2': must be a whole number"):
        LuarClient().complete(content, INITIAL, RecordDict())


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_update_is_kept_in_the_arrays_dtype(dtype):
    old, new = np.array([1, 2], dtype), np.array([1.5, 1.75], dtype)
    update = change(new, old)
    assert update.dtype == dtype and advance(old, update).dtype == np.float64
    np.testing.assert_array_equal(advance(old, update), new)
