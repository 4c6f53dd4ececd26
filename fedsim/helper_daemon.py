"""The helper as a process: a Unix socket on one machine, TLS with both ends pinned between two.

    fedsim helper serve --keys FOLDER --listen tls://0.0.0.0:9443

With `--tied` it ends when its standard input does, so that it never outlives whoever started it.
"""

import argparse
import logging
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from crypto import InputError, WireError
from crypto.keys import HELPER, load_key
from fedsim.errors import EngineError
from fedsim.helper import Helper, Task
from strategies.helper_link import LENGTH, keep_alive, parse_address, read_frame
from strategies.helper_tls import helper_context

logger = logging.getLogger(__name__)

READY = b"ready\n"
#: What the helper remembers of released rounds, in the folder of its state.
RELEASED_FILE = "released.json"
TASK_FILE = "task.json"
# Connections at one time: the leader has one, and those that it lost end within minutes.
_MOST_CONNECTIONS = 8
_HANDSHAKE_S = 10.0


class Server:
    """Serves connections side by side, one request at a time.

    Args:
        helper: answers.
        listener: bound and listening.
        context: TLS that every connection must pass, or ``None`` for a Unix socket.
    """

    def __init__(self, helper: Helper, listener: socket.socket, context: ssl.SSLContext | None = None) -> None:
        self._helper, self._listener, self._context = helper, listener, context
        self._turn = threading.Lock()
        self._places = threading.BoundedSemaphore(_MOST_CONNECTIONS)

    def serve(self) -> None:
        """Serve until the listener is closed; a connection that breaks ends alone."""
        while True:
            try:
                connection, peer = self._listener.accept()
            except OSError:
                return
            if not self._places.acquire(blocking=False):
                logger.warning("connection from %s refused: %d are open", peer or "here", _MOST_CONNECTIONS)
                connection.close()
                continue
            threading.Thread(target=self._converse, args=(connection, str(peer or "here")), daemon=True).start()

    def _converse(self, connection: socket.socket, peer: str) -> None:
        try:
            with connection, self._secured(connection) as secured, secured.makefile("rb") as stream:
                while True:
                    request = read_frame(stream)
                    with self._turn:
                        reply = self._helper.handle(request)
                    secured.sendall(LENGTH.pack(len(reply)) + reply)
        except EOFError:
            pass
        except (OSError, WireError) as error:
            logger.warning("connection from %s dropped: %s", peer, error)
        finally:
            self._places.release()

    def _secured(self, connection: socket.socket) -> socket.socket:
        if self._context is None:
            return connection
        keep_alive(connection)
        connection.settimeout(_HANDSHAKE_S)
        try:
            secured = self._context.wrap_socket(connection, server_side=True)
        except ssl.SSLEOFError as error:
            # Closed before a word was said: a health check, which comes every few seconds.
            raise EOFError from error
        secured.settimeout(None)
        return secured


def listen(address: str, group: str | None = None) -> socket.socket:
    """Return a listening socket: a Unix socket that only its owner may use, or TCP for TLS.

    Args:
        address: see :func:`strategies.helper_link.parse_address`.
        group: may use the Unix socket as well: that of another user's node which relays to this helper.

    Raises:
        InputError: the address is neither, or a group is given for TLS.
        EngineError: it cannot be listened on.
    """
    place = parse_address(address)
    if group is not None and not isinstance(place, Path):
        raise InputError(f"group '{group}' with {address}: a group may use a Unix socket only; leave it out for TLS")
    try:
        if isinstance(place, Path):
            return _unix(place, group)
        host, port = place
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise EngineError(f"the helper cannot listen on {address} ({error}): name a free address here") from error


def _unix(path: Path, group: str | None) -> socket.socket:
    _remove_dead(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
        if group is not None:
            shutil.chown(path, group=group)
            path.chmod(0o660)
    except LookupError as error:
        listener.close()
        raise OSError(f"there is no group '{group}'") from error
    except OSError:
        listener.close()
        raise
    finally:
        os.umask(before)
    listener.listen()
    return listener


def _remove_dead(path: Path) -> None:
    """Remove the socket of a helper that was killed; one that answers stays."""
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()


def run(
    keys: Path,
    address: str,
    task: Path | None = None,
    state: Path | None = None,
    *,
    group: str | None = None,
    tied: bool = False,
) -> None:
    """Run the helper until it is stopped; writes ``ready`` on standard output once it listens.

    Args:
        keys: folder that holds ``helper/``: its key and, for TLS, its certificates.
        address: where to listen, see :func:`strategies.helper_link.parse_address`.
        task: what its owner agreed to; ``helper/task.json`` under `keys` by default.
        state: folder that must outlive the process, for what was released; ``helper/`` under `keys` by default.
        group: see :func:`listen`.
        tied: end when standard input ends.

    Raises:
        FileNotFoundError, PermissionError, CryptoError: key, task or certificates are missing or unfit.
        EngineError: the address cannot be listened on.
    """
    own = keys / HELPER
    key = X25519PrivateKey.from_private_bytes(load_key(keys, HELPER, "preamble").secret)
    helper = Helper(Task.read(task or own / TASK_FILE), key, (state or own) / RELEASED_FILE)
    context = None if isinstance(parse_address(address), Path) else helper_context(own)
    listener = listen(address, group)
    signal.signal(signal.SIGTERM, _stop)
    if tied:
        threading.Thread(target=_end_with, args=(sys.stdin.buffer,), daemon=True).start()
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    logger.info("listening on %s", address)
    Server(helper, listener, context).serve()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the helper as a child of a simulation: ``python -m fedsim.helper_daemon``, which loads nothing else."""
    parser = argparse.ArgumentParser(prog="python -m fedsim.helper_daemon", description=__doc__)
    parser.add_argument("--task", type=Path)
    parser.add_argument("--keys", type=Path, required=True)
    parser.add_argument("--listen", required=True)
    parser.add_argument("--state", type=Path)
    parser.add_argument("--tied", action="store_true")
    given = parser.parse_args(arguments)
    log_to_stderr()
    run(given.keys, given.listen, given.task, given.state, tied=given.tied)
    return 0


def log_to_stderr() -> None:
    """Write what the helper has to say to standard error."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="helper: %(message)s")


def _stop(number: int, frame: FrameType | None) -> None:
    # Also as the first process of a container, where the default is to go on.
    raise SystemExit(0)


def _end_with(stream: BinaryIO) -> None:
    stream.read()
    os._exit(0)


@contextmanager
def helper_process(
    task: Path, keys: Path, address: str, log: Path, start_s: float = 60.0
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a helper beside the caller, from when it listens until the end of the block.

    Args:
        task, keys, address: its arguments.
        log: file for what it says.
        start_s: longest wait until it listens.

    Raises:
        EngineError: it did not start; the message holds what it said.
    """
    places = {"--task": str(task), "--keys": str(keys), "--listen": address}
    command = [sys.executable, "-m", "fedsim.helper_daemon", "--tied"]
    command += [word for pair in places.items() for word in pair]
    with log.open("wb") as said:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said)
    try:
        _await_ready(process, log, start_s)
        yield process
    finally:
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _await_ready(process: "subprocess.Popen[bytes]", log: Path, start_s: float) -> None:
    timer = threading.Timer(start_s, process.kill)
    timer.start()
    try:
        line = process.stdout.readline() if process.stdout is not None else b""
    finally:
        timer.cancel()
    if line != READY:
        words = log.read_text(encoding="utf-8", errors="replace")[-2000:]
        raise EngineError(f"the helper did not start within {start_s:g} s; it said:\n{words}")


if __name__ == "__main__":
    sys.exit(main())
