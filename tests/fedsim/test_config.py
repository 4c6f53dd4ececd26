"""The settings: what is read, refused, written and carried."""

import pickle
import tomllib
from pathlib import Path
from typing import Any

import flwr.serverapp.strategy as flwr_strategies
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from fedsim._config.base import Section
from fedsim._config.describe import variants
from fedsim._config.rules import RULES
from fedsim._config.strategies import FLWR_OPTIONS
from fedsim.config import (
    FAMILIES,
    PROTECTIONS,
    STRATEGIES,
    BfvConfig,
    ConfigError,
    FederationConfig,
    RunConfig,
    config_from_dict,
    from_run_config,
    load_config,
    schema,
    template,
    to_run_config,
    to_toml,
    with_values,
)


def problems(*overrides: str) -> dict[str, str]:
    """Return key -> whole text of the problems that overrides cause."""
    with pytest.raises(ConfigError) as caught:
        load_config(None, overrides)
    return {problem.key: str(problem) for problem in caught.value.problems}


def test_defaults_are_the_main_job() -> None:
    config = RunConfig()
    assert (config.task.name, config.model.name) == ("fashion-mnist", "cnn")
    assert (config.data.scheme, config.data.alpha, config.federation.num_clients) == ("dirichlet", 0.3, 20)
    assert (config.strategy.name, config.protection.name) == ("fedavg", "plain")
    assert config.federation.server_evaluation


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        RunConfig().federation.rounds = 3  # type: ignore[misc]


def test_reads_a_file_and_overrides_it(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('seed = 5\n[federation]\nrounds = 7\n[task]\nname = "digits"\n[task.options]\nwidth = 3\n')
    config = load_config(path, ["federation.rounds=9", "model.options.hidden=[4, 5]", "data.scheme=iid"])
    assert (config.seed, config.federation.rounds, config.task.options) == (5, 9, {"width": 3})
    assert (config.model.options, config.data.scheme) == ({"hidden": (4, 5)}, "iid")


@pytest.mark.parametrize(
    ("text", "name"), [("2026-01-31", "2026-01-31"), ("'a-b'", "a-b"), ("plain", "plain"), ("07:30:00", None)]
)
def test_text_needs_no_quotes(text: str, name: str | None) -> None:
    if name is None:
        assert problems(f"output.name={text}").keys() == {"output.name"}
    else:
        assert load_config(None, [f"output.name={text}"]).output.name == name


def test_the_last_override_wins() -> None:
    assert load_config(None, ["seed=1", "seed=2"]).seed == 2


def test_override_of_a_name_drops_the_keys_of_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('[strategy]\nname = "fedavgm"\nserver_lr = 0.5\n')
    assert load_config(path, ["strategy.name=fedavgm"]).strategy.server_lr == 0.5
    config = load_config(path, ["strategy.mu=0.25", "strategy.name=fedprox"])
    assert (config.strategy.name, config.strategy.mu) == ("fedprox", 0.25)


def test_reports_all_problems_together() -> None:
    found = problems(
        "federation.round=3",
        "training.lr=nan",
        "training.weight_decay=inf",
        "engine.workers='2'",
        "lr=3",
        "task=3",
        "output.report='yes'",
        "federation.num_clients=0",
        "strategy.name=fedavgm",
        "protection.name=bfv",
    )
    assert found.keys() == {
        "lr",
        "task",
        "training.lr",
        "training.weight_decay",
        "federation.num_clients",
        "federation.round",
        "strategy.name",
        "engine.workers",
        "output.report",
    }
    assert found["federation.round"].endswith("did you mean federation.rounds?")
    assert found["lr"] == "lr = 3: no such setting; did you mean training.lr?"
    assert found["training.lr"] == "training.lr = nan: must be a number, more than 0; the default is 0.05"
    assert found["engine.workers"].endswith("write it without quotes")
    assert "only the clients can open it" in found["strategy.name"]


def test_message_counts_and_lists_the_problems() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, ["seed=-1", "federation.rounds=0"])
    lines = str(caught.value).splitlines()
    assert lines[0] == "2 problems in the settings:"
    assert lines[1] == "  seed = -1: must be a whole number, at least 0; the default is 1"
    assert lines[2] == "  federation.rounds = 0: must be a whole number, at least 1; the default is 10"


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("federation.rounds=true", "must be a whole number"),
        ("federation.rounds=1.0", "must be a whole number"),
        ("federation.participation=0", "more than 0, at most 1"),
        ("federation.participation=true", "must be a number"),
        ("federation.min_replies=0", "at least 1"),
        ("federation.min_replies=1.5", "at most 1"),
        ("federation.deadline_s=0", "more than 0"),
        ("data.alpha=-1", "more than 0"),
        ("data.scheme=dirichelt", "did you mean 'dirichlet'?"),
        ("training.optimizer=sdg", "did you mean 'sgd'?"),
        ("training.momentum=1", "less than 1; the default is 0.9"),
        ("output.name=../x", "must be text"),
        ("output.name=''", "must be text"),
        ("seed=9223372036854775808", "must be a whole number"),
        ("task.options.x=[[1]]", "flat list"),
        ("task.options.x=nan", "must be finite"),
        ("task.options.x=[1, inf]", "must be finite"),
        ("model.options={'a.b' = 1}", "option name 'a.b'"),
        ("strategy.name=fedprx", "did you mean 'fedprox'?"),
        ("strategy.name=3", "must be one of fedavg"),
        ("strategy=fedprox", "must be a table"),
        ("strategy.name=flwr:FedAvgg", "did you mean 'flwr:FedAvg'?"),
        ("strategy.mu=1", "it belongs to another strategy"),
        ("protection.name=ckss", "did you mean 'ckks'?"),
        ("federation.lr=0.1", "did you mean training.lr?"),
        ("zzz=1", "the sections are seed, task, model"),
        ("self=1", "the sections are seed, task, model"),
        ("federation.zzzzzz=1", "the keys are num_clients"),
    ],
)
def test_refuses_wrong_values(override: str, text: str) -> None:
    (problem,) = problems(override).values()
    assert text in problem


