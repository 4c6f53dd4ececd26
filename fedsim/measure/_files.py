"""Files that are there whole or not at all."""

import json
import math
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


@contextmanager
def atomic(path: Path) -> Iterator[IO[bytes]]:
    """Yield a binary file that takes the place of `path` when the block ends, and vanishes if it raises.

    A reader, or a run that is killed half way, sees the old content or the new one, never a part.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically; a lone surrogate becomes its escape."""
    with atomic(path) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically, keys in the order given, NaN as null and infinities as strings."""
    write_text(path, json.dumps(plain_json(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def plain_json(value: Any) -> Any:
    """Return `value` with everything that JSON cannot say replaced: numpy numbers, NaN, infinities, paths."""
    if isinstance(value, dict):
        return {str(key): plain_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain_json(item) for item in value]
    if hasattr(value, "tolist"):
        return plain_json(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _umask() -> int:
    """Return the process's umask; the system tells it only by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
