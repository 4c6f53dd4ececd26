"""docs/homomorphic.md says what the code says: who opens, what it costs, how an overflow is refused."""

import re
from pathlib import Path

from typer.testing import CliRunner

from crypto.base import Plan
from crypto.ckks import CkksParameters
from crypto.errors import BudgetExceeded
from crypto.he_tenseal import CkksSum
from fedsim.cli import app
from fedsim.config import PROTECTIONS

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "homomorphic.md").read_text(encoding="utf-8")


def rows_of(text: str, bar: str) -> dict[str, list[str]]:
    found = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip(bar).split(bar)]
        if line.strip().startswith(bar) and len(cells) > 3:
            found[cells[0]] = cells[1:]
    return found


def test_the_schemes_table_names_each_homomorphic_protection_and_who_opens_it() -> None:
    table = rows_of(TEXT.split("## The schemes")[1].split("```")[0], "|")
    ours = {name: kind.opened_by for name, kind in PROTECTIONS.items() if name not in ("plain", "preamble")}
    assert {name: cells[-1] for name, cells in table.items() if name in PROTECTIONS} == ours


def test_the_readme_says_who_opens_each_protection() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8").split("Who can read what:")[1].split("Under the")[0]
    opened = {name: cells[-1] for names, cells in rows_of(text, "|").items() for name in names.split(", ")}
    for name, kind in PROTECTIONS.items():
        words = "two aggregators" if name == "preamble" else kind.opened_by
        assert words in opened[name], name


def test_the_table_of_sizes_is_what_the_printed_command_gives() -> None:
    (command,) = re.findall(r"\$ fedsim (sizes .+)", TEXT)
    result = CliRunner().invoke(app, command.split())
    printed, written = rows_of(result.output, "│"), rows_of(TEXT, "│")
    assert len(written) >= 10
    for name, cells in written.items():
        assert printed.get(name) == cells, f"{name}: print `fedsim {command}` into docs/homomorphic.md again"


def test_the_refusal_shown_is_the_one_that_is_raised() -> None:
    plan = Plan(length=10, clients=16, bound=100.0)
    try:
        CkksSum(plan, parameters=CkksParameters(ring=4096, chain=(40, 40), scale_bits=30)).budget  # noqa: B018
    except BudgetExceeded as error:
        assert f"error: {error}\n" in TEXT
    else:
        raise AssertionError("16 x 100.0 on chain [40, 40] at scale 2^30 must be refused")
