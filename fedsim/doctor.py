"""Examines a machine: what a run needs, what is there, and what to do about the rest.

Backends are tried in a process of their own: a library built for another processor ends its process, not ours.
"""

import importlib
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

Status = Literal["ok", "warning", "missing", "failed"]
#: Tries to import a module: returns (True, version) or (False, reason).
Probe = Callable[[str], tuple[bool, str]]

PROBE_TIMEOUT_S = 120
#: Instruction sets that our kernels or the backends use, as /proc/cpuinfo names them.
CPU_FLAGS = ("aes", "pclmulqdq", "avx2", "vaes", "avx512f", "sha_ni", "sha2", "asimd")
MIN_DISK_BYTES = 1 << 30
MIN_MEMORY_BYTES = 2 << 30
#: Ray copies arrays through /dev/shm; Docker's default of 64 MB makes it fall back to disk.
MIN_SHM_BYTES = 256 << 20

REQUIRED = {"torch": "torch", "flwr": "flwr", "ray": "ray", "numpy": "numpy", "sklearn": "scikit-learn"}
OPTIONAL = {
    "tenseal": ("ckks, bfv", "pip install 'fedsim[tenseal]'"),
    "dp_accounting": ("cross-checks of the privacy accountant", "pip install 'fedsim[privacy]'"),
    "flwr_datasets": ("Hugging Face data sets and cross-checks of the partitioners", "pip install 'fedsim[datasets]'"),
    "torchvision": ("torchvision's data sets", "pip install 'fedsim[vision]'"),
}
OPENFHE_REMEDY = (
    "`make openfhe`, or name an interpreter that imports openfhe in FEDSIM_OPENFHE_PYTHON or protection.interpreter"
)


@dataclass(frozen=True, slots=True)
class Check:
    """One finding.

    Attributes:
        name: what was looked at.
        status: ``ok``; ``warning`` (works, but); ``missing`` (optional); ``failed`` (a run will not work).
        detail: what was found.
        remedy: what to do, empty if nothing.
    """

    name: str
    status: Status
    detail: str
    remedy: str = ""


def import_probe(module: str) -> tuple[bool, str]:
    """Import a module in a fresh process.

    Returns:
        Whether it worked, and the version or the last line of what went wrong.
    """
    code = f"import {module} as m; print(getattr(m, '__version__', 'unknown version'))"
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return False, f"did not load within {PROBE_TIMEOUT_S} s"
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    if done.returncode < 0:
        return False, f"ended its process with signal {-done.returncode}; it may be built for another processor"
    return done.returncode == 0, lines[-1] if lines else f"exit code {done.returncode}"


def openfhe_probe() -> tuple[bool, str]:
    """Find an interpreter that loads OpenFHE; return whether there is one, and its path or the reason."""
    try:
        found = importlib.import_module("crypto._openfhe.find").find_python()
    except ImportError as error:
        return False, str(error)
    where = "in this interpreter" if found == sys.executable else f"through {found}"
    return True, where


def backend_missing(backend: str, probe: Probe = import_probe) -> str:
    """Return why a backend of :attr:`Protection.needs` does not load here, or an empty text."""
    loads, detail = openfhe_probe() if backend == "openfhe" else probe(backend)
    return "" if loads else f"{backend}: {detail}"


def examine(folder: Path, probe: Probe = import_probe) -> list[Check]:
    """Look at everything.

    Args:
        folder: where runs are kept; need not exist.
        probe: how to try an import.
    """
    return [
        check_python(sys.version_info[:3]),
        check_processor(cpu_flags()),
        check_native(),
        *(check_required(module, package, probe) for module, package in REQUIRED.items()),
        *(check_optional(module, probe) for module in OPTIONAL),
        check_openfhe(openfhe_probe),
        check_memory(psutil.virtual_memory().available),
        check_shm(Path("/dev/shm")),
        check_disk(folder),
    ]


