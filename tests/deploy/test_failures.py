"""What docs/deployment.md says of failures, done to real processes on this machine."""

import json

import psutil
import pytest

from fedsim.deploy.runner import TITLE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

#: Many short rounds, so that some lie before, during and after the absence.
LONG = ("federation.rounds=400", "federation.min_replies=2", "federation.deadline_s=20.0", "output.report=false")


@pytest.fixture
def running(nginx, federations, tmp_path, wait_for):
    """Return a context manager: a federation in which some rounds of a run are done."""

    def make(*settings, **more):
        return federations(tmp_path / "it", "output.report=false", *settings, **more)

    return make


def begin(found, wait_for):
    found.start_all()
    found.start_run()
    wait_for(lambda: len(found.rounds()) > 2, 400, found.logs)


@pytest.mark.report(
    "U82", "a killed client is left out and may come back; a transport that hangs does not outlive the deadline"
)
def test_a_killed_client_is_left_out_and_rejoins_under_its_number(running, wait_for):
    with running(*LONG) as found:
        begin(found, wait_for)
        assert set(found.rounds()) == {3}
        found.kill("client-1")
        wait_for(lambda: 2 in found.rounds(), 120, found.logs)
        gone = len(found.rounds())
        found.start_client(1)
        wait_for(lambda: 3 in found.rounds()[gone:], 240, found.logs)
        log = found.log("client-1")
        assert "still counts as connected" in log or "SuperNode ID" in log


def test_a_client_that_was_stopped_rejoins_at_once(running, wait_for):
    with running(*LONG) as found:
        begin(found, wait_for)
        before = len(found.log("client-1"))
        assert found.stop("client-1") == 0
        gone = len(found.rounds())
        found.start_client(1)
        wait_for(lambda: 3 in found.rounds()[gone + 1 :], 240, found.logs)
        assert "does not let this node in" not in found.log("client-1")[before:]


def test_a_run_whose_server_went_down_is_resumed(running, wait_for):
    with running("federation.rounds=60") as found:
        begin(found, wait_for)
        found.stop("server")
        before = len(found.rounds())
        assert before < 60
        found.start_server()
        (name,) = [path.name for path in (found.root / "runs").iterdir()]
        done = found.run("--resume", name, "--wait", "240")
        assert done.returncode == 0, done.stdout + done.stderr + found.logs()
        assert "round 60/60" in done.stdout


def test_a_run_whose_server_app_was_killed_fails_and_is_resumed(running, wait_for):
    with running("federation.rounds=60") as found:
        begin(found, wait_for)
        family = psutil.Process(found.processes["server"].pid).children(recursive=True)
        (app,) = [p for p in family if p.status() != psutil.STATUS_ZOMBIE and p.name() == TITLE]
        app.kill()
        assert found.ended("run", 240) == 1, found.logs()
        assert "finished:failed" in found.log("run").splitlines()[-1]
        (name,) = [path.name for path in (found.root / "runs").iterdir()]
        done = found.run("--resume", name, "--wait", "240")
        assert done.returncode == 0, done.stdout + done.stderr + found.logs()


def test_too_few_replies_end_the_run_and_leave_the_last_good_model(running, wait_for):
    with running("federation.rounds=400", "federation.min_replies=3", "federation.deadline_s=10.0") as found:
        begin(found, wait_for)
        found.kill("client-2")
        assert found.ended("run", 240) == 1, found.logs()
        record = json.loads((found.run_folder() / "run.json").read_text())
        assert record["status"] == "failed" and "2 of 3" in record["exit_reason"], record
        assert record["exit_reason"] in found.log("run")
        assert list((found.run_folder() / "checkpoints").iterdir())


def test_two_clients_of_one_number_end_the_run_before_round_1(running):
    with running() as found:
        node = found.root / "clients" / "1" / "node.toml"
        node.write_text(node.read_text().replace("partition_id = 1", "partition_id = 0"))
        found.start_all()
        done = found.run("--wait", "240")
        assert done.returncode == 1 and "both claim partition 0" in done.stdout + done.stderr, found.logs()
        assert not found.rounds()


def test_a_client_with_an_unknown_key_gives_up(running, strangers_key):
    with running() as found:
        strangers_key(found.root / "clients" / "2")
        found.start_server()
        found.start_client(2)
        assert found.ended("client-2", 600) == 75, found.logs()
        assert "try 13 of 14" in found.log("client-2") and "its key is not registered" in found.log("client-2")


def test_a_client_whose_key_was_withdrawn_is_left_out(running, wait_for):
    with running(*LONG) as found:
        begin(found, wait_for)
        found.withdraw(1)
        wait_for(lambda: 2 in found.rounds(), 200, found.logs)
        wait_for(lambda: "its key is not registered" in found.log("client-1"), 200, found.logs)


def test_an_update_larger_than_any_frame_arrives_whole(running, fedsim):
    with running("model.options={hidden=[4096,1024]}", "federation.rounds=1", clients=2) as found:
        found.start_all()
        done = found.run("--wait", "240")
        assert done.returncode == 0, done.stdout + done.stderr + found.logs()
        here = fedsim("run", found.root / "settings.toml", "--name", "here", cwd=found.root)
        records = [json.loads(p.read_text()) for p in (found.root / "runs").glob("*/run.json")]
        assert here.returncode == 0 and len({record["weights_sha256"] for record in records}) == 1


def test_a_helper_that_goes_down_fails_the_round_and_the_run_is_resumed(running, wait_for, port):
    more = ("--helper", f"tls://127.0.0.1:{port}")
    with running("protection.name=preamble", "federation.rounds=30", more=more) as found:
        found.start_helper(port)
        begin(found, wait_for)
        found.stop("helper")
        assert found.ended("run", 240) == 1, found.logs()
        assert "the helper at" in found.log("run") and "start it again and resume" in found.log("run")
        before = len(found.rounds())
        found.start_helper(port)
        done = found.run("--resume", found.run_folder().name, "--wait", "240")
        assert done.returncode == 0, done.stdout + done.stderr + found.logs()
        assert before < 30 and "round 30/30" in done.stdout