#: For each rule of the table, settings that break it, in its order.
BREAKERS = [
    ["federation.update_norm=1.0", "strategy.name=fedluar"],
    ["federation.update_norm=1.0", "protection.name=preamble"],
    ["federation.clients_per_round=5", "federation.participation=0.5"],
    ["federation.clients_per_round=21"],
    ["federation.min_replies=21"],
    ["strategy.name=fedadam", "protection.name=openfhe-bgv"],
    ["strategy.name=strategies.fedavg:FedAvgM", "protection.name=bfv"],
    ["strategy.name=flwr:Krum", "protection.name=preamble"],
    ["strategy.name=dictpfl", "protection.name=openfhe-threshold"],
    ["strategy.name=dictpfl", "protection.name=openfhe-ckks"],
    ["strategy.name=flwr:FedAdam", "strategy.options.beta1=0.5"],
    ["strategy.name=fedluar", "protection.name=openfhe-ckks"],
    ["strategy.name=fedluar", "strategy.downlink=delta", "strategy.optimizer=adam"],
    ["strategy.name=leff", "data.proxy_examples=0"],
    ["strategy.name=leff", "strategy.tiers=[1, 0]"],
    ["strategy.name=leff", "strategy.capacity=memory", "strategy.memory_mb=[0.0]"],
    ["strategy.name=leff", "strategy.memory_mb=[8.0]"],
    ["strategy.name=leff", "strategy.selector=gradient", "protection.name=preamble"],
    ["protection.name=ckks", "federation.server_evaluation=true"],
    ["task.name=files"],
    ["protection.name=preamble", "federation.weighting=examples"],
    ["data.scheme=natural-id"],
    ["training.nesterov=true", "training.momentum=0"],
    ["protection.name=ckks", "protection.chain=[40, 40]"],
    ["protection.name=openfhe-threshold", "protection.flooding=statistical", "protection.base=ckks"],
    ["protection.name=preamble", "protection.verify=norm", "protection.word_bits=32"],
    ["protection.name=preamble", "protection.block_size=256"],
    ["protection.name=preamble", "protection.dense=true", "protection.byte_budget=10000"],
    ["protection.name=preamble", "protection.transport=relay", "engine.name=flower"],
    ["protection.name=openfhe-threshold", "federation.num_clients=2"],
    ["protection.name=preamble", "protection.min_cohort=21"],
    ["devices.preset=toaster"],
    ["clock.server=toaster"],
    ["devices.network=avian"],
    ["devices.tiers.phone-low=0.5"],
    ["devices.profile=tiers", "devices.tiers.phone-low=0"],
    ["devices.profile=trace"],
    ["clock.deadline_s=3"],
    ["clock.over_selection=1.3", "federation.participation=0.5"],
    ["clock.policy=first-k"],
    ["strategy.name=fedbuff", "strategy.buffer_size=21"],
    ["strategy.name=fedbuff", "clock.policy=deadline", "clock.deadline_s=1"],
    ["strategy.name=fedbuff", "devices.availability_trace=x.csv"],
    ["faults.nan=[20]"],
    ["faults.nan=[2]", "faults.stale=[2]"],
    ["faults.rounds=[0]", "faults.nan=[2]"],
    ["faults.wrong_key=[2]"],
    ["faults.nan=[2]", "strategy.name=flwr:FedAvg"],
    ["engine.name=ray", "engine.shares.laptop=[1, 0, 0.5, 2]"],
    ["engine.shares.laptop=[1, 0, 500, 2]"],
    ["output.loggers=['matlab']"],
    ["engine.name=inline", "engine.workers=2"],
    ["engine.name=inline", "engine.ray_address=ray://host:10001"],
]


