"""Processes that live and die together."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedsim.deploy import group
from fedsim.deploy.group import Member, run_group

SLEEP = ["sh", "-c", "exec sleep 300"]


def member(name, script, **more):
    return Member(name, ["sh", "-c", script], dict(os.environ), **more)


def test_all_end_with_the_first_and_its_code_is_the_groups(caplog):
    started = time.monotonic()
    assert run_group([Member("long", SLEEP, dict(os.environ)), member("short", "exit 7")]) == 7
    assert time.monotonic() - started < 60
    assert "short ended with code 7; the others are stopped" in caplog.text


def test_a_member_that_just_ends_is_a_failure_too():
    assert run_group([member("done", "exit 0"), Member("long", SLEEP, dict(os.environ))]) == 1


def test_starts_again_after_the_codes_that_say_so(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(group, "_LONGEST_PAUSE_S", 0.01)
    count = f"n=$(cat {tmp_path}/n 2>/dev/null || echo 0); echo $((n + 1)) > {tmp_path}/n"
    script = f'{count}; [ "$n" -lt 2 ] && exit 75; exit 3'
    assert run_group([member("node", script, again=(75,), tries=9)]) == 3
    assert (tmp_path / "n").read_text().strip() == "3"
    assert "node ended with code 75 (try 2 of 9)" in caplog.text


def test_gives_up_after_so_many_tries(monkeypatch):
    monkeypatch.setattr(group, "_LONGEST_PAUSE_S", 0.01)
    assert run_group([member("node", "exit 75", again=(75,), tries=3)]) == 75


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_ends_well_when_asked_to(tmp_path, number):
    done = _group_in_a_process(tmp_path)
    done.send_signal(number)
    assert done.wait(timeout=60) == 0
    assert _gone(int((tmp_path / "pid").read_text()))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the system cannot do that")
def test_members_do_not_outlive_a_group_that_was_killed(tmp_path):
    done = _group_in_a_process(tmp_path)
    done.kill()
    done.wait()
    assert _gone(int((tmp_path / "pid").read_text()))


def _group_in_a_process(folder: Path) -> "subprocess.Popen[bytes]":
    code = (
        "import os, sys; from fedsim.deploy.group import Member, run_group; "
        f"sys.exit(run_group([Member('m', ['sh', '-c', 'echo $$ > {folder}/pid; exec sleep 300'], dict(os.environ))]))"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    end_s = time.monotonic() + 60
    while not (folder / "pid").exists() or not (folder / "pid").read_text().strip():
        assert process.poll() is None and time.monotonic() < end_s
        time.sleep(0.05)
    return process


def _gone(pid: int) -> bool:
    for _ in range(200):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        if Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z":
            return True
        time.sleep(0.1)
    return False
