"""When clients are there: always, in a share of the rounds, or at the times of a trace."""

import bisect
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from fedsim.simulation.devices import Device, read_rows, whole
from fedsim.simulation.errors import BadTrace

__all__ = ["Always", "InRounds", "Presence", "Traced", "read_presence"]

Interval = tuple[float, float]


class Presence(ABC):
    """Who is there at which time."""

    #: Whether a client may go away in the middle of its turn.
    leaves = False

    @abstractmethod
    def there(self, server_round: int, now_s: float, clients: Sequence[int]) -> Collection[int]:
        """Return who can be asked; at least one."""

    def wait_s(self, now_s: float, clients: Sequence[int]) -> float:
        """Return how long to wait until somebody is there."""
        return 0.0

    def gone(self, client: int, now_s: float, turn_s: float) -> str:
        """Return why a client that was asked at `now_s` did not end its turn, or an empty text."""
        return ""


class Always(Presence):
    """Everybody, always."""

    def there(self, server_round: int, now_s: float, clients: Sequence[int]) -> Collection[int]:
        """See :meth:`Presence.there`."""
        return clients


class InRounds(Presence):
    """Each client in a share of the rounds, drawn from the seed for each client and round by itself.

    Where nobody would be there, the one who came closest is.

    Args:
        devices: one a client; their `availability` is the share.
        seed: of the run.
    """

    def __init__(self, devices: Sequence[Device], seed: int) -> None:
        self._shares = [device.availability for device in devices]
        self._seed = seed

    def there(self, server_round: int, now_s: float, clients: Sequence[int]) -> Collection[int]:
        """See :meth:`Presence.there`."""
        margins = {c: self._shares[c] - self._draw(server_round, c) for c in clients}
        found = {c for c, margin in margins.items() if margin > 0}
        return found or {max(margins, key=lambda c: (margins[c], -c))}

    def _draw(self, server_round: int, client: int) -> float:
        text = f"{self._seed}|{server_round}|{client}".encode()
        digest = hashlib.blake2b(text, digest_size=8, person=b"fedsim.presence").digest()
        return int.from_bytes(digest, "little") / 2**64


class Traced(Presence):
    """At the times of a trace, which repeats.

    Args:
        intervals: client -> (start, end) in seconds, not overlapping; a client without any is always there.
        period_s: after which the trace repeats.

    Raises:
        BadTrace: an interval is empty, overlaps another or reaches beyond the period.
    """

    leaves = True

    def __init__(self, intervals: Mapping[int, Sequence[Interval]], period_s: float) -> None:
        self._period_s = period_s
        self._intervals = {client: sorted(times) for client, times in intervals.items()}
        for client, times in self._intervals.items():
            ends = [0.0, *(end for _, end in times)]
            for (start, end), before in zip(times, ends, strict=False):
                if not before <= start < end <= period_s:
                    raise BadTrace(
                        f"client {client} is there from {start:g} to {end:g} s: intervals must have start < end, not "
                        f"overlap, and end within the period of {period_s:g} s; correct the trace"
                    )

    def _until_s(self, client: int, now_s: float) -> float:
        """Return how long a client stays from now on; 0 if it is not there."""
        times = self._intervals.get(client)
        if times is None:
            return float("inf")
        at = now_s % self._period_s
        place = bisect.bisect_right(times, (at, float("inf"))) - 1
        if place < 0 or times[place][1] <= at:
            return 0.0
        stays = times[place][1] - at
        # One that lasts to the end of the period and begins the next is one stay.
        following = times[0]
        if times[place][1] == self._period_s and following[0] == 0.0 and following != times[place]:
            stays += following[1]
        return float("inf") if times[place] == (0.0, self._period_s) else stays

    def there(self, server_round: int, now_s: float, clients: Sequence[int]) -> Collection[int]:
        """See :meth:`Presence.there`."""
        return {client for client in clients if self._until_s(client, now_s) > 0}

    def wait_s(self, now_s: float, clients: Sequence[int]) -> float:
        """See :meth:`Presence.wait_s`."""
        return min((self._next_s(client, now_s) for client in clients), default=0.0)

    def _next_s(self, client: int, now_s: float) -> float:
        if self._until_s(client, now_s) > 0:
            return 0.0
        at = now_s % self._period_s
        starts = [start for start, _ in self._intervals[client]]
        later = [start - at for start in starts if start >= at]
        return later[0] if later else self._period_s - at + starts[0]

    def gone(self, client: int, now_s: float, turn_s: float) -> str:
        """See :meth:`Presence.gone`."""
        stays_s = self._until_s(client, now_s)
        if turn_s <= stays_s:
            return ""
        return f"went away after {stays_s:.4g} of {turn_s:.4g} virtual s (devices.availability_trace)"


def read_presence(path: Path, num_clients: int) -> Traced:
    """Read a trace with the columns ``client``, ``start_s``, ``end_s`` and, if the trace is longer than its last end,
    ``period_s`` (the same in each row).

    Args:
        path: CSV or Parquet.
        num_clients: rows of other clients are left out, so that a large trace serves small runs.

    Raises:
        BadTrace: it cannot be read or makes no sense.
    """
    rows = read_rows(path)
    if not rows or not {"client", "start_s", "end_s"} <= set(rows[0]):
        columns = ", ".join(rows[0]) if rows else "none"
        raise BadTrace(f"{path} has the columns {columns}: it needs client, start_s, end_s; see docs/heterogeneity.md")
    try:
        period_s = max(max(float(row["end_s"]), float(row.get("period_s", 0.0))) for row in rows)
        intervals: dict[int, list[Interval]] = {}
        for number, row in enumerate(rows, 1):
            client = whole(path, number, "client", row["client"])
            if 0 <= client < num_clients:
                intervals.setdefault(client, []).append((float(row["start_s"]), float(row["end_s"])))
        return Traced(intervals, period_s)
    except BadTrace:
        raise
    except (TypeError, ValueError) as error:
        raise BadTrace(f"{path}: {error}; start_s, end_s and period_s must be numbers in each row") from error
