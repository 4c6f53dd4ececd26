"""A sweep's file: what it makes, what it refuses, and that equal settings have equal names."""

import tomllib
from pathlib import Path

import pytest

from experiments.sweeps.spec import read_spec
from fedsim._cli import plugins
from fedsim.config import ConfigError

ROOT = Path(__file__).parents[2]
HEAD = '[sweep]\nname = "s"\nseeds = [1, 2, 3]\n[settings.task]\nname = "digits"\n[settings.model]\nname = "mlp"\n'
ARMS = """
[[arms]]
name = "a"
set = {"strategy.name" = "fedavg"}
[[arms]]
name = "b"
set = {"strategy.name" = "fedadam"}
"""


def spec(folder, text):
    path = folder / "sweep.toml"
    path.write_text(text)
    return read_spec(path, folder / "sweeps")


def test_a_grid_times_arms_times_seeds(tmp_path):
    found = spec(tmp_path, HEAD + '[grid]\n"data.alpha" = [0.1, 1.0]\n' + ARMS)
    assert len(found.trials) == 12 and len({t.name for t in found.trials}) == 12
    assert found.varied == ["strategy.name", "data.alpha"]
    first = found.trials[0].config
    assert (first.seed, first.data.alpha, first.strategy.name, first.task.name) == (1, 0.1, "fedavg", "digits")
    assert first.engine.name == "inline" and not first.output.report
    assert Path(first.output.folder) == tmp_path / "sweeps" / "s" / "runs"


def test_names_follow_from_the_settings_alone(tmp_path):
    one = spec(tmp_path, HEAD + '[grid]\n"data.alpha" = [0.1, 1.0]\n')
    two = spec(tmp_path, HEAD + '[grid]\n"data.alpha" = [1.0, 0.1, 2.0]\n')
    assert {t.name for t in one.trials} < {t.name for t in two.trials}
    other = spec(tmp_path, HEAD + '[settings.training]\nlr = 0.3\n[grid]\n"data.alpha" = [0.1, 1.0]\n')
    assert not {t.name for t in one.trials} & {t.name for t in other.trials}


def test_random_draws_follow_from_the_sweeps_seed(tmp_path):
    text = HEAD.replace("[settings.task]", "samples = 5\nseed = {}\n[settings.task]")
    laws = '[random]\n"training.lr" = {low = 0.01, high = 1.0, log = true}\n"data.scheme" = ["iid", "shard"]\n'
    one, two, three = (spec(tmp_path, text.format(n) + laws) for n in (1, 1, 2))
    assert [t.name for t in one.trials] == [t.name for t in two.trials] != [t.name for t in three.trials]
    rates = {t.values["training.lr"] for t in one.trials}
    assert len(one.trials) == 15 and len(rates) == 5 and all(0.01 <= rate <= 1 for rate in rates)


def test_refused_combinations_stop_or_are_listed(tmp_path):
    grid = '[grid]\n"protection.name" = ["plain", "bfv"]\n' + ARMS
    with pytest.raises(ConfigError, match=r'needs a server that reads the sum.*set refused = "skip"'):
        spec(tmp_path, HEAD + grid)
    found = spec(tmp_path, HEAD.replace("[settings.task]", 'refused = "skip"\n[settings.task]') + grid)
    assert len(found.trials) == 12 and len(found.runnable) == 9
    assert all("needs a server that reads the sum" in t.refused for t in found.trials if t.config is None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "sweep.name"),
        (HEAD + "[gird]\n", "gird.*no such table"),
        (HEAD.replace("seeds", "sedes"), "sweep.sedes.*no such key"),
        (HEAD.replace("[1, 2, 3]", "[1, 1]"), "must be distinct whole numbers"),
        (HEAD.replace('"s"', '"../s"'), "must be letters"),
        (HEAD + "[grid]\n", None),
        (HEAD + '[grid]\n"data.alpha" = 3\n', "grid.data.alpha.*must be a list"),
        (HEAD + '[random]\n"data.alpha" = {low = 3, high = 1}\n', "random.data.alpha"),
        (HEAD + '[grid]\n"data.alhpa" = [3]\n', "data.alhpa.*no such setting"),
        (HEAD + '[[arms]]\nname = "a"\n', "each needs a name and a table"),
        (HEAD.replace("[settings.task]", 'baseline = "x"\n[settings.task]') + ARMS, "the baseline is one"),
        ("= 3", "is no sweep"),
    ],
)
def test_a_bad_file_is_refused_in_words(tmp_path, text, words):
    if words is None:
        assert len(spec(tmp_path, text).trials) == 3
        return
    with pytest.raises(ConfigError, match=words):
        spec(tmp_path, text)


