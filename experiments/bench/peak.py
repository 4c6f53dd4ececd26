"""The largest resident size of this process (Linux).

Not ``ru_maxrss``: a process inherits that of the one that started it, however large that was.
"""

from pathlib import Path

__all__ = ["peak_bytes", "reset_peak"]


def reset_peak() -> int:
    """Forget this process's largest resident size and return the present one in bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak_bytes()


def peak_bytes(process: int | str = "self") -> int:
    """Return the largest resident size of a process since it began, or since :func:`reset_peak`, in bytes."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024
