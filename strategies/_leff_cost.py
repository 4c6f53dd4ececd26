"""What a client's round costs under LEFF, in units of one block on one batch (forward = 1).

With p and q blocks in the students below and above a window of n: forward through all, activation gradients through
the window and what is above it, weight gradients in the window. The students below need no backward at all; those
above do, although they are frozen. Full training of L blocks costs 3 L.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """Block passes of one batch.

    Attributes:
        forward, activation_gradients, weight_gradients: counts of blocks.
    """

    forward: int
    activation_gradients: int
    weight_gradients: int

    @property
    def units(self) -> int:
        """All three together."""
        return self.forward + self.activation_gradients + self.weight_gradients


def batch_cost(below: int, window: int, above: int) -> Cost:
    """Return what one batch costs: ``(p + n + q) + (n + q) + n``."""
    return Cost(below + window + above, window + above, window)


def simulated_s(
    units: float, batches: int, speed: float, bytes_down: float, bytes_up: float, down_bps: float, up_bps: float
) -> float:
    """Return the seconds of one client's round: computing and both ways of the network, one after the other.

    Args:
        units: of one batch, see :func:`batch_cost`; or any other unit of work.
        batches: of the round.
        speed: units a second.
        bytes_down, bytes_up: of the messages.
        down_bps, up_bps: bytes a second.
    """
    return batches * units / speed + bytes_down / down_bps + bytes_up / up_bps
