"""What docs/deployment.md says of failures, done to real containers: drills.py FEDSIM PLACE [NAME ...]

FEDSIM is the program, PLACE a folder for the deployments; without names, all drills. Each drill says what it saw; an
expectation that is not met ends it with a traceback.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from containers import PROJECT, SMALL, Federation, client, docker, federation, pid_of, say, sent_bytes, wait

from fedsim.measure.ledger import Ledger
from fedsim.measure.runs import load_run
from fedsim.measure.summary import summarize
from fedsim.simulation.devices import PRESETS, Device

ENDLESS = "federation.rounds=100000"
LONG = (ENDLESS, "federation.deadline_s=15.0")


def five(fedsim: Path, place: Path) -> None:
    """One of five clients is killed, comes back, is cut off, comes back; a sixth has no folder."""
    with federation(fedsim, place / "five", 5, *SMALL, *LONG, "federation.min_replies=3") as found:
        found.follow()
        found.past(2, 5, 300)
        _killed_and_started(found)
        _cut_off(found)
        _one_too_many(found)


def server(fedsim: Path, place: Path) -> None:
    """SuperLink and ServerApp go down in the middle of a run."""
    # A round may wait for a SuperLink that is slow to come back; it does not end with the outage.
    with federation(fedsim, place / "server", 2, *SMALL, ENDLESS, "federation.deadline_s=300.0") as found:
        follower = found.follow()
        found.past(2, 2, 300)
        _superlink_restarted(found)
        _server_app_killed(found, follower)


def _killed_and_started(found: Federation) -> None:
    before = len(found.rounds())
    docker("kill", client(3))
    seconds = found.first(before, 4, 120)
    say(f"client 3 killed in a round: the round ended after {seconds:.1f} s with 4 of 5 replies (deadline 15 s)")
    before, began = len(found.rounds()), time.monotonic()
    docker("start", client(3))
    found.first(before, 5, 240)
    say(f"client 3 started again: takes part after {time.monotonic() - began:.0f} s")


def _cut_off(found: Federation) -> None:
    before = len(found.rounds())
    docker("network", "disconnect", f"{PROJECT}_fleet", client(2))
    seconds = found.first(before, 4, 120)
    say(f"client 2 cut off the network: the round ended after {seconds:.1f} s with 4 of 5 replies")
    before, began = len(found.rounds()), time.monotonic()
    docker("network", "connect", "--alias", "client", f"{PROJECT}_fleet", client(2))
    found.first(before, 5, 300)
    say(f"client 2 connected again, not restarted: takes part after {time.monotonic() - began:.0f} s")


def _superlink_restarted(found: Federation) -> None:
    for how, stop in (("stopped", "stop"), ("killed", "kill")):
        began = time.monotonic()
        found.compose(stop, "superlink")
        time.sleep(5)
        found.compose("start", "superlink")
        found.past(3, 2)
        say(f"SuperLink {how} and started: 3 rounds more of all replies after {time.monotonic() - began:.0f} s")


def _one_too_many(found: Federation) -> None:
    found.compose("up", "--detach", "--no-build", "--no-recreate", "--scale", "client=6", "client")
    name = client(5)
    state = lambda: docker("inspect", "--format", "{{.State.Status}} {{.State.ExitCode}} {{.RestartCount}}", name)  # noqa: E731
    wait(lambda: state().startswith("exited"), 120, "a client without a folder ends")
    _, code, restarts = state().split()
    assert code == "2" and int(restarts) <= 5, state()
    assert (
        "this deployment has fewer clients"
        in subprocess.run(["docker", "logs", name], capture_output=True, text=True, check=True).stderr
    )
    docker("rm", name)
    say(f"a sixth client of five: ended with code {code} and a sentence after {restarts} restarts")


def _server_app_killed(found: Federation, follower: "subprocess.Popen[bytes]") -> None:
    name, before = found.run_name(), len(found.rounds())
    rows = docker("top", found.compose("ps", "--quiet", "runner"), "-eo", "pid,comm").splitlines()
    (pid,) = [int(row.split()[0]) for row in rows if "flwr-serverapp" in row]
    os.kill(pid, signal.SIGKILL)
    assert follower.wait(timeout=240) != 0
    said = found.log(1).read_text(errors="replace").splitlines()[-1]
    say(f"ServerApp killed after round {before}: `deploy run` ended with code {follower.returncode}: {said}")
    follower = found.follow("--resume", name)
    found.past(3, 2)
    assert found.run_name() == name and len(found.rounds()) >= before + 3
    say(f"resumed: round {len(found.rounds())}")
    follower.send_signal(signal.SIGINT)
    follower.wait(timeout=60)


def follower(fedsim: Path, place: Path) -> None:
    """`fedsim deploy run` sees a run to its end although the SuperLink is restarted in the middle."""
    with federation(fedsim, place / "follower", 3, *SMALL, "federation.rounds=40") as found:
        followed = found.follow()
        found.past(2, 3, 200)
        found.compose("restart", "superlink")
        at = len(found.rounds())
        assert followed.wait(timeout=900) == 0 and len(found.rounds()) == 40
        text = found.log(1).read_text(errors="replace")
        assert "round 40/40" in text and at < 40
        say(f"SuperLink restarted after round {at}: `deploy run` showed the run to round 40 and ended with code 0")


def upload(fedsim: Path, place: Path) -> None:
    """A client is killed while it sends an update of 9 MB, of two pieces; Docker starts it again."""
    big = ("model.options={hidden=[4096,512]}", "federation.rounds=100000", "federation.min_replies=2")
    with federation(fedsim, place / "upload", 3, *SMALL, *big, "federation.deadline_s=90.0") as found:
        found.follow()
        found.past(1, 3, 300)
        say(f"a round of three updates of 9.5 MB took {found.rounds()[-1][1]:.1f} s")
        before, sent = len(found.rounds()), _kill_in_upload(client(1))
        seconds = found.first(before, 2, 300)
        say(f"client 1 killed {sent / 1e6:.1f} MB into its update: 2 of 3 replies after {seconds:.1f} s (limit 90 s)")
        since, began = len(found.rounds()), time.monotonic()
        found.first(since, 3, 400)
        restarts = docker("inspect", "--format", "{{.RestartCount}}", client(1))
        assert restarts == "1", restarts
        say(f"started again by Docker ({restarts} restart), takes part {time.monotonic() - began:.0f} s later")


def _kill_in_upload(container: str) -> int:
    """Kill a container's processes as soon as it sends more than polls; returns the bytes that it had sent of it."""
    pid = pid_of(container)
    mark, mark_s, end_s = sent_bytes(pid), time.monotonic(), time.monotonic() + 200
    while time.monotonic() < end_s:
        sent = sent_bytes(pid) - mark
        if sent > 1_000_000:
            os.kill(pid, signal.SIGKILL)
            assert sent < 9_000_000, "the update was through"
            return sent
        # Between two updates a client sends a few kB a second.
        if time.monotonic() - mark_s > 1.0 and sent < 100_000:
            mark, mark_s = mark + sent, time.monotonic()
        time.sleep(0.002)
    raise AssertionError("the client sent no update within 200 s")


