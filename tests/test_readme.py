"""Every command and every Python block of the README runs. `make` commands are run by `.ci/run`."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.S)
COMMANDS = [line[2:] for kind, text in BLOCKS if kind == "console" for line in text.splitlines() if line[:2] == "$ "]
OURS = [c for c in COMMANDS if c.startswith(".venv/bin/fedsim")]
#: Commands that need minutes; run by hand or by `-m slow`, their figures stand beside them.
LONG = [c for c in OURS if "--rounds 60" in c]


def start(command, folder):
    program, *arguments = shlex.split(command)
    assert program == ".venv/bin/fedsim"
    code = "from fedsim.cli import main; main()"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=280,
        env=environment,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("readme")


@pytest.mark.report("U28", "every command of the README runs, and its tables are compared with the code")
@pytest.mark.parametrize("command", [c for c in OURS if c not in LONG])
def test_command_runs(command, folder):
    done = start(command, folder)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("command", LONG)
def test_long_command_runs(command, folder):
    done = start(command, folder)
    assert done.returncode == 0, done.stdout + done.stderr


def test_commands_left_their_folders(folder):
    for name in ("plain", "sealed"):
        record = json.loads((folder / "runs" / name / "run.json").read_text())
        assert record["status"] == "finished"
        assert (folder / "runs" / name / "report.html").exists()


@pytest.mark.parametrize("block", [text for kind, text in BLOCKS if kind == "python"])
def test_python_block_runs(block, tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, timeout=280, env=environment
    )
    assert done.returncode == 0, done.stderr


def test_other_commands_are_run_by_ci():
    script = (ROOT / ".ci" / "run").read_text()
    others = [c for c in COMMANDS if c not in OURS]
    assert others and all(c in script for c in others), others
