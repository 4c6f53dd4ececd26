"""A tiny transformer, six clients of a synthetic token task, and their app, for the tests of LEFF."""

import copy

import torch
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedsim.tasks.models import build_model
from fedsim.tasks.training import TrainConfig, client_seed, train
from strategies._leff_client import LeffClient
from strategies.leff import LEFF, Capacity, Distillation
from strategies.partial import FedPartial, PartialClient
from strategies.plan import RoundPlan
from strategies.protection import Plain
from strategies.records import NamedArrays, model_record
from strategies.state import state_arrays

#: More threads than cores make tiny models slow.
torch.set_num_threads(1)

TOKENS, VOCAB, CLASSES, LAYERS = 8, 12, 3, 6
TRAINING = TrainConfig(optimizer="adamw", lr=2e-3, weight_decay=0.1, batch_size=16)


def model(layers=LAYERS, seed=0, name="encoder-tiny", **options):
    settings = {"vocab": VOCAB, "dim": 32, "depth": layers, "heads": 2} | options
    return build_model(name, input_shape=(TOKENS,), num_classes=CLASSES, seed=seed, **settings)


def token_task(n, seed):
    """Ids 1..11 with some padding; the class is that of the token which stands first among 1, 2, 3."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(4, VOCAB, (n, TOKENS), generator=generator)
    y = torch.randint(0, CLASSES, (n,), generator=generator)
    first = torch.randint(0, TOKENS // 2, (n,), generator=generator)
    x[torch.arange(n), first] = y + 1
    x[torch.arange(n), first + TOKENS // 2] = torch.randint(1, 4, (n,), generator=generator)
    return x, y


def sizes(client):
    return 20 + 4 * client


def client_data(client):
    return token_task(sizes(client), 100 + client)


def make_app(template, half=None, training=TRAINING, protection=None, seen=None):
    """Return the clients' app; `seen` collects (round, client, message, before, model, plan, after, reply)."""
    half, app, protection = half or LeffClient(), ClientApp(), protection or Plain()

    @app.query("hello")
    def hello(message, context):
        client = context.node_config["partition-id"]
        record = MetricRecord({"partition-id": client, "num-examples": sizes(client)})
        return Message(RecordDict({"hello": record}), reply_to=message)

    @app.train()
    def run(message, context):
        client = context.node_config["partition-id"]
        plan = RoundPlan.from_record(message.content["config"])
        before = half.receive(message.content, protection, None, frozenset(), context.state)
        data = client_data(client)
        own, plan = half.own_model(template, plan, before, data)
        result = train(own, *data, training, seed=client_seed(0, plan.round, client), round=plan.round)
        after = NamedArrays(state_arrays(own))
        sealed = half.seal(
            plan,
            before,
            after,
            num_examples=result.num_examples,
            partition_id=client,
            buffer_names=frozenset(),
            protection=protection,
            memory=context.state,
        )
        reply = sealed.content()
        if seen is not None:
            seen.append((plan.round, client, message, before, own, plan, after, reply))
            reply = copy.deepcopy(reply)
        reply["metrics"] = MetricRecord({"num-examples": result.num_examples, "loss": result.loss})
        return Message(reply, reply_to=message)

    return app


def make_server(start, **options):
    settings = {
        "capacity": Capacity(tiers=(1, 1, 2, 2, 3, 6)),
        "distillation": Distillation(steps=2),
        "batch": 16,
        "batches": 1,
        "proxy": lambda: token_task(64, 7),
    } | options
    return LEFF(model=lambda: copy.deepcopy(start), **settings)


def run_leff(
    toy_grid, start, rounds=1, clients=6, seen=None, server=None, training=TRAINING, grid_options=None, **options
):
    """Run LEFF from a model; returns the strategy and the grid."""
    strategy = server or make_server(start, **options)
    app = make_app(copy.deepcopy(start), seen=seen, protection=strategy.protection)
    grid = toy_grid(clients, app, **(grid_options or {}))
    strategy.start(grid, model_record(NamedArrays(state_arrays(start))), num_rounds=rounds)
    return strategy, grid


def run_partial(toy_grid, start, trained, rounds=1, clients=6):
    strategy = FedPartial(stem=lambda: ("embeddings",), trained=trained)
    app = make_app(copy.deepcopy(start), half=PartialClient())
    strategy.start(toy_grid(clients, app), model_record(NamedArrays(state_arrays(start))), num_rounds=rounds)
    return strategy