@pytest.mark.parametrize(("rule", "overrides"), list(zip(RULES, BREAKERS, strict=True)))
def test_refuses_combinations(rule: Any, overrides: list[str]) -> None:
    found = problems(*overrides)
    assert found.keys() == {rule.keys[0]}
    assert "{" not in found[rule.keys[0]].split(": ", 1)[1]


def test_combinations_with_a_wrong_value_are_left_alone() -> None:
    assert problems("federation.num_clients=0", "federation.min_replies=30").keys() == {"federation.num_clients"}
    assert problems("strategy.name=nope", "protection.name=bfv").keys() == {"strategy.name"}


def test_a_combination_is_reported_beside_a_wrong_value() -> None:
    assert problems("seed=x", "federation.min_replies=30").keys() == {"seed", "federation.min_replies"}


@pytest.mark.parametrize("name", [name for name, kind in PROTECTIONS.items() if kind.opened_by == "clients"])
def test_clients_evaluate_where_only_they_can_open(name: str) -> None:
    federation = load_config(None, [f"protection.name={name}"]).federation
    assert (federation.server_evaluation, federation.client_evaluation_fraction) == (False, 1.0)
    asked = load_config(None, [f"protection.name={name}", "federation.client_evaluation_fraction=0.5"])
    assert asked.federation.client_evaluation_fraction == 0.5


@pytest.mark.parametrize(
    ("name", "override", "bound"),
    [
        ("ckks", "bound=3", 3.0),
        ("bfv", "clip=3", 3.0),
        ("rlwe", "clip=3", 3.0),
        ("rlwe-threshold", "clip=3", 3.0),
        ("openfhe-ckks", "bound=3", 3.0),
        ("openfhe-bgv", "clip=3", 3.0),
        ("openfhe-threshold", "bound=3", 3.0),
        ("preamble", "clip_norm=3", 3.0),
    ],
)
def test_every_protection_states_its_bound(name: str, override: str, bound: float) -> None:
    config = load_config(None, [f"protection.name={name}", f"protection.{override}"])
    assert config.protection.plan_bound == bound


def test_preamble_counts_clients_equally() -> None:
    assert load_config(None, ["protection.name=preamble"]).federation.weighting == "uniform"


@pytest.mark.report("U28")
def test_readme_shows_which_strategy_runs_under_which_protection() -> None:
    text = Path(__file__).parents[2].joinpath("README.md").read_text(encoding="utf-8")
    table = [
        line.strip("|").split("|")
        for line in text.splitlines()
        if line.startswith("| | plain") or line.split(" | ")[1:2] in (["yes"], ["no"])
    ]
    (_, *protections), *rows = [[cell.strip() for cell in line] for line in table]
    assert protections == list(PROTECTIONS)
    assert [row[0] for row in rows] == [name for name in STRATEGIES if name not in FAMILIES] + ["flwr:FedMedian"]
    for strategy, *cells in rows:
        assert cells == [runs_under(strategy, protection) for protection in protections], strategy


def runs_under(strategy: str, protection: str) -> str:
    try:
        load_config(None, [f"strategy.name={strategy}", f"protection.name={protection}"])
    except ConfigError:
        return "no"
    return "yes"


