"""Flower's runner of ServerApps, with a process that is forked for each run from one that has everything loaded.

    python -m fedsim.deploy.runner ...    (the arguments of flower-superexec)

Flower's own runner starts a fresh Python for each run. Until that has imported Flower and given a sign of life, the
SuperLink waits 30 s and then gives the run to the next try: on a busy host no try is fast enough, and the run stays
pending for ever without a word.
"""

import ctypes
import os
import signal
import sys
from queue import Queue
from typing import Any

from flwr.supercore.cli.flower_superexec import flower_superexec
from flwr.supercore.constant import TaskType
from flwr.supercore.exit.exit_handler import SIGNAL_TO_EXIT_CODE, registered_exit_handlers
from flwr.supercore.logger import mirror_output_to_queue
from flwr.supercore.superexec import run_superexec
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResult
from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
from flwr.supercore.tls import validate_and_resolve_root_certificates
from flwr.superlink.runtime.run_serverapp import run_serverapp

#: What tools show for the process of a run, as they do for Flower's own.
TITLE = "flwr-serverapp"
_PR_SET_NAME = 15


class ForkingExecutor(SubprocessExecutor):
    """Forks for a ServerApp; starts a process for anything else, as Flower does."""

    def __init__(self) -> None:
        self._children: set[int] = set()

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """See Flower's executor."""
        if spec.task_type != TaskType.SERVER_APP:
            return super().launch(spec)
        child = os.fork()
        if not child:
            _serve(spec)
        self._children.add(child)
        return LaunchResult.accepted()

    def reconcile(self) -> None:
        """Let ended processes of runs go."""
        for child in list(self._children):
            if os.waitpid(child, os.WNOHANG)[0]:
                self._children.discard(child)


def _serve(spec: ExecutionSpec) -> None:
    """Be the process of a run, and end with it."""
    code = 1
    try:
        if sys.platform.startswith("linux"):
            ctypes.CDLL(None).prctl(_PR_SET_NAME, TITLE.encode(), 0, 0, 0)
        if spec.suppress_output:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.dup2(nowhere, 2)
        # The runner's connection is the runner's to close.
        registered_exit_handlers.clear()
        for number in SIGNAL_TO_EXIT_CODE:
            signal.signal(number, signal.SIG_DFL)
        log: Queue[str | None] = Queue()
        mirror_output_to_queue(log)
        run_serverapp(
            runtime_api_address=spec.runtime_api_address,
            log_queue=log,
            token=spec.token,
            insecure=spec.insecure,
            certificates=validate_and_resolve_root_certificates(spec.root_certificates_path, spec.insecure),
            parent_pid=spec.parent_pid,
            runtime_dependency_install=spec.runtime_dependency_install,
        )
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        os._exit(code)


def main() -> None:
    """Run the runner."""
    # What takes seconds to import; the run's process has it from here.
    import torch  # noqa: F401

    from fedsim import server_app  # noqa: F401

    module: Any = run_superexec
    module.get_executor = lambda *arguments, **more: ForkingExecutor()
    flower_superexec()


if __name__ == "__main__":
    main()


__all__ = ["TITLE", "ForkingExecutor"]
