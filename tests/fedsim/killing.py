"""Runs that are killed as by ``kill -9``, and what must be the same afterwards."""

import hashlib
import multiprocessing
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from crypto.errors import BackendUnavailable
from crypto.he_seal import library
from fedsim.config import load_config
from fedsim.measure.ledger import Ledger
from fedsim.runner import RunResult, simulate

SMALL = [
    "task.name=digits",
    "model.name=mlp",
    "model.options.hidden=[16]",
    "federation.num_clients=4",
    "federation.rounds=4",
    "engine.name=inline",
    "output.report=false",
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


def killed_at(folder: Path, more: list[str], moment: str, at: int, drawn_alike: bool) -> None:
    """Run, and be killed at a moment of a round as by ``kill -9``."""
    import fedsim.checkpoint as checkpoint
    import fedsim.client_app as client_app
    import fedsim.recorder as recorder
    import fedsim.runner as runner

    if drawn_alike:
        draw_alike()

    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if moment == "training":
        inner, seen = client_app.app._registered_funcs["train.default"], set()

        def training(message, context):
            seen.add((int(message.metadata.group_id), context.node_config["partition-id"]))
            # The second client of the round.
            if sum(number == at for number, _ in seen) == 2:
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
    elif moment == "before a client opens the model":
        runner._open_as_client = die
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


def forkserver():
    """Return a maker of processes that are forked from one that has loaded the program, and has no threads."""
    context = multiprocessing.get_context("forkserver")
    late = ["torch._dynamo", "torch.utils.flop_counter", "sklearn.datasets", "pyarrow.parquet"]
    context.set_forkserver_preload(["fedsim.runner", "fedsim.client_app", "fedsim.tasks.sets.sklearn_sets", *late])
    return context


def cut(processes, folder, more, moment, at, drawn_alike=False):
    """Run ``cut`` in a process of its own that is killed."""
    process = processes.Process(target=killed_at, args=(folder, more, moment, at, drawn_alike))
    process.start()
    process.join(600)
    assert process.exitcode == -signal.SIGKILL


def draw_alike(patch=setattr):
    """Let PREAMBLE's clients draw from what they seal, so that runs differ in nothing but what they do."""
    from crypto.preamble.scheme import PreambleSealer

    seal = PreambleSealer.seal

    def sealing(self, vector, tag):
        seed = hashlib.sha256(np.asarray(vector, np.float64).tobytes() + str(tag).encode()).digest()
        self._random_bytes = np.random.default_rng(list(seed)).bytes
        return seal(self, vector, tag)

    patch(PreambleSealer, "seal", sealing)


def same_run(folder: Path, more: list[str]) -> tuple[RunResult, RunResult]:
    """Resume ``cut`` and compare it with ``whole``, which runs first; return both."""
    whole = simulate(settings(folder, "output.name=whole", *more))
    resumed = simulate(settings(folder, "output.name=cut", *more), resume=True)
    assert resumed.weights_sha256 == whole.weights_sha256 and whole.weights_sha256
    # SEAL compresses ciphertexts, so that their bytes differ a little from seal to seal.
    sizes = [] if "protection.name=bfv" in more else ["logical_bytes", "wire_bytes"]
    columns = ["round", "client", "phase", "flops", "outcome", "reason", *sizes]
    tables = [Ledger.read(r.folder).table().select(columns).to_pylist() for r in (whole, resumed)]
    assert tables[0] == tables[1]
    # What was measured in seconds differs from run to run.
    metrics = [{name: x for name, x in run.metrics.items() if not name.endswith("_s")} for run in (whole, resumed)]
    assert metrics[1] == pytest.approx(metrics[0]) and metrics[0]
    return whole, resumed
