"""The keys of a simulated run that is not finished, kept beside the runs so that it can go on.

``runs/.keys/NAME/`` holds a folder for each side, closed to others, while the run ``runs/NAME`` goes on or was cut off,
and is removed when it finishes. It is no part of the run's folder, which may be shared.
"""

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedsim.errors import FedsimError
from fedsim.protections import KeyRing

_SIDES = ("server", "clients")


def kept_at(run: Path) -> Path:
    """Return where the keys of a run's folder are kept."""
    return run.parent / ".keys" / run.name


def has_keys(run: Path) -> bool:
    """Tell whether the keys of a run's folder are kept."""
    return all((kept_at(run) / side).is_dir() for side in _SIDES)


def find_keys(run: Path) -> KeyRing:
    """Return the kept keys of a run.

    Raises:
        FedsimError: there are none.
    """
    folder = kept_at(run)
    if not has_keys(run):
        raise FedsimError(
            f"{folder} holds no keys: only the clients' own keys open the model of {run}; bring the folder back, or "
            "start the run anew under another name"
        )
    return KeyRing(*(str(folder / side) for side in _SIDES))


@contextmanager
def kept(keys: KeyRing, run: Path) -> Iterator[KeyRing]:
    """Move a run's keys to where they are kept, and remove them at the end of a block that does not raise."""
    folder = kept_at(run)
    if keys.server is not None and keys.clients is not None and Path(keys.clients).parent != folder:
        _move((keys.server, keys.clients), folder)
    yield KeyRing(*(str(folder / side) for side in _SIDES))
    # They may be gone already: whoever removed them did what is done here.
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        # Not while other runs keep theirs there.
        folder.parent.rmdir()


def _move(sides: Iterable[str], folder: Path) -> None:
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Of an earlier run of this name, whose folder is gone.
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        for side, path in zip(_SIDES, sides, strict=True):
            shutil.move(path, folder / side)
    except OSError as error:
        # A part of the keys opens nothing. Of a failed copy shutil tells the reasons of all files.
        shutil.rmtree(folder, ignore_errors=True)
        reason = error.strerror or str(error.args[0][0][-1] if isinstance(error, shutil.Error) else error)
        raise FedsimError(
            f"{folder}: the run's keys cannot be kept there ({reason}); make room, or set output.folder elsewhere, and "
            "start the run anew under another name"
        ) from error
