"""Errors of devices, clocks and drills.

* :class:`BadTrace` (a `ValueError`)
"""


class BadTrace(ValueError):
    """A file of devices, or of the times at which clients are there, cannot be used; names file, row and rule."""


__all__ = ["BadTrace"]
