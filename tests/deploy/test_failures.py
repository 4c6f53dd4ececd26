"""A client that dies in the middle of a run, and comes back; a run that is resumed after the server went down."""

import re

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

#: Many short rounds, so that some lie before, during and after the absence.
LONG = ("federation.rounds=400", "federation.min_replies=2", "federation.deadline_s=20.0", "output.report=false")


def rounds_done(federation):
    """Return the replies of each finished round, by the run's metrics."""
    folders = list((federation.root / "runs").glob("*/metrics.csv"))
    if not folders:
        return []
    return [int(float(n)) for n in re.findall(r'"accepted",([\d.]+)', folders[-1].read_text())]


@pytest.mark.report(
    "U82", "a killed client is left out and may come back; a transport that hangs does not outlive the deadline"
)
def test_a_killed_client_is_left_out_and_rejoins_under_its_number(nginx, federations, tmp_path, wait_for):
    with federations(tmp_path / "killed", *LONG) as found:
        found.start_server()
        for number in range(3):
            found.start_client(number)
        found.start_run()
        wait_for(lambda: len(rounds_done(found)) > 2, 400, found.logs)
        assert set(rounds_done(found)) == {3}
        found.kill("client-1")
        wait_for(lambda: 2 in rounds_done(found), 120, found.logs)
        gone = len(rounds_done(found))
        found.start_client(1)
        wait_for(lambda: 3 in rounds_done(found)[gone:], 240, found.logs)
        log = found.log("client-1")
        assert "still counts as connected" in log or "SuperNode ID" in log


def test_a_run_whose_server_went_down_is_resumed(nginx, federations, tmp_path, wait_for):
    with federations(tmp_path / "down", "federation.rounds=60", "output.report=false") as found:
        found.start_server()
        for number in range(3):
            found.start_client(number)
        found.start_run()
        wait_for(lambda: len(rounds_done(found)) > 2, 400, found.logs)
        found.stop("server")
        before = len(rounds_done(found))
        assert before < 60
        found.start_server()
        (name,) = [path.name for path in (found.root / "runs").iterdir()]
        done = found.run("--resume", name, "--wait", "240")
        assert done.returncode == 0, done.stdout + done.stderr + found.logs()
        assert "round 60/60" in done.stdout
