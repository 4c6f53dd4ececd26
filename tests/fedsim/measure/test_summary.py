import math
from pathlib import Path

import pytest

from fedsim.measure.ledger import HELPER, SERVER, ClientRound, Entry, Ledger
from fedsim.measure.metrics import Metrics
from fedsim.measure.runfolder import RunFolder, now
from fedsim.measure.runs import Run, load_run, write_partition
from fedsim.measure.summary import common_target, left_out, rows, summarize, to_target
from fedsim.measure.units import MISSING


def hand_made(path: Path, accuracies: list[float], round_s: bool = True) -> Run:
    """Two clients, 10 kB down and 20 kB up each, train 1 s and 3 s, server adds 0.5 s, a round lasts 4 s."""
    RunFolder.create(path, "", 1, {}, now())
    ledger, metrics = Ledger(path), Metrics(path)
    metrics.add(0, "server", "accuracy", 0.1)
    for round, accuracy in enumerate(accuracies, 1):
        for client, train_s in ((0, 1.0), (1, 3.0)):
            ledger.add(Entry(round, client, "download", 9_000, 10_000, virtual_s=2.0))
            ledger.add(Entry(round, client, "train", measured_s=train_s, virtual_s=5.0))
            ledger.add(Entry(round, client, "upload", 18_000, 20_000, virtual_s=4.0))
            lost = client == 1 and round == 2
            ledger.add_client(
                ClientRound(round, client, train_s, 5, "late" if lost else "ok", "after 2 s" if lost else "")
            )
        ledger.add(Entry(round, SERVER, "add", measured_s=0.5, virtual_s=0.25))
        ledger.add(Entry(round, HELPER, "upload", 18_000, 18_100))
        metrics.add(round, "server", "accuracy", accuracy)
        metrics.add(round, "server", "loss", 1.0 / round)
        if round_s:
            metrics.add(round, "server", "round_s", 4.0)
    ledger.write()
    metrics.write()
    return load_run(path)


def test_sums_by_hand(tmp_path: Path) -> None:
    summary = summarize(hand_made(tmp_path / "a", [0.5, 0.7, 0.6]))
    assert (summary.name, summary.rounds, summary.status) == ("a", 3, "running")
    assert (summary.final_accuracy, summary.best_accuracy, summary.best_round) == (0.6, 0.7, 2)
    assert summary.final_loss == pytest.approx(1 / 3)
    assert (summary.upload_wire_bytes, summary.upload_logical_bytes) == (120_000, 108_000)
    assert (summary.download_wire_bytes, summary.download_logical_bytes) == (60_000, 54_000)
    assert summary.helper_wire_bytes == 54_300
    assert summary.measured_s == 12.0
    assert summary.virtual_s == pytest.approx(3 * (11.0 + 0.25)), "slowest client's phases, then the server's"
    assert summary.phase_s["train"] == 12.0 and summary.phase_s["add"] == 1.5
    assert summary.virtual_phase_s["train"] == 30.0 and summary.virtual_phase_s["add"] == 0.75
    assert (summary.turns, summary.ok_turns) == (6, 5)


def test_measured_and_virtual_seconds_of_a_phase_stand_side_by_side(tmp_path: Path) -> None:
    table = dict(rows([summarize(hand_made(tmp_path / "a", [0.5, 0.7, 0.6]))]))
    assert table["train, all parties, measured (virtual)"] == ["12.0 s (30.0 s)"]
    assert table["upload, all parties, measured (virtual)"] == [f"{MISSING} (24.0 s)"]
    assert "seal, all parties, measured (virtual)" not in table


def test_without_the_metric_a_round_lasts_as_its_slowest_client(tmp_path: Path) -> None:
    run = hand_made(tmp_path / "a", [0.5, 0.6], round_s=False)
    assert run.round_seconds() == {1: 3.5, 2: 3.5}
    assert run.round_seconds(virtual=True) == {1: 11.25, 2: 11.25}


@pytest.mark.parametrize(
    ("target", "round", "wire_bytes", "measured_s"),
    [(0.1, 0, 0, 0.0), (0.5, 1, 60_000, 4.0), (0.65, 2, 120_000, 8.0), (0.9, None, None, None)],
)
def test_cost_to_reach_an_accuracy(
    tmp_path: Path, target: float, round: int | None, wire_bytes: int | None, measured_s: float | None
) -> None:
    found = to_target(hand_made(tmp_path / "a", [0.5, 0.7, 0.6]), target)
    assert (found.round, found.wire_bytes, found.measured_s) == (round, wire_bytes, measured_s)


def test_common_target_is_what_all_runs_reached(tmp_path: Path) -> None:
    high, low = hand_made(tmp_path / "a", [0.85]), hand_made(tmp_path / "b", [0.74, 0.72])
    assert common_target([high]) == 0.85
    assert common_target([high, low]) == 0.7
    assert common_target([]) is None


@pytest.mark.report("U52")
def test_names_who_was_left_out_and_why(tmp_path: Path) -> None:
    (lost,) = left_out(hand_made(tmp_path / "a", [0.5, 0.7]))
    assert (lost.client, lost.outcome, lost.reason, lost.rounds) == (1, "late", "after 2 s", (2,))


def test_a_run_that_just_began_has_a_summary(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "new", "", 1, {}, now())
    summary = summarize(load_run(tmp_path / "new"), 0.5)
    assert summary.rounds == 0 and math.isnan(summary.final_accuracy) and summary.best_round is None
    assert math.isnan(summary.measured_s) and math.isnan(summary.virtual_s)
    assert dict(rows([summary]))["status"] == ["running"]


def test_rows_speak_in_units(tmp_path: Path) -> None:
    run = hand_made(tmp_path / "a", [0.5, 0.7])
    table = dict(rows([summarize(run, 0.7), summarize(run, 0.9)]))
    assert table["upload, wire (logical)"] == ["80.0 kB (72.0 kB)"] * 2
    assert table["best accuracy"] == ["70.0 % (round 2)"] * 2
    assert table["bytes to 70 %"] == ["120 kB", "–"]
    assert table["client turns that counted"] == ["3 of 4"] * 2


def test_refuses_a_histogram_that_does_not_fit(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "a", "", 1, {}, now())
    with pytest.raises(ValueError, match="needs 2 rows of 3"):
        write_partition(folder, [1, 2], ["a", "b", "c"], [[1, 0], [0, 2]])
    assert not folder.partition.exists()


@pytest.mark.report("U73")
def test_partition_lists_the_empty_clients(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "a", "", 1, {}, now())
    write_partition(folder, [1, 0, 2, 0], ["a"], [[1], [0], [2], [0]], {"emd": 0.5})
    partition = load_run(folder.path).partition
    assert partition is not None and partition.empty == [1, 3] and partition.measures == {"emd": 0.5}
