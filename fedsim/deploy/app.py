"""The app that a deployment ships to its clients: a stub, and its hash, which the clients pin.

Whoever starts a run decides which code the clients execute. The stub only names the installed package, so it is the
same file for every run, and a client that knows its hash refuses any other.
"""

import hashlib
from pathlib import Path

from flwr.cli.build import build_fab_from_disk

from fedsim.flower_engine import write_stub_app


def make_app(folder: Path) -> str:
    """Write the stub into `folder`; return the SHA-256 of what Flower ships of it, in hexadecimal."""
    return hashlib.sha256(build_fab_from_disk(write_stub_app(folder))).hexdigest()


__all__ = ["make_app"]
