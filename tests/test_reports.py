"""docs/robustness.md's table is what the tests say, and every report has a test or a reason."""

import ast
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from reports import PAGE, Proof, Report, _of_file, page, proofs, table
from reports_list import REPORTS

FOUND = proofs()


def test_the_table_is_current() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert page(text, table(REPORTS, FOUND)) == text, "write it again: python tests/reports.py"


def test_every_report_has_a_test_or_a_reason_and_not_both() -> None:
    shown = {proof.report for proof in FOUND}
    without = [number for number, report in REPORTS.items() if not report.reason and number not in shown]
    both = [number for number, report in REPORTS.items() if report.reason and number in shown]
    silent = [number for number in shown if not any(p.expected for p in FOUND if p.report == number)]
    assert (without, both, silent) == ([], [], [])


def test_tests_that_the_page_names_are_there() -> None:
    named = set(re.findall(r"`(tests/[\w/]+\.py)::([\w:]+)`", PAGE.read_text(encoding="utf-8")))
    assert len(named) > 100
    missing = []
    for path, test in sorted(named):
        source = (PAGE.parents[1] / path).read_text(encoding="utf-8")
        if f"def {test.split('::')[-1]}(" not in source:
            missing.append(f"{path}::{test}")
    assert missing == []


def test_every_guarantee_cites_a_test_or_promises_nothing() -> None:
    part = PAGE.read_text(encoding="utf-8").partition("## Guarantees")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("| ")][1:]
    cells = [cell for row in rows for cell in row[1:]]
    assert len(rows) == 10 and len(cells) == 40
    assert [cell for cell in cells if not re.search(r"\[\d+\]|^none$|^not seen$", cell)] == []
    cited = set(re.findall(r"\[(\d+)\]", " ".join(cells)))
    listed = dict(re.findall(r"^\* \[(\d+)\] (`tests/)", part, re.MULTILINE))
    assert cited == set(listed)


def test_marks_name_known_reports() -> None:
    assert {proof.report for proof in FOUND} <= set(REPORTS)


def test_marks_are_read_with_their_classes_and_slowness() -> None:
    source = """
@pytest.mark.slow
@pytest.mark.report("A", "works")
def test_one(): ...

class TestIt:
    @pytest.mark.report("B")
    def test_two(self): ...
"""
    found = list(_of_file(Path("t.py"), ast.parse(source)))
    assert sorted(found) == [
        Proof("A", "works", "t.py::test_one", True),
        Proof("B", "", "t.py::TestIt::test_two", False),
    ]
    rows = table({"A": Report("x#1", "a | b"), "C": Report("y", "c", "because")}, found)
    assert "| A | a \\| b | x#1 | works | `t.py::test_one` (slow) |" in rows
    assert "| C | c | y | no test: because |  |" in rows


def test_a_mark_without_words_is_refused() -> None:
    with pytest.raises(ValueError, match=r"t.py:1: a report mark takes its number"):
        list(_of_file(Path("t.py"), ast.parse("@pytest.mark.report(X)\ndef test_one(): ...\n")))
