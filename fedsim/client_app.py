"""The Flower ClientApp of every run: the same in simulation, under Flower's engine, and in deployment."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from crypto import InputError
from fedsim.cohort import train_from, train_here, trains_together
from fedsim.simulation.drills import Honest, drill_of
from fedsim.site import Site, read_state, site_of
from fedsim.tasks.training import TrainResult, client_seed, evaluate
from strategies.client import Sealed, Stopwatch
from strategies.helper_relay import pass_on
from strategies.nodes import RELAY_KEY
from strategies.plan import RoundPlan
from strategies.records import (
    NamedArrays,
    array_record,
    find,
    metric_record,
    model_bytes,
    model_record,
    need,
    put,
    read_model,
    read_sealed,
    record_dict,
    sealed_record,
)
from strategies.rounds import answer
from strategies.state import load_state_arrays

app = ClientApp()


@app.query("hello")
def hello(message: Message, context: Context) -> Message:
    """Tell the server this client's number and how many samples it trains on, or that it relays to a helper."""
    site = site_of(context.run_config, context.node_config)
    if context.node_config.get(RELAY_KEY):
        return Message(RecordDict({"hello": MetricRecord({"relay": 1})}), reply_to=message)
    client = partition_id(context)
    values = {"partition-id": client, "num-examples": len(site.partition.indices[client]), **_capacity(context)}
    return Message(RecordDict({"hello": MetricRecord(dict(values))}), reply_to=message)


@app.query("setup")
def setup(message: Message, context: Context) -> Message:
    """Tell the server a hash of what all clients must have in common before round 1."""
    site = site_of(context.run_config, context.node_config)
    return Message(RecordDict({"setup": ConfigRecord({"digest": site.half.digest(site.initial)})}), reply_to=message)


@app.query("relay")
def relay(message: Message, context: Context) -> Message:
    """Pass the leader's frames on to the helper beside this node, if its own configuration designates it."""
    return Message(pass_on(message.content, context.node_config.get(RELAY_KEY)), reply_to=message)


@app.train()
def train_round(message: Message, context: Context) -> Message:
    """Train on the client's own data and answer with the sealed update."""
    watch = Stopwatch()
    site, client = site_of(context.run_config, context.node_config), partition_id(context)
    content = message.content
    if find(content, "arrays", ArrayRecord) is not None:
        return _train_for_flower(message, site, client, watch)
    plan = RoundPlan.from_record(need(content, "config", ConfigRecord))
    drill = _drill(site, plan.round, client)
    drill.begin()
    before = _receive(content, site, context)
    watch.lap(_receiving(content))
    received = _evaluate_received(site, before, client, watch)
    data = site.train_data(client)
    mu = float(plan.extras.get("proximal-mu", 0.0))
    model = site.model
    shared_s: float | None
    if trains_together(site):
        if site.examines:
            load_state_arrays(model, before.arrays)
            site.half.examine(model, *data, plan, context.state)
        settings, seed = site.train_config(plan.rounds, mu), client_seed(site.config.seed, plan.round, client)
        own = _own_data(site, client)
        result, state, shared_s = train_from(site, before, *own, settings, seed=seed, round=plan.round)
    else:
        model, plan = site.half.own_model(model, plan, before, data)
        site.half.examine(model, *data, plan, context.state)
        result, shared_s = _train(site, model, client, plan.round, plan.rounds, mu)
        state = read_state(model)
    after = drill.trained(state)
    watch.lap("train", shared_s)
    examples = drill.examples(result.num_examples)
    with drill.protection(site.protection, plan.secure) as protection:
        sealed = site.half.seal(
            plan,
            before,
            after,
            num_examples=examples,
            partition_id=client,
            buffer_names=site.buffer_names,
            protection=protection,
            memory=context.state,
        )
    _keep_local(site, after, context)
    watch.lap("seal")
    metrics: dict[str, Any] = {
        "num-examples": examples,
        "loss": result.loss,
        **received.metrics,
        **_clipping(site, sealed),
        **_capacity(context),
    }
    reply = record_dict({**sealed.records(), "metrics": metric_record(metrics)})
    watch.lap("upload")
    flops = (result.forward_backward_flops or 0) + site.half.full_passes(plan) * len(data[1]) * site.flops_per_example
    costs = {"train_flops": float(flops), "train_peak_bytes": float(site.training_bytes(model, data[0]))}
    costs |= received.costs
    if not site.protection.uniform_only:
        costs |= {"clipped": float(sealed.clipped), "coordinates": float(sealed.length)}
    put(reply, "phases", watch.record(costs))
    drill.send(reply, context.state)
    return answer(message, reply)


