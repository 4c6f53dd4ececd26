"""Flower's commands, as they fail."""

import subprocess

import pytest

from fedsim.deploy.control import Control
from fedsim.deploy.folder import Deployment
from fedsim.errors import EngineError


@pytest.fixture
def control(tmp_path, monkeypatch):
    def hang(command, timeout, **more):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", hang)
    return Control(Deployment(tmp_path), "direct", lambda text: None)


def test_a_command_that_gives_no_answer_is_an_error_with_a_remedy(control):
    with pytest.raises(EngineError, match=r"flwr supernode ls gave no answer in 180 s: .* try again"):
        control.nodes()


def test_whoever_follows_a_run_waits_on_while_a_command_gives_no_answer(control):
    assert control._status(1) == ""
