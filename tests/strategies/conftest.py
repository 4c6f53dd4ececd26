"""A grid of toy clients, driven by push and pull like Flower's own, with arrival order and failures under control."""

import itertools
import random

import numpy as np
import pytest
from flwr.app import Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from strategies.client import ClientHalf
from strategies.plan import RoundPlan
from strategies.protection import Plain
from strategies.records import NamedArrays


@pytest.fixture(autouse=True)
def identity():
    """Messages can only be made inside a run."""
    before = TaskIdentity._run_id, TaskIdentity._node_id, TaskIdentity._task_id
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    yield
    TaskIdentity._run_id, TaskIdentity._node_id, TaskIdentity._task_id = before


class ToyGrid(Grid):
    """Runs a handler a client at push; hands replies out in a shuffled order, a few at a time.

    Args:
        clients: number of clients; node ids are 100, 101, ... unless `node_ids` are given.
        handler: (message, context) -> reply.
        shuffle: seed of the order of arrival, or None for the order of the messages.
        silent: node ids that never answer a training message.
    """

    def __init__(self, clients, handler, shuffle=None, silent=(), at_once=1000):
        self.contexts = {
            100 + i: Context(1, 100 + i, {"partition-id": i, "num-partitions": clients}, RecordDict(), {})
            for i in range(clients)
        }
        self.handler, self.silent, self.at_once = handler, set(silent), at_once
        self.rng = random.Random(shuffle) if shuffle is not None else None
        self.waiting, self.numbers, self.most_waiting = {}, itertools.count(1), 0
        self.pushed = []

    def set_run(self, run):
        self._run = run

    @property
    def run(self):
        return self._run

    def create_message(self, content, message_type, dst_node_id, group_id, ttl=None):
        return Message(content, dst_node_id, message_type, group_id=group_id)

    def get_node_ids(self):
        return list(self.contexts)

    def push_messages(self, messages):
        keys = []
        for message in messages:
            key = f"m{next(self.numbers)}"
            message.metadata.__dict__["_message_id"] = key
            self.pushed.append(message)
            keys.append(key)
            training = message.metadata.message_type == "train"
            if training and message.metadata.dst_node_id in self.silent:
                continue
            try:
                reply = self.handler(message, self.contexts[message.metadata.dst_node_id])
            except Exception as error:  # a client's fault becomes an error reply, as in Flower
                reply = Message(Error(2, f"{type(error).__name__}: {error}"), reply_to=message)
            self.waiting[key] = reply
            if training:
                self.most_waiting = max(self.most_waiting, len(self.waiting))
        return keys

    def pull_messages(self, message_ids):
        ready = [k for k in message_ids if k in self.waiting]
        if self.rng:
            self.rng.shuffle(ready)
        return [self.waiting.pop(k) for k in ready[: self.at_once]]

    def send_and_receive(self, messages, *, timeout=None):
        return list(self.pull_messages(self.push_messages(messages)))


@pytest.fixture
def toy_grid():
    return ToyGrid


def make_handler(update, examples=lambda client: client + 1, protection=None, half=None, buffer_names=frozenset()):
    """Return a client that turns the global arrays into its own by `update(client, arrays, round)`."""
    protection, half, app = protection or Plain(), half or ClientHalf(), ClientApp()

    @app.query("hello")
    def hello(message, context):
        client = context.node_config["partition-id"]
        record = MetricRecord({"partition-id": client, "num-examples": examples(client)})
        return Message(RecordDict({"hello": record}), reply_to=message)

    @app.train()
    def train(message, context):
        client = context.node_config["partition-id"]
        plan = RoundPlan.from_record(message.content["config"])
        before = half.receive(message.content, protection, None, buffer_names, context.state)
        after = NamedArrays(update(client, dict(before.arrays), plan.round), before.dtypes)
        sealed = half.seal(
            plan,
            before,
            after,
            num_examples=examples(client),
            partition_id=client,
            buffer_names=buffer_names,
            protection=protection,
            memory=context.state,
        )
        reply = sealed.content()
        reply["metrics"] = MetricRecord({"num-examples": examples(client), "loss": float(client)})
        return Message(reply, reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        client = context.node_config["partition-id"]
        state = half.receive(message.content, protection, None, buffer_names, context.state)
        value = float(np.mean([np.mean(a) for a in state.arrays.values()]))
        metrics = MetricRecord({"num-examples": examples(client), "mean": value})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


@pytest.fixture
def toy_handler():
    return make_handler
