"""A run that is killed at any moment goes on to the bits of one that was not, with the same ledger."""

import shutil

import pytest

from fedsim.errors import FedsimError
from fedsim.keystore import kept_at
from fedsim.runner import simulate
from tests.fedsim.killing import BFV, cut, forkserver, needs_seal, same_run, settings

BATCH_NORM = [
    "model.name=resnet8",
    "model.options={norm='batch', width=4}",
    "federation.buffers=local",
    "training.max_steps=2",
]


@pytest.fixture(scope="module")
def processes():
    return forkserver()


slow = pytest.mark.slow
MOMENTS = [
    pytest.param("training", 1, marks=slow),
    ("training", 3),
    pytest.param("before the checkpoint", 2, marks=slow),
    ("while the checkpoint is written", 2),
    pytest.param("after the checkpoint", 2, marks=slow),
    ("after the checkpoint", 4),
]


@pytest.mark.report("U65", "killed at any moment of a round, a run resumes to the same weights and the same ledger")
@pytest.mark.parametrize(("moment", "at"), MOMENTS)
def test_a_run_killed_at_any_moment_resumes_to_the_same_bits(processes, tmp_path, moment, at):
    cut(processes, tmp_path, [], moment, at)
    same_run(tmp_path, [])


@needs_seal
@pytest.mark.parametrize(
    ("moment", "at"),
    [
        pytest.param("training", 1, marks=slow),
        ("training", 3),
        pytest.param("after the checkpoint", 4, marks=slow),
        ("before a client opens the model", 4),
    ],
)
def test_what_only_clients_can_open_resumes_from_the_last_sealed_total(processes, tmp_path, moment, at):
    cut(processes, tmp_path, BFV, moment, at)
    keys = kept_at(tmp_path / "cut")
    assert keys.stat().st_mode & 0o077 == 0 and list(keys.rglob("*.key"))
    same_run(tmp_path, BFV)
    assert not (tmp_path / ".keys").exists()


@pytest.mark.parametrize("more", [[], pytest.param(BFV, marks=needs_seal)])
@pytest.mark.parametrize("engine", ["inline", pytest.param("ray", marks=pytest.mark.slow)])
def test_what_clients_keep_to_themselves_survives(processes, tmp_path, more, engine):
    more = [*BATCH_NORM, *more, f"engine.name={engine}", "engine.workers=1"]
    cut(processes, tmp_path, more, "after the checkpoint", 2)
    assert (tmp_path / "cut" / "clients" / "round-000002.state").exists()
    same_run(tmp_path, more)


@needs_seal
def test_a_run_whose_keys_are_gone_says_so(processes, tmp_path):
    cut(processes, tmp_path, BFV, "training", 2)
    shutil.rmtree(tmp_path / ".keys")
    with pytest.raises(FedsimError, match=r"holds no keys: only the clients' own keys open the model"):
        simulate(settings(tmp_path, "output.name=cut", *BFV), resume=True)


@needs_seal
def test_a_new_run_of_the_name_of_one_whose_folder_is_gone_has_keys_of_its_own(processes, tmp_path):
    cut(processes, tmp_path, BFV, "training", 2)
    old = {p.name: p.read_bytes() for p in kept_at(tmp_path / "cut").rglob("*.key")}
    shutil.rmtree(tmp_path / "cut")
    cut(processes, tmp_path, BFV, "training", 2)
    new = {p.name: p.read_bytes() for p in kept_at(tmp_path / "cut").rglob("*.key")}
    assert set(new) == set(old) and all(new[name] != old[name] for name in new)
