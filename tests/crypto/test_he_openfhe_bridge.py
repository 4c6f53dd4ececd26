"""The worker process: found, started, crashed, hung, refused, ended with its owner."""

import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from crypto._openfhe import find
from crypto._openfhe.bridge import IN_PROCESS, Bridge
from crypto._openfhe.params import Ring
from crypto.errors import BackendFailed, BackendUnavailable

try:
    PYTHON, REASON = find.find_python(), ""
except BackendUnavailable as error:
    PYTHON, REASON = "", str(error)
needs_library = pytest.mark.skipif(bool(REASON), reason=f"OPENFHE IS NOT TESTED HERE: {REASON}")

ROOT = Path(find.__file__).parents[2]
SPEC = Ring("bgv", 2048, 54, plain_bits=31).spec()


def gone(pid: int, within_s: float) -> bool:
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").exists() and Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


def fake_interpreter(folder: Path, behaviour: str) -> str:
    """An interpreter that passes the probe and then, as a worker, misbehaves."""
    path = folder / "python"
    path.write_text(f'#!/bin/sh\n[ "$2" = -c ] && exit 0\n{behaviour}\n')
    path.chmod(0o755)
    return str(path)


def test_a_named_interpreter_that_fails_is_reported_with_reason_and_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BackendUnavailable, match="/nonexistent/python: FileNotFoundError.*make openfhe"):
        find.find_python("/nonexistent/python")
    monkeypatch.setenv(find.VARIABLE, "/nowhere")
    with pytest.raises(BackendUnavailable, match="no interpreter loads openfhe .*FEDSIM_OPENFHE_PYTHON"):
        Bridge().call("open", SPEC)


@pytest.mark.report("U26")
def test_an_interpreter_without_the_library_says_why(tmp_path: Path) -> None:
    path = fake_interpreter(tmp_path, "")
    Path(path).write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'openfhe'\" >&2\nexit 1\n")
    assert find.why_not(path) == "ModuleNotFoundError: No module named 'openfhe'"


@pytest.mark.report("T9", "the interpreter is tried by using the library; if that fails, the reason is shown")
def test_a_named_interpreter_is_tried_by_using_it_and_explained_if_that_fails(tmp_path: Path) -> None:
    path = fake_interpreter(tmp_path, "")
    Path(path).write_text(
        '#!/bin/sh\necho "$2" >> calls\necho "ImportError: no openfhe" >&2\nexit 1\n'.replace(
            "calls", str(tmp_path / "calls")
        )
    )
    with pytest.raises(BackendUnavailable, match="ImportError: no openfhe.*make openfhe"):
        Bridge(path, timeout_s=60).call("open", SPEC)
    first, probe = (tmp_path / "calls").read_text().splitlines()
    assert first.endswith("worker.py") and probe == "-c"
    with pytest.raises(BackendUnavailable, match="/nonexistent/python: FileNotFoundError"):
        Bridge("/nonexistent/python").call("open", SPEC)


def test_a_crash_becomes_an_error_that_names_the_signal(tmp_path: Path) -> None:
    bridge = Bridge(fake_interpreter(tmp_path, "echo last words >&2; kill -SEGV $$"), timeout_s=60)
    with pytest.raises(BackendFailed, match=r"ended by SIGSEGV during 'open'.*last words"):
        bridge.call("open", SPEC, [bytes(1 << 20)])
    assert bridge.pid is None


def test_a_worker_that_leaves_becomes_an_error(tmp_path: Path) -> None:
    bridge = Bridge(fake_interpreter(tmp_path, "exit 3"), timeout_s=60)
    with pytest.raises(BackendFailed, match="ended with status 3"):
        bridge.call("open", SPEC)


