import hashlib
from types import SimpleNamespace

import pytest

from crypto import InputError
from fedsim.config import load_config, to_toml
from fedsim.deploy import worker
from fedsim.deploy.folder import Node
from fedsim.deploy.supernode import Pace
from fedsim.site import site_of

APP = b"an app"
HASH = hashlib.sha256(APP).hexdigest()


def pull(client):
    return "message", "context", "run", SimpleNamespace(content=APP)


@pytest.mark.parametrize("app", ["", HASH])
def test_the_pinned_app_is_let_through(app):
    assert worker.pinned(pull, app)(None)[0] == "message"


def test_another_app_is_answered_with_an_error_and_not_executed(monkeypatch):
    sent = []
    monkeypatch.setattr(worker, "_refusal", lambda message, found, app: (message, found, app))
    monkeypatch.setattr(worker.flower, "push_message", lambda client, message, context: sent.append(message))
    with pytest.raises(InputError, match="this client executes 0000000000000000 only"):
        worker.pinned(pull, "0" * 64)(None)
    assert sent == [("message", HASH, "0" * 64)]


def test_pauses_double_while_nothing_comes_and_begin_anew_with_a_message():
    slept = []
    pace = Pace(0.3, slept.append)
    for seconds in (3, 3, 3, 3, 3, 0.5, 3):
        pace.sleep(seconds)
    assert slept == [0.05, 0.1, 0.2, 0.3, 0.3, 0.05, 0.05]


@pytest.fixture
def agreed(tmp_path):
    config = load_config(None, ["task.name=digits", "model.name=mlp", "federation.num_clients=2"])
    (tmp_path / "settings.toml").write_text(to_toml(config))
    return {"settings": str(tmp_path / "settings.toml")}, to_toml(config)


def test_settings_that_the_client_agreed_to_may_differ_in_where_files_lie(agreed):
    node, text = agreed
    site = site_of({"config": text, "output.folder": "elsewhere", "resume": "run-1"}, node)
    assert site.config.task.name == "digits"


def test_refuses_settings_that_the_client_did_not_agree_to(agreed):
    node, text = agreed
    with pytest.raises(InputError, match=r"1 settings of the server .*training.lr is 0\.5, agreed was"):
        site_of({"config": text, "training.lr": 0.5}, node)


def test_what_the_app_learns_of_a_node():
    node = Node(superlink="a:1", partition_id=1, num_partitions=2, settings="/s", out="/o")
    assert node.app_config() == {"partition-id": 1, "num-partitions": 2, "settings": "/s", "out": "/o"}
