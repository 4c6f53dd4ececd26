"""``flwr run`` as one call that ends: on a SuperLink of its own, offline, with the run's real outcome.

Left to itself ``flwr run`` starts a daemon that outlives it, lands in whatever daemon holds the port, and exits with 0
when the run fails. Here the SuperLink is our child on a free port with a folder of its own, and is stopped by its pid;
a guard ends what is left, also when we are killed.
"""

import json
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import psutil
import tomli_w
from flwr.app.user_config import UserConfig

from fedsim.simulation.environment import make_token, private_folder, worker_environment
from fedsim.simulation.guard import guarded

_log = logging.getLogger(__name__)

COMPLETED = "finished:completed"
START_S = 120.0
PENDING_S = 120.0
STOP_S = 20.0
CALL_S = 180.0
TAIL_LINES = 40
# Ray gives up 30 s after a slow start on a busy machine; Flower then fails the run.
RAY_IS_SLOW = "The current node timed out during startup"


class FlowerRunError(RuntimeError):
    """``flwr run`` could not be carried through; the message holds the end of the log."""


@dataclass(frozen=True)
class FlowerRun:
    """A finished run.

    Attributes:
        run_id: Flower's number of the run.
        status: ``finished:completed``, ``finished:failed`` or ``finished:stopped``.
    """

    run_id: int
    status: str

    @property
    def exit_code(self) -> int:
        """0 when the run completed, else 1."""
        return 0 if self.status == COMPLETED else 1


def flwr_run(
    app_dir: Path,
    run_config: UserConfig,
    *,
    num_supernodes: int,
    cpus: int,
    timeout_s: float,
    log_folder: Path,
) -> FlowerRun:
    """Run an app on Flower's own simulation engine.

    Args:
        app_dir: Folder of the app's ``pyproject.toml``.
        run_config: Overrides; only keys that the app's ``[tool.flwr.app.config]`` lists.
        num_supernodes: Virtual clients.
        cpus: CPUs of Ray; each client takes one.
        timeout_s: Limit for the run, once it has begun.
        log_folder: Receives ``superlink.log`` and ``run.log``.

    Raises:
        ValueError: Fewer than one client or CPU, or no app in the folder.
        FlowerRunError: The SuperLink or the run does not start, or the time is over. Nothing is left running, however
            it ends.
    """
    if num_supernodes < 1 or cpus < 1 or not (app_dir / "pyproject.toml").is_file():
        raise ValueError(
            f"{num_supernodes} clients, {cpus} CPUs, app {app_dir}: at least 1 client, 1 CPU and a pyproject.toml are "
            "needed; correct them"
        )
    log_folder.mkdir(parents=True, exist_ok=True)
    home = private_folder(None)
    with guarded(home):
        superlink = _SuperLink(home, log_folder.resolve())
        try:
            return _run(superlink, app_dir.resolve(), run_config, num_supernodes, cpus, timeout_s)
        finally:
            superlink.stop()


def _run(
    superlink: "_SuperLink", app_dir: Path, run_config: UserConfig, num_supernodes: int, cpus: int, timeout_s: float
) -> FlowerRun:
    """Start the run, once more if it never begins, and wait for its end."""
    for left in (1, 0):
        run_id = superlink.submit(app_dir, run_config, num_supernodes, cpus)
        status = superlink.wait(run_id, PENDING_S, ("pending",))
        if status != "pending":
            status = superlink.wait(run_id, timeout_s, ("starting", "running"))
        superlink.save_log(run_id)
        if not status.startswith("finished"):
            superlink.call("stop", str(run_id))
        if not left or not (status == "pending" or superlink.says(RAY_IS_SLOW)):
            break
        _log.warning("run %d did not begin (%s); it is sent again", run_id, status)
    if not status.startswith("finished"):
        limit_s = PENDING_S if status == "pending" else timeout_s
        raise FlowerRunError(
            f"run {run_id} was {status} after {limit_s:g} s and is stopped; allow more time or correct the app.\n"
            f"{superlink.tail()}"
        )
    if status != COMPLETED:
        _log.error("run %d: %s\n%s", run_id, status, superlink.tail())
    return FlowerRun(run_id, status)


