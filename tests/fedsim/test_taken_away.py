"""What a run needs is taken away while it goes on: it ends with a sentence, and loses nothing that it can keep."""

import json
import shutil

import pytest
from typer.testing import CliRunner

import fedsim.keystore as keystore
import fedsim.measure.report as report
from fedsim.cli import app
from fedsim.config import load_config
from fedsim.errors import FedsimError
from fedsim.events import NullObserver
from fedsim.measure.errors import ReportError
from fedsim.runner import run
from tests.fedsim.killing import BFV, SMALL, needs_seal


class At(NullObserver):
    """Does something when a round ends."""

    def __init__(self, number, act):
        self.number, self.act = number, act

    def round_end(self, event):
        if event.round == self.number:
            self.act()


def settings(folder, *more):
    return load_config(None, [*SMALL, f"output.folder={folder}", "output.name=run", *more])


def status(folder):
    return json.loads((folder / "run" / "run.json").read_text())["status"]


@needs_seal
@pytest.mark.report("D17", "without room for a run's keys it fails by name")
def test_a_disk_without_room_for_the_keys_is_named_and_keeps_no_part_of_them(tmp_path, monkeypatch):
    def full(source, target):
        raise shutil.Error([(source, str(target), "[Errno 28] No space left on device")])

    monkeypatch.setattr(keystore.shutil, "move", full)
    with pytest.raises(FedsimError, match="the run's keys cannot be kept there .*No space left.*; make room"):
        run(settings(tmp_path, *BFV), NullObserver())
    assert status(tmp_path) == "failed" and not keystore.kept_at(tmp_path / "run").exists()


@needs_seal
def test_keys_that_are_gone_already_are_no_fault_of_a_run_that_ends(tmp_path):
    gone = At(2, lambda: shutil.rmtree(tmp_path / ".keys"))
    run(settings(tmp_path, *BFV), gone)
    assert status(tmp_path) == "finished" and not (tmp_path / ".keys").exists()


def test_a_folder_that_is_taken_away_ends_the_run_and_the_last_model_is_there(tmp_path, monkeypatch):
    import fedsim.recorder as recorder

    save = recorder.Recorder.save

    def saving(self, number, strategy):
        save(self, number, strategy)
        if number == 2:
            shutil.rmtree(tmp_path / "run")

    monkeypatch.setattr(recorder.Recorder, "save", saving)
    words = [*SMALL, f"output.folder={tmp_path}", "output.name=run"]
    done = CliRunner().invoke(app, ["run", "--quiet", *(part for word in words for part in ("--set", word))])
    assert done.exit_code == 1 and "run.json: No such file or directory; it must be there" in done.output
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_a_report_that_cannot_be_written_leaves_a_finished_run_and_says_how_to_make_it(tmp_path, monkeypatch):
    def full(*_):
        raise ReportError("report.html cannot be written (No space left on device): name another file or make room")

    monkeypatch.setattr(report, "write_report", full)
    with pytest.raises(FedsimError, match="the run is finished and saved in .*No space.*`fedsim report .*run`"):
        run(settings(tmp_path, "output.report=true"), NullObserver())
    assert status(tmp_path) == "finished"