def test_takes_sections_as_objects() -> None:
    config = RunConfig(protection=BfvConfig(), federation=FederationConfig(rounds=3))
    assert (config.protection.name, config.federation.rounds, config.federation.server_evaluation) == ("bfv", 3, False)
    with pytest.raises(ConfigError, match="never sees the model"):
        RunConfig(protection=BfvConfig(), federation=FederationConfig(server_evaluation=True))


@pytest.mark.parametrize(
    ("federation", "sampled", "needed"),
    [
        ({}, 20, 10),
        ({"num_clients": 30, "min_replies": 0.1}, 30, 3),
        ({"num_clients": 10, "participation": 0.01}, 1, 1),
        ({"num_clients": 10, "participation": 0.25, "min_replies": 1.0}, 3, 3),
        ({"clients_per_round": 7, "min_replies": 1}, 7, 1),
        ({"clients_per_round": 7, "min_replies": 0.5}, 7, 4),
    ],
)
def test_counts_of_a_round(federation: dict[str, Any], sampled: int, needed: int) -> None:
    config = FederationConfig(**federation)
    assert (config.sampled, config.needed_replies) == (sampled, needed)


@pytest.mark.parametrize("text", ["", "a", "=3", "a.=3", ".b=1"])
def test_refuses_malformed_overrides(text: str) -> None:
    (problem,) = problems(text).values()
    assert "must be section.key=value" in problem


def test_refuses_unreadable_files(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("[federation\n")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    for name, text in [
        ("none.toml", "No such file"),
        ("bad.toml", "line 1"),
        ("bytes.toml", "UTF-8"),
        (".", "cannot be read"),
    ]:
        with pytest.raises(ConfigError, match=text):
            load_config(tmp_path / name)


def test_flwr_options_are_those_of_the_installed_flwr() -> None:
    import inspect

    ours = {"fraction_train", "fraction_evaluate", "weighted_by_key", "arrayrecord_key", "configrecord_key"}
    ours |= {"min_train_nodes", "min_evaluate_nodes", "min_available_nodes", "self", "selection_rule"}
    ours |= {"train_metrics_aggr_fn", "evaluate_metrics_aggr_fn"}
    for name, options in FLWR_OPTIONS.items():
        parameters = set(inspect.signature(getattr(flwr_strategies, name).__init__).parameters)
        assert parameters - ours == set(options), name
    left_out = {name for name in flwr_strategies.__all__ if name.startswith(("FedXgb", "DifferentialPrivacy"))}
    assert set(FLWR_OPTIONS) | left_out | {"Result", "Strategy"} == set(flwr_strategies.__all__)


def test_every_setting_is_described() -> None:
    keys = schema()
    assert len(keys) == len({(key.key, key.of) for key in keys})
    assert all(key.description and key.allowed and "<" not in key.allowed for key in keys)
    assert {key.of for key in keys} == {"", *STRATEGIES, *PROTECTIONS}


def test_template_is_valid_and_shows_every_key() -> None:
    text = template()
    assert config_from_dict(tomllib.loads(text)) == RunConfig()
    for key in schema():
        assert f"{key.key.split('.')[-1]} =" in text or f".{key.key.split('.')[-1]}]" in text, key.key


def test_toml_explains_each_key() -> None:
    text = to_toml(RunConfig())
    assert "# Rounds of training: a whole number, at least 1.\nrounds = 10\n" in text


# -- round trips --

option_values = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    st.sampled_from(["json:", "json:null", "json:[1", "true", "1", '"', "a\nb"]),
)
options = st.dictionaries(
    st.from_regex(r"[A-Za-z][A-Za-z0-9_-]{0,6}", fullmatch=True),
    option_values | st.lists(option_values, max_size=3),
    max_size=3,
)
strategy_tables = st.one_of(
    st.just({}),
    st.builds(lambda mu: {"name": "fedprox", "mu": mu}, st.floats(0, 1e300)),
    st.builds(lambda b: {"name": "fedadam", "beta1": b}, st.floats(0, 0.999)),
    st.just({"name": "flwr:Krum", "options": {"num_malicious_nodes": 1}}),
)
protection_tables = st.one_of(
    st.just({}),
    st.builds(lambda chain: {"name": "ckks", "chain": chain}, st.lists(st.integers(41, 60), min_size=1, max_size=4)),
    st.builds(lambda n: {"name": "openfhe-bgv", "plain_bits": n, "interpreter": "json:x"}, st.integers(13, 31)),
    st.builds(lambda e: {"name": "preamble", "epsilon": e}, st.floats(1e-3, 500)),
)