def _drill(site: Site, server_round: int, client: int) -> Honest:
    return drill_of(site.config.faults, site.config.seed, server_round, client)


def _round_of(message: Message) -> int:
    group = message.metadata.group_id
    return int(group) if group.isdigit() else 0


def _capacity(context: Context) -> dict[str, int]:
    """Return how many blocks this client's node says it can train, where it says so; read anew in each round."""
    value = context.node_config.get("capacity")
    return {"capacity": value} if isinstance(value, int) and value > 0 else {}


def _clipping(site: Site, sealed: Sealed) -> dict[str, float]:
    """Return what the norm's bound did to this client's update, where the protection has one."""
    if not site.protection.uniform_only and site.config.federation.update_norm is None:
        return {}
    return {"clip_factor": sealed.clip_factor, "clipped_clients": float(sealed.clip_factor < 1.0)}


def _train(
    site: Site, model: nn.Module, client: int, server_round: int, rounds: int, proximal_mu: float
) -> tuple[TrainResult, float | None]:
    """Train a model on a client's data; see :func:`fedsim.cohort.train_here` for what is returned."""
    x, y = _own_data(site, client)
    return train_here(
        site,
        model,
        x,
        y,
        site.train_config(rounds, proximal_mu),
        seed=client_seed(site.config.seed, server_round, client),
        round=server_round,
    )


def _own_data(site: Site, client: int) -> tuple[Tensor, Tensor]:
    x, y = site.train_data(client)
    if not len(y):
        raise InputError(f"client {client} has no samples: it cannot take part; use another data.policy")
    return x, y


def _train_for_flower(message: Message, site: Site, client: int, watch: Stopwatch) -> Message:
    """Answer one of Flower's own strategies, which sends and wants ordinary arrays."""
    config = need(message.content, "config", ConfigRecord)
    before = read_model(need(message.content, "arrays", ArrayRecord))
    load_state_arrays(site.model, before.arrays)
    watch.lap("download")
    received = _evaluate_received(site, before, client, watch)
    server_round, mu = config.get("server-round", 0), config.get("proximal-mu", 0.0)
    if not isinstance(server_round, int) or not isinstance(mu, float):
        raise InputError(f"server-round {server_round!r}, proximal-mu {mu!r}: must be numbers")
    _drill(site, server_round, client).begin()
    result, shared_s = _train(site, site.model, client, server_round, site.config.federation.rounds, mu)
    watch.lap("train", shared_s)
    reply = RecordDict({"arrays": array_record(read_state(site.model))})
    reply["metrics"] = MetricRecord({"num-examples": result.num_examples, "loss": result.loss, **received.metrics})
    watch.lap("upload")
    reply["phases"] = watch.record({"train_flops": float(result.forward_backward_flops or 0), **received.costs})
    return Message(reply, reply_to=message)


