"""A process's own peak, not that of the process that started it."""

import mmap
import os
import subprocess
import sys

from experiments.bench.peak import peak_bytes, reset_peak

SIZE = 200_000_000


def test_the_peak_stays_after_the_memory_is_given_back() -> None:
    before = reset_peak()
    with mmap.mmap(-1, SIZE) as pages:
        pages.write(bytes(SIZE))
    assert peak_bytes() - before >= 0.95 * SIZE
    assert peak_bytes() - reset_peak() >= SIZE // 2


def test_a_child_has_a_peak_of_its_own() -> None:
    with mmap.mmap(-1, SIZE) as pages:
        pages.write(bytes(SIZE))
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        try:
            assert 0 < peak_bytes(child.pid) < SIZE < peak_bytes(os.getpid())
        finally:
            child.communicate(b"\n")
