"""Combinations of settings that make no sense, as one table.

A new strategy or protection declares what it needs as class attributes (:class:`fedsim._config.strategies.Strategy`,
:class:`fedsim._config.protections.Protection`); only a rule of its own needs a row here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fedsim._config.base import Section
from fedsim._config.heterogeneity import bad_tiers
from fedsim._config.protections import CkksConfig, OpenFheThresholdConfig, PreambleConfig, RlweThresholdConfig
from fedsim._config.run import Settings
from fedsim._config.strategies import (
    FLWR_OPTIONS,
    FedBuffConfig,
    FedLuarConfig,
    FlwrStrategyConfig,
    LeffConfig,
    OwnStrategyConfig,
)
from fedsim.errors import Problem
from fedsim.simulation.devices import NETWORKS, PRESETS

#: Data sets that come without client ids. The tasks' registry has the last word; this list answers before anything is
#: loaded.
WITHOUT_IDS = frozenset({"fashion-mnist", "fashion-mnist-full", "mnist-10k", "digits", "breast-cancer", "files"})


@dataclass(frozen=True, slots=True)
class Rule:
    """One combination that is refused.

    Attributes:
        keys: settings that take part; the first is the one that the message is about.
        broken: tells whether settings break the rule.
        rule: what must hold; may name settings in braces, such as ``{federation.num_clients}``.
        remedy: what to do; the same.
    """

    keys: tuple[str, ...]
    broken: Callable[[Settings], bool]
    rule: str
    remedy: str


#: Names that :mod:`fedsim.loggers` knows; a test compares them.
LOGGERS = frozenset({"tensorboard", "wandb", "mlflow"})
_PRESETS = "the presets are: " + ", ".join(PRESETS)


_READERS = (
    "use fedavg or fedprox, or a protection that opens to the server (plain, rlwe-threshold, openfhe-threshold, "
    "preamble)"
)


def _good_share(share: Any) -> bool:
    if not isinstance(share, tuple) or len(share) != 4 or any(isinstance(n, bool | str) for n in share):
        return False
    cpus, gpus, memory_mb, workers = share
    return cpus > 0 and gpus >= 0 and all(isinstance(n, int) and n >= 0 for n in (memory_mb, workers))


def _bad_options(c: Settings) -> bool:
    strategy = c.strategy
    return isinstance(strategy, FlwrStrategyConfig) and not set(strategy.options) <= set(
        FLWR_OPTIONS[strategy.class_name]
    )


RULES: tuple[Rule, ...] = (
    Rule(
        ("federation.update_norm", "strategy.name"),
        lambda c: c.federation.update_norm is not None and not c.strategy.clips_changes,
        "is not kept by strategy.name = {strategy.name}, whose clients do not send a change of the whole model",
        "use fedavg, fedprox, fedavgm or fedadam, or leave it out",
    ),
    Rule(
        ("federation.update_norm", "protection.name"),
        lambda c: c.federation.update_norm is not None and c.protection.name == "preamble",
        "has another name under preamble, which clips every change",
        "set protection.clip_norm",
    ),
    Rule(
        ("federation.clients_per_round", "federation.participation"),
        lambda c: c.federation.clients_per_round is not None and c.federation.participation != 1.0,
        "excludes federation.participation = {federation.participation}",
        "give one of the two",
    ),
    Rule(
        ("federation.clients_per_round", "federation.num_clients"),
        lambda c: (c.federation.clients_per_round or 0) > c.federation.num_clients,
        "cannot exceed federation.num_clients = {federation.num_clients}",
        "sample fewer clients or add some",
    ),
    Rule(
        (
            "federation.min_replies",
            "federation.clients_per_round",
            "federation.participation",
            "federation.num_clients",
        ),
        lambda c: c.federation.needed_replies > c.federation.sampled,
        "cannot exceed the {federation.sampled} clients sampled in a round",
        "lower it, or sample more clients",
    ),
    Rule(
        ("strategy.name", "protection.name"),
        lambda c: c.strategy.needs_opened_sum and c.protection.opened_by == "clients",
        "needs a server that reads the sum, but under {protection.name} only the clients can open it",
        _READERS,
    ),
    Rule(
        ("strategy.name", "protection.name"),
        lambda c: (
            isinstance(c.strategy, OwnStrategyConfig) and c.protection.opened_by == "clients" and c.strategy.reads_sum
        ),
        "has a server step on the mean, but under {protection.name} only the clients can open the sum",
        "use a protection that opens to the server (plain, a committee, preamble)",
    ),
    Rule(
        ("strategy.name", "protection.name"),
        lambda c: c.strategy.needs_each_update and c.protection.name != "plain" and c.protection.opened_by != "clients",
        "needs a server that reads each client's update, which {protection.name} hides",
        "use protection.name = plain, or a strategy of ours",
    ),
    Rule(
        ("strategy.name", "protection.name"),
        lambda c: (
            c.strategy.clients_hold_model and c.protection.opened_by != "clients" and c.protection.name != "plain"
        ),
        "needs clients that open the sum, which {protection.name} opens to the server",
        "use bfv, rlwe, ckks or openfhe-bgv, or plain to compare",
    ),
    Rule(
        ("strategy.name", "protection.name"),
        lambda c: c.strategy.clients_hold_model and not c.protection.repeatable,
        "needs clients that get the same bits from one sum, and each decryption of {protection.name} has noise of its "
        "own",
        "use bfv, rlwe, ckks or openfhe-bgv, or plain to compare",
    ),
    Rule(
        ("strategy.options", "strategy.name"),
        _bad_options,
        "has an option that {strategy.class_name} does not take",
        "its options are: {strategy.option_names}",
    ),
    Rule(
        ("strategy.name", "protection.name"),
        lambda c: (
            isinstance(c.strategy, FedLuarConfig)
            and c.protection.opened_by == "clients"
            and not c.protection.repeatable
        ),
        "needs clients that open a sum to the same bits, or they would choose other layers; each decryption of "
        "{protection.name} has noise of its own",
        "use bfv, rlwe, ckks or openfhe-bgv, or one that opens to the server (plain, rlwe-threshold, "
        "openfhe-threshold, preamble)",
    ),
    Rule(
        ("strategy.downlink", "strategy.optimizer", "strategy.recycle"),
        lambda c: (
            isinstance(c.strategy, FedLuarConfig)
            and c.strategy.downlink == "delta"
            and (c.strategy.optimizer != "average" and c.strategy.recycle == "gradient")
        ),
        "needs steps that a client can repeat; those of {strategy.optimizer} depend on the server's moments",
        "set strategy.recycle = step, or leave strategy.downlink out",
    ),
    Rule(
        ("data.proxy_examples", "strategy.proxy_task"),
        lambda c: isinstance(c.strategy, LeffConfig) and c.data.proxy_examples == 0 and c.strategy.proxy_task is None,
        "leff needs proxy data on the server",
        "leave it out (256 samples), or name a data set in strategy.proxy_task",
    ),
    Rule(
        ("strategy.tiers",),
        lambda c: isinstance(c.strategy, LeffConfig) and min(c.strategy.tiers, default=0) < 1,
        "must be one or more numbers of blocks, each at least 1",
        "set strategy.tiers = [1, 1, 2, 2, 3, 6], or others",
    ),
    Rule(
        ("strategy.memory_mb",),
        lambda c: isinstance(c.strategy, LeffConfig) and min(c.strategy.memory_mb, default=1.0) <= 0,
        "must be budgets above 0",
        "set strategy.memory_mb = [64.0, 128.0], or others",
    ),
    Rule(
        ("strategy.memory_mb", "strategy.capacity"),
        lambda c: (
            isinstance(c.strategy, LeffConfig) and (c.strategy.capacity == "memory") != bool(c.strategy.memory_mb)
        ),
        "goes with strategy.capacity = memory",
        "give both, such as strategy.capacity = memory and strategy.memory_mb = [64, 128], or neither",
    ),
    Rule(
        ("strategy.selector", "protection.name"),
        lambda c: (
            isinstance(c.strategy, LeffConfig)
            and c.strategy.selector == "gradient"
            and isinstance(c.protection, PreambleConfig | OpenFheThresholdConfig | RlweThresholdConfig)
        ),
        "under {protection.name} the blocks that a client chooses by itself would not be known",
        "use another selector, such as importance",
    ),
    Rule(
        ("federation.server_evaluation", "protection.name"),
        lambda c: (
            c.federation.server_evaluation and (c.protection.opened_by == "clients" or c.strategy.clients_hold_model)
        ),
        "with {strategy.name} under {protection.name} the server never sees the model",
        "leave it out or set it to false; the clients evaluate (federation.client_evaluation_fraction)",
    ),
    Rule(
        ("federation.server_evaluation", "task.name", "task.options"),
        lambda c: c.federation.server_evaluation and c.task.name == "files" and not c.task.options.get("path"),
        "where clients have data of their own the server has none",
        "set it to false with federation.client_evaluation_fraction = 1.0, or name the server's task.options.path",
    ),
    Rule(
        ("federation.weighting", "protection.name"),
        lambda c: c.protection.uniform_only and c.federation.weighting != "uniform",
        "{protection.name} states its privacy per client, so every client counts the same",
        "leave it out or set it to uniform",
    ),
    Rule(
        ("data.scheme", "task.name"),
        lambda c: c.data.scheme == "natural-id" and c.task.name in WITHOUT_IDS,
        "task {task.name} has no client ids",
        "use another scheme, such as dirichlet, or a task with ids (`fedsim list tasks`)",
    ),
    Rule(
        ("training.nesterov", "training.optimizer", "training.momentum"),
        lambda c: c.training.nesterov and (c.training.optimizer != "sgd" or c.training.momentum == 0.0),
        "Nesterov's momentum needs optimizer sgd and a momentum above 0",
        "set training.momentum = 0.9 with training.optimizer = sgd, or leave nesterov out",
    ),
    Rule(
        ("protection.scale_bits", "protection.chain"),
        lambda c: isinstance(c.protection, CkksConfig) and c.protection.scale_bits >= c.protection.chain[0],
        "must be below the first prime of protection.chain = {protection.chain}, or every sum wraps",
        "lower the scale or take a longer prime",
    ),
    Rule(
        ("protection.flooding", "protection.base"),
        lambda c: (
            isinstance(c.protection, OpenFheThresholdConfig)
            and (c.protection.flooding, c.protection.base) == ("statistical", "ckks")
        ),
        "OpenFHE has no statistical flooding for CKKS",
        "set protection.base = bgv, or leave flooding out",
    ),
    Rule(
        ("protection.verify", "protection.word_bits"),
        lambda c: (
            isinstance(c.protection, PreambleConfig) and (c.protection.verify, c.protection.word_bits) == ("norm", 32)
        ),
        "proofs of the norm work in a field of 64 bits",
        "set protection.word_bits = 64",
    ),
    Rule(
        ("protection.block_size", "protection.blocks"),
        lambda c: (
            isinstance(c.protection, PreambleConfig)
            and (c.protection.block_size is None) != (c.protection.blocks is None)
        ),
        "goes with protection.blocks = {protection.blocks}",
        "set both, or neither to have them chosen",
    ),
    Rule(
        ("protection.dense", "protection.block_size", "protection.byte_budget", "protection.clip_factor"),
        lambda c: (
            isinstance(c.protection, PreambleConfig)
            and c.protection.dense
            and (c.protection.block_size, c.protection.byte_budget, c.protection.clip_factor) != (None, None, 1.0)
        ),
        "sends the whole vector as one block, so there is nothing to choose about blocks",
        "leave out protection.block_size, blocks, byte_budget and clip_factor, or dense",
    ),
    Rule(
        ("protection.transport", "engine.name"),
        lambda c: (
            isinstance(c.protection, PreambleConfig) and c.protection.transport == "relay" and c.engine.name == "flower"
        ),
        "needs a node with a configuration of its own, and Flower's simulation gives all nodes the same",
        "use another engine, or transport = direct",
    ),
    Rule(
        ("protection.committee_size", "federation.num_clients"),
        lambda c: (
            isinstance(c.protection, OpenFheThresholdConfig | RlweThresholdConfig)
            and c.protection.committee_size > c.federation.num_clients
        ),
        "the committee is made of clients, of which there are {federation.num_clients}",
        "shrink the committee or add clients",
    ),
    Rule(
        ("protection.min_cohort", "federation.min_replies", "federation.clients_per_round"),
        lambda c: isinstance(c.protection, PreambleConfig) and c.protection.min_cohort > c.federation.sampled,
        "cannot exceed the {federation.sampled} clients sampled in a round",
        "lower it, or sample more clients",
    ),
    Rule(
        ("devices.preset",),
        lambda c: c.devices.preset not in PRESETS,
        "there is no such device",
        _PRESETS,
    ),
    Rule(
        ("clock.server",),
        lambda c: c.clock.server not in PRESETS,
        "there is no such device",
        _PRESETS,
    ),
    Rule(
        ("devices.network",),
        lambda c: c.devices.network is not None and c.devices.network not in NETWORKS,
        "there is no such network",
        "the networks are: " + ", ".join(NETWORKS),
    ),
    Rule(
        ("devices.tiers", "devices.profile"),
        lambda c: (c.devices.profile == "tiers") != bool(c.devices.tiers),
        "goes with devices.profile = tiers, which is {devices.profile}",
        "set both, such as [devices.tiers] phone-low = 0.5, phone-high = 0.5",
    ),
    Rule(
        ("devices.tiers",),
        lambda c: bad_tiers(c.devices.tiers, frozenset(PRESETS)),
        "each tier must be a preset with a share above 0",
        _PRESETS,
    ),
    Rule(
        ("devices.trace", "devices.profile"),
        lambda c: (c.devices.profile == "trace") != (c.devices.trace is not None),
        "goes with devices.profile = trace, which is {devices.profile}",
        "set both, or neither",
    ),
    Rule(
        ("clock.deadline_s", "clock.policy"),
        lambda c: (c.clock.policy == "deadline") != (c.clock.deadline_s is not None),
        "goes with clock.policy = deadline, which is {clock.policy}",
        "set both, or neither",
    ),
    Rule(
        ("clock.over_selection", "clock.policy"),
        lambda c: c.clock.over_selection > 1 and c.clock.policy == "all",
        "a round that waits for all that it asks must not ask more than it wants",
        "set clock.policy = first-k or deadline, or leave it out",
    ),
    Rule(
        ("clock.policy", "clock.over_selection", "federation.participation", "federation.clients_per_round"),
        lambda c: c.clock.policy == "first-k" and c.asked == c.federation.sampled,
        "asks {federation.sampled} of {federation.num_clients} clients and wants as many, so it is the policy all",
        "raise clock.over_selection, with federation.participation below 1",
    ),
    Rule(
        ("strategy.buffer_size", "federation.participation", "federation.clients_per_round"),
        lambda c: isinstance(c.strategy, FedBuffConfig) and c.strategy.buffer_size > c.federation.sampled,
        "{federation.sampled} clients train at a time, and no more can be in the buffer",
        "lower it, or let more clients train at a time (federation.participation)",
    ),
    Rule(
        ("clock.policy", "strategy.name"),
        lambda c: isinstance(c.strategy, FedBuffConfig) and c.clock.policy != "all",
        "fedbuff waits for nobody, so nobody is late",
        "leave it out",
    ),
    Rule(
        ("devices.availability_trace", "strategy.name"),
        lambda c: isinstance(c.strategy, FedBuffConfig) and c.devices.availability_trace is not None,
        "fedbuff's clients are there in a share of its steps, not at times",
        "use devices.availability",
    ),
    Rule(
        ("faults", "federation.num_clients"),
        lambda c: any(not 0 <= client < c.federation.num_clients for client in c.faults.clients),
        "has a client that is not there; clients are numbered from 0, and there are {federation.num_clients}",
        "correct its number",
    ),
    Rule(
        ("faults",),
        lambda c: len(set(c.faults.clients)) < len(c.faults.clients),
        "has a client with two drills",
        "give each client one",
    ),
    Rule(
        ("faults.rounds",),
        lambda c: min(c.faults.rounds, default=1) < 1,
        "has a round that never comes; rounds are numbered from 1",
        "correct it, or leave it out to drill in all rounds",
    ),
    Rule(
        ("faults.wrong_key", "protection.name"),
        lambda c: bool(c.faults.wrong_key) and c.protection.name == "plain",
        "there are no keys under plain",
        "choose another protection, or leave it out",
    ),
    Rule(
        ("faults", "strategy.name"),
        lambda c: bool(c.faults.clients) and c.strategy.name.startswith("flwr:"),
        "drills act on our strategies' replies, which {strategy.name} does not use",
        "use a strategy of ours, or federation-wide faults.dropout",
    ),
    Rule(
        ("engine.shares",),
        lambda c: not all(_good_share(share) for share in c.engine.shares.values()),
        "each is a list of four numbers: CPUs above 0, GPUs, whole MB and workers from 0",
        "write for instance phone-low = [0.5, 0, 500, 2]",
    ),
    Rule(
        ("engine.shares", "engine.name"),
        lambda c: bool(c.engine.shares) and c.engine.name != "ray",
        "only Ray has workers of unequal size",
        "set engine.name = ray",
    ),
    Rule(
        ("output.loggers",),
        lambda c: not set(c.output.loggers) <= LOGGERS,
        "there is no such logger",
        "the loggers are: " + ", ".join(sorted(LOGGERS)),
    ),
    Rule(
        ("engine.workers", "engine.name"),
        lambda c: c.engine.name == "inline" and (c.engine.workers or 1) > 1,
        "engine inline works in the program's own process",
        "set engine.name = ray, or leave workers out",
    ),
    Rule(
        ("engine.ray_address", "engine.name"),
        lambda c: c.engine.ray_address is not None and c.engine.name in ("inline", "flower"),
        "engine {engine.name} joins no Ray cluster",
        "set engine.name = ray",
    ),
)


def broken_rules(settings: Settings, ignore: frozenset[str] = frozenset()) -> list[Problem]:
    """Return the rules that settings break.

    Args:
        settings: of the right kinds.
        ignore: keys (or whole sections) that were wrong and hold a default; rules that they take part in are skipped.
    """
    return [
        Problem(rule.keys[0], show(lookup(settings, rule.keys[0])), *_texts(rule, settings))
        for rule in RULES
        if not any(key in ignore or key.split(".")[0] in ignore for key in rule.keys) and rule.broken(settings)
    ]


def lookup(settings: Settings, key: str) -> Any:
    """Return the value of a dotted key."""
    value: Any = settings
    for part in key.split("."):
        value = value[part] if isinstance(value, dict) else getattr(value, part)
    return value


def show(value: Any) -> str:
    """Return a value as it would stand in the settings' file, shortened."""
    if isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, Section):
        text = show({key: item for key, item in value if item != type(value).model_fields[key].default})
    elif isinstance(value, tuple | list):
        text = "[" + ", ".join(show(item) for item in value) + "]"
    elif isinstance(value, Mapping):
        text = "{" + ", ".join(f"{key} = {show(item)}" for key, item in value.items()) + "}"
    elif isinstance(value, str):
        text = f'"{value}"'
    else:
        text = "not set" if value is None else str(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _texts(rule: Rule, settings: Settings) -> tuple[str, str]:
    def fill(text: str) -> str:
        while "{" in text:
            before, rest = text.split("{", 1)
            key, after = rest.split("}", 1)
            text = before + _plain(lookup(settings, key)) + after
        return text

    return fill(rule.rule), fill(rule.remedy)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else show(value)
