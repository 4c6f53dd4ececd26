"""The estimate of a run's time: what it is made of, and where it is shown beside the time that was taken."""

import itertools
import json

import pytest
import torch

from fedsim.config import load_config, to_run_config
from fedsim.estimate import batch_s, run_s
from fedsim.events import NullObserver
from fedsim.runner import run
from fedsim.site import site_of

SMALL = ["task.name=digits", "model.name=logistic", "federation.num_clients=4", "federation.rounds=2"]


def site(*more):
    return site_of(to_run_config(load_config(None, [*SMALL, "data.scheme=iid", *more])))


def test_a_batch_is_timed_on_a_copy_and_moves_no_random_stream():
    here = site()
    before, stream = {k: v.copy() for k, v in here.initial.arrays.items()}, torch.get_rng_state()
    ticks = itertools.accumulate(itertools.cycle([1.0, 0.25]))
    assert batch_s(here, lambda: next(ticks)) in (0.25, 1.0)
    assert torch.equal(stream, torch.get_rng_state())
    after = here.model.state_dict()
    assert all((after[name].numpy() == array).all() for name, array in before.items())


def test_time_grows_with_what_it_is_made_of():
    base = run_s(site(), "inline", 1, 0.5)
    # Two rounds of four clients, each of some 360 examples in batches of 32.
    assert 2 * 4 * 11 * 0.5 < base < 2 * 4 * 13 * 0.5 + 2 * 12 * 0.5
    assert run_s(site("federation.rounds=20"), "inline", 1, 0.5) == pytest.approx(10 * (base - 1) + 1)
    assert run_s(site("training.max_steps=1"), "inline", 1, 0.5) < base / 3
    assert run_s(site(), "ray", 4, 0.5) < base < run_s(site(), "inline", 4, 1.0)
    assert run_s(site("federation.evaluate_every=2"), "inline", 1, 0.5) < base
    rlwe = ["federation.client_evaluation_fraction=0.0"]
    assert run_s(site("protection.name=rlwe", *rlwe), "inline", 1, 0.0) > run_s(site(*rlwe), "inline", 1, 0.0) - 1.0


def test_a_run_shows_its_estimate_where_it_starts_and_beside_what_it_took(tmp_path):
    said = []

    class Watch(NullObserver):
        def note(self, text):
            said.append(text)

    config = load_config(None, [*SMALL, "engine.name=inline", f"output.folder={tmp_path}", "output.name=run"])
    run(config, Watch())
    assert any("; the run takes about " in text and " s, " in text and " of memory, " in text for text in said)
    notes = json.loads((tmp_path / "run" / "run.json").read_text())["notes"]
    assert notes["estimated"]["time_s"] > 0 < notes["took"]["time_s"]
    assert notes["took"]["disk_bytes"] > 1000 and notes["estimated"]["disk_bytes"] > 1000
    report = (tmp_path / "run" / "report.html").read_text()
    assert "notes.estimated.time_s" in report and "notes.took.time_s" in report
