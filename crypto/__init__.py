"""Secure sums over flat float vectors.

Knows numpy and cryptographic libraries; nothing of learning, torch, flwr or ray. The contract that every secure
sum keeps is in :mod:`crypto.base`; backends live in modules of their own and are never imported from here.
"""

from crypto.base import Adder, Budget, Opener, Sealer, SecureSum
from crypto.errors import (
    BackendUnavailable,
    BudgetExceeded,
    CryptoError,
    EmptySum,
    InputError,
    IntegrityError,
    KeyMismatch,
    LayoutMismatch,
    ReplayError,
    WireError,
)
from crypto.packing import Layout, Segment

__all__ = [
    "Adder",
    "BackendUnavailable",
    "Budget",
    "BudgetExceeded",
    "CryptoError",
    "EmptySum",
    "InputError",
    "IntegrityError",
    "KeyMismatch",
    "Layout",
    "LayoutMismatch",
    "Opener",
    "ReplayError",
    "Sealer",
    "SecureSum",
    "Segment",
    "WireError",
]
