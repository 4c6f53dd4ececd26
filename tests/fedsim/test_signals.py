"""SIGINT, SIGTERM and SIGHUP in every phase of a run: it ends with code 130, says so, and goes on to the same bits."""

import json
import os
import signal

import pytest

from fedsim.runner import simulate
from tests.fedsim.killing import SMALL, forkserver, settings

slow = pytest.mark.slow
RLWE = ["protection.name=rlwe", "protection.rounding=nearest"]
PREAMBLE = ["protection.name=preamble", "protection.block_size=256", "protection.blocks=1"]


def places():
    """Return phase -> (owner, name) of the function that is under way when the signal comes."""
    import fedsim.checkpoint as checkpoint
    import fedsim.client_app as client_app
    import fedsim.measure.report as report
    import fedsim.runner as runner
    from crypto.preamble.scheme import PreambleOpener, PreambleSealer
    from crypto.rlwe.scheme import RlweAdder, RlweOpener, RlweSealer
    from fedsim.measure.ledger import Ledger

    return {
        "before the folder": (runner, "_claim"),
        "training": (client_app, "_train"),
        "sealing": (RlweSealer, "seal"),
        "adding": (RlweAdder, "add"),
        "opening": (RlweOpener, "open"),
        "sealing a report": (PreambleSealer, "seal"),
        "opening a noisy sum": (PreambleOpener, "open"),
        "writing the ledger": (Ledger, "flush"),
        "writing a checkpoint": (checkpoint, "_write"),
        "opening the last model": (runner, "_open_as_client"),
        "writing the report": (report, "write_report"),
    }


def signalled(folder, more, phase, number):
    """Run the command line, and be signalled the second time, or the only time, that a phase is under way."""
    from fedsim.cli import main

    # As in a terminal, whatever started the tests: under nohup SIGHUP is ignored, in the background SIGINT.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    owner, name = places()[phase]
    inner, calls = getattr(owner, name), iter(range(1, 10**6))
    once = phase in ("before the folder", "opening the last model", "writing the report")

    def under_way(*args, **kwargs):
        if next(calls) == (1 if once else 2):
            os.kill(os.getpid(), number)
        return inner(*args, **kwargs)

    setattr(owner, name, under_way)
    import sys

    words = [*SMALL, *more, f"output.folder={folder}", "output.name=cut"]
    sys.argv = ["fedsim", "run", "--quiet", *(part for word in words for part in ("--set", word))]
    main()


@pytest.fixture(scope="module")
def processes():
    return forkserver()


def stop(processes, folder, more, phase, number):
    process = processes.Process(target=signalled, args=(folder, more, phase, number))
    process.start()
    process.join(150)
    assert process.exitcode == 130


@pytest.mark.report("D16")
@pytest.mark.parametrize(
    ("phase", "more", "number"),
    [
        pytest.param("before the folder", [], signal.SIGTERM, marks=slow),
        pytest.param("training", [], signal.SIGINT, marks=slow),
        ("sealing", RLWE, signal.SIGHUP),
        pytest.param("adding", RLWE, signal.SIGTERM, marks=slow),
        pytest.param("opening", RLWE, signal.SIGINT, marks=slow),
        pytest.param("writing the ledger", [], signal.SIGTERM, marks=slow),
        pytest.param("writing a checkpoint", RLWE, signal.SIGHUP, marks=slow),
        ("opening the last model", RLWE, signal.SIGTERM),
    ],
)
def test_a_signal_in_any_phase_stops_the_run_and_it_goes_on_to_the_same_bits(processes, tmp_path, phase, more, number):
    stop(processes, tmp_path, more, phase, number)
    folder = tmp_path / "cut"
    if phase == "before the folder":
        assert not folder.exists() and not (tmp_path / ".keys").exists()
        return
    status = json.loads((folder / "run.json").read_text())["status"]
    assert status == ("finished" if phase == "opening the last model" else "stopped")
    assert not list(folder.rglob("*.tmp"))
    resumed = simulate(settings(tmp_path, "output.name=cut", *more), resume=True)
    whole = simulate(settings(tmp_path, "output.name=whole", *more))
    assert resumed.weights_sha256 == whole.weights_sha256 != ""
    assert not (tmp_path / ".keys").exists()


@slow
@pytest.mark.report("D16")
@pytest.mark.parametrize("phase", ["sealing a report", "opening a noisy sum"])
def test_a_private_run_that_is_stopped_opens_no_round_twice(processes, tmp_path, phase):
    stop(processes, tmp_path, PREAMBLE, phase, signal.SIGTERM)
    simulate(settings(tmp_path, "output.name=cut", *PREAMBLE), resume=True)
    released = (tmp_path / "cut" / "releases.csv").read_text().split()
    assert released == sorted(set(released)) and released[-1] == "4,asked"


@slow
def test_a_signal_while_the_report_is_written_leaves_a_finished_run(processes, tmp_path):
    more = ["output.report=true"]
    stop(processes, tmp_path, more, "writing the report", signal.SIGTERM)
    assert json.loads((tmp_path / "cut" / "run.json").read_text())["status"] == "finished"
    assert (tmp_path / "cut" / "model.safetensors").exists()
