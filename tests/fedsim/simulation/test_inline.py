"""InlineGrid, and what every engine owes its callers."""

import random
import subprocess
import sys

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity

from fedsim.simulation.grid import FaultCode
from fedsim.simulation.inline import InlineGrid


@pytest.fixture
def grid(app):
    with InlineGrid(app, node_configs=[{"name": f"c{i}"} for i in range(4)], run_config={"lr": 0.1}, seed=7) as grid:
        yield grid


def test_node_ids_follow_partition_ids_and_the_seed(app, grid) -> None:
    ids = grid.get_node_ids()
    assert ids == sorted(ids) and len(set(ids)) == 4
    assert [grid.node_configs[i]["partition-id"] for i in ids] == [0, 1, 2, 3]
    assert grid.node_configs[ids[2]] == {"name": "c2", "partition-id": 2, "num-partitions": 4}
    with InlineGrid(app, node_configs=[{}] * 4, run_config={}, seed=7) as again:
        assert again.get_node_ids() == ids
    with InlineGrid(app, node_configs=[{}] * 4, run_config={}, seed=8) as other:
        assert other.get_node_ids() != ids


def test_replies_come_in_the_order_of_the_messages(grid, message) -> None:
    ids = grid.get_node_ids()
    order = [ids[i] for i in (2, 0, 3, 1, 2)]
    replies = grid.send_and_receive([message(i) for i in order])
    assert [r.metadata.src_node_id for r in replies] == order
    assert [r.content["metrics"]["partition"] for r in replies] == [2, 0, 3, 1, 2]
    np.testing.assert_array_equal(replies[0].content["arrays"].to_numpy_ndarrays()[0], np.ones(3, np.float32))


def test_no_messages_give_no_replies(grid) -> None:
    assert grid.send_and_receive([]) == [] and list(grid.stream([])) == []
    assert grid.push_messages([]) == [] and grid.pull_messages(["unknown"]) == []


def test_push_and_pull_give_each_reply_once(grid, message) -> None:
    pushed = grid.push_messages([message(i) for i in grid.get_node_ids()])
    first = grid.pull_messages(pushed[:3])
    assert [r.metadata.reply_to_message_id for r in first] == pushed[:3]
    assert [r.metadata.reply_to_message_id for r in grid.pull_messages(pushed)] == pushed[3:]


def test_a_stock_flower_strategy_runs_unchanged(grid) -> None:
    start = ArrayRecord([np.zeros((2, 3), np.float32), np.array(1, np.float64)])
    strategy = FedAvg(min_available_nodes=4)
    result = strategy.start(grid, start, num_rounds=2, train_config=ConfigRecord({"lr": 0.1}))
    first, second = result.arrays.to_numpy_ndarrays()
    np.testing.assert_array_equal(first, np.full((2, 3), 2, np.float32))
    assert second == 3.0 and result.evaluate_metrics_clientapp[2]["loss"] == 0.5


def test_stream_draws_lazily_and_folds_with_the_reducer(grid, message) -> None:
    drawn = []

    def batches():
        for index, node in enumerate(grid.get_node_ids()):
            drawn.append(index)
            yield [message(node), message(node)]

    stream = grid.stream(batches(), reducer=lambda replies: replies[:1])
    index, replies = next(stream)
    assert (index, len(replies), drawn) == (0, 1, [0])
    assert [i for i, _ in stream] == [1, 2, 3]


@pytest.mark.report("U60")
def test_a_client_that_raises_is_named_with_its_traceback(grid, message) -> None:
    ids = grid.get_node_ids()
    bad, good = grid.send_and_receive([message(ids[1], "query.raises", group="5"), message(ids[2])])
    assert good.has_content() and bad.error.code == FaultCode.RAISED
    reason = bad.error.reason
    assert f"client 1 (node {ids[1]}), query.raises, round 5: raised KeyError: 'x'" in reason
    assert 'raise KeyError("x")' in reason and "fedsim/simulation/worker.py" not in reason


@pytest.mark.parametrize(
    ("action", "code", "words"),
    [
        ("nothing", FaultCode.BAD_REPLY, "returned NoneType"),
        ("foreign", FaultCode.BAD_REPLY, "does not answer its own"),
        ("leaves", FaultCode.RAISED, "raised SystemExit: 3"),
        ("unknown", FaultCode.RAISED, "No query function registered with name 'unknown'"),
    ],
)
def test_a_bad_reply_is_an_error_reply(grid, message, action, code, words) -> None:
    (reply,) = grid.send_and_receive([message(grid.get_node_ids()[0], f"query.{action}")])
    assert reply.error.code == code and words in reply.error.reason


