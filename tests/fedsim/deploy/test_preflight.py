"""Each thing that keeps a client from starting gets a sentence of its own."""

import socket
import ssl
import threading
import time
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from typer.testing import CliRunner

from fedsim.cli import app
from fedsim.deploy.certificates import issue, make_authority, make_node_key, utc_now, write_private
from fedsim.deploy.folder import Node
from fedsim.deploy.preflight import (
    Address,
    check_address,
    check_clock,
    check_helper,
    check_key,
    examine,
    wait_until_ready,
)


class Answers(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" or self.server.exposed else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def date_time_string(self, timestamp=None):
        return formatdate(time.time() + self.server.ahead_s, usegmt=True)

    def log_message(self, *args):
        pass


@pytest.fixture
def authority():
    return make_authority("test", utc_now())


@pytest.fixture
def serve(tmp_path, authority):
    """Return what starts a TLS server with a certificate of the authority and gives its port."""
    servers = []

    def start(hosts=("127.0.0.1",), start=None, exposed=False, by=authority, ahead_s=0.0):
        issued = issue(by, hosts, start or utc_now(), days=5)
        number = len(servers)
        (tmp_path / f"{number}.crt").write_bytes(issued.certificate)
        write_private(tmp_path / f"{number}.key", issued.key)
        server = HTTPServer(("127.0.0.1", 0), Answers)
        server.exposed, server.ahead_s = exposed, ahead_s
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tmp_path / f"{number}.crt", tmp_path / f"{number}.key")
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return server.server_port

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def node(tmp_path, authority):
    def make(port):
        (tmp_path / "ca.crt").write_bytes(authority.certificate)
        (tmp_path / "settings.toml").touch()
        if not (tmp_path / "node.key").exists():
            write_private(tmp_path / "node.key", make_node_key()[0])
        Node(superlink=f"127.0.0.1:{port}", partition_id=0, num_partitions=1).write(tmp_path / "node.toml")
        return Node.read(tmp_path)

    return make


def failures(checks):
    return {check.name: check.detail for check in checks if check.status != "ok"}


def test_all_is_well_with_a_proxy_that_shows_the_fleet_api_only(serve, node):
    assert failures(examine(node(serve()))) == {}


def test_an_open_control_api_is_a_warning(serve, node):
    (found,) = failures(examine(node(serve(exposed=True)))).values()
    assert "can run code on all clients" in found


def test_a_certificate_of_another_authority(serve, node):
    other = make_authority("other", utc_now())
    checks = examine(node(serve(by=other)))
    assert "certificate is not accepted" in failures(checks)["TLS"]
    assert any("copy the client's folder again" in check.remedy for check in checks)


def test_a_certificate_for_another_name(serve, node):
    checks = examine(node(serve(hosts=("elsewhere",))))
    assert any("fedsim deploy init --host NAME" in check.remedy for check in checks), checks


def test_a_certificate_that_has_expired(serve, node):
    checks = examine(node(serve(start=utc_now() - timedelta(days=30))))
    assert "expired" in failures(checks)["TLS"]


@pytest.mark.report("U78")
def test_a_port_where_nobody_listens(node):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert "refuses connections" in failures(examine(node(port)))["address"]
    told = []
    checks = wait_until_ready(node(port), 0.6, told.append)
    assert failures(checks) and len(told) == 1


def test_a_port_without_tls(node):
    server = HTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        assert "speaks no TLS" in failures(examine(node(server.server_port)))["TLS"]
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.report(
    "U78", "checked before anything starts: a missing name, port or certificate is named with its remedy"
)
def test_a_name_that_does_not_exist():
    assert "no known host" in check_address(Address("nowhere.invalid", 1)).detail


@pytest.mark.report("U78")
@pytest.mark.parametrize("text", ["", "host", "host:", "host:0", "host:x", ":8443", "host:70000"])
def test_refuses_what_is_no_address(text):
    with pytest.raises(ValueError, match="must be host:port"):
        Address.parse(text)


def test_reads_addresses():
    assert str(Address.parse("[::1]:8443")) == "::1:8443" and Address.parse("a.b:1").host == "a.b"


@pytest.mark.parametrize(
    ("ahead_s", "status"), [(0, "ok"), (4, "ok"), (6, "failed"), (-290, "ok"), (-310, "failed"), (3600, "failed")]
)
def test_a_clock_within_flowers_window(ahead_s, status):
    server = datetime(2026, 12, 1, tzinfo=UTC)
    check = check_clock(server, server + timedelta(seconds=ahead_s))
    assert check.status == status
    assert status == "ok" or ("ahead of" in check.detail) == (ahead_s > 0)


def test_keys_that_flower_would_not_take(tmp_path):
    assert "cannot be read" in check_key(tmp_path / "none").detail
    write_private(tmp_path / "text", b"no key")
    assert "no OpenSSH private key" in check_key(tmp_path / "text").detail
    other = ed25519.Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    write_private(tmp_path / "other", other)
    assert "ECDSA keys only" in check_key(tmp_path / "other").detail
    write_private(tmp_path / "good", make_node_key()[0])
    assert check_key(tmp_path / "good").status == "ok"
    Path(tmp_path / "good").chmod(0o640)
    assert "mode 0640" in check_key(tmp_path / "good").detail


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("certificate", "the server's certificate is not accepted"),
        ("expired", "expired"),
        ("address", "refuses connections"),
        ("key", "cannot be read"),
        ("clock", "s behind the server's: at most"),
        ("settings", "federation.evaluated = true: no such setting"),
    ],
)
def test_a_client_that_cannot_start_says_why_and_ends_with_code_5(serve, node, tmp_path, wrong, message):
    by = {"by": make_authority("other", utc_now())} if wrong == "certificate" else {}
    start = utc_now() - timedelta(days=30) if wrong == "expired" else None
    port = serve(start=start, ahead_s=600.5 if wrong == "clock" else 0.0, **by)
    if wrong == "address":
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
    node(port)
    if wrong == "settings":
        (tmp_path / "settings.toml").write_text("[federation]\nevaluated = true\n")
    if wrong == "key":
        (tmp_path / "node.key").unlink()
    done = CliRunner().invoke(app, ["deploy", "node", str(tmp_path), "--wait", "0"])
    assert done.exit_code == 5 and "client 0 cannot start:" in done.output and message in done.output, done.output


def test_a_relaying_node_needs_its_helper_to_listen(tmp_path):
    path = tmp_path / "helper.sock"
    missing = check_helper(path)
    assert missing.status == "failed" and str(path) in missing.detail and "fedsim helper serve" in missing.remedy
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        assert check_helper(path).status == "ok"
    assert check_helper(path).status == "failed"
