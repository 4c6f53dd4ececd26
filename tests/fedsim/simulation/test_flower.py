"""``flwr run`` through the launcher, with a tiny app that says where its code comes from."""

import io
import json
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from flwr.cli.build import build_fab_from_disk

from fedsim.simulation.flower import COMPLETED, FlowerRun, clean_environment, flwr_run, write_commands
from fedsim.simulation.guard import processes_of

REPOSITORY = Path(__file__).parents[3]

PROJECT = """
[project]
name = "tiny"
version = "1.0.0"
dependencies = ["flwr>=1.42"]

[tool.flwr.app]
publisher = "tests"

[tool.flwr.app.components]
serverapp = "tiny.server:app"
clientapp = "tiny.client:app"

[tool.flwr.app.config]
report = ""
fail = false
"""

WHERE = """
import os, sys

def where():
    import crypto._native, fedsim, flwr
    names = ("FLWR_TELEMETRY_ENABLED", "RAY_USAGE_STATS_ENABLED", "RAY_AUTH_MODE")
    return {
        "native": crypto._native.__file__,
        "fedsim": fedsim.__file__,
        "app": __file__,
        "environment": "".join(os.environ.get(name, "-") for name in names),
    }
"""

CLIENT = """
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from tiny.where import where

app = ClientApp()

@app.query()
def query(message, context):
    found = ConfigRecord(where() | {"partition": context.node_config["partition-id"]})
    return Message(RecordDict({"where": found}), reply_to=message)
"""

SERVER = """
import json, time
from flwr.app import Message, RecordDict
from flwr.serverapp import ServerApp
from tiny.where import where

app = ServerApp()

@app.main()
def main(grid, context):
    if context.run_config["fail"]:
        raise RuntimeError("the app fails on purpose")
    while len(nodes := list(grid.get_node_ids())) < 2:
        time.sleep(0.05)
    replies = grid.send_and_receive([Message(RecordDict(), n, "query") for n in nodes], timeout=120)
    clients = [dict(reply.content["where"]) for reply in replies]
    with open(context.run_config["report"], "w") as out:
        json.dump({"server": where(), "clients": clients}, out)
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    app = tmp_path / "app"
    (app / "tiny").mkdir(parents=True)
    (app / "pyproject.toml").write_text(PROJECT)
    files = {"__init__": "", "where": WHERE, "client": CLIENT, "server": SERVER}
    for name, text in files.items():
        (app / "tiny" / f"{name}.py").write_text(text)
    return app


def test_a_run_completes_with_the_installed_packages_and_leaves_nothing(tiny: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    before = {p.pid for p in psutil.Process().children(recursive=True)}
    run = flwr_run(tiny, {"report": str(report)}, num_supernodes=2, cpus=1, timeout_s=280, log_folder=tmp_path / "logs")
    assert run.status == COMPLETED and run.exit_code == 0, (tmp_path / "logs" / "run.log").read_text()
    found = json.loads(report.read_text())
    import crypto._native
    import fedsim

    for side in (found["server"], *found["clients"]):
        assert side["native"] == crypto._native.__file__ and side["fedsim"] == fedsim.__file__
        assert "/apps/" in side["app"] and not side["app"].startswith(str(tiny))
        assert side["environment"] == "00token"
    assert sorted(client["partition"] for client in found["clients"]) == [0, 1]
    assert {p.pid for p in psutil.Process().children(recursive=True)} <= before


@pytest.mark.slow
def test_a_failing_app_gives_a_real_exit_code_and_its_log(tiny: Path, tmp_path: Path) -> None:
    run = flwr_run(tiny, {"fail": True}, num_supernodes=1, cpus=1, timeout_s=280, log_folder=tmp_path / "logs")
    assert run.status == "finished:failed" and run.exit_code == 1
    assert "the app fails on purpose" in (tmp_path / "logs" / "run.log").read_text()


@pytest.mark.slow
def test_a_launcher_that_is_killed_leaves_nothing(tiny: Path, tmp_path: Path) -> None:
    """With one client the app waits for ever; Ray and Flower are up by then, in sessions of their own."""
    launch = "import sys; from pathlib import Path; from fedsim.simulation.flower import flwr_run; "
    launch += "app, logs = map(Path, sys.argv[1:]); "
    launch += "flwr_run(app, {}, num_supernodes=1, cpus=1, timeout_s=280, log_folder=logs)"
    with subprocess.Popen([sys.executable, "-c", launch, tiny, tmp_path / "logs"]) as launcher:
        home = wait_for(lambda: home_below(launcher.pid))
        wait_for(lambda: any("raylet" in p.name() for p in processes_of(home)))
        launcher.kill()
    wait_for(lambda: not home.exists() and not processes_of(home))


def home_below(pid: int) -> Path | None:
    """Return the private folder of the SuperLink that a process has started."""
    for process in psutil.Process(pid).children():
        if "flower-superlink" in " ".join(process.cmdline()):
            return Path(process.environ()["FLWR_HOME"])
    return None


def wait_for(what: Callable[[], Any]) -> Any:
    end_s = time.monotonic() + 200
    while not (found := what()):
        assert time.monotonic() < end_s
        time.sleep(0.1)
    return found


def test_the_app_of_this_repository_is_a_stub() -> None:
    names = zipfile.ZipFile(io.BytesIO(build_fab_from_disk(REPOSITORY))).namelist()
    code = {name for name in names if name.endswith(".py")}
    assert code == {"flower_app/__init__.py", "flower_app/client_app.py", "flower_app/server_app.py"}


def test_the_environment_has_nothing_of_another_flower(tmp_path: Path) -> None:
    dirty = {"FLWR_HOME": "/elsewhere", "RAY_ADDRESS": "auto", "PYTHONPATH": "/x", "UV_INDEX_URL": "y", "HOME": "/h"}
    clean = clean_environment(dirty | {"PATH": "/bin"}, tmp_path)
    assert clean["HOME"] == "/h" and clean["FLWR_HOME"] == str(tmp_path)
    assert not {"RAY_ADDRESS", "PYTHONPATH", "UV_INDEX_URL"} & set(clean)
    assert clean["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1" and clean["FLWR_TELEMETRY_ENABLED"] == "0"
    assert clean["PATH"].split(os.pathsep) == [str(tmp_path / "bin"), "/bin"]


def test_commands_run_in_this_interpreter(tmp_path: Path) -> None:
    write_commands(tmp_path / "bin")
    assert {"flwr", "flower-superlink", "flwr-simulation"} <= {p.name for p in (tmp_path / "bin").iterdir()}
    assert os.access(tmp_path / "bin" / "flwr", os.X_OK)


def test_refuses_a_folder_without_an_app(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"pyproject\.toml are needed"):
        flwr_run(tmp_path, {}, num_supernodes=1, cpus=1, timeout_s=1, log_folder=tmp_path)
    assert FlowerRun(1, "finished:stopped").exit_code == 1
