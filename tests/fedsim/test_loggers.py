"""The hook for other tools: what they get, that they are closed, and that none of them is needed."""

import sys
from types import ModuleType

import pytest

from fedsim._config.rules import LOGGERS
from fedsim.config import load_config
from fedsim.events import NullObserver
from fedsim.loggers import SINKS, LoggerMissing, logged
from fedsim.runner import run, simulate

SMALL = [
    "task.name=digits",
    "model.name=logistic",
    "federation.num_clients=3",
    "federation.rounds=2",
    "output.report=false",
    "output.name=run",
    "engine.name=inline",
]


def settings(folder, *more):
    return load_config(None, [*SMALL, f"output.folder={folder}", *more])


class Fake(ModuleType):
    """Stands for any of the tools: notes every call on it and on what it returns."""

    def __init__(self, name, calls):
        super().__init__(name)
        self.__dict__["calls"] = calls

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*args, **kwargs):
            self.calls.append((name, args, kwargs))
            return self

        return call


@pytest.fixture(params=["tensorboard", "wandb", "mlflow"])
def tool(request, monkeypatch):
    calls = []
    module = {"tensorboard": "tensorboardX"}.get(request.param, request.param)
    monkeypatch.setitem(sys.modules, module, Fake(module, calls))
    return request.param, calls


def test_the_settings_know_every_sink():
    assert LOGGERS == set(SINKS)


def test_each_tool_gets_the_numbers_of_each_round_and_is_closed(tool, tmp_path):
    name, calls = tool
    simulate(settings(tmp_path, f"output.loggers=['{name}']"))
    text = repr(calls)
    assert "accuracy" in text and "virtual_round_s" in text and "upload_bytes" in text
    logs = [c for c in calls if c[0] in ("add_scalar", "log", "log_metrics")]
    assert {c[2].get("step", c[1][-1]) for c in logs} == {1, 2}
    assert calls[-1][0] in ("close", "finish", "end_run")


def test_a_run_that_fails_closes_the_tool_too(tool, tmp_path):
    name, calls = tool

    class Cut(NullObserver):
        def round_end(self, event):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(settings(tmp_path, f"output.loggers=['{name}']"), Cut())
    assert calls[-1][0] in ("close", "finish", "end_run")


def test_a_tool_that_is_not_there_is_named_before_anything_starts(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(LoggerMissing, match=r"wandb is not installed.*install 'fedsim\[wandb\]'"):
        simulate(settings(tmp_path, "output.loggers=['wandb']"))
    assert not (tmp_path / "run").exists()


def test_without_loggers_the_observer_is_left_alone():
    observer = NullObserver()
    with logged(observer, load_config(None)) as same:
        assert same is observer


def test_tensorboard_writes_event_files(tmp_path):
    pytest.importorskip("tensorboardX", reason="NOT TESTED HERE: tensorboardX is not installed")
    simulate(settings(tmp_path, "output.loggers=['tensorboard']"))
    (events,) = (tmp_path / "run" / "tensorboard").glob("events.*")
    assert b"virtual_round_s" in events.read_bytes()
