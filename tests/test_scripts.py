"""The scripts around the code: what they refuse, and that they parse."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def check_build(python: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = ["/bin/sh", str(ROOT / "scripts" / "check_build.sh"), python]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environment)


def test_no_python_and_no_compiler_are_reported_together(tmp_path: Path) -> None:
    done = check_build("", PATH=str(tmp_path))
    assert done.returncode == 1
    assert "missing: Python 3.11, 3.12 or 3.13" in done.stderr
    assert "apt-get install python3 python3-venv python3-dev" in done.stderr
    assert "missing: a C++20 compiler" in done.stderr


def test_a_python_without_venv_and_headers_names_the_packages(tmp_path: Path) -> None:
    bare = tmp_path / "python3.11"
    bare.write_text("#!/bin/sh\nexit 1\n")
    bare.chmod(0o755)
    done = check_build(str(bare))
    assert done.returncode == 1
    assert "apt-get install python3-venv" in done.stderr
    assert "apt-get install python3-dev" in done.stderr


def test_a_whole_machine_passes() -> None:
    done = check_build(sys.executable, CXX="true")
    assert (done.returncode, done.stderr) == (0, "")


def make(*arguments: str) -> str:
    # The tests may run under make themselves, whose variables would turn this into a sub-make.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    command = ["make", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, env=environment).stdout


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize(
    ("target", "command"),
    [
        ("demo", "fedsim run"),
        ("test", "-m pytest"),
        ("lint", "ruff check"),
        ("bench", "-m experiments.bench"),
        ("docs", "-m mkdocs build"),
        ("dist", "scripts/check_dist.sh"),
        ("sanitize", "scripts/sanitize.sh"),
    ],
)
def test_make_knows_its_targets(target: str, command: str) -> None:
    assert command in make("-n", target)
    assert f"make {target} " in make()


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_continuous_integration_runs_the_readmes_test_command() -> None:
    script = ROOT / ".ci" / "run"
    subprocess.run(["bash", "-n", str(script)], check=True)
    lines = script.read_text(encoding="utf-8").splitlines()
    assert lines[-1] == "make test"
    assert "make lint" in lines
    assert os.access(script, os.X_OK)
