"""Paces are compared with Flower's of as many messages."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments.bench import pace
from experiments.bench.pace import Pace, main, table


def test_ratios_are_to_flower_with_as_many_messages() -> None:
    found = [Pace("Flower", 1, 4.0, 2.0), Pace("fedsim", 1, 1.0, 0.5), Pace("Flower", 2, 9.0, 3.0)]
    assert table(found).splitlines()[2].split()[-2:] == ["4.0", "4.0"]


@pytest.mark.parametrize(("ours_s", "code"), [(1.0, 0), (5.0, 1)])
def test_it_fails_where_ours_is_slower(
    ours_s: float, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(kind: str, rounds: int, evaluate: bool) -> Pace:
        return Pace(kind, 1 + evaluate, 4.0 if kind == "Flower" else ours_s, 1.0)

    monkeypatch.setattr(pace, "measure", measure)
    assert main(["--json"]) == code
    assert len(json.loads(capsys.readouterr().out.splitlines()[-1])) == 4


def test_rounds_are_timed_as_they_are_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "run" / "metrics.csv"
    file.parent.mkdir()
    file.write_text("")
    clock = _clock(file)
    monkeypatch.setattr(pace.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(pace.time, "sleep", lambda _: None)
    ends, spent = pace._watch(tmp_path, 3)
    assert len(spent) == 3 and pace._steps(ends) == [pytest.approx(b - a) for a, b in zip(ends, ends[1:], strict=False)]
    assert ends == sorted(ends)


def _clock(file: Path) -> Iterator[float]:
    """Seconds; another round is written down with every second reading."""
    for second in range(100):
        if second % 2:
            file.write_text(file.read_text() + '1,"server","round_s",0.1\n')
        yield float(second)
