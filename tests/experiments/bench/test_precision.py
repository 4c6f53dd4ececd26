"""Ways to train are measured on a task's first client."""

import pytest

from experiments.bench.precision import main


def test_each_way_is_measured_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    whole, half = main(["--tasks", "trivial", "--ways", "float32", "bf16", "--turns", "2"])
    assert (whole.way, half.way) == ("float32", "bf16") and whole.least_ms > 0 and half.least_ms > 0
    assert capsys.readouterr().out.splitlines()[0].split()[:2] == ["trivial", "float32"]
