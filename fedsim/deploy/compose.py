"""``docker compose`` with a deployment's variables, each command printed before it is run."""

import shlex
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from fedsim.deploy.folder import Deployment
from fedsim.errors import EngineError

#: Longest wait until all services are healthy.
UP_S = 300


class Compose:
    """Commands on one deployment's services.

    Args:
        deployment: its ``.env`` names the variables.
        file: docker-compose.yml.
        tell: takes the commands as they are run.
    """

    def __init__(self, deployment: Deployment, file: Path, tell: Callable[[str], None]) -> None:
        self._deployment, self._file, self._tell = deployment, file, tell

    def up(self, clients: int | None, build: bool) -> None:
        """Start all services and wait until they are healthy."""
        scale = [] if clients is None else ["--scale", f"client={clients}"]
        built = ["--build"] if build else ["--no-build"]
        self._must("up", "--detach", *built, *scale, "--wait", "--wait-timeout", str(UP_S))

    def run(self, arguments: Sequence[str]) -> int:
        """Run ``fedsim deploy ...`` in a container of the service `admin`; returns its exit code."""
        return self._call("run", "--rm", "-T", "admin", "fedsim", "deploy", *arguments)

    def status(self) -> int:
        """Show the services."""
        return self._call("ps", "--all")

    def down(self) -> None:
        """Stop and remove all services; what they wrote stays in the deployment's folder."""
        self._must("--profile", "*", "down", "--remove-orphans")

    def command(self, *arguments: str) -> list[str]:
        """Return the whole command."""
        return [
            *("docker", "compose", "--env-file", str(self._deployment.environment)),
            *("--file", str(self._file)),
            *arguments,
        ]

    def _must(self, *arguments: str) -> None:
        if code := self._call(*arguments):
            raise EngineError(f"docker compose {arguments[0]} ended with code {code}: its output above says why")

    def _call(self, *arguments: str) -> int:
        if not self._file.is_file():
            raise EngineError(
                f"{self._file} is not there: the services are described in the repository's; go to a clone, or name "
                "the file with --file"
            )
        command = self.command(*arguments)
        self._tell("$ " + shlex.join(command))
        try:
            return subprocess.run(command).returncode
        except FileNotFoundError:
            raise EngineError(
                "there is no program `docker` here: install Docker with Compose 2, or use --direct"
            ) from None


__all__ = ["Compose"]