def helper(fedsim: Path, place: Path) -> None:
    """The second aggregator goes down in the middle of a run, which is resumed when it is back."""
    more = ("protection.name=preamble", "federation.rounds=40", "protection.helper_timeout_s=30.0")
    with federation(fedsim, place / "helper", 3, *SMALL, *more) as found:
        running = found.follow()
        found.past(2, 3, 200)
        found.compose("stop", "helper")
        assert running.wait(timeout=200) not in (0, None)
        name, before = found.run_name(), len(found.rounds())
        said = [line for line in found.log(1).read_text(errors="replace").splitlines() if "helper" in line][-1]
        say(f"helper stopped: the run ended after round {before} with code {running.returncode}: {said}")
        found.compose("start", "helper")
        resumed = found.follow("--resume", name)
        assert resumed.wait(timeout=900) == 0 and len(found.rounds()) == 40, found.rounds()
        say("helper started, run resumed: all 40 rounds done, code 0")


def profile(fedsim: Path, place: Path) -> None:
    """A run on containers as slow as a device's preset, beside the seconds that the preset predicts."""
    more = ("federation.rounds=3", "data.scheme=iid", "devices.preset=phone-low")
    with federation(fedsim, place / "slow", 2, *more, options=("--as-device",)) as found:
        (quota,) = [line for line in (found.folder / ".env").read_text().splitlines() if "CLIENT_CPUS" in line]
        say(f"phone-low on this host: {quota}")
        for number in range(2):
            _limit_link(client(number), PRESETS["phone-low"])
        assert found.follow().wait(timeout=600) == 0
        _predicted_and_measured(found)


def _limit_link(container: str, device: Device) -> None:
    """Give a container the device's bandwidth in both directions; its latency is left out."""
    inside = ["nsenter", "--target", str(pid_of(container)), "--net"]
    index = docker("exec", container, "cat", "/sys/class/net/eth0/iflink")
    end = next(p.parent.name for p in Path("/sys/class/net").glob("*/ifindex") if p.read_text().strip() == index)
    for prefix, name, bits in ((inside, "eth0", device.uplink_bit_s), ([], end, device.downlink_bit_s)):
        rate = ["rate", f"{bits / 1e3:.0f}kbit", "burst", "16kb", "latency", "2s"]
        subprocess.run([*prefix, "tc", "qdisc", "add", "dev", name, "root", "tbf", *rate], check=True)


def _predicted_and_measured(found: Federation) -> None:
    summary = summarize(load_run(found.run_folder()))
    turns = Ledger.read(found.run_folder()).clients().to_pylist()
    own = sum(max(t["round_s"] for t in turns if t["round"] == number) for number in range(1, summary.rounds + 1))
    predicted = summary.virtual_phase_s
    rows = [
        ("train, both clients", predicted["train"], summary.phase_s["train"]),
        ("a round, whole", summary.virtual_s / summary.rounds, summary.measured_s / summary.rounds),
        (
            "a round, download and upload",
            (predicted["download"] + predicted["upload"]) / 2 / summary.rounds,
            (summary.measured_s - own) / summary.rounds,
        ),
    ]
    for label, virtual_s, measured_s in rows:
        say(f"{label:30} predicted {virtual_s:6.2f} s, measured {measured_s:6.2f} s, {measured_s / virtual_s:.2f}")
        assert 0.5 < measured_s / virtual_s < 3, "measured and predicted have nothing to do with each other"


DRILLS = {each.__name__: each for each in (five, server, follower, upload, helper, profile)}


def main() -> None:
    # What was started is stopped, also where the time is over.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    fedsim, place, *names = sys.argv[1:]
    for name in names or DRILLS:
        say(f"drill {name}")
        DRILLS[name](Path(fedsim), Path(place))
    say("all drills passed")


if __name__ == "__main__":
    main()
