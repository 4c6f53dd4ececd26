"""What can go wrong in a secure sum.

Every message has three parts: the value, the rule, the remedy.

::

    CryptoError
    |-- InputError          a value that cannot be sealed (NaN, infinity, out of bound, wrong length)
    |-- BudgetExceeded      the plan does not fit the scheme; raised before round 1
    |-- BackendUnavailable  a library that does not load here, with the reason
    |-- BackendFailed       a library that refused a call, crashed or passed its deadline
    |-- EmptySum            a total of nothing was asked for
    |-- WireError           bytes that are not a sealed vector of ours
    |   |-- IntegrityError  checksum, tag or proof does not match
    |   |-- ReplayError     of another round, or seen before
    |   |-- KeyMismatch     sealed under another key or other parameters
    |   `-- LayoutMismatch  of another layout; names the first difference

A caller that receives bytes from others catches :class:`WireError`, drops the sender and goes on.
"""


class CryptoError(Exception):
    """Base of all errors of this package."""


class InputError(CryptoError, ValueError):
    """A value that cannot be sealed: not finite, out of the declared bound, of the wrong length or type."""


class BudgetExceeded(CryptoError, ValueError):
    """The plan (length, clients, bound) does not fit the scheme's parameters; raised before round 1."""


class BackendUnavailable(CryptoError, ImportError):
    """A backend's library does not load in this interpreter; the message says why and what to install."""


class BackendFailed(CryptoError, RuntimeError):
    """A backend refused a call, crashed or passed its deadline; nothing was returned and the call may be repeated."""


class EmptySum(CryptoError, ValueError):
    """The total of no vectors was asked for."""


class WireError(CryptoError, ValueError):
    """Bytes that cannot be decoded as a sealed vector of the expected kind."""


class IntegrityError(WireError):
    """A checksum, tag or proof does not match: the bytes were damaged or forged."""


class ReplayError(WireError):
    """A sealed vector of another round, or one that was already counted."""


class KeyMismatch(WireError):
    """Sealed under another key or under other parameters."""


class LayoutMismatch(WireError):
    """Laid out differently from what the round declared; the message names the first difference."""


__all__ = [
    "BackendFailed",
    "BackendUnavailable",
    "BudgetExceeded",
    "CryptoError",
    "EmptySum",
    "InputError",
    "IntegrityError",
    "KeyMismatch",
    "LayoutMismatch",
    "ReplayError",
    "WireError",
]