@st.composite
def configs(draw: st.DrawFn) -> RunConfig:
    strategy, protection = draw(strategy_tables), draw(protection_tables)
    if strategy.get("name") in ("fedadam", "flwr:Krum"):
        protection = {}
    return config_from_dict(
        {
            "seed": draw(st.integers(0, 2**63 - 1)),
            "task": {"options": draw(options)},
            "federation": draw(
                st.sampled_from([{}, {"clients_per_round": 3}, {"min_replies": 3}, {"min_replies": 1.0}])
            ),
            "training": {"lr": draw(st.floats(1e-300, 1e300)), "clip_norm": 1.5},
            "strategy": strategy,
            "protection": protection,
        }
    )


@settings(deadline=None)  # a busy machine is slow, not wrong
@given(configs())
def test_toml_round_trip(config: RunConfig) -> None:
    again = config_from_dict(tomllib.loads(to_toml(config)))
    assert again == config
    assert repr(again) == repr(config)


@settings(deadline=None)  # a busy machine is slow, not wrong
@given(configs())
def test_run_config_round_trip(config: RunConfig) -> None:
    flat = to_run_config(config)
    assert all(type(value) in (bool, int, float, str) for value in flat.values())
    again = from_run_config(flat)
    assert again == config
    assert repr(again) == repr(config)


def test_run_config_passes_through_flower() -> None:
    from flwr.common.serde import user_config_from_proto, user_config_to_proto

    flat = to_run_config(load_config(None, ["protection.name=ckks", "model.options.hidden=[1, 2]"]))
    assert from_run_config(user_config_from_proto(user_config_to_proto(flat))) == from_run_config(flat)


def test_run_config_takes_a_file_or_its_text(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("seed = 4\n[federation]\nrounds = 2\n")
    for config in (str(path), path.read_text()):
        both = from_run_config({"config": config, "federation.rounds": 3})
        assert (both.seed, both.federation.rounds) == (4, 3)
    assert from_run_config({"config": ""}) == RunConfig()


def test_run_config_refuses_damage() -> None:
    with pytest.raises(ConfigError, match="is not JSON") as caught:
        from_run_config({"seed": "json:[", "seed.x": 1})
    assert {problem.key for problem in caught.value.problems} == {"seed"}
    with pytest.raises(ConfigError, match="a key above it is a value"):
        from_run_config({"seed": 1, "seed.x": 1})


def test_with_values_checks_again() -> None:
    config = RunConfig()
    assert with_values(config, {"training.lr": 0.5, "model.options.hidden": [3]}).model.options == {"hidden": (3,)}
    assert config.training.lr == 0.05
    with pytest.raises(ConfigError, match="training.lr"):
        with_values(config, {"training.lr": -1})


def test_with_values_starts_a_new_strategy_or_protection_from_its_defaults() -> None:
    config = load_config(None, ["strategy.name=fedadam", "strategy.beta1=0.5", "training.lr=0.5"])
    other = with_values(config, {"strategy.mu": 0.25, "strategy.name": "fedprox", "protection.name": "bfv"})
    assert (other.strategy.name, other.strategy.mu, other.training.lr) == ("fedprox", 0.25, 0.5)
    assert not other.federation.server_evaluation
    assert with_values(other, {"protection.name": "plain"}).federation == config.federation
    kept = with_values(load_config(None, ["federation.server_evaluation=false"]), {"seed": 2})
    assert not kept.federation.server_evaluation


def test_a_scheme_gets_its_own_options() -> None:
    assert load_config(None, ["data.alpha=2"]).data.scheme_options == {"alpha": 2.0}
    assert load_config(None, ["data.scheme=shard"]).data.scheme_options == {"shards_per_client": 2}
    assert load_config(None, ["data.scheme=iid"]).data.scheme_options == {}


def test_pickles_and_error_pickles() -> None:
    config = load_config(None, ["protection.name=ckks"])
    assert pickle.loads(pickle.dumps(config)) == config
    with pytest.raises(ConfigError) as caught:
        load_config(None, ["seed=-1"])
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.problems) == (str(caught.value), caught.value.problems)


