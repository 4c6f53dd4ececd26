"""A run that is killed at any moment goes on to the bits of one that was not, with the same ledger."""

import multiprocessing
import os
import shutil
import signal
from contextlib import contextmanager
from pathlib import Path

import pytest

import fedsim.runner as runner
from crypto.errors import BackendUnavailable
from crypto.he_seal import library
from fedsim.config import load_config
from fedsim.errors import FedsimError
from fedsim.keystore import kept_at
from fedsim.measure.ledger import Ledger
from fedsim.protections import KeyRing
from fedsim.runner import simulate

SMALL = [
    "task.name=digits",
    "model.name=mlp",
    "model.options.hidden=[16]",
    "federation.num_clients=4",
    "federation.rounds=4",
    "engine.name=inline",
    "output.report=false",
]
BATCH_NORM = [
    "model.name=resnet8",
    "model.options={norm='batch', width=4}",
    "federation.buffers=local",
    "training.max_steps=2",
]
BFV = ["protection.name=bfv", "protection.rounding=nearest"]


def _has_seal() -> bool:
    try:
        library()
    except BackendUnavailable:
        return False
    return True


needs_seal = pytest.mark.skipif(not _has_seal(), reason="NOT TESTED HERE: SEAL does not load")


def settings(folder, *more):
    return load_config(None, [*SMALL, f"output.folder={folder}", *more])


# ---------------------------------------------------------------- runs in the process that is killed


def killed_at(folder: Path, more: list[str], moment: str, at: int) -> None:
    """Run, and be killed at a moment of a round as by ``kill -9``."""
    import fedsim.checkpoint as checkpoint
    import fedsim.client_app as client_app
    import fedsim.recorder as recorder

    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if moment == "training":
        inner = client_app.app._registered_funcs["train.default"]

        def training(message, context):
            if (int(message.metadata.group_id), context.node_config["partition-id"]) == (at, 2):
                die()
            return inner(message, context)

        client_app.app._registered_funcs["train.default"] = training
    elif moment in ("before the checkpoint", "after the checkpoint"):
        save = recorder.Recorder.save

        def saving(self, number, strategy):
            if number == at and moment.startswith("before"):
                die()
            save(self, number, strategy)
            if number == at:
                die()

        recorder.Recorder.save = saving
    else:
        fsync, count = os.fsync, iter(range(1, 1000))

        class Os:
            def __getattr__(self, name):
                return getattr(os, name)

            def fsync(self, descriptor):
                fsync(descriptor)
                if next(count) == at:
                    die()

        checkpoint.os = Os()
    simulate(settings(folder, "output.name=cut", *more))


@pytest.fixture(scope="module")
def processes():
    """Processes that are forked from one that has loaded the program, and has no threads."""
    context = multiprocessing.get_context("forkserver")
    late = ["torch._dynamo", "torch.utils.flop_counter", "sklearn.datasets", "pyarrow.parquet"]
    context.set_forkserver_preload(["fedsim.runner", "fedsim.client_app", "fedsim.tasks.sets.sklearn_sets", *late])
    return context


def cut(processes, folder, more, moment, at):
    process = processes.Process(target=killed_at, args=(folder, more, moment, at))
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL


# ---------------------------------------------------------------- what must hold

slow = pytest.mark.slow
MOMENTS = [
    pytest.param("training", 1, marks=slow),
    ("training", 3),
    pytest.param("before the checkpoint", 2, marks=slow),
    ("while the checkpoint is written", 2),
    pytest.param("after the checkpoint", 2, marks=slow),
    ("after the checkpoint", 4),
]


def same_run(folder: Path, more: list[str]) -> None:
    """Resume ``cut`` and compare it with ``whole``."""
    whole = simulate(settings(folder, "output.name=whole", *more))
    resumed = simulate(settings(folder, "output.name=cut", *more), resume=True)
    assert resumed.weights_sha256 == whole.weights_sha256 and whole.weights_sha256
    # SEAL compresses ciphertexts, so that their bytes differ a little from seal to seal.
    sizes = [] if "protection.name=bfv" in more else ["logical_bytes", "wire_bytes"]
    columns = ["round", "client", "phase", "flops", "outcome", "reason", *sizes]
    tables = [Ledger.read(r.folder).table().select(columns).to_pylist() for r in (whole, resumed)]
    assert tables[0] == tables[1]
    assert resumed.metrics == pytest.approx(whole.metrics) and resumed.metrics


@pytest.mark.report("U65", "killed at any moment of a round, a run resumes to the same weights and the same ledger")
@pytest.mark.parametrize(("moment", "at"), MOMENTS)
def test_a_run_killed_at_any_moment_resumes_to_the_same_bits(processes, tmp_path, moment, at):
    cut(processes, tmp_path, [], moment, at)
    same_run(tmp_path, [])


@pytest.mark.report("U65")
@pytest.mark.parametrize(
    "strategy", ["fedadam", *(pytest.param(name, marks=slow) for name in ("fedprox", "fedavgm", "fedluar"))]
)
def test_every_strategy_resumes_to_the_same_bits(processes, tmp_path, strategy):
    more = [f"strategy.name={strategy}"]
    if strategy == "fedluar":
        more += ["strategy.delta=1", "model.options.hidden=[16, 16]"]
    cut(processes, tmp_path, more, "training", 3)
    same_run(tmp_path, more)


@needs_seal
@pytest.mark.parametrize(
    ("moment", "at"), [pytest.param("training", 1, marks=slow), ("training", 3), ("after the checkpoint", 4)]
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


@slow
@needs_seal
@pytest.mark.parametrize("strategy", ["fedprox", "fedluar", "dictpfl"])
@pytest.mark.parametrize("protection", ["plain", "bfv", "rlwe"])
def test_strategies_resume_under_protections_that_only_clients_open(
    processes, tmp_path, monkeypatch, strategy, protection
):
    more = [f"strategy.name={strategy}", f"protection.name={protection}", "model.options.hidden=[16, 16]"]
    if protection != "plain":
        more.append("protection.rounding=nearest")
    if strategy == "fedluar":
        more.append("strategy.delta=1")
    cut(processes, tmp_path, more, "training", 3)
    if protection != "plain":
        # Clients that hold the model draw from their common key, so that the whole run must have the same.
        shutil.copytree(kept_at(tmp_path / "cut"), tmp_path / "same")

        @contextmanager
        def same_keys(*_):
            shutil.copytree(tmp_path / "same", tmp_path / "again", dirs_exist_ok=True)
            yield KeyRing(*(str(tmp_path / "again" / side) for side in ("server", "clients")))

        monkeypatch.setattr(runner, "fresh_keys", same_keys)
    same_run(tmp_path, more)
