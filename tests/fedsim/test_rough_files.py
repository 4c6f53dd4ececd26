"""Folders where files should be, in a run's folder: a sentence and a code, never a traceback."""

import json
import shutil

import pytest
from typer.testing import CliRunner

from fedsim.cli import app
from fedsim.config import load_config
from fedsim.runner import simulate

SMALL = ["task.name=digits", "model.name=logistic", "federation.num_clients=3", "engine.name=inline"]
QUICK = {("folder", "metrics.csv"), ("folder", "config.toml"), ("noise", "ledger.parquet")}
FILES = ["run.json", "config.toml", "metrics.csv", "metrics.parquet", "ledger.csv", "ledger.parquet", "clients.csv"]
CASES = [
    pytest.param(damage, file, marks=[] if (damage, file) in QUICK else pytest.mark.slow)
    for file in FILES
    for damage in ("folder", "empty", "noise")
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    words = [*SMALL, "federation.rounds=1", "output.report=false", "output.name=run"]
    return simulate(load_config(None, [*words, f"output.folder={tmp_path_factory.mktemp('runs')}"])).folder


@pytest.mark.parametrize(("damage", "file"), CASES)
def test_a_damaged_run_ends_commands_with_a_sentence(whole, tmp_path, damage, file):
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(record | {"status": "running"}))
    text = (folder / "config.toml").read_text().replace(str(whole.parent), str(tmp_path))
    (folder / "config.toml").write_text(text)
    path = folder / file
    path.unlink(missing_ok=True)
    if damage == "folder":
        path.mkdir()
    else:
        path.write_bytes(b"" if damage == "empty" else bytes(range(256)))
    for words in (["report", str(folder)], ["run", "--quiet", "--resume", str(folder)]):
        done = CliRunner().invoke(app, words)
        assert done.exception is None or isinstance(done.exception, SystemExit), (words, done.exception)
        assert done.exit_code == 0 or (done.exit_code in (1, 2) and "error: " in done.output), (words, done.output)
