"""A federation of real processes on this machine: SuperLink with TLS, nginx in front, clients with their own keys."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from fedsim.deploy.certificates import make_node_key, write_private
from fedsim.deploy.control import Control
from fedsim.deploy.environment import process_environment
from fedsim.deploy.folder import SOCKET_FILE, Deployment
from fedsim.deploy.group import die_with

REQUIRED = "FEDSIM_REQUIRE_NGINX"
SETTINGS = ("task.name=digits", "model.name=mlp", "federation.rounds=2", "training.lr=0.2")


def run_fedsim(
    *arguments: str | Path, timeout: float = 600, cwd: Path | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a command of the program to its end."""
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=timeout, env=environment(), cwd=cwd
    )


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-c", "from fedsim.cli import main; main()", *map(str, arguments)]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "FEDSIM_POLL_S": "0.2"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(what: Callable[[], bool], limit_s: float, why: Callable[[], str]) -> None:
    end_s = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < end_s, why()
        time.sleep(0.1)


class Federation:
    """A deployment's folder and its processes.

    Args:
        root: where the folder is made.
        settings: the run's.
        clients: how many.
        more: options of `fedsim deploy init`.
    """

    def __init__(self, root: Path, settings: tuple[str, ...], clients: int, more: tuple[str, ...] = ()) -> None:
        self.root, self.clients = root, clients
        self.port, self.processes = free_port(), dict[str, "subprocess.Popen[bytes]"]()
        sets = [word for setting in settings for word in ("--set", setting)]
        ports = ["--port", str(self.port), "--superlink-port", str(free_port())]
        done = run_fedsim(
            "deploy", "init", root, "--clients", str(clients), "--host", "127.0.0.1", *ports, *more, *sets
        )
        assert done.returncode == 0, done.stderr

    def start_server(self) -> None:
        self._start("server", "deploy", "server", self.root, "--listen", "127.0.0.1")

    def start_client(self, number: int, **variables: str) -> None:
        self._start(f"client-{number}", "deploy", "node", self.root / "clients" / str(number), **variables)

    def start_helper(self, port: int | None = None) -> None:
        """Start the second aggregator, on its socket; or on a port: made with ``--helper tls://127.0.0.1:PORT``."""
        folder = self.root / "helper"
        listen = folder / "socket" / SOCKET_FILE if port is None else f"tls://127.0.0.1:{port}"
        self._start(
            "helper", "helper", "serve", "--keys", folder / "keys", "--listen", listen, "--state", folder / "state"
        )

    def start_all(self) -> None:
        """Start the server and all clients."""
        self.start_server()
        for number in range(self.clients):
            self.start_client(number)

    def _start(self, name: str, *arguments: str | Path, **variables: str) -> None:
        with (self.root / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command(*arguments),
                stdout=log,
                stderr=log,
                env=environment() | variables,
                start_new_session=True,
                preexec_fn=die_with(os.getpid()),
            )

    def start_run(self) -> None:
        """Start a run and do not wait for it."""
        self._start("run", "deploy", "run", self.root, "--direct", "--wait", "400")

    def withdraw(self, number: int) -> None:
        """Withdraw the key of a client that is connected."""
        control = Control(Deployment.open(self.root), "direct", lambda _: None)
        # Keys are registered in the order of the clients' numbers.
        node = control.nodes()[number]["node-id"]
        environment = process_environment(os.environ, self.root / "admin")
        flower = "import sys; from flwr.cli.app import app; sys.argv[0] = 'flwr'; sys.exit(app())"
        unregister = [sys.executable, "-c", flower, "supernode", "unregister", str(node), "direct"]
        subprocess.run(unregister, env=environment, check=True, timeout=120)

    def ended(self, name: str, limit_s: float) -> int:
        """Wait until one has ended by itself; returns its exit code."""
        code = self.processes[name].wait(timeout=limit_s)
        del self.processes[name]
        return code

    def rounds(self) -> list[int]:
        """Return the replies of each finished round, by the run's metrics."""
        folders = list((self.root / "runs").glob("*/metrics.csv"))
        if not folders:
            return []
        return [int(float(n)) for n in re.findall(r'"accepted",([\d.]+)', folders[-1].read_text())]

    def run(self, *more: str) -> "subprocess.CompletedProcess[str]":
        """Start a run and wait for its end."""
        return run_fedsim("deploy", "run", self.root, "--direct", *more)

    def run_folder(self) -> Path:
        return max((self.root / "runs").iterdir(), key=lambda path: path.stat().st_mtime)

    def log(self, name: str) -> str:
        return (self.root / f"{name}.log").read_text(errors="replace")

    def logs(self) -> str:
        return "\n".join(f"--- {name}\n{self.log(name)[-3000:]}" for name in self.processes)

    def stop(self, name: str) -> int:
        """Ask one to stop; returns its exit code."""
        process = self.processes.pop(name)
        process.terminate()
        return process.wait(timeout=40)

    def kill(self, name: str) -> None:
        """End one and its children without a chance to say goodbye."""
        process = self.processes.pop(name)
        family = psutil.Process(process.pid).children(recursive=True)
        for each in (process, *family):
            each.send_signal(signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        for name in list(self.processes):
            self.stop(name)


@pytest.fixture(scope="session")
def nginx() -> None:
    if shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin") is None:
        assert not os.environ.get(REQUIRED), f"{REQUIRED} is set and nginx is not installed"
        pytest.skip("nginx is not installed: apt-get install nginx-light")


@pytest.fixture(scope="session")
def federations() -> Callable[..., Any]:
    """Return a context manager that makes a federation and stops all its processes at the end."""

    @contextmanager
    def make(root: Path, *settings: str, clients: int = 3, more: tuple[str, ...] = ()) -> Iterator[Federation]:
        made = Federation(root, (*SETTINGS, *settings), clients, more)
        try:
            yield made
        finally:
            made.close()

    return make


@pytest.fixture
def fedsim() -> Callable[..., Any]:
    return run_fedsim


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture(scope="session")
def wait_for() -> Callable[..., None]:
    return wait_until


@pytest.fixture
def strangers_key() -> Callable[[Path], None]:
    """Return what gives a client's folder a key that the server does not know."""

    def replace(folder: Path) -> None:
        (folder / "node.key").unlink()
        write_private(folder / "node.key", make_node_key()[0])

    return replace
