"""A private Ray: own folder, own token, no telemetry, no process left behind. Or a connection to a cluster.

Ray listens on TCP ports and runs what it is sent. A private Ray therefore demands a token that only this user can read.
"""

import logging
import os
import shutil
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
import ray
from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

from fedsim.simulation.environment import NO_TELEMETRY, make_token, private_folder, worker_environment

MIN_STORE_BYTES = 128 * 2**20
MAX_STORE_BYTES = 16 * 2**30
SHUTDOWN_S = 15.0
START_TRIES = 3

_log = logging.getLogger(__name__)


def choose_store_bytes(shm_free_bytes: int | None, ram_free_bytes: int, wanted_bytes: int | None) -> int:
    """Return the size of Ray's object store.

    Args:
        shm_free_bytes: Free in /dev/shm, where the store lies; None where there is no such thing.
        ram_free_bytes: Available memory.
        wanted_bytes: As asked for, or None for 30 % of memory within 60 % of /dev/shm.

    Raises:
        ValueError: It does not fit, or is below Ray's least.
    """
    room = ram_free_bytes if shm_free_bytes is None else min(shm_free_bytes, ram_free_bytes)
    size = min(3 * ram_free_bytes // 10, 6 * room // 10, MAX_STORE_BYTES) if wanted_bytes is None else wanted_bytes
    if size < MIN_STORE_BYTES or size > room:
        shm = "no /dev/shm" if shm_free_bytes is None else f"{shm_free_bytes >> 20} MB free in /dev/shm"
        raise ValueError(
            f"object store of {size >> 20} MB with {shm} and {ram_free_bytes >> 20} MB of memory: it takes at least "
            f"{MIN_STORE_BYTES >> 20} MB and must fit in both; enlarge /dev/shm (docker run --shm-size=2g, shm_size in "
            "compose), choose another size, or use the inline engine"
        )
    return size


class RaySession:
    """Ray for this process: a private one, a cluster's, or the one that is connected already (then not closed).

    Args:
        cpus: CPUs of a private Ray.
        threads: Threads of a worker's libraries.
        address: Of a cluster (``host:port``, ``ray://host:port`` or ``auto``); default ``RAY_ADDRESS``, or none.
        store_bytes: Of a private Ray's object store; default by :func:`choose_store_bytes`.

    Raises:
        ValueError: See :func:`choose_store_bytes` and :func:`private_folder`.
        ConnectionError: No cluster at the address.
    """

    def __init__(
        self, *, cpus: int, threads: int = 1, address: str | None = None, store_bytes: int | None = None
    ) -> None:
        self._folder: Path | None = None
        self._owned = not ray.is_initialized()
        address = address or os.environ.get("RAY_ADDRESS")
        if not self._owned:
            return
        if address:
            with _environment(NO_TELEMETRY):
                ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
            return
        size = choose_store_bytes(_shm_free_bytes(), psutil.virtual_memory().available, store_bytes)
        for left in reversed(range(START_TRIES)):
            self._folder = private_folder(os.environ.get("RAY_TMPDIR"))
            try:
                self._start(self._folder, cpus, size, worker_environment(threads))
                return
            except Exception as error:  # noqa: BLE001 - Ray raises bare ones, e.g. 30 s after a slow start
                self.close()
                if not left:
                    raise
                _log.warning("Ray did not start (%s); trying again", error)
            except BaseException:
                self.close()
                raise

    def _start(self, folder: Path, cpus: int, size_bytes: int, environment: dict[str, str]) -> None:
        environment = environment | make_token(folder)
        with _environment(environment, drop=("RAY_AUTH_TOKEN", "RAY_ADDRESS")):
            _reload_authentication()
            ray.init(
                address="local",
                num_cpus=cpus,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.WARNING,
                object_store_memory=size_bytes,
                _temp_dir=str(folder),
            )

    @property
    def private(self) -> bool:
        """Whether this Ray is ours alone."""
        return self._folder is not None

    def close(self) -> None:
        """Disconnect; a private Ray ends with all its processes, and its folder is removed. May be called twice."""
        with uninterrupted():
            self._close()

    def _close(self) -> None:
        processes = _processes_of(self._folder) if self._folder else []
        if self._owned and ray.is_initialized():
            ray.shutdown()
        _, alive = psutil.wait_procs(processes, timeout=SHUTDOWN_S if processes else 0)
        for process in alive:
            process.kill()
        psutil.wait_procs(alive, timeout=SHUTDOWN_S)
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
            _reload_authentication()


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignore Ctrl-C inside: who is impatient presses it again, and would cut the cleaning up short."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    earlier = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, earlier or signal.SIG_DFL)


def _reload_authentication() -> None:
    """Let Ray read the authentication variables again: it does so once, when it is imported."""
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def _processes_of(folder: Path) -> list[psutil.Process]:
    """Return the Ray daemons of the folder that this process started, with all their descendants."""
    found: list[psutil.Process] = []
    for child in psutil.Process().children():
        try:
            if any(str(folder) in word for word in child.cmdline()):
                found += [child, *child.children(recursive=True)]
        except psutil.NoSuchProcess:
            continue
    return found


def _shm_free_bytes() -> int | None:
    shm = Path("/dev/shm")
    return shutil.disk_usage(shm).free if shm.is_dir() else None


@contextmanager
def _environment(values: Mapping[str, str], drop: tuple[str, ...] = ()) -> Iterator[None]:
    """Set environment variables for processes started inside, and restore them."""
    earlier = {name: os.environ.get(name) for name in (*values, *drop)}
    os.environ.update(values)
    for name in drop:
        os.environ.pop(name, None)
    try:
        yield
    finally:
        for name, value in earlier.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
