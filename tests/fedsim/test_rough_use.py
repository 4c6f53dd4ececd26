"""What people do that nobody planned for: each ends with a sentence, and leaves nothing behind."""

import fcntl
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fedsim.checkpoint as checkpoint
from fedsim import protections
from fedsim.checkpoint import latest_checkpoint
from fedsim.cli import app
from fedsim.config import load_config
from fedsim.errors import FedsimError
from fedsim.keystore import kept_at
from fedsim.measure.ledger import Ledger
from fedsim.runner import simulate

SMALL = ["task.name=digits", "model.name=mlp", "federation.num_clients=4", "engine.name=inline"]
SETS = [word for setting in SMALL for word in ("--set", setting)]


def settings(folder, *more):
    return load_config(None, [*SMALL, f"output.folder={folder}", "output.name=run", "output.report=false", *more])


def fedsim(folder, *words, **environment):
    code = "from fedsim.cli import main; main()"
    env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.Popen(
        [sys.executable, "-c", code, *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
    )


@pytest.mark.report("D16")
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_real_signal_leaves_a_folder_that_resumes_and_no_other(tmp_path, number):
    pytest.importorskip("tenseal", reason="tenseal is not installed: pip install 'fedsim[tenseal]'")
    (tmp_path / "tmp").mkdir()
    words = ["run", "--json", "--rounds", "400", "--protection", "bfv", "--name", "cut", *SETS]
    process = fedsim(tmp_path, *words, "--set", "output.report=false", TMPDIR=str(tmp_path / "tmp"))
    for line in process.stdout:
        if json.loads(line)["event"] == "round_end":
            break
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130 and errors.strip().endswith("interrupted"), errors
    assert [p for p in (tmp_path / "tmp").iterdir() if p.name.startswith(("fedsim-", "fs-"))] == []
    record = json.loads((tmp_path / "runs" / "cut" / "run.json").read_text())
    assert record["status"] == "stopped" and kept_at(tmp_path / "runs" / "cut").is_dir()
    assert latest_checkpoint(tmp_path / "runs" / "cut" / "checkpoints").sealed is not None


def test_keys_of_killed_runs_are_removed_by_the_next_and_those_of_living_ones_are_not(tmp_path, monkeypatch):
    monkeypatch.setattr(protections.tempfile, "gettempdir", lambda: str(tmp_path))
    for name in ("dead", "alive", "young", "strange"):
        (tmp_path / f"fedsim-keys-{name}").mkdir()
        (tmp_path / f"fedsim-keys-{name}" / ("lock" if name != "strange" else "other")).touch()
    old = time.time() - 3600
    for name in ("dead", "alive", "strange"):
        os.utime(tmp_path / f"fedsim-keys-{name}", (old, old))
    with (tmp_path / "fedsim-keys-alive" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        protections._remove_leftovers()
    assert sorted(p.name.rpartition("-")[2] for p in tmp_path.iterdir()) == ["alive", "strange", "young"]


@pytest.mark.report("D17")
def test_a_disk_that_fills_up_is_named_and_the_run_goes_on_when_there_is_room(tmp_path, monkeypatch):
    fsync, count = os.fsync, iter(range(1, 100))

    class FullOs:
        def __getattr__(self, name):
            return getattr(os, name)

        def fsync(self, descriptor):
            if next(count) >= 3:
                raise OSError(28, "No space left on device")
            fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "os", FullOs())
        with pytest.raises(FedsimError, match=r"cannot be written \(No space left on device\).*fedsim run --resume"):
            simulate(settings(tmp_path, "federation.rounds=4"))
    folder = tmp_path / "run"
    assert latest_checkpoint(folder / "checkpoints").round == 2 and not list(folder.rglob("*.tmp"))
    assert json.loads((folder / "run.json").read_text())["status"] == "failed"
    resumed = simulate(settings(tmp_path, "federation.rounds=4"), resume=True)
    whole = simulate(settings(tmp_path / "whole", "federation.rounds=4"))
    assert resumed.weights_sha256 == whole.weights_sha256 and Ledger.read(folder).rounds() == [1, 2, 3, 4]


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("mount") is None, reason="needs to mount a small disk")
def test_a_real_full_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(disk)], check=False).returncode:
        pytest.skip("a disk cannot be mounted here")
    try:
        more = ["federation.rounds=200", "model.options.hidden=[300]", "engine.shortage=warn"]
        with pytest.raises(FedsimError, match="No space left on device"):
            simulate(settings(disk, *more))
        assert latest_checkpoint(disk / "run" / "checkpoints").round >= 1
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_quiet_means_quiet_under_flowers_strategies_too(tmp_path):
    process = fedsim(tmp_path, "run", "--quiet", "--strategy", "flwr:FedAvg", "--rounds", "1", "--name", "q", *SETS)
    out, errors = process.communicate(timeout=200)
    assert (process.returncode, out, errors) == (0, "", "")
    assert logging.root.manager.disable == logging.NOTSET


