"""The loop by hand does what it says, and its turns are counted beside ours."""

import pytest
import torch

from experiments.bench.beside import HandLoop, Turns, main
from experiments.bench.training import site_for
from fedsim.events import RoundEnd


def event(number: int) -> RoundEnd:
    counts = {"upload_bytes": 0, "download_bytes": 0, "sampled": 1, "replied": 1}
    return RoundEnd(round=number, rounds=3, metrics={}, seconds=0.0, **counts)


def test_the_loop_makes_the_step_that_can_be_worked_out() -> None:
    loop = HandLoop(site_for("trivial", 1))
    loop.round()
    # From zero both classes are as likely: the mean of all 25,000 values has the slope -1/2, and the rate is 0.1.
    torch.testing.assert_close(torch.cat(loop._weights), torch.full((25_000,), 0.1 * 0.5 / 25_000))


def test_each_round_of_ours_has_one_of_the_loops_beside_it() -> None:
    rounds: list[int] = []

    class Counted(HandLoop):
        def __init__(self) -> None:
            pass

        def round(self) -> None:
            rounds.append(len(rounds))

    turns = Turns(Counted())
    for number in range(3):
        turns.round_end(event(number))
    assert len(turns.pairs) == len(rounds) == 3 and all(ours >= 0 and loop >= 0 for ours, loop in turns.pairs)


def test_ours_and_the_loop_are_measured_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = main(["--task", "trivial", "--rounds", "2", "--modes", "inline"])
    assert found.ours_ms > 0 and found.loop_ms > 0 and found.ratio > 0
    assert capsys.readouterr().out.splitlines()[1].startswith("inline")


def test_too_few_rounds_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--rounds", "1"])
    assert "--rounds 1: the first warms up" in capsys.readouterr().err
