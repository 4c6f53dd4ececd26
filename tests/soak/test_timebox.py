"""A soak that has no time left is no failure, and one night after the other comes to all of its tests."""

import os
import subprocess
import sys

TESTS = """
import pytest

@pytest.mark.parametrize("number", range(6))
def test_it(number):
    assert True
"""


def soak(folder, seconds, seed):
    """Run six tests under the plugin; return the exit code and what was said."""
    (folder / "test_six.py").write_text(TESTS)
    words = ["-p", "tests.soak.timebox", "-p", "no:cacheprovider", "-v", "-rs", "--rootdir", str(folder)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, str(folder / "test_six.py")],
        capture_output=True,
        text=True,
        env={**os.environ, "FEDSIM_SOAK_S": str(seconds), "FEDSIM_SOAK_SEED": str(seed)},
        check=False,
    )
    return done.returncode, done.stdout


def order(said):
    return [line.split("[")[1][0] for line in said.splitlines() if "::test_it[" in line and "PASSED" in line]


def test_what_there_is_no_time_for_is_skipped_and_counted(tmp_path):
    code, said = soak(tmp_path, 0, 1)
    assert code == 0 and "6 skipped" in said and "the 0 s of this soak are over" in said


def test_the_seed_orders_the_tests(tmp_path):
    first, again, other = (order(soak(tmp_path, 1000, seed)[1]) for seed in (1, 1, 2))
    assert sorted(first) == list("012345") and first == again != other
