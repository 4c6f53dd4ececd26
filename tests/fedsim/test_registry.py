"""Settings reach strategies and training under their own names."""

import pytest

from fedsim.config import FAMILIES, STRATEGIES, load_config
from fedsim.registry import SERVER_HALVES, server_half, train_config


@pytest.mark.parametrize("name", [name for name in STRATEGIES if name not in FAMILIES])
def test_every_strategy_of_the_settings_has_its_server_half(name):
    assert server_half(load_config(None, [f"strategy.name={name}"])).name == name
    assert name in SERVER_HALVES


@pytest.mark.parametrize(("more", "want"), [([], 7), (["training.schedule_rounds=3"], 3)])
def test_a_schedule_lasts_as_long_as_it_is_told_or_the_run(more, want):
    config = load_config(None, ["training.schedule=cosine", *more])
    assert train_config(config, rounds=7).schedule_rounds == want


def test_settings_that_are_not_set_mean_no_limit():
    made = train_config(load_config(None), rounds=7, proximal_mu=0.5)
    assert (made.clip_norm, made.max_steps, made.schedule_rounds, made.proximal_mu) == (0.0, 0, 0, 0.5)
