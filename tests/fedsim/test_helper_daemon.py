"""`fedsim helper` as a process of its own: rounds over TLS, dead connections, restarts, health and preflight checks."""

import grp
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from crypto.base import Plan, Tag
from crypto.keys import save_keys
from fedsim.cli import app
from fedsim.errors import EngineError
from fedsim.helper_daemon import listen
from fedsim.protections import helper_task
from strategies.errors import HelperLost
from strategies.helper_link import ADDRESS_FILE, connect, parse_address
from strategies.helper_tls import write_identities
from strategies.preamble import PreambleProtection, make_keys, run_id

PLAN = Plan(length=100, clients=3, bound=1.0)
PROTECTION = PreambleProtection(
    run=run_id("daemon"), rounds=2, epsilon=1.0, delta=1e-5, block_size=128, blocks=1, noisy=False, timeout_s=30
)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["helper", *arguments])


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


class Daemon:
    """`fedsim helper serve` on a free port of this machine, with keys for one protection and plan."""

    def __init__(self, root: Path, protection: PreambleProtection = PROTECTION, plan: Plan = PLAN) -> None:
        self.root, self.address = root, f"tls://127.0.0.1:{free_port()}"
        save_keys(root, make_keys())
        helper_task(protection, plan).write(root / "helper" / "task.json")
        write_identities(root / "helper", root / "server")
        (root / ADDRESS_FILE).write_text(self.address)
        self.server = replace(protection, keys=str(root), role="server")
        self.client = replace(protection, keys=str(root))
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "fedsim.cli", "helper", "serve", "--keys", str(self.root)]
        with (self.root / "log").open("ab") as log:
            self.process = subprocess.Popen([*command, "--listen", self.address], stdout=subprocess.PIPE, stderr=log)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=20)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def round(self, number: int) -> np.ndarray:
        tag = Tag(round=number, layout_hash=bytes(16), length=PLAN.length)
        fold = self.server.fold(PLAN, tag)
        sealer = self.client.sealer(PLAN)
        parts = [sealer.seal(np.full(PLAN.length, 0.01 * client), tag) for client in range(3)]
        reports = [fold._leader.add_and_relay(*both) for both in parts]
        fold._leader.settle(fold._link.add_and_settle(reports, fold._leader.verify_init()).proofs)
        return self.server.opener(PLAN).open(fold.totals(), tag)


@pytest.fixture
def daemon(tmp_path):
    running = Daemon(tmp_path / "keys")
    yield running
    if running.process.poll() is None:
        running.stop()


def test_rounds_over_tls_survive_dead_connections_and_a_restart(daemon):
    silent = socket.create_connection(parse_address(daemon.address))
    lost = connect(daemon.address, daemon.root / "server", 10)
    np.testing.assert_allclose(daemon.round(1), 0.03, atol=1e-5)
    assert daemon.stop() == 0
    silent.close()
    lost.close()
    daemon.start()
    with pytest.raises(HelperLost, match="round 1: round 1 was released already"):
        daemon.round(1)
    np.testing.assert_allclose(daemon.round(2), 0.03, atol=1e-5)
    with pytest.raises(HelperLost, match="the privacy budget has no more rounds"):
        daemon.round(3)


def test_no_more_than_a_few_connections_are_open(daemon):
    many = [socket.create_connection(parse_address(daemon.address)) for _ in range(8)]
    with pytest.raises(HelperLost):
        connect(daemon.address, daemon.root / "server", 5).request(b"\x01")
    for one in many:
        one.close()


