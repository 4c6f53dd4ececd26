import json
import math
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from fedsim.measure.errors import RunFolderError
from fedsim.measure.runfolder import RunFolder, environment

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def make(path: Path) -> RunFolder:
    return RunFolder.create(path, "seed = 7\n", 7, {"versions": {"python": "3.11"}}, START)


def test_a_new_run_says_running(tmp_path: Path) -> None:
    folder = make(tmp_path / "deep" / "run")
    record = folder.record()
    assert (record.status, record.seed, record.started, record.ended) == ("running", 7, "2026-01-02T03:04:05+00:00", "")
    assert folder.config.read_text() == "seed = 7\n"
    assert folder.checkpoints.is_dir()


def test_an_empty_folder_may_become_a_run(tmp_path: Path) -> None:
    assert make(tmp_path).record().status == "running"


def test_refuses_a_strangers_folder_and_leaves_it_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(RunFolderError, match="holds 'thesis.txt', no run; choose"):
        make(tmp_path)
    assert [item.name for item in tmp_path.iterdir()] == ["thesis.txt"]


def test_refuses_a_second_run_in_one_folder(tmp_path: Path) -> None:
    make(tmp_path)
    with pytest.raises(RunFolderError, match="holds a run already; resume"):
        make(tmp_path)


def test_refuses_a_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    with pytest.raises(RunFolderError, match="is a file"):
        make(tmp_path / "x")


def test_status_and_fields_change_together(tmp_path: Path) -> None:
    folder = make(tmp_path)
    folder.update_status(
        "finished",
        ended=datetime(2026, 1, 2, 4, tzinfo=UTC),
        exit_reason="all 3 rounds done",
        weights_sha256="ab",
        protection={"error_bound": np.float32(0.5), "headroom_bits": math.inf, "noise": math.nan, "rows": np.arange(2)},
    )
    record = RunFolder.open(tmp_path).record()
    assert (record.status, record.ended, record.seed) == ("finished", "2026-01-02T04:00:00+00:00", 7)
    assert record.protection == {"error_bound": 0.5, "headroom_bits": "inf", "noise": None, "rows": [0, 1]}


def test_refuses_an_unknown_status_or_field(tmp_path: Path) -> None:
    folder = make(tmp_path)
    with pytest.raises(RunFolderError, match="'done' is unknown; a status is one of running"):
        folder.update_status("done")  # type: ignore[arg-type]
    with pytest.raises(RunFolderError, match="field 'sha' is unknown"):
        folder.update_status("finished", sha="x")
    assert folder.record().status == "running"


def test_refuses_to_open_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="holds no run.json"):
        RunFolder.open(tmp_path)
    (tmp_path / "run.json").write_text("[1]")
    with pytest.raises(RunFolderError, match="is not a run's record"):
        RunFolder.open(tmp_path).record()


def test_fields_of_a_newer_version_survive(tmp_path: Path) -> None:
    folder = make(tmp_path)
    content = json.loads(folder.run.read_text())
    folder.run.write_text(json.dumps(content | {"carbon_g": 12}))
    assert folder.update_status("stopped").notes == {"carbon_g": 12}


def test_a_failed_write_keeps_the_old_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make(tmp_path)
    before = folder.run.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        folder.update_status("finished")
    assert folder.run.read_bytes() == before
    assert not [item for item in tmp_path.iterdir() if item.suffix == ".tmp"]


def test_environment_tells_versions_and_source(tmp_path: Path) -> None:
    found = environment()
    assert found["versions"]["numpy"] == np.__version__
    assert set(found["versions"]) == {"python", "fedsim", "flwr", "ray", "torch", "numpy"}
    assert found["cpu_count"] >= 1
    assert environment(tmp_path)["git"] is None


@pytest.mark.parametrize("place", ["file/run", "file", "/proc/nothing/run", "a\0b"])
def test_a_place_where_no_folder_can_be_made_is_named_with_the_reason(tmp_path, place):
    (tmp_path / "file").write_text("here")
    with pytest.raises(RunFolderError, match="cannot be made there|is a file|zero character"):
        RunFolder.create(tmp_path / place, "seed = 1\n", 1, {}, START)
    assert (tmp_path / "file").read_text() == "here"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ('{"status": "done", "started": "", "seed": 1}', "status 'done' is none of running"),
        ('{"status": "failed", "started": 5, "seed": 1}', "started is 5, no str"),
        ('{"status": "failed", "started": "", "seed": "<b>"}', "seed is '<b>', no int"),
        ('{"status": "failed", "started": "", "seed": 1, "notes": []}', "notes is .*, no dict"),
    ],
)
def test_a_record_with_values_of_other_kinds_is_refused(tmp_path, content, text):
    folder = make(tmp_path)
    folder.run.write_text(content)
    with pytest.raises(RunFolderError, match=f"is not a run's record.*{text}"):
        folder.record()
