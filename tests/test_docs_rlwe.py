"""docs/rlwe.md says what the code does, and whoever chooses our RLWE is told that nobody has audited it."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from crypto.base import Plan
from crypto.lattice import max_modulus_bits
from crypto.rlwe.scheme import RlweSum
from crypto.rlwe.threshold import RlweThreshold
from fedsim.cli import app
from fedsim.config import PROTECTIONS, template

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "rlwe.md").read_text(encoding="utf-8")
OURS = ("rlwe", "rlwe-threshold")


def plan(clients: int) -> Plan:
    return Plan(length=10**6, clients=clients, bound=1.0)


def test_the_table_of_parameters_is_what_is_chosen() -> None:
    sums = [
        RlweSum(plan(100), value_bits=7),
        RlweSum(plan(1000), value_bits=10),
        RlweSum(plan(1000), value_bits=20),
        RlweSum(plan(1000), value_bits=20, mode="public"),
        RlweThreshold(plan(1000), 3, openings=1000),
    ]
    table = TEXT.split("## Parameters and security")[1].split("The assumption")[0]
    rows = re.findall(r"^\|.*\| (\d+) \| (\d+) \| (\d+) \|$", table, flags=re.MULTILINE)
    chosen = [(s.parameters.ring, s.parameters.modulus_bits, max_modulus_bits(s.parameters.ring)) for s in sums]
    assert [tuple(map(int, row)) for row in rows] == chosen


@pytest.mark.parametrize("name", OURS)
def test_who_chooses_it_is_told_that_nobody_has_audited_it(name: str) -> None:
    assert "not audited" in str(PROTECTIONS[name].__doc__)
    assert f"nobody has audited: {name}." in template()
    listed = CliRunner().invoke(app, ["list", "protections"]).output
    (line,) = [line for line in listed.splitlines() if line.split()[0] == name]
    assert "not audited" in line


def test_every_page_that_offers_it_says_so() -> None:
    assert "**Nobody outside this project has audited this code.**" in TEXT
    for page in ("README.md", "docs/homomorphic.md"):
        assert "nobody has" in (ROOT / page).read_text(encoding="utf-8")
