"""`fedsim new` writes a project that runs, on our engine and on Flower's, and whose own test passes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedsim._cli.new import write_project
from fedsim.config import ConfigError, load_config
from fedsim.simulation.flower import flwr_run

ROOT = Path(__file__).parents[2]


def in_project(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def test_a_new_project_passes_its_own_test_and_runs(tmp_path: Path) -> None:
    folder = write_project(tmp_path, "my_project")
    done = in_project(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_its_files_are_as_the_house_writes_them(tmp_path: Path) -> None:
    folder = write_project(tmp_path, "my_project")
    (tmp_path / "ruff.toml").write_text('line-length = 120\n[lint]\nselect = ["E", "F", "UP", "B"]\n')
    assert (folder / "my_project" / "__init__.py").exists()
    ruff = Path(sys.executable).parent / "ruff"
    if not ruff.exists():
        pytest.skip("ruff is not installed")
    done = subprocess.run([ruff, "check", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", ["my-project", "2nd", "class", "My", ""])
def test_refuses_what_is_no_name_of_a_package(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="must be a Python name"):
        write_project(tmp_path, name)


def test_refuses_to_overwrite(tmp_path: Path) -> None:
    write_project(tmp_path, "twice")
    with pytest.raises(ConfigError, match="is there already"):
        write_project(tmp_path, "twice")


def test_settings_are_read_from_a_pyproject(tmp_path: Path) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_text('[tool.flwr.app.config]\nconfig = ""\nfederation.rounds = 7\ntask.name = "digits"\n')
    config = load_config(path)
    assert (config.federation.rounds, config.task.name) == (7, "digits")
    path.write_text("[project]\n")
    with pytest.raises(ConfigError, match=r"has no table \[tool.flwr.app.config\]"):
        load_config(path)


@pytest.mark.slow
def test_it_runs_on_flowers_own_engine(tmp_path: Path) -> None:
    folder = write_project(tmp_path, "my_project")
    flwr_run(folder, {}, num_supernodes=5, cpus=1, timeout_s=240, log_folder=tmp_path)
    logs = "".join(path.read_text(errors="replace") for path in tmp_path.glob("*.log"))
    assert "accuracy" in logs, logs[-3000:]
