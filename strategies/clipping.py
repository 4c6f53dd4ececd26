"""A bound on the norm of each client's change: honest clients keep it, and a server that sees updates checks it.

Norm clipping is the usual defence against model replacement (Sun et al. 2019, "Can you really backdoor federated
learning?", section 4): whatever one of n clients sends, it moves the mean by at most norm / n under equal weights.
"""

from dataclasses import dataclass

import numpy as np

from crypto import WireError
from crypto.base import Tag
from crypto.packing import Layout
from crypto.plain import read_part
from strategies.plan import Weighting
from strategies.records import NamedArrays

#: The plan's extra that tells clients the bound.
CLIP_NORM = "clip-norm"
#: The server allows for the rounding of float32 values.
_SLACK = 1e-5


def clip_change(
    before: NamedArrays, after: NamedArrays, names: tuple[str, ...], limit: float
) -> tuple[NamedArrays, float]:
    """Return `after` moved towards `before` until the change has at most this L2 norm, and the factor in (0, 1].

    Args:
        before, after: the model before and after training; not modified.
        names: arrays that travel; the norm is over those of them that hold floats, counters pass as they are.
        limit: largest norm, positive.
    """
    floats = [name for name in names if after.arrays[name].dtype.kind == "f"]
    changes = {n: after.arrays[n].astype(np.float64) - before.arrays[n].astype(np.float64) for n in floats}
    norm = float(np.sqrt(sum(float(np.vdot(change, change)) for change in changes.values())))
    # What is not finite is named with its place when the vector is laid out.
    if not norm > limit or not np.isfinite(norm):
        return after, 1.0
    factor = limit / norm
    moved = {
        name: (before.arrays[name].astype(np.float64) + factor * change).astype(after.arrays[name].dtype)
        for name, change in changes.items()
    }
    return NamedArrays({**after.arrays, **moved}, after.dtypes), factor


@dataclass(frozen=True, slots=True)
class NormLimit:
    """What a server checks of each plain update; picklable, so that workers check their own clients.

    Attributes:
        norm: largest L2 norm of a change.
        weighting: how clients are weighted.
        weight_scale: divides the number of examples.
        floats: from where to where the vector holds floats.
    """

    norm: float
    weighting: Weighting
    weight_scale: float
    floats: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, layout: Layout, norm: float, weighting: Weighting, weight_scale: float) -> "NormLimit":
        """Return the limit for a round's layout."""
        found, at = [], 0
        for segment in layout.segments:
            if segment.dtype.startswith(("float", "bfloat")):
                found.append((at, at + segment.size))
            at += segment.size
        return cls(norm, weighting, weight_scale, tuple(found))

    def check(self, part: bytes, tag: Tag, examples: float) -> None:
        """Look at a client's part of a plain sum.

        Raises:
            WireError: it is longer than its weight allows, or no part of the round.
        """
        values = read_part(part, tag).astype(np.float64)
        weight = 1.0 if self.weighting == "uniform" else examples / self.weight_scale
        norm = float(np.sqrt(sum(float(np.vdot(values[a:b], values[a:b])) for a, b in self.floats))) / weight
        if not norm <= self.norm * (1 + _SLACK):
            raise WireError(f"change of norm {norm:.3g}: at most {self.norm:g} counts (federation.update_norm)")


__all__ = ["CLIP_NORM", "NormLimit", "clip_change"]
