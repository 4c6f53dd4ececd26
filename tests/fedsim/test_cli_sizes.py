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


@pytest.mark.parametrize(
    ("model", "rank", "tables", "ciphertexts"),
    [
        ("vit-b16", 2, 165_888, None),
        ("vit-b16", 4, 331_776, (2619, 11)),
        ("vit-b16", 8, 663_552, None),
        ("vit-b16", 16, 1_327_104, None),
        ("bert-base", 4, 331_776, (3342, 11)),
        ("tinyllama-1.1b", 4, 1_576_960, (33571, 49)),
    ],
)
def test_dictpfls_tables_are_counted_from_the_shapes(model, rank, tables, ciphertexts):
    """The paper's context has 32,768 slots."""
    done = call("--model", model, "--rank", str(rank), "--clients", "3", "--scheme", "dictpfl-paper", "--json")
    found = json.loads(done.stdout)["dictpfl"]
    assert found["parameters"] == tables
    (row,) = found["rows"]
    if ciphertexts:
        assert (row["full_ciphertexts"], row["dict_ciphertexts"]) == ciphertexts
        assert row["ratio"] == pytest.approx(ciphertexts[0] / ciphertexts[1])
    full = -(-json.loads(done.stdout)["parameters"] // 32768)
    assert (row["full_ciphertexts"], row["dict_ciphertexts"]) == (full, -(-tables // 32768))


def test_a_model_of_ours_is_shaped_and_counted():
    done = call("--model", "mlp", "--rank", "4", "--set", "task.name=digits", "--scheme", "bfv", "--json")
    assert json.loads(done.stdout)["dictpfl"]["parameters"] == 4 * (64 + 128) + 650
    half = call("--model", "mlp", "--rank", "4", "--kept", "0.5", "--set", "task.name=digits", "--scheme", "bfv")
    assert "DictPFL at rank 4: 709 coordinates of the tables, 50% of them sent" in half.stdout


@pytest.mark.parametrize("wrong", [["--model", "resnet18"], ["--length", "1000"]])
def test_a_rank_needs_shapes(wrong):
    done = call(*wrong, "--rank", "4")
    assert done.exit_code == 2 and "--rank" in done.stderr


@pytest.mark.parametrize("bound", ["0", "-1", "nan", "inf", "1e300", "1e-300"])
def test_refuses_a_bound_that_no_parameter_has(bound: str) -> None:
    done = CliRunner().invoke(app, ["sizes", "--bound", bound])
    assert done.exit_code == 2 and "--bound" in done.stderr


def test_refuses_a_share_that_is_no_number() -> None:
    done = CliRunner().invoke(app, ["sizes", "--model", "vit-b16", "--rank", "4", "--kept", "nan"])
    assert done.exit_code == 2 and "--kept" in done.stderr
