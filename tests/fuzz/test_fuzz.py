"""No damaged input makes a decoder fail in a way that it does not promise; ``make soak`` runs many more."""

import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import drive
from mutations import mutate
from targets import Target, names, target

EXECUTIONS = 300


@pytest.mark.report("D15", "every decoder takes damaged input or refuses it by a promised error")
@pytest.mark.parametrize("name", list(names()))
def test_damage_is_taken_or_refused_by_name(name: str, tmp_path, monkeypatch) -> None:
    if "ciphertexts" in name:
        pytest.importorskip("tenseal", reason="tenseal is not installed: pip install 'fedsim[tenseal]'")
    monkeypatch.setattr(drive, "FINDINGS", tmp_path)
    for good in target(name).good:
        target(name).read(good)
    counts = drive.run(name, EXECUTIONS if target(name).cheap else EXECUTIONS // 10, seed=1)
    faults = [path.read_text() for path in sorted(tmp_path.glob("*.txt"))]
    assert counts["FAULT"] == 0, faults[0]
    assert counts.total() >= EXECUTIONS // 10


def test_a_fault_is_found_and_its_input_kept(tmp_path, monkeypatch) -> None:
    def read(data: bytes) -> None:
        if data[:1] != b"g":
            raise ZeroDivisionError
        if data != b"good":
            raise ValueError("promised")

    monkeypatch.setattr(drive, "FINDINGS", tmp_path)
    monkeypatch.setattr(drive, "target", lambda name: Target([b"good"], read, (ValueError,)))
    counts = drive.run("x", 500, seed=1)
    assert counts["FAULT"] > 0 < counts["refused"]
    assert "ZeroDivisionError" in next(tmp_path.glob("*.txt")).read_text()


def test_damage_depends_on_the_seed_alone() -> None:
    made = [[mutate(b"some bytes 12", [b"other"], random.Random(seed)) for _ in range(1)] for seed in (1, 1, 2)]
    assert made[0] == made[1] != made[2]
