"""A small ClientApp with one action per behaviour. Nested functions travel to workers by value."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity


def make_app() -> ClientApp:
    """Actions: (default) adds one, state, raises, nothing, random, dies, dies_once, sleeps, foreign, writes."""
    app = ClientApp()

    @app.train()
    def add_one(message, context):
        arrays = [np.asarray(a + 1) for a in message.content["arrays"].to_numpy_ndarrays()]
        metrics = MetricRecord({"partition": context.node_config["partition-id"], "num-examples": 1})
        return Message(RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        return Message(RecordDict({"metrics": MetricRecord({"loss": 0.5, "num-examples": 2})}), reply_to=message)

    @app.query("state")
    def state(message, context):
        seen = context.state["seen"]["count"] if "seen" in context.state else 0
        context.state["seen"] = MetricRecord({"count": seen + 1})
        context.state["big"] = ArrayRecord([np.full(10_000, seen, np.float32)])
        if message.content["config"].get("raise"):
            raise RuntimeError("after the change")
        if message.content["config"].get("clear"):
            context.state.clear()
        return Message(RecordDict({"m": MetricRecord({"seen": seen})}), reply_to=message)

    @app.query("raises")
    def raises(message, context):
        raise KeyError("x")

    @app.query("leaves")
    def leaves(message, context):
        raise SystemExit(3)

    @app.query("nothing")
    def nothing(message, context):
        return None

    @app.query("foreign")
    def foreign(message, context):
        return message

    @app.query("random")
    def draws(message, context):
        import random

        drawn = [random.random(), float(np.random.rand())]
        return Message(RecordDict({"m": MetricRecord({"drawn": drawn})}), reply_to=message)

    @app.query("dies")
    def dies(message, context):
        import os

        if context.node_config["partition-id"] == message.content["config"]["who"]:
            os._exit(7)
        return Message(RecordDict({"m": MetricRecord({"pid": os.getpid()})}), reply_to=message)

    @app.query("dies_once")
    def dies_once(message, context):
        import os
        from pathlib import Path

        flag = Path(message.content["config"]["flag"])
        if context.node_config["partition-id"] == 1 and not flag.exists():
            flag.touch()
            os._exit(7)
        return Message(RecordDict({"m": MetricRecord({"pid": os.getpid()})}), reply_to=message)

    @app.query("sleeps")
    def sleeps(message, context):
        import time

        if context.node_config["partition-id"] == message.content["config"]["who"]:
            time.sleep(120)
        return Message(RecordDict({"m": MetricRecord({"ok": 1})}), reply_to=message)

    @app.query("writes")
    def writes(message, context):
        array = message.content["arrays"].to_numpy_ndarrays()[0]
        array += 1
        message.content["arrays"]["0"].data = b""
        message.content["config"]["lr"] = 9.0
        seen = float(message.content["config"]["lr"])
        return Message(RecordDict({"m": MetricRecord({"sum": float(array.sum()), "lr": seen})}), reply_to=message)

    return app


@pytest.fixture(scope="session")
def app_maker() -> Callable[[], ClientApp]:
    """The function above."""
    return make_app


@pytest.fixture
def app() -> ClientApp:
    """The app above."""
    return make_app()


@pytest.fixture
def message() -> Callable[..., Message]:
    """Make a message: ``message(node, "query.state", config={...}, arrays=[...], group="1")``."""

    def make(node_id, kind="train", *, config=None, arrays=None, group="1", content=None) -> Message:
        if content is None:
            content = RecordDict({"config": ConfigRecord(config or {})})
            content["arrays"] = ArrayRecord([np.zeros(3, np.float32)] if arrays is None else arrays)
        return Message(content, node_id, kind, group_id=group)

    return make


@pytest.fixture
def identity() -> Iterator[None]:
    """Messages can be made without a grid."""
    earlier = TaskIdentity._run_id, TaskIdentity._node_id, TaskIdentity._task_id
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    yield
    TaskIdentity._run_id, TaskIdentity._node_id, TaskIdentity._task_id = earlier