def test_an_option_and_a_setting_that_differ_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["run", "--rounds", "1", "--name", "x", *SETS]
    done = CliRunner().invoke(app, [*words, "--set", "federation.rounds=3", "--set", "output.name=y"])
    assert done.exit_code == 2 and not (tmp_path / "runs").exists()
    assert "federation.rounds = 3: is 1 by its own option; give one of the two" in done.output
    assert 'output.name = y: is "x" by its own option' in done.output
    same = CliRunner().invoke(app, [*words, "--set", "federation.rounds=1", "--set", "output.report=false"])
    assert same.exit_code == 0, same.output


def test_clients_without_samples_take_one_line_each(tmp_path, capfd, caplog):
    more = ["data.policy=allow-empty", "data.alpha=0.01", "federation.num_clients=30", "federation.rounds=1"]
    result = simulate(settings(tmp_path, *more, "federation.min_replies=1"))
    turns = Ledger.read(result.folder).clients().to_pylist()
    empty = [t for t in turns if t["outcome"] == "dropped"]
    assert empty and all("has no samples" in t["reason"] and "Traceback" not in t["reason"] for t in empty)
    assert "Traceback" not in caplog.text + "".join(capfd.readouterr())


def test_resuming_a_finished_run_or_a_strangers_folder_is_refused(tmp_path):
    simulate(settings(tmp_path, "federation.rounds=1"))
    with pytest.raises(FedsimError, match="is finished: there is nothing to resume"):
        simulate(settings(tmp_path, "federation.rounds=1"), resume=True)
    (tmp_path / "strange").mkdir()
    for words in ("strange", "nowhere"):
        done = CliRunner().invoke(app, ["run", "--resume", str(tmp_path / words)])
        assert done.exit_code == 2 and "holds no config.toml" in done.output


@pytest.mark.parametrize("setting", ["output.name=" + "a" * 300, "output.folder=" + "a" * 300, "output.folder=/proc/x"])
def test_names_that_no_disk_takes_are_refused_in_words(tmp_path, monkeypatch, setting):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["run", "--rounds", "1", *SETS, "--set", setting])
    assert done.exit_code == 2, done.output
    assert "Traceback" not in done.output and "error:" in done.output


def test_a_run_of_one_round_has_a_report(tmp_path):
    config = load_config(None, [*SMALL, f"output.folder={tmp_path}", "output.name=one", "federation.rounds=1"])
    result = simulate(config)
    assert result.report.stat().st_size > 10_000 and list((result.folder / "figures").glob("*.png"))


def test_keys_that_others_may_read_are_not_used(tmp_path):
    pytest.importorskip("tenseal", reason="tenseal is not installed: pip install 'fedsim[tenseal]'")
    from crypto.keys import load_key

    words = ["keys", "--set", "protection.name=bfv", *SETS, "--out", str(tmp_path / "keys")]
    assert CliRunner().invoke(app, words).exit_code == 0
    (path,) = (tmp_path / "keys" / "clients").rglob("*.key")
    path.chmod(0o644)
    with pytest.raises(PermissionError, match="644"):
        load_key(tmp_path / "keys", "clients", "bfv")


BLOCK = """
import sys
from importlib.machinery import PathFinder

find = PathFinder.find_spec

def find_spec(cls, name, path=None, target=None):
    return None if name.split(".")[0] in {absent!r} else find(name, path, target)

PathFinder.find_spec = classmethod(find_spec)
sys.argv = ["fedsim", *{words!r}]
from fedsim.cli import main
main()
"""


@pytest.mark.report("U26")
@pytest.mark.parametrize(
    ("absent", "words", "code", "text"),
    [
        (["tenseal"], ["run", "--rounds", "1", "--quiet", *SETS], 0, ""),
        (["tenseal"], ["run", "--rounds", "1", "--protection", "ckks", *SETS], 4, "pip install 'fedsim[tenseal]'"),
        pytest.param(
            ["PLD_accounting", "dp_accounting", "scipy"], ["privacy", "--help"], 0, "", marks=pytest.mark.slow
        ),
        pytest.param(["flwr_datasets", "datasets"], ["list", "tasks"], 0, "fedsim[datasets]", marks=pytest.mark.slow),
        pytest.param(["torchvision"], ["list", "tasks"], 0, "fedsim[vision]", marks=pytest.mark.slow),
    ],
)
def test_what_an_absent_extra_is_for_says_which_to_install(tmp_path, absent, words, code, text):
    program = BLOCK.format(absent=set(absent), words=words)
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert text in done.stdout + done.stderr and "Traceback" not in done.stderr


def test_the_folder_of_kept_keys_is_closed(tmp_path):
    assert kept_at(Path("runs/x")) == Path("runs/.keys/x")
