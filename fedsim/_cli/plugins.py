"""Commands that other rooms and packages add to ``fedsim``: entry points of the group ``fedsim.commands``.

The program must not import what stands on it (``experiments``), so that what is there is found by its metadata.
"""

import logging
from collections.abc import Callable
from importlib import metadata
from typing import Any

__all__ = ["commands"]

log = logging.getLogger(__name__)
_GROUP = "fedsim.commands"


def commands() -> dict[str, Callable[..., Any]]:
    """Return name -> function, as typer takes them; one that does not load is logged and left out."""
    found: dict[str, Callable[..., Any]] = {}
    for point in metadata.entry_points(group=_GROUP):
        try:
            found[point.name] = point.load()
        except Exception as error:  # noqa: BLE001 - a stranger's broken package must not take all commands away
            log.warning("command %s of %s does not load: %s", point.name, point.value, error)
    return found
