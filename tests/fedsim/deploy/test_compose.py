"""The wrapper of `docker compose`."""

import pytest

from fedsim.config import load_config
from fedsim.deploy.compose import Compose
from fedsim.deploy.init import initialise
from fedsim.errors import EngineError


def test_outside_of_a_clone_it_says_where_the_services_are_described(tmp_path):
    config = load_config(None, ["task.name=digits", "model.name=mlp", "federation.num_clients=1"])
    told = []
    compose = Compose(initialise(tmp_path / "it", config).deployment, tmp_path / "docker-compose.yml", told.append)
    with pytest.raises(
        EngineError, match=r"docker-compose\.yml is not there: .* go to a clone, or name the file with --file"
    ):
        compose.status()
    assert not told
