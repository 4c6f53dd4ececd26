"""A pytest plugin (``-p tests.soak.timebox``): the tests of a soak in an order of its own, as many as fit.

FEDSIM_SOAK_S says for how many seconds tests are begun, FEDSIM_SOAK_SEED how they are ordered, so that one night after
the other comes to all of them. What there was no time for is skipped and counted, and no failure.
"""

import os
import random
import time

import pytest

SECONDS = float(os.environ.get("FEDSIM_SOAK_S", "inf"))
SEED = int(os.environ.get("FEDSIM_SOAK_SEED", "0"))
BEGUN = time.monotonic()


def pytest_report_header() -> str:
    """Say which order it is."""
    return f"soak: tests are begun for {SECONDS:g} s, in the order of FEDSIM_SOAK_SEED={SEED}"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests into the order of the seed."""
    random.Random(SEED).shuffle(items)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test when the time is over."""
    if time.monotonic() - BEGUN >= SECONDS:
        pytest.skip(f"the {SECONDS:g} s of this soak are over")
