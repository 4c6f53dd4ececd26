"""Reference results that are checked in: some trials are run again and agree within the stated tolerance.

``fedsim sweep experiments/configs/ROOM/NAME.toml`` makes them; its ``trials.csv`` is ``results/ROOM/NAME.csv``.
"""

import csv
from pathlib import Path

import pytest

from experiments.sweeps.results import collect
from experiments.sweeps.spec import read_spec
from experiments.sweeps.trials import run_trial

ROOT = Path(__file__).parents[2] / "experiments"
#: Accuracy: absolute, as processors round differently and training amplifies it; bytes: how far a ciphertext can be
#: compressed varies by key; virtual time: follows the bytes.
TOLERANCE = {"final_accuracy": 0.06, "bytes": 0.04, "virtual_s": 0.04}

#: Sweep -> trials that are run again.
AGAIN = {
    "overhead/protections": [("fedavg", "plain", 1), ("fedavg", "bfv", 1), ("fedluar", "plain", 2)],
    "heterogeneity/label_skew": [("fedprox", "100", 3), ("fedavg", "0.05", 1)],
}


def references(name):
    with (ROOT / "results" / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        pytest.param(n, c, marks=[] if at == 0 else pytest.mark.slow, id=f"{n.split('/')[1]}-{'-'.join(map(str, c))}")
        for n, some in AGAIN.items()
        for at, c in enumerate(some)
    ],
)
def test_a_trial_agrees_with_its_reference(name, chosen, tmp_path):
    arm, value, seed = chosen
    if value == "bfv":
        pytest.importorskip("tenseal", reason="NOT TESTED HERE: bfv needs tenseal")
    key = {"overhead/protections": "protection.name", "heterogeneity/label_skew": "data.alpha"}[name]
    spec = read_spec(ROOT / "configs" / f"{name}.toml", tmp_path)
    rows = collect(spec)
    (place,) = [i for i, r in enumerate(rows) if (r["arm"], r[f"set:{key}"], r["seed"]) == (arm, value, seed)]
    assert run_trial(spec.trials[place].config)["status"] == "finished"
    found = collect(spec)[place]
    (expected,) = [r for r in references(name) if (r["arm"], r[key], int(r["seed"])) == (arm, value, seed)]
    assert found["final_accuracy"] == pytest.approx(float(expected["final_accuracy"]), abs=TOLERANCE["final_accuracy"])
    for column in ("upload_bytes", "download_bytes"):
        assert found[column] == pytest.approx(float(expected[column]), rel=TOLERANCE["bytes"])
    assert found["virtual_s"] == pytest.approx(float(expected["virtual_s"]), rel=TOLERANCE["virtual_s"])
    assert found["ok_turns"] == int(expected["ok_turns"])


@pytest.mark.parametrize("name", AGAIN)
def test_a_reference_is_whole(name, tmp_path):
    spec = read_spec(ROOT / "configs" / f"{name}.toml", tmp_path)
    assert len(references(name)) == len(spec.runnable)
