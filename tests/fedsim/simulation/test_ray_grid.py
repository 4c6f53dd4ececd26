"""RayGrid. One private Ray serves the file: starting it takes seconds."""

import os
import random
import stat
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import ray
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

from fedsim.simulation import ray_grid as ray_grid_module
from fedsim.simulation.grid import FaultCode
from fedsim.simulation.inline import InlineGrid
from fedsim.simulation.ray_grid import RayGrid

CLIENTS = 8
BIG = 40_000  # values; above the limits for broadcast and for buffers of their own


def sum_replies(replies):
    """A reducer: the sum of a batch's arrays and what it saw."""
    good = [r for r in replies if r.has_content()]
    total = sum(r.content["arrays"].to_numpy_ndarrays()[0] for r in good)
    metrics = MetricRecord({"pids": os.getpid(), "good": len(good), "bad": len(replies) - len(good)})
    good[0].content = RecordDict({"arrays": ArrayRecord([total]), "m": metrics})
    return good[:1]


@pytest.fixture(scope="module")
def grid(request):
    import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    make_app = request.getfixturevalue("app_maker")

    configs = [{"name": f"c{i}"} for i in range(CLIENTS)]
    with RayGrid(make_app(), node_configs=configs, run_config={}, seed=7, workers=2, store_bytes=2**28) as grid:
        yield grid
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def codes(replies) -> list[int]:
    return [r.error.code if r.has_error() else 0 for r in replies]


@pytest.mark.report("T4")
def test_gives_the_same_bits_as_inline_whatever_the_batches(grid, app, message) -> None:
    arrays = [np.random.default_rng(0).normal(size=BIG).astype(np.float32), np.zeros(3, np.float32)]
    content = RecordDict({"arrays": ArrayRecord(arrays), "config": ConfigRecord({})})

    def run(engine, order):
        messages = [message(n, kind, content=content) for n in order for kind in ("train", "query.random")]
        replies = engine.send_and_receive(messages)
        assert [r.metadata.src_node_id for r in replies] == [m.metadata.dst_node_id for m in messages]
        pairs = zip(messages, replies, strict=True)
        return {(m.metadata.dst_node_id, m.metadata.message_type): dict(r.content) for m, r in pairs}

    ids = grid.get_node_ids()
    with InlineGrid(app, node_configs=[{}] * CLIENTS, run_config={}, seed=7) as inline:
        assert inline.get_node_ids() == ids
        expected = run(inline, ids)
    for _ in range(3):
        assert run(grid, random.sample(ids, CLIENTS)) == expected


def test_a_stock_flower_strategy_runs_unchanged(grid) -> None:
    start = ArrayRecord([np.zeros((2, BIG), np.float32)])
    result = FedAvg(min_available_nodes=CLIENTS).start(grid, start, num_rounds=2)
    np.testing.assert_array_equal(result.arrays.to_numpy_ndarrays()[0], np.full((2, BIG), 2, np.float32))
    assert result.evaluate_metrics_clientapp[2]["loss"] == 0.5


def test_stream_keeps_its_window_and_reduces_in_the_workers(grid, message) -> None:
    drawn: list[int] = []
    content = RecordDict({"arrays": ArrayRecord([np.ones(BIG, np.float32)])})
    ids = grid.get_node_ids()

    def batches():
        for index in range(12):
            drawn.append(index)
            good = [message(ids[(2 * index + k) % CLIENTS], content=content) for k in (0, 1)]
            yield [*good, message(ids[(2 * index + 1) % CLIENTS], "query.raises", content=content)]

    folded: set[int] = set()
    for index, replies in grid.stream(batches(), reducer=sum_replies, max_ahead=3):
        oldest = next(i for i in range(13) if i not in folded)
        assert max(drawn) < oldest + 3
        folded.add(index)
        (reply,) = replies
        np.testing.assert_array_equal(reply.content["arrays"].to_numpy_ndarrays()[0], np.full(BIG, 4, np.float32))
        assert reply.content["m"]["pids"] != os.getpid()
        assert (reply.content["m"]["good"], reply.content["m"]["bad"]) == (2, 1)
    assert folded == set(range(12))


