"""A file that is not on a disk, for libraries that read and write by path only."""

import os
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol


class Savable(Protocol):
    """An object that writes itself to a path."""

    def save(self, path: str, /) -> None:
        """Write to a path, replacing what is there."""


class MemoryFile:
    """An anonymous file in memory (Linux ``memfd``); elsewhere a private temporary file (0600).

    One object serves one thread. It is emptied after each use, so that no key or plaintext stays in it, and a forked
    process gets a file of its own: an inherited one would be shared with the parent.
    """

    def __init__(self) -> None:
        self._handle, self._path, self._process = -1, "", -1

    def save(self, source: Savable) -> bytes:
        """Return what `source` writes."""
        self._open()
        source.save(self._path)
        data = os.pread(self._handle, os.fstat(self._handle).st_size, 0)
        os.ftruncate(self._handle, 0)
        return data

    @contextmanager
    def holding(self, data: bytes | memoryview) -> Iterator[str]:
        """Give a path that reads as `data` within the ``with`` block."""
        self._open()
        os.pwrite(self._handle, data, 0)
        try:
            yield self._path
        finally:
            os.ftruncate(self._handle, 0)

    def _open(self) -> None:
        if self._process == os.getpid():
            return
        if hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir():
            handle, name = os.memfd_create("fedsim"), ""
        else:
            handle, name = tempfile.mkstemp(prefix="fedsim-")
        self._handle, self._path, self._process = handle, name or f"/proc/self/fd/{handle}", os.getpid()
        weakref.finalize(self, _close, handle, name, self._process)


def _close(handle: int, name: str, process: int) -> None:
    os.close(handle)
    if name and os.getpid() == process:
        Path(name).unlink(missing_ok=True)