class _SuperLink:
    """Our own SuperLink: a child process on a free port, with its commands, its home and its log."""

    def __init__(self, home: Path, log_folder: Path) -> None:
        self._home, self._logs = home, log_folder
        self._port = _free_port()
        self._environment = clean_environment(os.environ, home)
        write_commands(home / "bin")
        connection = {"address": f"127.0.0.1:{self._port}", "insecure": True}
        (home / "config.toml").write_text(tomli_w.dumps({"superlink": {"default": "fedsim", "fedsim": connection}}))
        self._log_file = log_folder / "superlink.log"
        command = [str(home / "bin" / "flower-superlink"), "--insecure", "--simulation", "--isolation", "subprocess"]
        command += ["--host", "127.0.0.1", "--port", str(self._port), "--disable-runtime-dependency-installation"]
        with self._log_file.open("wb") as out:
            self._process = subprocess.Popen(
                command, env=self._environment, stdout=out, stderr=subprocess.STDOUT, cwd=home, start_new_session=True
            )
        try:
            self._await()
        except BaseException:
            self.stop()
            raise

    def submit(self, app_dir: Path, run_config: UserConfig, num_supernodes: int, cpus: int) -> int:
        """Start a run and return its number."""
        federation = f"num-supernodes={num_supernodes} client-resources-num-cpus=1 init-args-num-cpus={cpus}"
        arguments = ["run", str(app_dir), "--federation-config", federation]
        if run_config:
            overrides = self._home / "run_config.toml"
            overrides.write_text(tomli_w.dumps(run_config))
            arguments += ["--run-config", str(overrides)]
        answer = self.call(*arguments, "--format", "json")
        if not answer.get("run-id"):
            raise FlowerRunError(f"flwr run started nothing: {answer}; correct the app.\n{self.tail()}")
        return int(answer["run-id"])

    def wait(self, run_id: int, timeout_s: float, while_in: tuple[str, ...]) -> str:
        """Return the run's status once it is none of these, or at the time-out."""
        end_s, pause_s = time.monotonic() + timeout_s, 0.5
        while True:
            answer = self.call("ls", "--run-id", str(run_id), "--format", "json")
            status = str(answer["runs"][0]["status"])
            if status not in while_in or time.monotonic() >= end_s:
                return status
            if self._process.poll() is not None:
                raise FlowerRunError(f"the SuperLink ended with code {self._process.returncode}.\n{self.tail()}")
            time.sleep(min(pause_s, max(0.0, end_s - time.monotonic())))
            pause_s = min(2 * pause_s, 4.0)

    def save_log(self, run_id: int) -> None:
        """Write what the run said to ``run.log``."""
        with (self._logs / "run.log").open("wb") as out:
            subprocess.run(
                self._command("log", str(run_id), "--show"),
                env=self._environment,
                cwd=self._home,
                stdout=out,
                stderr=subprocess.STDOUT,
                timeout=CALL_S,
            )

    def call(self, *arguments: str) -> dict[str, Any]:
        """Run a ``flwr`` command and return what it prints as JSON, or nothing."""
        done = subprocess.run(
            self._command(*arguments),
            env=self._environment,
            cwd=self._home,
            capture_output=True,
            text=True,
            timeout=CALL_S,
        )
        start = done.stdout.find("{")
        answer: dict[str, Any] = json.loads(done.stdout[start:]) if start >= 0 else {}
        if done.returncode or answer.get("success") is False:
            said = answer.get("error-message") or (done.stdout + done.stderr)[-2000:]
            raise FlowerRunError(f"flwr {arguments[0]} failed with code {done.returncode}: {said}\n{self.tail()}")
        return answer

    def tail(self) -> str:
        """Return the end of the SuperLink's log, and of the run's."""
        parts = []
        for path in (self._log_file, self._logs / "run.log"):
            if path.is_file():
                lines = path.read_text(errors="replace").splitlines()[-TAIL_LINES:]
                parts.append(f"--- {path}:\n" + "\n".join(lines))
        return "\n".join(parts)

    def says(self, words: str) -> bool:
        """Whether the log of the latest run has these words."""
        return words in (self._logs / "run.log").read_text(errors="replace")

    def stop(self) -> None:
        """End the SuperLink; what it started and does not end itself is ended by the folder's guard."""
        self._process.terminate()
        try:
            self._process.wait(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _command(self, *arguments: str) -> list[str]:
        return [str(self._home / "bin" / "flwr"), *arguments]

    def _await(self) -> None:
        """Wait until our child, and no other process, listens on the port."""
        end_s, pause_s = time.monotonic() + START_S, 0.05
        while self._process.poll() is None and time.monotonic() < end_s:
            if _listens(self._process.pid, self._port):
                return
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 1.0)
        raise FlowerRunError(f"the SuperLink does not listen on port {self._port}; its log says why.\n{self.tail()}")


def clean_environment(environment: Mapping[str, str], home: Path) -> dict[str, str]:
    """Return the environment of Flower's processes: nothing of another Flower or Ray, no telemetry, no installs.

    Args:
        environment: Of this process.
        home: A private folder; becomes Flower's home and holds Ray's files and token.
    """
    foreign = ("FLWR_", "RAY_", "PYTHONPATH", "UV_")
    kept = {name: value for name, value in environment.items() if not name.startswith(foreign)}
    own = {
        "FLWR_HOME": str(home),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_TMPDIR": str(home),
        "PATH": f"{home / 'bin'}{os.pathsep}{environment.get('PATH', os.defpath)}",
    }
    return kept | worker_environment(1) | own | make_token(home)


def write_commands(folder: Path) -> None:
    """Write Flower's commands so that they run in this interpreter: SuperLink finds its helpers by name on the PATH."""
    folder.mkdir()
    for entry in distribution("flwr").entry_points.select(group="console_scripts"):
        script = folder / f"{entry.name}.py"
        script.write_text(f"import sys\nfrom {entry.module} import {entry.attr}\nsys.exit({entry.attr}())\n")
        command = folder / entry.name
        # -P: the scripts' folder must not come first on sys.path, where flwr.py would stand for the package.
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P "{script}" "$@"\n')
        command.chmod(0o700)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listens(pid: int, port: int) -> bool:
    try:
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        connections = [c for process in family for c in process.net_connections(kind="tcp")]
    except psutil.NoSuchProcess:
        return False
    return any(c.status == psutil.CONN_LISTEN and c.laddr.port == port for c in connections)
