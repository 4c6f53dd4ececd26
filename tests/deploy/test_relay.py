"""PREAMBLE over a deployment whose server knows no helper: all of it goes through the node of the helper's owner."""

import json
import signal
import socket
import subprocess

import numpy as np
import pytest

from fedsim.config import load_config, with_values
from fedsim.deploy.folder import SOCKET_FILE
from fedsim.deploy.traffic import compare
from fedsim.runner import simulate
from strategies.records import model_from_bytes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SETTINGS = (
    "protection.name=preamble",
    "protection.transport=relay",
    "protection.noise=off-not-private",
    "protection.clip_norm=100",
    "protection.block_size=8192",
    "protection.blocks=1",
    "model.name=logistic",
)


@pytest.fixture(scope="module")
def ran(nginx, federations, wait_for, tmp_path_factory):
    """A federation of two clients and a relaying node that has finished one run, still up."""
    with federations(tmp_path_factory.mktemp("deploy") / "relay", *SETTINGS, clients=2) as found:
        found.start_server()
        for number in range(found.clients):
            found.start_client(number)
        found._start("relay", "deploy", "node", found.root / "relay")
        # The node waits for its helper and says so.
        wait_for(lambda: "no helper that this node may use listens" in found.log("relay"), 60, found.logs)
        found.start_helper()
        wait_for(lambda: answers(found), 60, found.logs)
        found.done = found.run()
        assert found.done.returncode == 0, found.done.stdout + found.done.stderr + found.logs()
        yield found


def test_the_model_is_the_simulations(ran, tmp_path):
    """But for the rounding of sealed values, which each client draws anew."""
    config = load_config(ran.root / "settings.toml")
    simulated = simulate(with_values(config, {"output.folder": str(tmp_path), "output.report": False}))
    model = model_from_bytes((ran.run_folder() / "model.safetensors").read_bytes())
    for name, array in simulated.state.arrays.items():
        np.testing.assert_allclose(model.arrays[name], array, atol=1e-4)


def test_the_server_knows_no_helper_and_the_node_no_key(ran):
    assert not list((ran.root / "server").rglob("helper.address"))
    assert not [p for p in (ran.root / "relay").rglob("*") if p.name in ("preamble.key", "tls.pem")]
    said = ran.log("helper")
    assert said.count("accepted 2 reports, rejected 0") == 2 and "refused" not in said


def test_the_ledger_has_the_helpers_bytes_as_they_travelled(ran):
    found = compare(ran.run_folder(), ran.root / "state" / "traffic.log")
    assert len(found.traffic.clients.keys() - {""}) == 3
    for ledger, direction in (
        (found.upload_bytes, found.traffic.upload),
        (found.download_bytes, found.traffic.download),
    ):
        assert ledger > 50_000
        assert ledger <= direction.object_bytes <= ledger + 200 * direction.objects + 3 * 2_000


def test_a_helper_that_is_killed_stops_the_next_run_with_a_sentence(ran, wait_for):
    ran.kill("helper")
    cut = ran.run()
    assert cut.returncode != 0
    record = json.loads((ran.run_folder() / "run.json").read_text())
    assert record["status"] == "failed"
    assert "no helper listens at" in record["exit_reason"] and "start it again" in record["exit_reason"]


def test_a_helper_that_is_started_again_releases_no_round_twice(ran, wait_for):
    ran.start_helper()
    wait_for(lambda: answers(ran), 60, ran.logs)
    again = ran.run()
    assert again.returncode != 0
    record = json.loads((ran.run_folder() / "run.json").read_text())
    assert "round 1: round 2 was released already" in record["exit_reason"]
    assert ran.stop("relay") == 0 and ran.stop("helper") in (0, -signal.SIGTERM)


def answers(federation):
    with socket.socket(socket.AF_UNIX) as plain:
        try:
            plain.connect(str(federation.root / "helper" / "socket" / SOCKET_FILE))
        except OSError:
            return False
    return True


def test_the_nodes_file_says_why_it_is_wrong(ran, fedsim):
    file = ran.root / "relay" / "node.toml"
    file.write_text(file.read_text() + "partition_id = 0\n")
    done: subprocess.CompletedProcess[str] = fedsim("deploy", "check", ran.root / "relay")
    assert done.returncode == 2 and "has no place beside helper" in done.stderr