def test_a_health_check_leaves_no_line_in_the_log_and_a_stranger_does(daemon):
    def dropped():
        return (daemon.root / "log").read_text().count("dropped: ")

    assert call("alive", "--listen", daemon.address).exit_code == 0
    socket.create_connection(parse_address(daemon.address)).close()
    with socket.create_connection(parse_address(daemon.address)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
    end_s = time.monotonic() + 30
    while not dropped() and time.monotonic() < end_s:
        time.sleep(0.05)
    assert dropped() == 1


def test_alive_says_whether_something_listens(daemon, tmp_path):
    assert call("alive", "--listen", daemon.address).output == "alive\n"
    gone = call("alive", "--listen", str(tmp_path / "none"))
    assert gone.exit_code == 5 and "start it with `fedsim helper serve`" in gone.output
    assert call("alive", "--listen", "http://x").exit_code == 2


def test_serve_says_what_is_missing(tmp_path):
    missing = call("serve", "--keys", str(tmp_path), "--listen", "tls://127.0.0.1:0")
    assert missing.exit_code == 1 and "no key at" in missing.output


SETTINGS = [
    word
    for setting in ("task.name=digits", "model.name=logistic", "protection.name=preamble", "protection.block_size=256")
    for word in ("--set", setting)
]


@pytest.mark.parametrize("listen", ["tls://127.0.0.1:99999", "tls://nobody", "http://x"])
def test_an_address_that_is_none_is_bad_usage(listen):
    done = call("alive", "--listen", listen)
    assert done.exit_code == 2 and "--listen" in done.stderr


def test_serve_needs_a_place_for_what_was_released_before_it_listens(tmp_path):
    done = call("serve", "--keys", str(tmp_path), "--listen", str(tmp_path / "s"), "--state", str(tmp_path / "none"))
    assert done.exit_code == 2 and "--state" in done.stderr and "is no folder" in done.stderr


def test_a_socket_of_a_killed_helper_is_taken_over_and_a_living_ones_is_not(tmp_path):
    place = str(tmp_path / "s")
    first = listen(place)
    with pytest.raises(EngineError, match="Address already in use"):
        listen(place)
    first.close()
    second = listen(place)
    assert os.stat(place).st_mode & 0o777 == 0o600
    second.close()


def test_a_group_may_use_the_socket_if_it_exists(tmp_path):
    group = grp.getgrgid(os.getgid()).gr_name
    listener = listen(str(tmp_path / "s"), group)
    found = os.stat(tmp_path / "s")
    assert (found.st_mode & 0o777, found.st_gid) == (0o660, os.getgid())
    listener.close()
    with pytest.raises(EngineError, match="there is no group 'nobody-has-it'"):
        listen(str(tmp_path / "t"), "nobody-has-it")
    done = call("serve", "--keys", str(tmp_path), "--listen", "tls://127.0.0.1:0", "--group", group)
    assert done.exit_code == 2 and "is for a Unix socket only" in done.stderr


def test_check_cannot_ask_through_a_run_that_is_not_there(tmp_path):
    root = tmp_path / "keys"
    more = [*SETTINGS, "--set", "protection.blocks=1", "--set", "protection.transport=relay"]
    assert CliRunner().invoke(app, ["keys", *more, "--out", str(root)]).exit_code == 0
    done = call("check", *more, "--keys", str(root))
    assert done.exit_code == 1 and "inside a run alone" in done.output and "fedsim helper alive" in done.output


def test_check_asks_as_the_leader_would(tmp_path):
    root, port = tmp_path / "keys", free_port()
    more = [*SETTINGS, "--set", "protection.blocks=1"]
    assert CliRunner().invoke(app, ["keys", *more, "--out", str(root)]).exit_code == 0
    (root / ADDRESS_FILE).write_text(f"tls://127.0.0.1:{port}\n")
    nobody = call("check", *more, "--keys", str(root))
    assert nobody.exit_code == 1 and "no helper listens at" in nobody.output
    command = [sys.executable, "-m", "fedsim.cli", "helper", "serve", "--keys", str(root), "--listen"]
    state = tmp_path / "state"
    state.mkdir()
    process = subprocess.Popen(
        [*command, f"tls://127.0.0.1:{port}", "--state", str(state)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        fine = call("check", *more, "--keys", str(root))
        other = call("check", *more, "--set", "protection.epsilon=2", "--keys", str(root))
        plain = call("check", "--set", "protection.name=plain", "--keys", str(root))
        process.terminate()
    assert fine.exit_code == 0 and "agreed to these settings" in fine.output
    assert other.exit_code == 1 and "leader and helper must run the same settings" in other.output
    assert plain.exit_code == 2 and "has no helper" in plain.output


def test_the_helpers_folder_has_none_of_the_leaders_secrets(tmp_path):
    root = tmp_path / "keys"
    made = CliRunner().invoke(app, ["keys", *SETTINGS, "--set", "protection.blocks=1", "--out", str(root), "--json"])
    assert made.exit_code == 0 and json.loads(made.output)["protection"] == "preamble"
    assert {p.name for p in (root / "helper").iterdir()} == {"preamble.key", "task.json", "tls.pem", "leader.pem"}
    assert {p.name for p in (root / "server").iterdir()} == {"preamble.key", "tls.pem", "helper.pem"}
    assert {p.name for p in (root / "clients").iterdir()} == {"preamble.key"}
    held = [p.read_bytes() for p in (root / "server").iterdir()]
    assert all((root / "helper" / "tls.pem").read_bytes()[:200] not in content for content in held)
    assert os.stat(root / "helper").st_mode & 0o077 == 0
