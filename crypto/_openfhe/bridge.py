"""One call interface to the library, wherever it runs.

By default it runs in a worker process even where this interpreter could load it: an exception inside one of its OpenMP
regions aborts the whole process. A worker is started on the first call, keeps contexts but no keys between calls, and
ends with its owner. A call that crashes it or passes its deadline becomes :class:`~crypto.errors.BackendFailed`; the
next call starts a fresh one.
"""

import json
import logging
import os
import select
import signal
import struct
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

from crypto._openfhe.find import find_python
from crypto.errors import BackendFailed, BackendUnavailable

logger = logging.getLogger(__name__)

#: As the interpreter's name: load the library into this process.
IN_PROCESS = "in-process"
#: One call handles a bounded batch; this is generous for a busy machine.
DEFAULT_TIMEOUT_S = 120.0
_WORKER = Path(__file__).with_name("worker.py")
_HEAD = struct.Struct("<II")
_CLOSE_TIMEOUT_S = 5.0


class Bridge:
    """Calls operations of :class:`crypto._openfhe.worker.Engine`. Picklable: a copy starts its own worker.

    Args:
        python: interpreter of the worker; :data:`IN_PROCESS`; or ``None`` to search, see :mod:`crypto._openfhe.find`.
        timeout_s: deadline of one call, a worker's start and the opening of a context included.
    """

    def __init__(self, python: str | None = None, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self._python = python
        self._timeout_s = timeout_s
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._worker: _Worker | None = None
        self._engine: Any = None

    def __getstate__(self) -> dict[str, object]:
        return {"_python": self._python, "_timeout_s": self._timeout_s}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._python, self._timeout_s = state["_python"], state["_timeout_s"]
        self._reset()

    def call(self, op: str, spec: dict[str, object], buffers: Sequence[Any] = (), **more: object) -> list[Any]:
        """Run one operation.

        Args:
            op: its name.
            spec: description of the context.
            buffers: bytes-like, contiguous.
            more: further fields of the request's head.

        Returns:
            The reply's buffers.

        Raises:
            BackendUnavailable: no interpreter loads the library.
            BackendFailed: the library refused, the worker died or passed its deadline.
        """
        head = {"op": op, "spec": spec, **more}
        with self._lock:
            if self._python == IN_PROCESS:
                return self._call_here(head, buffers)
            return self._call_worker(head, buffers)

    def _call_here(self, head: dict[str, object], buffers: Sequence[Any]) -> list[Any]:
        if self._engine is None:
            try:
                from crypto._openfhe import worker
            except ImportError as error:
                raise BackendUnavailable(
                    f"openfhe does not load in this interpreter ({error}): leave the interpreter's name open so that a "
                    "worker process is used"
                ) from error
            self._engine = worker.Engine()
        try:
            return list(self._engine.call(head, buffers)[1])
        except Exception as error:  # the library raises what it likes; the worker's boundary does the same
            raise _refused(head, type(error).__name__, str(error)) from error

    def _call_worker(self, head: dict[str, object], buffers: Sequence[Any]) -> list[Any]:
        deadline = time.monotonic() + self._timeout_s
        if self._worker is None or self._worker.owner != os.getpid():  # a forked child must not share the pipe
            self._worker = self._start()
        try:
            reply, out = self._worker.exchange(head, buffers, deadline)
        except BaseException as error:  # also KeyboardInterrupt: half an exchange leaves the pipe out of step
            worker, self._worker = self._worker, None
            worker.close(kill=True)
            if isinstance(error, _Died):
                if self._python is not None and not worker.proven:
                    find_python(self._python)  # tells why it does not load, if that is the reason
                raise BackendFailed(
                    f"OpenFHE's worker {worker.fate()} during '{head['op']}': a call must end within "
                    f"{self._timeout_s:g} s; nothing was returned, the next call starts a new worker. "
                    f"{worker.last_words()}"
                ) from error
            raise
        if "error" in reply:
            raise _refused(head, reply["error"], reply["message"])
        return out

    def _start(self) -> "_Worker":
        """Start a worker. A named interpreter is tried by using it: a probe would load the library twice."""
        try:
            return _Worker(self._python or find_python())
        except OSError as error:
            find_python(self._python)
            raise BackendUnavailable(f"{self._python} does not start ({error}): name another interpreter") from error

    @property
    def pid(self) -> int | None:
        """The worker's process id, or ``None`` where none runs."""
        return self._worker.process.pid if self._worker is not None else None

    def close(self) -> None:
        """End the worker, if one runs."""
        with self._lock:
            worker, self._worker = self._worker, None
            if worker is not None and worker.owner == os.getpid():
                worker.close()


def _refused(head: dict[str, object], kind: str, message: str) -> BackendFailed:
    return BackendFailed(
        f"OpenFHE refused '{head['op']}' ({kind}: {message}): parameters or keys do not suit this version; "
        f"the context was {json.dumps(head['spec'])}"
    )


@lru_cache(maxsize=8)
def shared(python: str | None = None, timeout_s: float = DEFAULT_TIMEOUT_S) -> Bridge:
    """Return this process's bridge for an interpreter: roles that come and go do not each start a worker."""
    return Bridge(python, timeout_s)


class _Died(Exception):
    """The worker ended, or its deadline passed."""


class _Worker:
    """A running worker process and the pipe to it."""

    def __init__(self, python: str) -> None:
        self.owner = os.getpid()
        #: Whether it has answered, so that its interpreter loads the library.
        self.proven = False
        self._timed_out = False
        self._stderr: IO[bytes] = tempfile.TemporaryFile()
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        environment["OMP_NUM_THREADS"] = "1"
        # -I: neither the script's folder nor the working one is importable, so nothing shadows openfhe or numpy.
        self.process = subprocess.Popen(
            [python, "-I", str(_WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=environment,
            bufsize=0,
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self._in, self._out = self.process.stdin.fileno(), self.process.stdout.fileno()
        for end in (self._in, self._out):
            os.set_blocking(end, False)
        self._finalizer = weakref.finalize(self, _end, self.process, self.owner)
        logger.debug("started OpenFHE worker %d under %s", self.process.pid, python)

    def exchange(
        self, head: dict[str, object], buffers: Sequence[Any], deadline: float
    ) -> tuple[dict[str, Any], list[Any]]:
        """Send a request and return the reply's head and buffers."""
        text = json.dumps(head).encode()
        views = [memoryview(buffer).cast("B") for buffer in buffers]
        lengths = struct.pack(f"<{len(views)}Q", *[view.nbytes for view in views])
        for view in (memoryview(_HEAD.pack(len(text), len(views)) + lengths + text), *views):
            self._write(view, deadline)
        text_bytes, count = _HEAD.unpack(self._read(_HEAD.size, deadline))
        sizes = struct.unpack(f"<{count}Q", self._read(8 * count, deadline))
        reply = json.loads(self._read(text_bytes, deadline))
        out = [self._read(size, deadline) for size in sizes]
        self.proven = True
        return reply, out

    def _write(self, view: memoryview, deadline: float) -> None:
        while view.nbytes:
            try:
                view = view[os.write(self._in, view) :]
            except BlockingIOError:
                self._wait(self._in, select.POLLOUT, deadline)
            except BrokenPipeError as error:
                raise _Died from error

    def _read(self, size: int, deadline: float) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while view.nbytes:
            try:
                got = os.readv(self._out, [view])
            except BlockingIOError:
                self._wait(self._out, select.POLLIN, deadline)
                continue
            if got == 0:
                raise _Died
            view = view[got:]
        return data

    def _wait(self, end: int, event: int, deadline: float) -> None:
        poll = select.poll()
        poll.register(end, event)
        if not poll.poll(1000 * max(0.0, deadline - time.monotonic())):
            self._timed_out = True
            raise _Died

    def close(self, kill: bool = False) -> None:
        """End the process: by the end of its input, or at once."""
        if kill and not self._timed_out:
            try:  # a worker that died by itself tells by which signal
                self.process.wait(0.5)
            except subprocess.TimeoutExpired:
                pass
        if kill:
            self.process.kill()
        self._finalizer()

    def fate(self) -> str:
        """Return how the process ended, for a message."""
        if self._timed_out:
            return "passed its deadline and was killed"
        code = self.process.returncode
        return (
            f"was ended by {signal.Signals(-code).name}"
            if code is not None and code < 0
            else f"ended with status {code}"
        )

    def last_words(self) -> str:
        """Return the end of what the process wrote to its error output."""
        self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, self._stderr.tell() - 500))
        text = self._stderr.read().decode(errors="replace").strip()
        return f"It wrote: {text}" if text else "It wrote nothing."


def _end(process: "subprocess.Popen[bytes]", owner: int) -> None:
    if os.getpid() != owner:  # in a forked child the process is not ours
        return
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    try:
        process.wait(_CLOSE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