def test_a_shared_record_is_stored_once_even_if_configs_differ(grid, message, monkeypatch) -> None:
    puts: list[object] = []
    put = ray.put
    monkeypatch.setattr(ray_grid_module.ray, "put", lambda value: puts.append(value) or put(value))
    arrays = ArrayRecord([np.zeros(BIG, np.float32)])
    contents = [RecordDict({"arrays": arrays, "config": ConfigRecord({"lr": float(i)})}) for i in range(CLIENTS)]
    messages = [message(n, content=c) for n, c in zip(grid.get_node_ids(), contents, strict=True)]
    assert codes(grid.send_and_receive(messages)) == [0] * CLIENTS
    assert len(puts) == 1


def test_a_changed_content_is_not_mistaken_for_the_stored_one(grid, message) -> None:
    content = RecordDict({"arrays": ArrayRecord([np.zeros(BIG, np.float32)])})

    def batches():
        for index in range(4):
            content["arrays"]["0"] = ArrayRecord([np.full(BIG, index, np.float32)])["0"]
            yield [message(grid.get_node_ids()[index], content=content)]

    got = {i: r[0].content["arrays"].to_numpy_ndarrays()[0][0] for i, r in grid.stream(batches())}
    assert got == {0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0}


@pytest.mark.report("U67", "each client writes to a copy of its own")
def test_a_client_writes_to_its_own_copy(grid, message) -> None:
    arrays = ArrayRecord([np.zeros(BIG, np.float32)])
    content = RecordDict({"arrays": arrays, "config": ConfigRecord({"lr": 0.5})})
    replies = grid.send_and_receive([message(i, "query.writes", content=content) for i in grid.get_node_ids()])
    assert [r.content["m"]["sum"] for r in replies] == [float(BIG)] * CLIENTS
    assert not arrays.to_numpy_ndarrays()[0].any() and content["config"]["lr"] == 0.5


def test_push_and_pull_give_each_reply_once(grid, message) -> None:
    pushed = grid.push_messages([message(i) for i in grid.get_node_ids()] * 2)
    got = []
    while len(got) < 2 * CLIENTS:
        got += grid.pull_messages(pushed)
    assert sorted(r.metadata.reply_to_message_id for r in got) == sorted(pushed)
    assert grid.pull_messages(pushed) == []


def test_state_stays_with_the_client_on_any_worker(grid, message) -> None:
    ids = grid.get_node_ids()

    def seen(**config):
        replies = grid.send_and_receive([message(i, "query.state", config=config) for i in random.sample(ids, CLIENTS)])
        return {r.content["m"]["seen"] if r.has_content() else None for r in replies}

    steps = [seen(), seen(), seen(**{"raise": True}), seen(), seen(clear=True), seen()]
    assert steps == [{0}, {1}, {None}, {2}, {3}, {0}]


@pytest.mark.report(
    "U60", "client, round and the original traceback are named; who dies is tried again alone, then left out"
)
def test_errors_are_named_and_others_go_on(grid, message) -> None:
    ids = grid.get_node_ids()
    messages = [message(ids[1], "query.raises", group="5"), message(ids[2]), message(ids[3], "query.nothing")]
    raised, good, nothing = grid.send_and_receive(messages)
    assert good.has_content()
    assert f"client 1 (node {ids[1]}), query.raises, round 5: raised KeyError: 'x'" in raised.error.reason
    assert 'raise KeyError("x")' in raised.error.reason
    assert nothing.error.code == FaultCode.BAD_REPLY


@pytest.mark.report("D11", "the client is tried again alone, and left out by name if that fails")
@pytest.mark.report("U60")
def test_a_dying_client_is_named_and_the_rest_of_its_batch_is_kept(grid, message) -> None:
    ids = grid.get_node_ids()
    batches = [[message(i, "query.dies", config={"who": 2}) for i in part] for part in (ids[:4], ids[4:], ids[:2])]
    got = dict(grid.stream(batches))
    assert codes(got[0]) == [0, 0, FaultCode.DIED, 0]
    assert codes(got[1]) == [0] * 4 and codes(got[2]) == [0, 0]
    assert "client 2" in got[0][2].error.reason and "also when it ran alone" in got[0][2].error.reason
    assert codes(grid.send_and_receive([message(i) for i in ids])) == [0] * CLIENTS


