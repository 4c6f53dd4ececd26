"""The server's processes on a host without containers: SuperLink, ServerApp runner, and nginx in front."""

import logging
import os
import shutil
import sys
import threading
from pathlib import Path

from fedsim.deploy.control import Control
from fedsim.deploy.environment import process_environment, temporary_home
from fedsim.deploy.folder import Deployment
from fedsim.deploy.group import Member, run_group
from fedsim.deploy.proxy import Proxy
from fedsim.errors import EngineError

_log = logging.getLogger(__name__)

_START_S = 120.0


def run_server(deployment: Deployment, listen: str) -> int:
    """Run the server until it is stopped.

    Args:
        deployment: its folder; the ports stand in its ``.env``.
        listen: address that clients connect to.

    Returns:
        0 after SIGTERM or Ctrl-C, else the code of the process that ended.

    Raises:
        EngineError: nginx is not installed.
    """
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if nginx is None:
        raise EngineError(
            "nginx is not on this host: the SuperLink's port has no login and must not be reachable by clients; "
            "install nginx (Debian: apt-get install nginx-light)"
        )
    with temporary_home() as home:
        config = home / "nginx.conf"
        config.write_text(_proxy(deployment, listen, home).config(), encoding="utf-8")
        environment = process_environment(os.environ, home) | server_variables(deployment)
        members = [
            Member("SuperLink", superlink_command(deployment, home), environment),
            Member("ServerApp runner", runner_command(deployment), environment),
            Member("nginx", [nginx, "-e", "stderr", "-c", str(config)], environment),
        ]
        threading.Thread(target=_register, args=(deployment,), daemon=True).start()
        return run_group(members)


def _register(deployment: Deployment) -> None:
    """Let the clients' keys in as soon as the SuperLink listens."""
    control = Control(deployment, "direct", _log.info)
    try:
        control.await_superlink(_START_S)
        _log.info("%d keys of clients registered", control.register())
    except EngineError as error:
        _log.error("keys of clients not registered: %s", error)


def _proxy(deployment: Deployment, listen: str, home: Path) -> Proxy:
    folder = home / "nginx"
    folder.mkdir()
    # A worker process of nginx that root started is another user's.
    folder.chmod(0o777)
    home.chmod(0o711)
    return Proxy(
        listen=f"{listen}:{deployment.port}",
        upstream=f"localhost:{deployment.superlink_port}",
        certificate=str(deployment.proxy / "proxy.crt"),
        key=str(deployment.proxy / "proxy.key"),
        authority=str(deployment.proxy / "ca.crt"),
        access_log=str(deployment.root / "state" / "traffic.log"),
        folder=str(folder),
    )


def server_variables(deployment: Deployment) -> dict[str, str]:
    """Return what the ServerApp learns of this deployment: where runs go, and the server's public keys."""
    keys = deployment.server / "keys"
    return {"FEDSIM_RUNS": str(deployment.runs)} | ({"FEDSIM_SERVER_KEYS": str(keys)} if keys.is_dir() else {})


def superlink_command(deployment: Deployment, home: Path) -> list[str]:
    """Return the command of the SuperLink: TLS, known nodes only, its state in a file."""
    server = deployment.server
    return [
        *(str(home / "bin" / "flower-superlink"), "--host", "127.0.0.1", "--port", str(deployment.superlink_port)),
        *("--ssl-ca-certfile", str(server / "ca.crt"), "--ssl-certfile", str(server / "superlink.crt")),
        *("--ssl-keyfile", str(server / "superlink.key"), "--enable-supernode-auth"),
        *("--isolation", "process", "--superexec-auth-secret-file", str(server / "runner.secret")),
        *("--database", str(deployment.root / "state" / "superlink.db")),
        "--disable-runtime-dependency-installation",
    ]


def runner_command(deployment: Deployment) -> list[str]:
    """Return the command of the process that forks a ServerApp for each run."""
    server, superlink = deployment.server, f"127.0.0.1:{deployment.superlink_port}"
    return [
        *(sys.executable, "-P", "-m", "fedsim.deploy.runner", "--runtime-api-address", superlink),
        *("--root-certificates", str(server / "ca.crt")),
        *("--superexec-auth-secret-file", str(server / "runner.secret")),
    ]


__all__ = ["run_server", "runner_command", "server_variables", "superlink_command"]
