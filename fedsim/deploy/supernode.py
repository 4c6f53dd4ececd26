"""Flower's SuperNode with short pauses, and with an exit code that says when another try makes sense.

    python -m fedsim.deploy.supernode ...    (the arguments of flower-supernode)

Flower's SuperNode asks for messages every 3 s and looks for the app's reply every 0.5 s. Here the pauses double from
50 ms to FEDSIM_POLL_S (1 s) and begin anew with each message. Flower offers no setting for them, so its module gets
another clock to sleep by; the version of flwr is pinned.
"""

import os
import sys
import time
from types import SimpleNamespace
from typing import Any

from flwr.supernode import fleet_http_connection, start_client_internal
from flwr.supernode.cli.flower_supernode import flower_supernode

from fedsim.deploy.folder import REFUSED

_REFUSED_MARK = "[code: 2004]"
_IDLE_S = 3
_FIRST_S = 0.05


class Pace:
    """Sleeps as long as makes sense instead of as long as asked.

    Args:
        longest_s: longest pause while nothing comes.
        sleep: the real one.
    """

    def __init__(self, longest_s: float, sleep: Any = time.sleep) -> None:
        self._longest_s, self._sleep = max(longest_s, _FIRST_S), sleep
        self._pause_s = _FIRST_S

    def sleep(self, seconds: float) -> None:
        """Sleep; a call with 3 s means that there was no message, a shorter one that there was."""
        if seconds < _IDLE_S:
            self._pause_s = _FIRST_S
            self._sleep(min(seconds, _FIRST_S))
            return
        self._sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, self._longest_s)


def _exit(code: int, message: str | None = None, **more: Any) -> None:
    if _REFUSED_MARK in (message or ""):
        print(
            "the SuperLink does not let this node in: its key is not registered (`fedsim deploy run` registers those "
            "in server/nodes), or the node crashed less than 70 s ago and still counts as connected",
            file=sys.stderr,
            flush=True,
        )
        os._exit(REFUSED)
    _flwr_exit(code, message, **more)


_flwr_exit: Any = vars(fleet_http_connection)["flwr_exit"]


def main() -> None:
    """Run the SuperNode."""
    pace = Pace(float(os.environ.get("FEDSIM_POLL_S", "1")))
    module: Any = start_client_internal
    module.time = SimpleNamespace(**{**vars(time), "sleep": pace.sleep})
    connection: Any = fleet_http_connection
    connection.flwr_exit = _exit
    flower_supernode()


if __name__ == "__main__":
    main()
