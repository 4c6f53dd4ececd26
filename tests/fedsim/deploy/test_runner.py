"""The runner of ServerApps: what the process of a run has of it and what not."""

import os
import signal
import time

import pytest
from flwr.supercore.constant import TaskType
from flwr.supercore.exit import exit_handler
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResultStatus

from fedsim.deploy import runner
from fedsim.deploy.runner import ForkingExecutor


def spec(task_type=TaskType.SERVER_APP, **more):
    values = {
        "runtime_api_address": "superlink:8000",
        "token": "t",
        "insecure": True,
        "root_certificates_path": None,
        "runtime_dependency_install": False,
        "parent_pid": os.getpid(),
        "suppress_output": True,
        "task_id": 1,
    }
    return ExecutionSpec(task_type=task_type, **values | more)


@pytest.fixture
def launched(monkeypatch, tmp_path):
    """Return what starts a run of a function; gives its exit code."""

    def launch(serve, **more):
        monkeypatch.setattr(runner, "run_serverapp", serve)
        executor = ForkingExecutor()
        assert executor.launch(spec(**more)).status == LaunchResultStatus.ACCEPTED
        (child,) = executor._children
        _, status = os.waitpid(child, 0)
        return os.waitstatus_to_exitcode(status)

    return launch


def test_a_run_is_a_process_of_its_own_with_the_runs_token_and_name(launched, tmp_path):
    def serve(**given):
        name = open("/proc/self/comm").read().strip() if os.path.exists("/proc/self/comm") else runner.TITLE
        (tmp_path / "said").write_text(f"{given['token']} {given['runtime_api_address']} {os.getppid()} {name}")

    assert launched(serve) == 0
    assert (tmp_path / "said").read_text() == f"t superlink:8000 {os.getpid()} flwr-serverapp"


def test_a_run_closes_nothing_of_the_runners_when_it_ends(launched, monkeypatch, tmp_path):
    closed = exit_handler._RegisteredExitHandler(lambda: (tmp_path / "closed").touch(), False)
    monkeypatch.setattr(exit_handler, "registered_exit_handlers", [closed])
    monkeypatch.setattr(runner, "registered_exit_handlers", exit_handler.registered_exit_handlers)

    def serve(**given):
        exit_handler.trigger_exit_handlers(run_before_force_exit=False)
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        raise SystemExit(7)

    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        assert launched(serve) == 7
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not (tmp_path / "closed").exists() and exit_handler.registered_exit_handlers == [closed]


def test_a_run_that_breaks_ends_with_code_1_and_prints_nothing(launched, capfd):
    def serve(**given):
        os.write(1, b"the server's words\n")
        raise ValueError("broken")

    assert launched(serve) == 1
    assert capfd.readouterr().out == ""


def test_ended_runs_are_let_go(monkeypatch):
    monkeypatch.setattr(runner, "run_serverapp", lambda **given: None)
    executor = ForkingExecutor()
    executor.launch(spec())
    (child,) = executor._children
    end_s = time.monotonic() + 30
    while executor._children and time.monotonic() < end_s:
        executor.reconcile()
        time.sleep(0.01)
    assert not executor._children
    with pytest.raises(ChildProcessError):
        os.waitpid(child, os.WNOHANG)