@pytest.mark.parametrize("request_bytes", [0, 1 << 22])
def test_a_worker_that_hangs_is_killed_at_the_deadline(tmp_path: Path, request_bytes: int) -> None:
    bridge = Bridge(fake_interpreter(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 600"), timeout_s=1.0)
    with pytest.raises(BackendFailed, match="passed its deadline and was killed"):
        bridge.call("open", SPEC, [bytes(request_bytes)])
    if (tmp_path / "pid").exists():
        assert gone(int((tmp_path / "pid").read_text()), 10)


@needs_library
def test_after_a_crash_the_next_call_starts_a_new_worker() -> None:
    bridge = Bridge(PYTHON)
    bridge.call("open", SPEC)
    first = bridge.pid
    assert first is not None
    os.kill(first, signal.SIGSEGV)
    with pytest.raises(BackendFailed, match="SIGSEGV"):
        bridge.call("keygen", SPEC)
    public, secret = bridge.call("keygen", SPEC)
    assert bridge.pid not in (None, first) and len(public) == 2 * len(secret) == 2 * 8 * 2048
    last = bridge.pid
    bridge.close()
    assert last is not None and gone(last, 10) and bridge.pid is None


@needs_library
def test_a_refusal_of_the_library_keeps_the_worker() -> None:
    bridge = Bridge(PYTHON)
    bridge.call("open", SPEC)
    pid = bridge.pid
    with pytest.raises(BackendFailed, match="does not choose the moduli"):
        bridge.call("open", {**SPEC, "moduli": [17957360924307457]})
    with pytest.raises(BackendFailed, match="unknown operation 'nothing'"):
        bridge.call("nothing", SPEC)
    with pytest.raises(BackendFailed, match="OpenFHE refused 'decrypt'"):
        bridge.call("decrypt", SPEC, [b"12345678", b"1234567"])
    too_large = np.full(2 * 2048, 2**60, np.uint64)
    with pytest.raises(BackendFailed, match="below the moduli"):
        bridge.call("decrypt", SPEC, [np.zeros(2048, np.uint64), too_large])
    bridge.call("open", SPEC)
    assert bridge.pid == pid
    bridge.close()


@pytest.mark.report("U25")
@needs_library
def test_a_copy_starts_its_own_worker_and_threads_are_pinned() -> None:
    bridge = Bridge(PYTHON)
    bridge.call("open", SPEC)
    copy = pickle.loads(pickle.dumps(bridge))
    assert copy.pid is None
    copy.call("open", SPEC)
    assert copy.pid != bridge.pid
    environment = Path(f"/proc/{bridge.pid}/environ")
    if environment.exists():
        assert b"OMP_NUM_THREADS=1" in environment.read_bytes().split(b"\0")
    for each in (bridge, copy):
        each.close()


OWNER = """
import os, sys, time
from crypto._openfhe.bridge import Bridge
from crypto._openfhe.params import Ring
bridge = Bridge(sys.argv[1])
bridge.call("open", Ring("bgv", 2048, 54, plain_bits=31).spec())
child = os.fork() if sys.argv[2] == "fork" else -1
if child == 0:
    time.sleep(60)
    os._exit(0)
print(bridge.pid, child, flush=True)
time.sleep(60)
"""


@needs_library
@pytest.mark.parametrize("how", ["alone", "fork"])
def test_the_worker_ends_with_its_owner(how: str) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, PYTHON, how], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    worker, child = (int(word) for word in owner.stdout.readline().split())
    owner.kill()
    owner.wait()
    try:
        assert gone(worker, 15)
    finally:
        if child > 0:
            os.kill(child, signal.SIGKILL)
        owner.stdout.close()


def test_in_process_refuses_where_the_library_does_not_load() -> None:
    code = (
        "import sys; sys.modules['openfhe'] = None\n"
        "from crypto._openfhe.bridge import Bridge\n"
        "from crypto.errors import BackendUnavailable\n"
        "try: Bridge('in-process').call('open', {})\n"
        "except BackendUnavailable as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert "does not load in this interpreter" in done.stdout, done.stderr


HERE = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from crypto._openfhe.bridge import IN_PROCESS, Bridge
from crypto._openfhe.params import Ring
ring, bridge = Ring("bgv", 2048, 54, plain_bits=31), Bridge(IN_PROCESS)
public, secret = bridge.call("keygen", ring.spec())
values = np.arange(-2048, 2048)
sealed = bridge.call("seal", ring.spec(), [public, values], public=True)[0]
print(np.array_equal(bridge.call("decrypt", ring.spec(), [secret, sealed])[0], values), bridge.pid)
"""


@needs_library
def test_the_same_calls_work_in_the_process_that_can_load_it() -> None:
    done = subprocess.run([PYTHON, "-I", "-c", HERE, str(ROOT)], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["True", "None"], done.stderr
    assert IN_PROCESS == "in-process"
