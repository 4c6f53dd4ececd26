"""Students and gradients against those of the full model."""

import pytest
import torch

from experiments.leff.fidelity import main, measure, prepared
from fedsim.config import load_config
from strategies.leff import Distillation

DIGITS = "experiments/configs/papers/leff_digits.toml"


@pytest.fixture(scope="module")
def world():
    return prepared(load_config(DIGITS, ["model.options.depth=4"]), 10, 2e-3)


def test_copies_give_the_gradient_and_the_logits_of_the_full_model(world):
    found = measure(*world, 1.0, Distillation(steps=0))
    assert (found.hidden, found.maps, found.logits) == (0, 0, 0)
    assert found.cosine == pytest.approx(1) and found.norm == pytest.approx(1)


def test_distillation_turns_the_clients_gradient_towards_the_true_one(world):
    model = world[0]
    before = [p.clone() for p in model.parameters()]
    raw = measure(*world, 0.5, Distillation(steps=0))
    taught = measure(*world, 0.5, Distillation(steps=12, lr=1e-3))
    assert taught.hidden < raw.hidden / 3 and taught.maps < raw.maps
    assert taught.logits < raw.logits and taught.cosine > raw.cosine and taught.least_cosine > 0.6
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_the_table_has_a_row_for_each_rate_and_number_of_steps(tmp_path, monkeypatch):
    out = tmp_path / "f.csv"
    words = [
        "fidelity",
        DIGITS,
        "--set",
        "model.options.depth=2",
        "--rates",
        "0.5",
        "1",
        "--distil-steps",
        "0",
        "--steps",
        "0",
        "--out",
        str(out),
    ]
    monkeypatch.setattr("sys.argv", words)
    main()
    assert [line.split(",")[:2] for line in out.read_text().splitlines()[1:]] == [["0.5", "0"], ["1.0", "0"]]
