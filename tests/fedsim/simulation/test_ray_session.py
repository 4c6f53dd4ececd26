"""The rules of a private Ray that need no Ray."""

import os
import signal
import stat
import subprocess
import sys

import pytest

from fedsim.simulation.environment import private_folder, worker_environment
from fedsim.simulation.ray_session import MIN_STORE_BYTES, choose_store_bytes, uninterrupted

GB = 2**30


@pytest.mark.report("U68", "the store is sized to what is free; too little is refused with the size that is needed")
def test_the_store_fits_in_shm_and_in_memory() -> None:
    assert choose_store_bytes(10 * GB, 10 * GB, None) == 3 * GB
    assert choose_store_bytes(1 * GB, 100 * GB, None) == 6 * GB // 10
    assert choose_store_bytes(None, 10 * GB, None) == 3 * GB
    assert choose_store_bytes(1 * GB, 10 * GB, MIN_STORE_BYTES) == MIN_STORE_BYTES


@pytest.mark.report("U68")
@pytest.mark.parametrize(("shm", "wanted"), [(64 * 2**20, None), (64 * 2**20, 128 * 2**20), (GB, 2 * GB), (GB, 1)])
def test_refuses_a_store_that_does_not_fit(shm, wanted) -> None:
    with pytest.raises(ValueError, match=rf"{shm >> 20} MB free in /dev/shm.*--shm-size=2g.*inline engine"):
        choose_store_bytes(shm, 10 * GB, wanted)


def test_the_folder_is_private_and_short(tmp_path) -> None:
    folder = private_folder(str(tmp_path / ("x" * 60)))
    try:
        assert str(folder).startswith("/tmp/fs-") and stat.S_IMODE(folder.stat().st_mode) == 0o700
    finally:
        os.rmdir(folder)


@pytest.mark.report("U25", "one thread a worker, set before the library is loaded")
def test_workers_send_no_telemetry_and_have_their_threads() -> None:
    environment = worker_environment(3)
    assert environment["FLWR_TELEMETRY_ENABLED"] == environment["RAY_USAGE_STATS_ENABLED"] == "0"
    assert environment["OMP_NUM_THREADS"] == "3"


def test_the_package_imports_ray_only_where_it_is_used() -> None:
    code = "import sys, fedsim.simulation.worker, fedsim.simulation.grid; print('ray' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "False"


def test_a_second_interrupt_does_not_cut_the_cleaning_up_short() -> None:
    # As in a terminal: what starts tests in the background has SIGINT ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with uninterrupted():
            os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