@dataclass(frozen=True, slots=True)
class _Received:
    """What a client found out about the model that came with a training message; empty unless it is asked to."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    costs: Mapping[str, float] = field(default_factory=dict)


def _evaluate_received(site: Site, state: NamedArrays, client: int, watch: Stopwatch) -> _Received:
    """Evaluate the model that a training message brought, where the settings want it and the client has test data."""
    if not site.config.federation.evaluate_received:
        return _Received()
    x, y = site.test_data(client)
    if not len(y):
        return _Received()
    load_state_arrays(site.model, state.arrays)
    result = evaluate(site.model, x, y)
    watch.lap("evaluate")
    metrics = {"received_loss": result.loss, "received_accuracy": result.accuracy}
    return _Received(metrics, {"evaluate_flops": float(len(y) * site.evaluation_flops_per_example)})


@app.evaluate()
def evaluate_round(message: Message, context: Context) -> Message:
    """Evaluate the global model on the client's share of the test set."""
    watch = Stopwatch()
    site, client = site_of(context.run_config, context.node_config), partition_id(context)
    _drill(site, _round_of(message), client).ask_again()
    arrays = find(message.content, "arrays", ArrayRecord)
    if arrays is not None:
        state = read_model(arrays)
    else:
        state = _receive(message.content, site, context)
    watch.lap(_receiving(message.content))
    load_state_arrays(site.model, state.arrays)
    x, y = site.test_data(client)
    if not len(y):
        raise InputError(
            f"client {client} has no test samples: lower client_evaluation_fraction or the number of clients"
        )
    result = evaluate(site.model, x, y)
    _write_model(state, context)
    watch.lap("evaluate")
    reply = RecordDict(
        {
            "metrics": MetricRecord(
                {"num-examples": result.num_examples, "loss": result.loss, "accuracy": result.accuracy}
            ),
            "phases": watch.record(),
        }
    )
    return Message(reply, reply_to=message)


@app.query("partial")
def partial_round(message: Message, context: Context) -> Message:
    """Answer, as a member of the committee, with the partial decryption of a round's total."""
    watch = Stopwatch()
    site, client = site_of(context.run_config, context.node_config), partition_id(context)
    config = need(message.content, "config", ConfigRecord)
    plan, length = RoundPlan.from_record(config), config.get("length")
    if not isinstance(length, int):
        raise InputError(f"length is {length!r}: must be a whole number; versions must agree")
    _drill(site, plan.round, client).ask_again()
    totals = read_sealed(need(message.content, "total", ArrayRecord), 1)
    watch.lap("download")
    partial = site.protection.partial(totals[0], plan.secure, client, plan.tag(length))
    watch.lap("open")
    reply = RecordDict({"partial": sealed_record([partial])})
    watch.lap("upload")
    reply["phases"] = watch.record()
    return Message(reply, reply_to=message)


def partition_id(context: Context) -> int:
    """Return the client's number.

    Raises:
        InputError: the node's configuration has none.
    """
    value = context.node_config.get("partition-id")
    if context.node_config.get(RELAY_KEY):
        raise InputError(
            f"this node relays to a helper ({RELAY_KEY} = {context.node_config[RELAY_KEY]}): it is no client and "
            "trains nothing; start a node without it"
        )
    if not isinstance(value, int) or value < 0:
        raise InputError(f"partition-id is {value!r}: must be a whole number from 0; start the node with one")
    return value


def _receive(content: RecordDict, site: Site, context: Context) -> NamedArrays:
    """Return the global model, with this client's own buffers where they do not travel."""
    state = site.half.receive(content, site.protection, site.initial, site.buffer_names, context.state)
    own = context.state.get("buffers")
    if isinstance(own, ArrayRecord):
        return NamedArrays({**state.arrays, **read_model(own).arrays}, state.dtypes)
    return state


def _receiving(content: RecordDict) -> str:
    """Return the phase that getting the model belongs to."""
    totals = (name for name, record in content.items() if name.startswith("total") and isinstance(record, ArrayRecord))
    return "open" if any(totals) else "download"


def _write_model(state: NamedArrays, context: Context) -> None:
    """Write the global model into the folder that the node's configuration names as ``out``, if it names one."""
    if place := context.node_config.get("out"):
        path = Path(str(place)) / "model.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".new")
        fresh.write_bytes(model_bytes(state))
        fresh.replace(path)


def _keep_local(site: Site, after: NamedArrays, context: Context) -> None:
    if site.config.federation.buffers == "local" and site.buffer_names:
        own = {name: array for name, array in after.arrays.items() if name in site.buffer_names}
        context.state["buffers"] = model_record(NamedArrays(own))


__all__ = ["app", "evaluate_round", "hello", "partition_id", "setup", "train_round"]