@pytest.mark.report("D11")
@pytest.mark.report("U60")
def test_a_worker_that_dies_once_costs_no_reply(grid, message, tmp_path) -> None:
    config = {"flag": str(tmp_path / "flag")}
    batch = [message(i, "query.dies_once", config=config) for i in grid.get_node_ids()]
    ((_, replies),) = grid.stream([batch], reducer=list)
    assert codes(replies) == [0] * CLIENTS and (tmp_path / "flag").exists()
    assert [r.metadata.src_node_id for r in replies] == grid.get_node_ids()


@pytest.mark.report("D11")
def test_a_stuck_client_is_late_and_its_worker_replaced(grid, message) -> None:
    ids = grid.get_node_ids()
    batches = [[message(i, "query.sleeps", config={"who": 1}) for i in part] for part in (ids[:3], ids[3:5])]
    limit_s = 20.0
    got = dict(grid.stream(batches, timeout=limit_s))
    assert codes(got[0]) == [0, FaultCode.LATE, FaultCode.LATE] and codes(got[1]) == [0, 0]
    assert "did not answer within 20 s" in got[0][1].error.reason
    assert codes(grid.send_and_receive([message(i) for i in ids])) == [0] * CLIENTS


def test_what_was_not_begun_at_the_deadline_is_late(grid, message) -> None:
    batches = [[message(i)] for i in grid.get_node_ids()]
    got = dict(grid.stream(batches, timeout=0.0))
    assert {i: codes(r) for i, r in got.items()} == {i: [FaultCode.LATE] for i in range(CLIENTS)}


def test_a_failing_reducer_stops_the_stream_with_its_error(grid, message) -> None:
    def broken(replies):
        raise ZeroDivisionError("in the reducer")

    with pytest.raises(ZeroDivisionError, match="in the reducer"):
        list(grid.stream([[message(grid.get_node_ids()[0])]], reducer=broken))
    assert codes(grid.send_and_receive([message(grid.get_node_ids()[0])])) == [0]


def test_ray_is_private(grid) -> None:
    folder = grid._session._folder
    assert stat.S_IMODE((folder / "token").stat().st_mode) == 0o600
    assert "RAY_AUTH_TOKEN_PATH" not in os.environ
    code = "import ray; ray.init(address='auto', log_to_driver=False)"
    address = ray.get_runtime_context().gcs_address
    done = subprocess.run(
        [sys.executable, "-c", code.replace("auto", address)],
        env={**os.environ, "RAY_AUTH_MODE": "disabled", "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode != 0 and "uthenticat" in done.stderr


def test_refuses_what_does_not_fit(app) -> None:
    with pytest.raises(ValueError, match="workers 0"):
        RayGrid(app, node_configs=[{}], run_config={}, seed=0, workers=0)


def test_ends_with_no_process_left_and_names_an_app_that_does_not_load() -> None:
    code = textwrap.dedent("""
        import psutil, ray
        from fedsim.simulation.ray_grid import RayGrid
        try:
            RayGrid("no_such_module:app", node_configs=[{}], run_config={}, seed=0, workers=1)
        except RuntimeError as error:
            print("No module named 'no_such_module'" in str(error), ray.is_initialized(), psutil.Process().children())
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.stdout.strip() == "True False []", done.stderr


@pytest.mark.slow
def test_an_interrupt_propagates_and_leaves_no_process() -> None:
    code = textwrap.dedent("""
        import os, signal, threading, psutil
        from flwr.app import Message, RecordDict
        from flwr.clientapp import ClientApp
        from fedsim.simulation.ray_grid import RayGrid

        app = ClientApp()

        @app.query()
        def sleep(message, context):
            import time
            time.sleep(600)

        try:
            with RayGrid(app, node_configs=[{}], run_config={}, seed=0, workers=1) as grid:
                for after_s in (1.0, 1.2):
                    threading.Timer(after_s, os.killpg, (os.getpgrp(), signal.SIGINT)).start()
                grid.send_and_receive([Message(RecordDict(), n, "query") for n in grid.get_node_ids()])
        except KeyboardInterrupt:
            print("interrupted", psutil.Process().children())
    """)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, start_new_session=True
    )
    assert done.stdout.strip() == "interrupted []", done.stderr
