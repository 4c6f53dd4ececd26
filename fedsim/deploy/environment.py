"""The environment of Flower's processes in a deployment: a home of their own, no telemetry, no installs at run time."""

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fedsim.simulation.environment import worker_environment
from fedsim.simulation.flower import write_commands

_FOREIGN = ("FLWR_", "RAY_", "UV_")


def process_environment(environment: Mapping[str, str], home: Path) -> dict[str, str]:
    """Return the variables of a process.

    Args:
        environment: of this process; what belongs to another Flower is left out.
        home: Flower's home; its ``bin`` holds Flower's commands, see :func:`homes`.
    """
    kept = {name: value for name, value in environment.items() if not name.startswith(_FOREIGN)}
    threads = worker_environment(int(environment.get("OMP_NUM_THREADS", "1")))
    own = {
        "FLWR_HOME": str(home),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
        "PYTHONUNBUFFERED": "1",
        "PATH": f"{home / 'bin'}{os.pathsep}{environment.get('PATH', os.defpath)}",
    }
    return kept | threads | own


@contextmanager
def temporary_home() -> Iterator[Path]:
    """Make a home for Flower that lasts as long as the block, with its commands in ``bin``."""
    home = Path(tempfile.mkdtemp(prefix="fedsim-"))
    try:
        write_commands(home / "bin")
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)


__all__ = ["process_environment", "temporary_home"]
