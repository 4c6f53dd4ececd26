"""A pytest plugin (``-p tests.sanitized``): takes the compiled module from the file FEDSIM_SANITIZED_MODULE.

Loaded by scripts/sanitize.sh only, before anything imports ``crypto``.
"""

import importlib.util
import os
import sys

_PATH = os.environ["FEDSIM_SANITIZED_MODULE"]
_SPEC = importlib.util.spec_from_file_location("crypto._native", _PATH)
assert _SPEC is not None and _SPEC.loader is not None, _PATH
_MODULE = importlib.util.module_from_spec(_SPEC)
sys.modules["crypto._native"] = _MODULE
_SPEC.loader.exec_module(_MODULE)


def pytest_report_header() -> str:
    """Say which module is tested, so that a run of the wrong one is seen."""
    from crypto import _native

    assert _native is _MODULE
    with open(_PATH, "rb") as file:
        assert b"__asan_init" in file.read(), f"{_PATH} was built without FEDSIM_SANITIZE=ON"
    return f"compiled module under sanitizers: {_PATH}"
