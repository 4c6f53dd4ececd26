"""The command that sizes a PREAMBLE round."""

import json

import pytest
from typer.testing import CliRunner

from crypto.preamble.sizing import size
from fedsim.cli import app

RUN = CliRunner().invoke


def test_the_numbers_are_the_sizing_tools():
    result = RUN(app, ["privacy", "-d", "100000", "-n", "500", "--rounds", "3", "--bytes", "90000", "--json"])
    values, want = json.loads(result.stdout), size(100_000, 500, 1.0, 1e-6, 3, 90_000)
    assert (values["block_size_B"], values["blocks_k"]) == (want.shape.block_size, want.shape.groups)
    assert values["sigma_each_aggregator"] == want.sigma
    assert values["report_bytes"] == want.upload_bytes <= 90_000
    assert values["epsilon_one_round"] < values["epsilon_all_rounds"] <= 1.0


def test_given_blocks_are_kept_and_shown_for_people():
    result = RUN(app, ["privacy", "-d", "4096", "--block-size", "256", "--blocks", "4"])
    assert result.exit_code == 0
    assert {line.split("  ")[0] for line in result.stdout.splitlines()} >= {"noise ratio", "report bytes", "saving"}


def test_a_models_parameters_are_counted():
    result = RUN(app, ["privacy", "--model", "logistic", "--block-size", "256", "--blocks", "1", "--json"])
    assert json.loads(result.stdout)["dimension"] == 650


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ([], 2, "--dimension"),
        (["-d", "4096", "--block-size", "256"], 2, "together"),
        (["-d", "4096", "--bytes", "10"], 2, "raise the budget"),
        (["-d", "4096", "--delta", "2"], 2, "--delta = 2: must be a number from 1e-30 to 0.999; far below"),
        (["-d", "4096", "--epsilon", "nan"], 2, "--epsilon = nan: must be a number from 0.001 to 500; 1 to 10"),
        (["-d", "4096", "--clip-norm", "0"], 2, "--clip-norm = 0: must be a number"),
        (["-d", "4096", "--word-bits", "16"], 2, "--word-bits = 16: must be 32 or 64; leave it out"),
        (["-d", "10000000000000"], 2, "--dimension"),
    ],
)
def test_what_cannot_be_sized_says_why(words, code, message):
    result = RUN(app, ["privacy", *words])
    assert result.exit_code == code
    assert message in result.stderr