def check_python(version: tuple[int, int, int]) -> Check:
    """Check the interpreter's version."""
    text = ".".join(map(str, version))
    if (3, 11) <= version[:2] < (3, 14):
        return Check("python", "ok", f"{text}, {platform.machine()}, {platform.platform()}")
    return Check("python", "failed", f"{text} must be at least 3.11 and below 3.14", "install python3.12")


def cpu_flags(path: Path = Path("/proc/cpuinfo")) -> list[str]:
    """Return those of :data:`CPU_FLAGS` that this processor has; empty where the system does not say."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    found = {flag for line in lines if line.lower().startswith(("flags", "features")) for flag in line.split()}
    return [flag for flag in CPU_FLAGS if flag in found]


def check_processor(flags: list[str]) -> Check:
    """Check for AES instructions, without which the native kernels fall back to slow code."""
    cores = psutil.cpu_count() or 1
    detail = f"{cores} cores, {' '.join(flags) or 'instruction sets unknown'}"
    if flags and "aes" not in flags:
        return Check("processor", "warning", f"{detail}: no AES instructions", "preamble runs, but slowly")
    return Check("processor", "ok", detail)


def check_native() -> Check:
    """Check the compiled module, and say which instruction set it uses."""
    try:
        native = importlib.import_module("crypto._native")
    except ImportError as error:
        return Check("crypto._native", "failed", str(error), "reinstall: `pip install .` needs a C++20 compiler")
    if not hasattr(native, "isa"):
        return Check("crypto._native", "ok", "loads")
    try:
        return Check("crypto._native", "ok", f"uses {native.isa()} of {', '.join(native.isas())}")
    except ValueError as error:
        return Check("crypto._native", "failed", str(error), "unset FEDSIM_ISA, or name one that this processor has")


def check_required(module: str, package: str, probe: Probe) -> Check:
    """Check a package that every run needs."""
    loads, detail = probe(module)
    if loads:
        return Check(package, "ok", detail)
    return Check(package, "failed", detail, f"pip install -c constraints.txt {package}")


def check_optional(module: str, probe: Probe) -> Check:
    """Check a package that some choices need."""
    purpose, remedy = OPTIONAL[module]
    loads, detail = probe(module)
    return Check(module, "ok", detail) if loads else Check(module, "missing", f"{detail} (for {purpose})", remedy)


def check_openfhe(find: Callable[[], tuple[bool, str]]) -> Check:
    """Check for an interpreter that loads OpenFHE."""
    loads, detail = find()
    if loads:
        return Check("openfhe", "ok", detail)
    return Check("openfhe", "missing", f"{detail} (for openfhe-ckks, openfhe-bgv, openfhe-threshold)", OPENFHE_REMEDY)


def check_memory(available_bytes: int) -> Check:
    """Check free memory."""
    detail = f"{available_bytes / 1e9:.1f} GB available"
    if available_bytes < MIN_MEMORY_BYTES:
        return Check("memory", "warning", detail, "set engine.workers = 1, or close other programs")
    return Check("memory", "ok", detail)


def check_shm(path: Path) -> Check:
    """Check the shared memory through which Ray passes arrays."""
    if not path.exists():
        return Check("shared memory", "ok", "this system has no /dev/shm; Ray uses its own folder")
    total = shutil.disk_usage(path).total
    if total < MIN_SHM_BYTES:
        remedy = f"start the container with --shm-size={MIN_SHM_BYTES >> 20}m or more, or use engine.name = inline"
        return Check("shared memory", "warning", f"{total / 1e6:.0f} MB in {path}", remedy)
    return Check("shared memory", "ok", f"{total / 1e9:.1f} GB in {path}")


def check_disk(folder: Path) -> Check:
    """Check free space, and that one can write, where runs are kept."""
    here = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    free = shutil.disk_usage(here).free
    detail = f"{free / 1e9:.1f} GB free in {here}"
    if not here.is_dir():
        return Check("disk", "failed", f"{here} is not a folder", "set output.folder to a folder")
    if free < MIN_DISK_BYTES:
        return Check("disk", "warning", detail, "free some space, or set output.folder elsewhere")
    return Check("disk", "ok", detail)