def test_state_stays_with_the_client_and_a_failure_leaves_it(grid, message) -> None:
    a, b = grid.get_node_ids()[:2]

    def seen(node, **config):
        (reply,) = grid.send_and_receive([message(node, "query.state", config=config)])
        return reply.content["m"]["seen"] if reply.has_content() else None

    assert [seen(a), seen(a), seen(b), seen(a, **{"raise": True}), seen(a), seen(a, clear=True), seen(a)] == [
        0,
        1,
        0,
        None,
        2,
        3,
        0,
    ]


@pytest.mark.report("U67")
def test_a_client_writes_to_its_own_copy(grid, message) -> None:
    arrays = ArrayRecord([np.zeros(5, np.float32)])
    content = RecordDict({"arrays": arrays, "config": ConfigRecord({"lr": 0.5})})
    replies = grid.send_and_receive([message(i, "query.writes", content=content) for i in grid.get_node_ids()])
    assert [r.content["m"]["sum"] for r in replies] == [5.0] * 4
    np.testing.assert_array_equal(arrays.to_numpy_ndarrays()[0], np.zeros(5, np.float32))
    assert content["config"]["lr"] == 0.5


def test_global_generators_depend_on_the_client_alone(grid, message) -> None:
    ids = grid.get_node_ids()
    random.seed(1), np.random.seed(1)
    expected = random.random(), np.random.rand()
    random.seed(1), np.random.seed(1)
    forward = grid.send_and_receive([message(i, "query.random") for i in ids])
    assert (random.random(), np.random.rand()) == expected
    backward = grid.send_and_receive([message(i, "query.random") for i in reversed(ids)])
    drawn = [r.content["m"]["drawn"] for r in forward]
    assert drawn == [r.content["m"]["drawn"] for r in reversed(backward)]
    assert len({d for pair in drawn for d in pair}) == 8
    (later,) = grid.send_and_receive([message(ids[0], "query.random", group="2")])
    assert later.content["m"]["drawn"] != drawn[0]


def test_clients_after_the_deadline_are_late(app, message) -> None:
    ticks = iter([0.0, 0.0, 0.5, 1.0, 2.0])
    with InlineGrid(app, node_configs=[{}] * 4, run_config={}, seed=0, clock=lambda: next(ticks)) as grid:
        replies = grid.send_and_receive([message(i) for i in grid.get_node_ids()], timeout=1.0)
    assert [r.error.code if r.has_error() else 0 for r in replies] == [0, 0, FaultCode.LATE, FaultCode.LATE]


def test_refuses_strangers_and_a_closed_grid(app, grid, message) -> None:
    with pytest.raises(ValueError, match=r"node 99: this grid has 4 other nodes; take ids from get_node_ids"):
        grid.send_and_receive([message(99)])
    kept = message(grid.get_node_ids()[0])
    grid.close()
    grid.close()
    with pytest.raises(RuntimeError, match="grid is closed"):
        grid.send_and_receive([kept])
    with pytest.raises(ValueError, match="node_configs is empty"):
        InlineGrid(app, node_configs=[], run_config={}, seed=0)


@pytest.mark.parametrize(
    ("app", "error", "words"),
    [
        ("flwr", ValueError, "not of the form"),
        ("flwr:nothing", ImportError, "has no nothing"),
        ("flwr.clientapp:ClientApp", TypeError, "is of type type"),
    ],
)
def test_refuses_what_is_no_app(app, error, words) -> None:
    with pytest.raises(error, match=words):
        InlineGrid(app, node_configs=[{}], run_config={}, seed=0)


def test_gives_the_task_identity_back(app, identity) -> None:
    TaskIdentity.run_id = 5
    with InlineGrid(app, node_configs=[{}], run_config={}, seed=0) as grid:
        assert TaskIdentity.run_id == grid.run.run_id != 5
    assert TaskIdentity.run_id == 5


def test_imports_neither_ray_nor_torch() -> None:
    code = "import sys, fedsim.simulation.inline; print([m for m in ('ray', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"
