"""What can go wrong while a run is measured. Every message has three parts: the value, the rule, the remedy.

::

    MeasureError
    |-- LedgerError      a record that cannot be true (unknown phase, negative bytes)
    |-- RunFolderError   a folder that is not, or must not become, a run's folder
    `-- ReportError      nothing to report on
"""


class MeasureError(ValueError):
    """Base of all errors of this package."""


class LedgerError(MeasureError):
    """A record that cannot be true: an unknown phase or outcome, negative or not finite quantities."""


class RunFolderError(MeasureError):
    """A folder that is not a run's folder, or that holds something else already."""


class ReportError(MeasureError):
    """A report of nothing, or of folders that hold no run."""
