"""The numbered lessons run, each by itself, and say what they promise."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from forge import Forge

#: A lesson is short in seconds of work; how long that takes is the machine's affair.
pytestmark = pytest.mark.timeout(1200)

ROOT = Path(__file__).parents[1]
LESSONS = sorted((ROOT / "examples").glob("*.py"))
#: What a lesson's output must hold.
SAYS = {
    "01": "weights ",
    "02": "with steps of at most 0.02",
    "03": "sizes [",
    "04": "the server cannot:",
    "05": "rlwe-threshold",
    "06": "epsilon 2.000 for the run",
    "07": "turns came too late",
    "08": "(95 %, three seeds)",
}


@pytest.fixture(scope="module")
def forge() -> Iterator[Forge]:
    made = Forge()
    yield made
    made.close()


def test_lessons_are_numbered_without_gaps() -> None:
    assert [path.name[:2] for path in LESSONS] == [f"{number:02}" for number in range(1, len(SAYS) + 1)]


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_lesson_runs(lesson: Path, forge: Forge, tmp_path: Path) -> None:
    done = forge.run(["python", str(lesson)], tmp_path, timeout_s=1100)
    assert done.code == 0, done.output
    assert SAYS[lesson.name[:2]] in done.output, done.output
