"""The bench of our RLWE runs at a small size; its bars are not judged on a busy machine."""

import pytest

pytest.importorskip("tenseal")

from experiments.bench import rlwe
from experiments.bench.__main__ import GATES
from experiments.bench.rlwe import Limit


def test_the_bench_prints_what_the_wide_gates_read(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        rlwe.main(length=20_480, clients=1000, repeats=1)
    assert ended.value.code in (0, 1)
    output = capsys.readouterr().out
    found = [gate.check(output) for gate in GATES if gate.bench == "rlwe"]
    assert len(found) == 3 and not any("was not printed" in line for line in found)
    assert any("bytes a parameter" in line and line.startswith("ok") for line in found)
    assert "rlwe-threshold, 3 members" in output and "GB/s" in output


@pytest.mark.parametrize(("value", "at_least", "met"), [(2, True, True), (0.5, True, False), (2, False, False)])
def test_a_limit_says_which_side_is_right(value: float, at_least: bool, met: bool) -> None:
    limit = Limit("x", value, 1.0, at_least)
    assert limit.met() is met and str(limit).startswith("ok" if met else "MISSED")
