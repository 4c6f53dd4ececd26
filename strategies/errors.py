"""What can go wrong in a federated round.

::

    StrategyError
    |-- EmptyRound       no client delivered anything that counts
    |-- TooFewReplies    fewer clients delivered than `min_replies`
    |   `-- CommitteeIncomplete  a member of the committee that opens the sum did not answer
    |-- HelperLost       the second aggregator does not answer, or refuses to go on
    |-- NoSuchNodes      the federation has fewer nodes than the plan needs
    |-- Disagreement     clients that must hold the same state do not
    |-- Diverged         the new global model would hold NaN or infinity
    `-- Incompatible     a strategy and a protection that make no sense together
"""


class StrategyError(Exception):
    """Base of the errors of this package."""


class EmptyRound(StrategyError, ValueError):
    """All clients failed, were rejected, or had no samples; the global model is unchanged."""


class TooFewReplies(StrategyError, RuntimeError):
    """Fewer clients delivered than the configuration demands; the global model is that of the last good round."""


class CommitteeIncomplete(TooFewReplies):
    """A member of the committee did not answer, so the round's sum stays sealed; the model is the last good round's."""


class HelperLost(StrategyError, RuntimeError):
    """The second aggregator does not answer or refuses the round; the global model is that of the last good round."""


class NoSuchNodes(StrategyError, RuntimeError):
    """Fewer nodes are connected than the plan needs, and the wait is over."""


class Disagreement(StrategyError, RuntimeError):
    """Clients that decide together what they send hold different states; nothing of the round was applied."""


class Diverged(StrategyError, ArithmeticError):
    """The new global model would hold NaN or infinity; the model is that of the last good round."""


class Incompatible(StrategyError, ValueError):
    """A strategy and a protection that make no sense together; raised before round 1."""


__all__ = [
    "CommitteeIncomplete",
    "Disagreement",
    "Diverged",
    "EmptyRound",
    "HelperLost",
    "Incompatible",
    "NoSuchNodes",
    "StrategyError",
    "TooFewReplies",
]
