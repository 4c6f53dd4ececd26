"""TLS between leader and helper: only the pinned other side is spoken to, and files are each role's own."""

import socket
import ssl
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crypto import InputError
from strategies.errors import HelperLost
from strategies.helper_link import ANSWER_HEAD, LENGTH, connect, parse_address, read_frame
from strategies.helper_tls import helper_context, write_identities


@pytest.fixture
def sets(tmp_path):
    """Two sets of identities, in ``one`` and ``two``."""
    for name in ("one", "two"):
        write_identities(tmp_path / name / "helper", tmp_path / name / "server")
    return tmp_path


@pytest.fixture
def echo():
    """Start a helper that answers each frame with its own body; returns its address."""
    listeners = []

    def start(folder: Path) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)
        context = helper_context(folder)

        def serve() -> None:
            while True:
                try:
                    raw, _ = listener.accept()
                except OSError:
                    return
                raw.settimeout(10)
                try:
                    with context.wrap_socket(raw, server_side=True) as secured, secured.makefile("rb") as stream:
                        while True:
                            body = read_frame(stream)
                            secured.sendall(LENGTH.pack(len(body)) + body)
                except (OSError, EOFError):
                    raw.close()

        threading.Thread(target=serve, daemon=True).start()
        return f"tls://127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for listener in listeners:
        listener.close()


def test_a_request_reaches_the_pinned_helper_and_comes_back(sets, echo):
    transport = connect(echo(sets / "one" / "helper"), sets / "one" / "server", 10)
    body = bytes(range(256)) * 1000
    assert transport.request(body) == body
    assert transport._socket.version() == "TLSv1.3"
    transport.close()


def test_the_leader_refuses_another_helper(sets, echo):
    with pytest.raises(HelperLost, match="is not the pinned one"):
        connect(echo(sets / "two" / "helper"), sets / "one" / "server", 10)


def test_the_helper_refuses_another_leader_and_serves_on(sets, echo):
    address = echo(sets / "one" / "helper")
    (sets / "two" / "server" / "helper.pem").write_bytes((sets / "one" / "server" / "helper.pem").read_bytes())
    with pytest.raises(HelperLost):
        connect(address, sets / "two" / "server", 10).request(b"let me in")
    transport = connect(address, sets / "one" / "server", 10)
    assert transport.request(b"hello") == b"hello"
    transport.close()


def test_a_stranger_without_a_certificate_gets_no_answer(sets, echo):
    address = echo(sets / "one" / "helper")
    context = ssl.create_default_context(cafile=sets / "one" / "server" / "helper.pem")
    context.check_hostname = False
    with (
        pytest.raises(OSError),  # noqa: PT011 - which one depends on who closes first
        socket.create_connection(parse_address(address)) as raw,
        context.wrap_socket(raw) as secured,
    ):
        secured.sendall(LENGTH.pack(ANSWER_HEAD.size) + bytes(ANSWER_HEAD.size))
        if not secured.recv(1):
            raise ConnectionResetError


def test_each_role_has_its_own_files_and_none_is_overwritten(sets):
    helper, server = sets / "one" / "helper", sets / "one" / "server"
    assert {p.name for p in helper.iterdir()} == {"tls.pem", "leader.pem"}
    assert {p.name for p in server.iterdir()} == {"tls.pem", "helper.pem"}
    assert all(stat.S_IMODE(p.stat().st_mode) == 0o600 for p in (*helper.iterdir(), *server.iterdir()))
    secrets = {p: p.read_bytes() for p in (*helper.iterdir(), *server.iterdir())}
    assert sum(b"PRIVATE KEY" in content for content in secrets.values()) == 2
    assert b"PRIVATE" not in (helper / "leader.pem").read_bytes() + (server / "helper.pem").read_bytes()
    with pytest.raises(FileExistsError):
        write_identities(helper, server)


def test_missing_files_are_named(tmp_path, sets):
    with pytest.raises(FileNotFoundError, match=r"leader\.pem is not there"):
        helper_context(sets / "one" / "server")
    with pytest.raises(HelperLost, match=r"tls\.pem is not there: make keys with `fedsim keys`"):
        connect("tls://127.0.0.1:1", tmp_path, 1)


def test_nobody_there_is_told_apart(sets):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(HelperLost, match="no helper listens at tls://127.0.0.1"):
        connect(f"tls://127.0.0.1:{port}", sets / "one" / "server", 2)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("tls://helper:9443", ("helper", 9443)),
        ("tls://[::1]:9443", ("::1", 9443)),
        ("unix:/run/helper.sock", Path("/run/helper.sock")),
        ("/run/helper.sock", Path("/run/helper.sock")),
    ],
)
def test_addresses_are_read(text, place):
    assert parse_address(text) == place


@given(
    st.sampled_from(["tls://", "tls://helper", "tls://:9443", "tls://h:x", "tls://h:70000", "http://h:1", "unix:", ""])
)
def test_other_addresses_are_refused(text):
    with pytest.raises(InputError, match="helper address"):
        parse_address(text)
