"""The table of strategies x protections says what the program does, and the page what the table says."""

from pathlib import Path

import pytest

from experiments.matrix import PAGE, ROOT, TABLE, Cell, cells, page, read_table, run_cell
from fedsim.config import PROTECTIONS

ROWS = read_table(ROOT / TABLE)


def test_the_table_has_every_cell_and_refuses_what_the_program_refuses() -> None:
    found = {(cell.strategy, cell.protection): cell.refused for cell in cells()}
    assert {key: row["refused"] for key, row in ROWS.items()} == found
    assert len(found) == 12 * len(PROTECTIONS)


def test_every_cell_that_is_not_refused_was_run() -> None:
    assert [key for key, row in ROWS.items() if not row["refused"] and not row["accuracy"]] == []


def test_the_page_is_made_from_the_table() -> None:
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    assert text == page(ROWS), "write it again: python -m experiments.matrix"


def test_a_cell_without_figures_is_shown_as_not_run() -> None:
    rows = {("fedavg", "plain"): {"strategy": "fedavg", "protection": "plain", "refused": "", "accuracy": ""}}
    assert "| fedavg | not run |" in page(rows)  # type: ignore[arg-type]


MEASURED = [key for key, row in ROWS.items() if row["accuracy"]]


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "protection"), MEASURED[:3])
def test_a_cell_runs_again_to_its_bytes(
    strategy: str, protection: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    row, known = run_cell(Cell(strategy, protection, ""), tmp_path), ROWS[strategy, protection]
    assert row["upload_bytes"] == pytest.approx(float(known["upload_bytes"]), rel=0.05)
    assert row["accuracy"] == pytest.approx(float(known["accuracy"]), abs=0.1)
