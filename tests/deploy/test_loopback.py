"""A whole federation of real processes with TLS and node keys, against the simulation of the same settings."""

import json
import re
from pathlib import Path

import psutil
import pytest

from fedsim.config import load_config, with_values
from fedsim.deploy.traffic import compare
from fedsim.runner import simulate

#: Fifteen processes start; on a busy machine that takes minutes.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def ran(nginx, federations, tmp_path_factory):
    """A federation of three clients that has finished one run, still up."""
    with federations(tmp_path_factory.mktemp("deploy") / "plain") as found:
        found.start_server()
        for number in range(found.clients):
            found.start_client(number)
        found.done = found.run()
        assert found.done.returncode == 0, found.done.stdout + found.done.stderr + found.logs()
        yield found


def test_a_run_shows_its_rounds_and_leaves_a_run_folder(ran):
    assert re.search(r"^round 2/2 .* 3/3 replies", ran.done.stdout, re.M), ran.done.stdout
    folder = ran.run_folder()
    assert json.loads((folder / "run.json").read_text())["status"] == "finished"
    for name in ("report.html", "ledger.parquet", "metrics.csv", "config.toml", "model.safetensors"):
        assert (folder / name).exists(), name


def test_commands_of_flower_are_printed(ran):
    assert "flwr supernode register" in ran.done.stderr and " flwr run " in ran.done.stderr


def test_the_model_is_the_simulations_bit_for_bit(ran, tmp_path):
    config = load_config(ran.root / "settings.toml")
    simulated = simulate(with_values(config, {"output.folder": str(tmp_path), "output.report": False}))
    assert json.loads((ran.run_folder() / "run.json").read_text())["weights_sha256"] == simulated.weights_sha256


def test_ledger_bytes_are_those_on_the_wire_but_for_envelopes(ran):
    found = compare(ran.run_folder(), ran.root / "state" / "traffic.log")
    assert len(found.traffic.clients.keys() - {""}) == 3
    for ledger, direction in (
        (found.upload_bytes, found.traffic.upload),
        (found.download_bytes, found.traffic.download),
    ):
        assert ledger > 100_000
        # An envelope has two ids of 10 bytes, the object's of 64, the session's, and lengths; the greeting before
        # round 1 is not in the ledger.
        greeting = 3 * 2_000
        assert ledger <= direction.object_bytes <= ledger + 200 * direction.objects + greeting


def test_clients_reach_the_fleet_api_only(ran, fedsim):
    done = fedsim("deploy", "check", ran.root / "clients" / "0")
    assert done.returncode == 0, done.stdout
    assert "shows clients its Fleet API only" in done.stdout and "failed" not in done.stdout


def test_a_client_with_an_unknown_key_is_kept_out_with_a_sentence(ran, strangers_key, wait_for):
    folder = ran.root / "clients" / "2"
    ran.stop("client-2")
    strangers_key(folder)
    before = len(ran.log("client-2"))
    ran.start_client(2)
    wait_for(lambda: "next try in 2 s" in ran.log("client-2")[before:], 300, ran.logs)
    assert "its key is not registered" in ran.log("client-2")[before:]
    assert ran.stop("client-2") == 0


def test_all_stop_when_asked_and_leave_nothing(ran):
    family = [p for process in ran.processes.values() for p in psutil.Process(process.pid).children(recursive=True)]
    assert {name: ran.stop(name) for name in ("client-1", "client-0", "server")} == dict.fromkeys(
        ("client-1", "client-0", "server"), 0
    )
    assert not [p for p in family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def test_what_the_server_reads_holds_no_secret_of_a_client(ran):
    secrets = {(ran.root / "clients" / str(n) / "node.key").read_text() for n in range(3)}
    for path in [p for name in ("server", "proxy", "admin") for p in (ran.root / name).rglob("*") if p.is_file()]:
        assert path.read_text(errors="replace") not in secrets
        assert path.name != "ca.key"


def test_folder_is_its_owners_alone(ran):
    for path in (ran.root, *Path(ran.root / "clients").iterdir(), ran.root / "server", ran.root / "ca"):
        assert path.stat().st_mode & 0o077 == 0, path
