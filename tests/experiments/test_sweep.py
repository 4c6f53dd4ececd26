"""A whole sweep: run in parallel, killed without warning, gone on with, and reported."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments.sweep import sweep
from experiments.sweeps.results import read_results
from experiments.sweeps.spec import read_spec
from experiments.sweeps.trials import run_trial, state_of

pytest.importorskip("pandas", reason="NOT TESTED HERE: Ray Tune needs pandas; install 'fedsim[sweep]'")

TEXT = """
[sweep]
name = "small"
seeds = [1, 2]
baseline = "plain"
refused = "skip"
[settings]
task = {name = "digits"}
model = {name = "logistic"}
federation = {num_clients = 4, rounds = ROUNDS}
[grid]
"data.alpha" = [0.1, 10.0]
[[arms]]
name = "plain"
set = {"strategy.name" = "fedavg"}
[[arms]]
name = "too-few"
set = {"strategy.name" = "fedavg", "clock.policy" = "deadline", "clock.deadline_s" = 1e-6}
[[arms]]
name = "senseless"
set = {"strategy.name" = "fedadam", "protection.name" = "bfv"}
"""


def file(folder: Path, rounds: int) -> Path:
    path = folder / "small.toml"
    path.write_text(TEXT.replace("ROUNDS", str(rounds)))
    return path


def cli(*arguments):
    import typer

    app = typer.Typer()
    app.command()(sweep)
    return CliRunner().invoke(app, list(map(str, arguments)))


def finished(folder: Path) -> dict[str, float]:
    """Return name -> time of the end, of the trials that are finished."""
    found = {}
    for record in folder.glob("small/runs/*/run.json"):
        if json.loads(record.read_text())["status"] == "finished":
            found[record.parent.name] = record.stat().st_mtime
    return found


def test_a_dry_run_lists_the_trials_and_starts_nothing(tmp_path):
    done = cli(file(tmp_path, 3), "--folder", tmp_path / "sweeps", "--dry-run")
    assert done.exit_code == 0 and "8 trials, about" in done.output and done.output.count("refused") == 4
    assert not (tmp_path / "sweeps").exists()


def test_a_killed_sweep_goes_on_without_repeating_and_reports(tmp_path, monkeypatch):
    """In the folder that a sweep takes by default, below the one where it is started."""
    monkeypatch.chdir(tmp_path)
    folder, path = Path("sweeps"), file(tmp_path, 30)
    command = [sys.executable, "-c", "from experiments.sweep import main; main()", str(path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not finished(folder) and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = finished(folder)
    assert before, "nothing had finished"
    done = cli(path, "--resume", "--no-png")
    # Four of the eight miss their deadline, which the report names; they are tried once each.
    assert done.exit_code == 1, done.output
    after = finished(folder)
    assert len(after) == 4 and {name: after[name] for name in before} == before, "a finished trial was run again"
    rows = read_results(folder / "small" / "results.parquet")
    assert [r["status"] for r in rows] == ["finished"] * 4 + ["failed"] * 4 + ["refused"] * 4
    assert all("delivered" in r["reason"] for r in rows if r["status"] == "failed")
    assert (folder / "small" / "report.html").exists()
    assert "0 trials to run" not in done.output and cli(path).exit_code == 2, "a sweep is not mixed"


def test_a_trial_is_resumed_at_its_checkpoint_and_finished_ones_are_left_alone(tmp_path):
    trial = read_spec(file(tmp_path, 6), tmp_path / "sweeps").runnable[0]
    assert state_of(trial.config).status == "missing"
    assert run_trial(trial.config)["status"] == "finished"
    record = next((tmp_path / "sweeps").glob("small/runs/*/run.json"))
    stamp = record.stat().st_mtime_ns
    assert run_trial(trial.config)["status"] == "finished" and record.stat().st_mtime_ns == stamp
    content = json.loads(record.read_text())
    record.write_text(json.dumps(content | {"status": "running"}))
    assert run_trial(trial.config)["status"] == "finished" and state_of(trial.config).status == "finished"
