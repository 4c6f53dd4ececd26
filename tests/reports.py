"""The table of docs/robustness.md: what went wrong elsewhere, what must happen here, and the test that shows it.

Tests carry ``@pytest.mark.report("U41", "what must happen")``, or the number alone where another test says it; this
module names the sources, collects the marks by reading the files, and writes the table: ``python tests/reports.py``.
tests/test_reports.py says whether it is current.
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "robustness.md"
BEGIN, END = "<!-- reports: begin -->", "<!-- reports: end -->"


@dataclass(frozen=True)
class Report:
    """A fault that users of such tools met.

    Attributes:
        source: public issues, or ``observed`` with the versions in which it was reproduced.
        symptom: what they saw.
        reason: why no test can apply here; empty where there must be one.
    """

    source: str
    symptom: str
    reason: str = ""


@dataclass(frozen=True, order=True)
class Proof:
    """A test that shows what must happen.

    Attributes:
        report: the report's number.
        expected: what must happen; empty where another test of the report says it.
        test: the test's id.
        slow: whether it runs with ``-m slow`` only.
    """

    report: str
    expected: str
    test: str
    slow: bool


def proofs(folder: Path = TESTS) -> list[Proof]:
    """Return the marks of all test files, in the order of the files.

    Raises:
        ValueError: a mark that is not one or two literal strings; names its place.
    """
    found = []
    for path in sorted(folder.rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if "mark.report" in text:
            found += list(_of_file(path.relative_to(folder.parent), ast.parse(text)))
    return found


def _of_file(path: Path, module: ast.Module) -> Iterator[Proof]:
    everywhere = any(_name(mark) == "pytest.mark.slow" for mark in _module_marks(module))
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef):
            for item in node.body:
                yield from _of_function(f"{path}::{node.name}", item, everywhere)
    for item in module.body:
        yield from _of_function(str(path), item, everywhere)


def _module_marks(module: ast.Module) -> list[ast.expr]:
    for item in module.body:
        if isinstance(item, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "pytestmark" for t in item.targets):
            return item.value.elts if isinstance(item.value, ast.List | ast.Tuple) else [item.value]
    return []


def _of_function(prefix: str, item: ast.stmt, slow: bool) -> Iterator[Proof]:
    if not isinstance(item, ast.FunctionDef):
        return
    slow = slow or any(_name(mark) == "pytest.mark.slow" for mark in item.decorator_list)
    for mark in item.decorator_list:
        if isinstance(mark, ast.Call) and _name(mark.func) == "pytest.mark.report":
            words = [a.value for a in mark.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            if not 1 <= len(words) == len(mark.args) <= 2 or mark.keywords:
                raise ValueError(f"{prefix}:{mark.lineno}: a report mark takes its number and what must happen")
            yield Proof(words[0], "".join(words[1:]), f"{prefix}::{item.name}", slow)


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_name(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def table(reports: dict[str, Report], found: list[Proof]) -> str:
    """Return the table in Markdown, one row a report, with its proofs or the reason why there is none."""
    lines = ["| | what was seen | source | what happens here | shown by |", "|---|---|---|---|---|"]
    for number, report in reports.items():
        mine = [proof for proof in found if proof.report == number]
        expected = (
            "; ".join(dict.fromkeys(proof.expected for proof in mine if proof.expected)) or f"no test: {report.reason}"
        )
        tests = "<br>".join(f"`{proof.test}`" + (" (slow)" if proof.slow else "") for proof in mine)
        cells = (number, report.symptom, report.source, expected, tests)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def page(text: str, rows: str) -> str:
    """Return the page with its table replaced."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{PAGE.name} has no {BEGIN} ... {END}: the table stands between them; put them back")
    return f"{before}{BEGIN}\n\n{rows}\n{END}{after}"


def main() -> None:
    """Write the table."""
    sys.path.insert(0, str(TESTS))
    from reports_list import REPORTS

    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), table(REPORTS, proofs())), encoding="utf-8")


if __name__ == "__main__":
    main()
