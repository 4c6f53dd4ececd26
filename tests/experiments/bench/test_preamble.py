"""The bench runs at small sizes and reports every measure; its bars are not judged on a busy machine."""

import pytest

from experiments.bench import preamble


def test_the_quick_bench_prints_every_measure(capsys: pytest.CaptureFixture[str]) -> None:
    assert preamble.main(["--quick"]) in (0, 1)
    lines = capsys.readouterr().out
    for measure in ("AES-128-CTR", "numpy reference / native", "key generation", "pass / adding", "peak memory"):
        assert measure in lines


def test_a_missed_bar_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    board = preamble.Board()
    board.say("fast", 2.0, "ratio", at_least=1.0)
    board.say("slow", 0.5, "ratio", at_least=1.0)
    board.say("long", 2.0, "ratio", at_most=1.0)
    assert board.missed == 2
    assert capsys.readouterr().out.count("MISSED") == 2
