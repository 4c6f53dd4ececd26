"""Which interpreter can load OpenFHE.

Its wheels exist for CPython 3.10 and 3.12 and want a recent C library, so only a try tells. In order: the interpreter
that was named, the environment variable, this one, the environment that ``make openfhe`` prepared, then CPython 3.12
and 3.10 on the path and under pyenv.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from crypto.errors import BackendUnavailable

#: Names an interpreter; nothing else is tried then.
VARIABLE = "FEDSIM_OPENFHE_PYTHON"
_PROBE = "import numpy, openfhe; openfhe.CCParamsBGVRNS()"
_PROBE_TIMEOUT_S = 60
_REMEDY = f"run `make openfhe`, or name a CPython 3.10 or 3.12 that imports openfhe and numpy in {VARIABLE}"


def find_python(named: str | None = None) -> str:
    """Return the first interpreter that loads the library.

    Args:
        named: the only one to try; ``None`` searches.

    Raises:
        BackendUnavailable: none does; lists what was tried with the reason for each.
    """
    only = named or os.environ.get(VARIABLE)
    tried: dict[str, str] = {}
    for path in [only] if only else candidates():
        if path in tried:
            continue
        reason = why_not(path)
        if reason is None:
            return path
        tried[path] = reason
    reasons = "; ".join(f"{path}: {reason}" for path, reason in tried.items()) or "no candidate found"
    raise BackendUnavailable(f"no interpreter loads openfhe ({reasons}): {_REMEDY}")


def candidates() -> Iterator[str]:
    """Yield interpreters worth trying, most likely first; see the module docstring."""
    yield sys.executable
    homes = (Path.cwd(), Path(__file__).resolve().parents[2])
    found = [home / ".openfhe" / "bin" / "python" for home in homes]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for version in ("3.12", "3.10"):
        on_path = shutil.which(f"python{version}")
        found += [Path(on_path)] if on_path else []
        found += sorted(pyenv.glob(f"{version}*/bin/python"))
    yield from (str(path) for path in found if path.is_file())


def why_not(path: str) -> str | None:
    """Return why an interpreter cannot load the library, in one line, or ``None`` if it can."""
    try:
        done = subprocess.run([path, "-I", "-c", _PROBE], capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{type(error).__name__}: {error}"
    if done.returncode == 0:
        return None
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"exit status {done.returncode}"
