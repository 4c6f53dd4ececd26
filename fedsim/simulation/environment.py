"""The environment of processes that we start: no telemetry, few threads, private folders and tokens."""

import secrets
import tempfile
from pathlib import Path

# A Unix socket's path has at most 107 bytes; Ray adds "/session_<date>_<time>_<pid>/sockets/plasma_store".
MAX_FOLDER_CHARS = 107 - 70

NO_TELEMETRY = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def worker_environment(threads: int) -> dict[str, str]:
    """Return the environment of a worker process: no telemetry, and one client's threads for every library."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return NO_TELEMETRY | {name: str(threads) for name in names}


def make_token(folder: Path) -> dict[str, str]:
    """Write a new secret into the folder, readable by this user only; return the variables that make Ray demand it."""
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}


def private_folder(parent: str | None) -> Path:
    """Make a folder that only this user can enter, short enough for Ray's sockets.

    Args:
        parent: Where; default the system's temporary folder.

    Raises:
        ValueError: Neither the parent nor /tmp is short enough.
    """
    parent = parent or tempfile.gettempdir()
    for base in (parent, "/tmp"):
        if len(base) + len("/fs-12345678") <= MAX_FOLDER_CHARS and Path(base).is_dir():
            return Path(tempfile.mkdtemp(prefix="fs-", dir=base))
    raise ValueError(
        f"temporary folder {parent!r}: Ray's socket paths below it would exceed 107 bytes and there is no /tmp; "
        "set RAY_TMPDIR to a folder with a short path"
    )
