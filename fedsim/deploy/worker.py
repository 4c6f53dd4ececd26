"""Executes a node's messages: a process that has everything loaded, and forks for each message.

    python -m fedsim.deploy.worker FOLDER HOST:PORT

Flower starts a fresh Python for each message, which takes seconds before the first line of the app. Here torch, the
app, the data and the model are loaded once; each message gets a forked process, so nothing of one message reaches the
next but through Flower's context. It executes one app only, the one whose hash the node's settings pin.
"""

import hashlib
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime import run_clientapp as flower

from crypto import InputError
from fedsim.deploy.folder import Node
from fedsim.deploy.limits import train_a_little

_log = logging.getLogger(__name__)

_FIRST_S, _LONGEST_S = 0.02, 0.25


def pinned(pull: Any, app: str) -> Any:
    """Return Flower's function that fetches a message and its app, with a check of the app.

    Args:
        pull: Flower's own.
        app: SHA-256 of the only app that is executed, hexadecimal; empty for any.

    Raises:
        InputError: (the returned function) the server ships another app.
    """

    def checked(client: Any) -> Any:
        message, context, run, fab = pull(client)
        found = hashlib.sha256(fab.content).hexdigest()
        if app and found != app:
            # The message is answered with the error, and nothing of the app has been executed.
            flower.push_message(client, _refusal(message, found, app), context)
            raise InputError(_refused(found, app))
        return message, context, run, fab

    return checked


def _refused(found: str, app: str) -> str:
    return (
        f"the server ships app {found[:16]}: this client executes {app[:16]} only; use the app that `fedsim deploy "
        "init` wrote, or write the new hash into node.toml"
    )


def _refusal(message: Any, found: str, app: str) -> Any:
    from flwr.app import Error, Message
    from flwr.common.constant import ErrorCode

    return Message(Error(ErrorCode.INVALID_FAB, _refused(found, app)), reply_to=message)


def warm(node: Node) -> None:
    """Load what every message needs; a node without settings of its own loads it with each message."""
    import torch

    from fedsim import client_app  # noqa: F401
    from fedsim.site import site_of

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    if not node.settings:
        return
    run_config = {"config": Path(node.settings).read_text(encoding="utf-8")}
    site = site_of(run_config, node.app_config())
    if node.helper:
        from fedsim import client_app  # noqa: F401

        return
    _ = site.initial, site.half, site.buffer_names
    # The first step in a process imports hundreds of modules.
    train_a_little(site, node.partition_id, 2)


def serve(address: str, node: Node) -> None:
    """Ask the SuperNode for work and do it, for ever.

    Args:
        address: ``host:port`` of the SuperNode's Runtime API on this machine.
        node: the node's settings.
    """
    client = RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=True,
        root_certificates=None,
        interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec")],
        retry_invoker=make_simple_http_retry_invoker(),
    )
    pause_s = _FIRST_S
    while True:
        answer = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
        if answer.HasField("task") and answer.token:
            _in_child(address, answer.token, node.app)
            pause_s = _FIRST_S
            continue
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_S)


def _in_child(address: str, token: str, app: str) -> None:
    """Execute one message in a forked process and wait for it; a SuperNode handles one at a time."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            _log.error("the process of a message was ended by signal %d", os.WTERMSIG(status))
        return
    code = 1
    try:
        module: Any = flower
        module.pull_task_input = pinned(flower.pull_task_input, app)
        flower.run_clientapp(address, token, insecure=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> int:
    """Run the worker of the node in a folder."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="worker: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    folder, address = sys.argv[1:]
    node = Node.read(Path(folder), dict(os.environ))
    started = time.perf_counter()
    warm(node)
    _log.info("%s is ready after %.1f s", node.title, time.perf_counter() - started)
    serve(address, node)
    return 0


if __name__ == "__main__":
    sys.exit(main())


__all__ = ["pinned", "serve", "warm"]
