"""One client's processes: the checks, then Flower's SuperNode and the worker that executes its messages."""

import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from fedsim.deploy.environment import process_environment, temporary_home
from fedsim.deploy.folder import REFUSED, Node
from fedsim.deploy.group import Member, run_group
from fedsim.deploy.preflight import wait_until_ready
from fedsim.errors import EngineError

#: Flower counts a node that crashed as connected for two heartbeats of 30 s; these tries take longer.
_TRIES = 14


def run_node(folder: Path, wait_s: float, port: int, tell: Callable[[str], None]) -> int:
    """Run a client until it is stopped.

    Args:
        folder: holds ``node.toml``.
        wait_s: how long to wait for the server before giving up.
        port: of the SuperNode's Runtime API on this machine; 0 for a free one.
        tell: takes sentences for whoever watches.

    Returns:
        0 after SIGTERM or Ctrl-C, else the code of the process that ended.

    Raises:
        ConfigError: ``node.toml`` is wrong.
        EngineError: the checks fail; says each reason and its remedy.
    """
    node = Node.read(folder, dict(os.environ))
    checks = wait_until_ready(node, wait_s, tell)
    failed = [f"  {check.name}: {check.detail}; {check.remedy}" for check in checks if check.status == "failed"]
    if failed:
        raise EngineError("\n".join([f"{node.title} cannot start:", *failed]))
    for check in checks:
        if check.status == "warning":
            tell(f"warning: {check.detail}; {check.remedy}")
    port = port or free_port()
    with temporary_home() as home:
        environment = process_environment(os.environ, home)
        python = [sys.executable, "-P", "-m"]
        worker = [*python, "fedsim.deploy.worker", str(folder), f"127.0.0.1:{port}"]
        supernode = [*python, "fedsim.deploy.supernode", *supernode_arguments(node, port)]
        members = [
            Member("SuperNode", supernode, environment, again=(REFUSED,), tries=_TRIES),
            Member("worker", worker, environment),
        ]
        return run_group(members)


def supernode_arguments(node: Node, port: int) -> list[str]:
    """Return the arguments of flower-supernode."""
    config = " ".join(f"{name}={json.dumps(value)}" for name, value in node.app_config().items())
    return [
        *("--superlink", node.superlink),
        *("--root-certificates", node.certificate),
        *("--auth-supernode-private-key", node.key),
        *("--isolation", "process", "--host", "127.0.0.1", "--port", str(port)),
        *("--node-config", config),
    ]


def free_port() -> int:
    """Return a port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


__all__ = ["free_port", "run_node", "supernode_arguments"]
