"""A sweep's trial that was cut off goes on where it stopped, whoever opens its sums."""

import shutil

import pytest

from experiments.sweeps.trials import run_trial
from fedsim.config import load_config
from fedsim.events import NullObserver
from fedsim.runner import run


@pytest.mark.parametrize("protection", ["plain", "rlwe", "preamble"])
def test_a_cut_trial_goes_on_whoever_opens_its_sums(tmp_path, protection):
    own = ["protection.block_size=256", "protection.blocks=1"] if protection == "preamble" else []
    words = ["task.name=digits", "model.name=logistic", "federation.num_clients=4", "federation.rounds=4"]
    names = ["engine.name=inline", f"protection.name={protection}", "output.name=trial", "output.report=false", *own]
    config = load_config(None, [*words, *names, f"output.folder={tmp_path}"])

    class Cut(NullObserver):
        def round_end(self, event):
            if event.round == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, Cut())
    kept = (tmp_path / "trial" / "ledger.csv").read_text().splitlines()
    assert run_trial(config) == {"status": "finished", "reason": ""}
    rows = (tmp_path / "trial" / "ledger.csv").read_text().splitlines()
    assert rows[: len(kept)] == kept and len(rows) > len(kept), "what was done was done again"
    assert not (tmp_path / ".keys").exists()


def test_a_cut_trial_whose_keys_are_gone_begins_anew(tmp_path):
    words = ["task.name=digits", "federation.num_clients=3", "federation.rounds=2", "engine.name=inline"]
    config = load_config(None, [*words, "protection.name=rlwe", "output.name=trial", f"output.folder={tmp_path}"])

    class Cut(NullObserver):
        def round_end(self, event):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, Cut())
    shutil.rmtree(tmp_path / ".keys")
    assert run_trial(config)["status"] == "finished"
