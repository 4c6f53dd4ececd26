"""All benchmarks in one call: small ones run, and a gate that is missed decides the exit code."""

import pytest

from experiments.bench import __main__ as bench
from experiments.bench.__main__ import GATES, Gate, main

pytest.importorskip("tenseal")


def test_gates_read_what_the_homomorphic_benchmark_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(bench.SMALL, "he", ["--length", "40960", "--repeats", "1"])
    code = main(["--only", "he"])
    output = capsys.readouterr().out
    for gate in GATES:
        if gate.bench == "he":
            assert f"he: {gate.name} " in output and "was not printed" not in output
    assert "tenseal-usual" in output and code == 0, output


def test_gates_read_the_tables_of_the_others() -> None:
    engine = "engine     wall ms\nray          1.0  2.0  3  4.0      10.0     5.5\ninline  1.0  2.0  3  4.0  30.0  40.0"
    preamble = (
        "numpy reference / native, Z32, 1 MiB                           34.822 ratio    >= 15      ok\n"
        "pass / adding one array, Z32, 2 MiB                             1.539 ratio    <= 1.5     MISSED\n"
    )
    printed = {"engine": engine, "preamble": preamble}
    lines = [gate.check(printed[gate.bench]) for gate in GATES if gate.bench in printed]
    assert [line.split()[0] for line in lines] == ["ok"] * 4
    assert "5.5 (at least 2)" in lines[0] and "1.539 (at most 6)" in lines[3]


@pytest.mark.parametrize(("text", "word"), [("x 3", "ok"), ("x 5", "MISSED"), ("nothing", "MISSED")])
def test_a_gate_is_missed_beyond_its_limit_or_without_a_figure(text: str, word: str) -> None:
    assert Gate("engine", "x", r"x ([0-9.]+)", at_most=4).check(text).startswith(word)


@pytest.mark.parametrize("outcome", [(2, "usage"), (1, "Traceback (most recent call last):\n"), (0, "")])
def test_a_benchmark_that_breaks_fails_the_call(monkeypatch: pytest.MonkeyPatch, outcome: tuple[int, str]) -> None:
    monkeypatch.setattr(bench, "run", lambda name, options: outcome)
    assert main(["--only", "preamble"]) == 1