def test_the_command_is_an_entry_point_and_a_broken_one_is_left_out(monkeypatch, caplog):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["fedsim.commands"] == {"sweep": "experiments.sweep:sweep"}

    class Broken:
        name, value = "broken", "nowhere:f"

        def load(self):
            raise ImportError("no module")

    monkeypatch.setattr(plugins.metadata, "entry_points", lambda group: [Broken()])
    assert plugins.commands() == {} and "command broken of nowhere:f does not load" in caplog.text


@pytest.mark.parametrize("path", sorted((ROOT / "experiments" / "configs").glob("[ho]*/*.toml")), ids=lambda p: p.stem)
def test_every_sweep_of_the_repository_makes_sense(path, tmp_path):
    found = read_spec(path, tmp_path)
    assert found.name == path.stem and found.runnable


RUN = "[settings.task]\nname = 'digits'\n[settings.model]\nname = 'mlp'\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sweep = 3", "sweep = 3: must be a table"),
        ("settings = 3\n[sweep]\nname = 's'", "settings = 3: must be a table"),
        ("grid = 3\n[sweep]\nname = 's'", "grid = 3: must be a table"),
        ("random = 3\n[sweep]\nname = 's'", "random = 3: must be a table"),
        ("arms = 3\n[sweep]\nname = 's'", "arms = 3: must be tables"),
        ("arms = ['x']\n[sweep]\nname = 's'", "arms = .*: must be tables"),
        ("settings.engine = 'inline'\n[sweep]\nname = 's'", "settings.engine = inline: must be a table"),
        ("settings.output = 3\n[sweep]\nname = 's'", "settings.output = 3: must be a table"),
        (HEAD + "[grid]\n'data.alpha' = [1979-05-27]", "grid.data.alpha = a date"),
        (HEAD + "[grid]\n'seed' = [1, 2]", "grid.seed.*sweep's own.*sweep.seeds"),
        (HEAD + "[grid]\n'output.folder' = ['x']", r"grid\.output\.folder.*sweep's own"),
        (HEAD + "[[arms]]\nname = 'a'\nset = {'output.name' = 'x'}", r"arms\.output\.name.*sweep's own"),
        (HEAD + "[grid]\n'data.alpha' = [1.0, 1.0]", "has a value twice"),
        (
            HEAD + "[grid]\n'training.lr' = [1.0]\n[random]\n'training.lr' = [2.0]",
            r"random\.training\.lr.*\[grid\] too",
        ),
        (HEAD + "[grid]\n'strategy.name' = ['fedavg']\n" + ARMS, r"arms\.strategy\.name.*\[grid\] too"),
        (HEAD + "[random]\n'training.lr' = {low = -inf, high = inf}", "random.training.lr"),
        (HEAD + "[random]\n'training.lr' = {low = true, high = 3}", "random.training.lr"),
        (HEAD + "[random]\n'federation.rounds' = {low = 1, high = 99999999999999999999}", "random.federation.rounds"),
    ],
)
def test_refuses_what_no_sweep_can_mean(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        spec(tmp_path, text)


@pytest.mark.parametrize(
    "key",
    ["cpus = 0", "cpus = nan", "cpus = inf", "gpus = -1", "memory_mb = -1", "retries = -1", "samples = 0", "seed = -1"]
    + ["target = nan", "heat = ['data.alpha']", "heat = ['data.alpha', 'nope.x']", "heat = [1, 2]"],
)
def test_refuses_numbers_out_of_range_and_unknown_axes(tmp_path, key):
    with pytest.raises(ConfigError, match=f"sweep.{key.split()[0]}"):
        spec(tmp_path, f"[sweep]\nname = 's'\n{key}\n{RUN}[grid]\n'data.alpha' = [0.1, 1.0]\n")