# -- whatever is given, the answer is settings or a ConfigError --

junk_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
section_names = sorted({key.key.split(".")[0] for key in schema()})
key_names = sorted({key.key.split(".")[-1] for key in schema()})
kind_names = st.sampled_from([*STRATEGIES, *PROTECTIONS, "flwr:Krum", "flwr:", "x"])
junk_sections = st.dictionaries(st.sampled_from(key_names) | st.text(max_size=5), junk_values | kind_names, max_size=4)
junk_data = st.dictionaries(
    st.sampled_from(section_names) | st.text(max_size=5), junk_sections | junk_values, max_size=4
)


@settings(deadline=None, max_examples=150)
@given(junk_data)
def test_junk_is_refused_with_keys_rules_and_remedies(data: dict[str, Any]) -> None:
    try:
        config = config_from_dict(data)
    except ConfigError as error:
        assert error.problems
        assert all(problem.rule and problem.remedy for problem in error.problems)
        assert len({problem.key for problem in error.problems}) <= len(error.problems)
    else:
        assert config_from_dict(tomllib.loads(to_toml(config))) == config


@settings(deadline=None)
@given(st.lists(st.text(max_size=12) | st.sampled_from([key.key + "=1" for key in schema()]), max_size=3))
def test_any_override_is_taken_or_refused(overrides: list[str]) -> None:
    try:
        load_config(None, overrides)
    except ConfigError as error:
        assert error.problems


def test_a_file_nested_too_deeply_is_refused_in_words(tmp_path):
    path = tmp_path / "deep.toml"
    path.write_text("x = " + "[" * 100_000)
    with pytest.raises(ConfigError, match="is not TOML: nested deeper than 32"):
        load_config(path)
    with pytest.raises(ConfigError, match="training.lr"):
        load_config(None, ["training.lr=" + "[" * 100_000])


@pytest.mark.parametrize(
    ("key", "bound"), [("seed", 2**63), ("federation.rounds", 2**31), ("training.max_steps", 2**31)]
)
def test_a_number_too_large_is_told_the_bound(key, bound):
    with pytest.raises(ConfigError, match=f"{key} = {bound}: must be a whole number.*less than {bound};"):
        load_config(None, [f"{key}={bound}"])


def test_more_threads_than_a_machine_can_start_are_refused():
    with pytest.raises(ConfigError, match="threads_per_worker = 100000: .* at most 1024"):
        load_config(None, ["engine.threads_per_worker=100000"])


def test_no_setting_has_two_bounds_of_a_kind_of_which_one_would_not_count() -> None:
    kinds = [kind for section in ("strategy", "protection") for kind in variants(section).values()]
    kinds += [type(value) for value in dict(load_config()).values() if isinstance(value, Section)]
    for kind in kinds:
        for name, field in kind.model_fields.items():
            bounds = [type(bound) for bound in field.metadata]
            assert len(set(bounds)) == len(bounds), f"{kind.__name__}.{name}: {field.metadata}"


def test_refuses_patience_beyond_its_counter() -> None:
    with pytest.raises(ConfigError, match="strategy.patience = 65536"):
        load_config(None, ["strategy.name=dictpfl", "strategy.patience=65536"])


def test_over_selection_of_any_size_asks_all() -> None:
    more = ["clock.policy=first-k", "clock.over_selection=1e308", "federation.clients_per_round=2"]
    assert load_config(None, more).asked == 20


def test_a_refused_section_is_shown_by_what_was_set_in_it() -> None:
    with pytest.raises(ConfigError, match=r"faults = \{drop_before = \[99\]\}: has a client that is not there"):
        load_config(None, ["faults.drop_before=[99]"])


@pytest.mark.parametrize(
    "setting",
    ["epsilon=1e-9", "epsilon=1000", "delta=1e-100", "clip_norm=1e300", "clip_norm=1e-300", "clip_factor=1e300"],
)
def test_refuses_privacy_that_cannot_be_accounted(setting: str) -> None:
    with pytest.raises(ConfigError, match=f"protection.{setting.split('=')[0]}"):
        load_config(None, ["protection.name=preamble", f"protection.{setting}"])
