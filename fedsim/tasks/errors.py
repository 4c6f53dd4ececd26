"""What can go wrong with a task.

Every message has three parts: the value, the rule, the remedy.

::

    TaskError
    |-- UnknownName          no data set, scheme or model has this name
    |-- BadOption            an option that is unknown, of the wrong type or out of range
    |-- DataUnavailable      a data set whose files are not on this machine; says how to get them
    |-- InfeasiblePartition  no split keeps the promised limits; names them
    `-- EmptyClient          training or evaluation on no examples was asked for
"""


class TaskError(Exception):
    """Base of all errors of this package."""


class UnknownName(TaskError, ValueError):
    """No data set, partition scheme or model has this name; the message lists those that exist."""


class BadOption(TaskError, ValueError):
    """An option that is unknown, of the wrong type or out of its range."""


class DataUnavailable(TaskError, RuntimeError):
    """The files of a data set are not on this machine; the message says what to install."""


class InfeasiblePartition(TaskError, ValueError):
    """No split of these examples keeps the limits that were asked for; the message names them."""


class EmptyClient(TaskError, ValueError):
    """A client without examples was asked to train or to evaluate; skip it and record its absence."""
