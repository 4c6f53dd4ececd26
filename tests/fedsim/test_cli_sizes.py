"""`fedsim sizes`: published counts, our models, and what it refuses."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from crypto.sizes import SCHEMES, sizes
from fedsim._cli.sizes import as_values
from fedsim.cli import app


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["sizes", *arguments])


def values(*arguments: str) -> dict[str, Any]:
    result = call(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.output)
    return found


def test_dictpfl_counts_2619_ciphertexts_for_a_fully_encrypted_vit_b16() -> None:
    result = call("--model", "vit-b16", "--scheme", "dictpfl-paper")
    assert result.exit_code == 0 and "2,619" in result.output and "66.7 GB" in result.output


def test_every_scheme_has_a_row_and_a_line_on_its_context() -> None:
    result = call("--length", "1000000", "--clients", "10")
    assert result.exit_code == 0
    for name in SCHEMES:
        assert f" {name} " in result.output and f"\n{name}: " in result.output


def test_json_holds_the_calculators_own_rows() -> None:
    found = values(
        "--length", "12345", "--clients", "7", "--bound", "2.0", "--scheme", "bfv", "--scheme", "fedml-he-paper"
    )
    assert (found["parameters"], found["clients"]) == (12345, 7)
    rows = sizes(12345, 7, 2.0, ["bfv", "fedml-he-paper"])
    assert found["rows"] == [as_values(row) for row in rows]
    assert found["rows"][1]["error_bound"] is None


def test_a_model_of_ours_is_counted_as_built() -> None:
    found = values(
        "--model", "mlp", "--set", "task.name=digits", "--set", "model.options.hidden=[10]", "--scheme", "plain"
    )
    assert found["parameters"] == 64 * 10 + 10 + 10 * 10 + 10


def test_a_scheme_that_does_not_carry_the_sum_is_shown_as_refused() -> None:
    result = call("--length", "1000", "--clients", "1000", "--bound", "1e12", "--scheme", "ckks")
    assert result.exit_code == 0 and "refused" in result.output and "wraps silently" in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "nope"], "--model = nope: must be one of"),
        (["--scheme", "nope", "--length", "3"], "--scheme = nope: must be one of"),
        (["--model", "mlp", "--length", "3"], "a model has its own number of parameters"),
        (["--length", "0"], "--length"),
    ],
)
def test_wrong_arguments_are_refused(arguments: list[str], words: str) -> None:
    result = call(*arguments)
    assert result.exit_code == 2 and words in result.output
