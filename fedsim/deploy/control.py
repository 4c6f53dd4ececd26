"""Starts and watches runs through Flower's own commands, printing each; the exit code is the run's."""

import json
import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tomli_w

from fedsim.deploy.environment import process_environment
from fedsim.deploy.folder import Deployment
from fedsim.deploy.preflight import Address, check_address
from fedsim.errors import EngineError, FedsimError
from fedsim.measure.runfolder import RunFolder
from fedsim.simulation.flower import COMPLETED

_CALL_S = 180.0
_PAUSE_S = 2.0
#: A SuperLink that is restarted may be away for so long before a follower gives up.
_AWAY_S = 180.0
_REGISTERED_ALREADY = "already in use"
_FLWR = "import sys; from flwr.cli.app import app; sys.argv[0] = 'flwr'; sys.exit(app())"


class Control:
    """Flower's commands against one deployment.

    Args:
        deployment: its folder; ``admin`` is Flower's home.
        connection: name in ``admin/config.toml``: ``direct`` or ``compose``.
        tell: takes the commands as they are run, and other sentences.
    """

    def __init__(self, deployment: Deployment, connection: str, tell: Callable[[str], None]) -> None:
        self._deployment, self._connection, self._tell = deployment, connection, tell
        self._away_s = 0.0
        self._environment = process_environment(os.environ, deployment.admin) | {"COLUMNS": "200"}

    def await_superlink(self, limit_s: float) -> None:
        """Wait until the SuperLink listens.

        Raises:
            EngineError: it does not after `limit_s`.
        """
        config = tomllib.loads((self._deployment.admin / "config.toml").read_text(encoding="utf-8"))
        address = Address.parse(config["superlink"][self._connection]["address"])
        end_s = time.monotonic() + limit_s
        while (check := check_address(address)).status == "failed":
            if time.monotonic() >= end_s:
                raise EngineError(f"no SuperLink after {limit_s:g} s: {check.detail}; {check.remedy}")
            time.sleep(_PAUSE_S / 4)

    def register(self) -> int:
        """Let the clients' keys in; those that are known already stay. Returns how many are new."""
        keys = list((self._deployment.server / "nodes").glob("*.pub"))
        if len(self.nodes()) >= len(keys):
            return 0
        new = 0
        for path in sorted(keys, key=lambda p: (len(p.stem), p.stem)):
            name = f"client-{path.stem}" if path.stem.isdecimal() else path.stem
            try:
                self._ask("supernode", "register", str(path), self._connection, "--name", name)
                new += 1
            except EngineError as error:
                if _REGISTERED_ALREADY not in str(error):
                    raise
        return new

    def nodes(self) -> list[dict[str, Any]]:
        """Return the registered nodes: ``node-id``, ``status`` (registered, online, offline) and times."""
        found: list[dict[str, Any]] = self._ask("supernode", "ls", self._connection).get("nodes", [])
        return found

    def runs(self) -> list[dict[str, Any]]:
        """Return all runs, newest first, as ``flwr ls`` tells them."""
        found: list[dict[str, Any]] = self._ask("ls", self._connection).get("runs", [])
        return found

    def start(self, resume: str = "") -> int:
        """Start a run with the deployment's settings; returns Flower's number of it.

        Args:
            resume: name of the folder of a run that was cut off, to go on after its newest checkpoint.
        """
        settings = self._deployment.settings.read_text(encoding="utf-8")
        overrides = self._deployment.admin / "run.toml"
        overrides.write_text(tomli_w.dumps({"config": settings, "resume": resume}), encoding="utf-8")
        app = str(self._deployment.server / "app")
        answer = self._ask("run", app, self._connection, "--run-config", str(overrides))
        if not answer.get("run-id"):
            raise EngineError(f"flwr run started nothing: {answer}; look at the SuperLink's log")
        return int(answer["run-id"])

    def follow(self, run_id: int) -> None:
        """Show the run's log until it has ended.

        Raises:
            FedsimError: it did not complete; says why where the run's folder is here.
        """
        log = subprocess.Popen(self._command("log", str(run_id), self._connection, "--stream"), env=self._environment)
        try:
            while not (status := self._status(run_id)).startswith("finished"):
                if log.poll() is None and status:
                    log.wait()
                else:
                    time.sleep(_PAUSE_S)
        except KeyboardInterrupt:
            self._tell(f"the run goes on; stop it with: flwr stop {run_id} {self._connection}")
            raise
        finally:
            log.terminate()
            log.wait()
        if status != COMPLETED:
            raise FedsimError(f"run {run_id}: {status}; {self._reason(run_id)}")

    def _status(self, run_id: int) -> str:
        """Return the run's status; empty while the SuperLink is away, which may be for :data:`_AWAY_S`.

        Raises:
            EngineError: it is away for longer.
        """
        try:
            answer = self._ask("ls", self._connection, "--run-id", str(run_id), quiet=True)
        except EngineError:
            now_s = time.monotonic()
            self._away_s = self._away_s or now_s
            if now_s - self._away_s > _AWAY_S:
                raise
            return ""
        self._away_s = 0.0
        return str(answer["runs"][0]["status"])

    def _reason(self, run_id: int) -> str:
        for path in self._deployment.runs.glob(f"*{run_id}"):
            record = RunFolder.open(path).record()
            return f"its folder says {record.status}: {record.exit_reason}"
        return "the ServerApp runner's log says why"

    def _command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-P", "-c", _FLWR, *arguments]

    def _ask(self, *arguments: str, quiet: bool = False) -> dict[str, Any]:
        """Run a command of Flower's and return what it prints as JSON.

        Raises:
            EngineError: it failed.
        """
        if not quiet:
            self._tell(f"$ FLWR_HOME={self._deployment.admin} flwr {' '.join(arguments)}")
        command = self._command(*arguments, "--format", "json")
        try:
            done = subprocess.run(command, env=self._environment, capture_output=True, text=True, timeout=_CALL_S)
        except subprocess.TimeoutExpired:
            what = f"flwr {' '.join(arguments[:2])} gave no answer in {_CALL_S:g} s"
            raise EngineError(
                f"{what}: look whether this host is too busy, or the SuperLink's log; try again"
            ) from None
        start = done.stdout.find("{")
        answer: dict[str, Any] = json.loads(done.stdout[start:]) if start >= 0 else {}
        if done.returncode or answer.get("success") is False:
            said = answer.get("error-message") or (done.stdout + done.stderr)[-2000:]
            raise EngineError(f"flwr {' '.join(arguments[:2])} failed with code {done.returncode}: {said.strip()}")
        return answer


def await_nodes(control: Control, wanted: int, limit_s: float, tell: Callable[[str], None]) -> None:
    """Wait until so many nodes are online.

    Raises:
        EngineError: fewer are after `limit_s`.
    """
    end_s, last = time.monotonic() + limit_s, -1
    while True:
        online = sum(node["status"] == "online" for node in control.nodes())
        if online >= wanted:
            return
        if online != last:
            tell(f"{online} of {wanted} clients are connected")
            last = online
        if time.monotonic() >= end_s:
            raise EngineError(f"{online} of {wanted} clients are connected after {limit_s:g} s: look at their logs")
        time.sleep(_PAUSE_S)


def traffic_log(deployment: Deployment) -> Path:
    """Return the file in which the proxy counts bytes."""
    return deployment.root / "state" / "traffic.log"


__all__ = ["Control", "await_nodes", "traffic_log"]
