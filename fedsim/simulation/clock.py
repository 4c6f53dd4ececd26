"""Virtual time: what a round would take on the clients' devices, from counted work alone.

A client's turn is download, open, train, seal, upload, one after another; it may evaluate before it trains::

    download_s = latency + 8 download_bytes / downlink        upload_s = latency + 8 upload_bytes / uplink
    train_s    = slowness * flops / flops_per_s               open_s, seal_s = cost on the reference core / core speed
    evaluate_s = evaluate_flops / flops_per_s

Bytes are those of the serialised messages, FLOPs those of torch's counter, costs of cryptography constants that were
measured once (:mod:`fedsim.simulation.crypto_costs`); so the result does not depend on the load of this machine. The
server adds what arrives one by one, in the order of arrival, and opens after the last.

When a round ends (Bonawitz et al., MLSys 2019, section 2.2, and FedScale): with all replies, at a deadline, or with the
first K of those asked. Who is later does not count and is named.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from fedsim.simulation.crypto_costs import FREE, CryptoCosts
from fedsim.simulation.devices import Device
from fedsim.simulation.presence import Always, Presence

__all__ = ["Closing", "Policy", "Turn", "VirtualClock", "Work", "close", "server_end_s", "turn"]

PolicyName = Literal["all", "deadline", "first-k"]


@dataclass(frozen=True, slots=True)
class Work:
    """What a client had to do.

    Attributes:
        download_bytes, upload_bytes: serialised messages.
        flops: of training.
        evaluate_flops: of evaluating the model that came, before training.
        slowness: factor on the time of training, for drills.
    """

    download_bytes: int = 0
    upload_bytes: int = 0
    flops: int = 0
    slowness: float = 1.0
    evaluate_flops: int = 0


@dataclass(frozen=True, slots=True)
class Turn:
    """A client's turn in virtual time.

    Attributes:
        client: its number.
        work: what it did.
        seconds: by phase, in order.
        energy_j: estimated energy; 0 where the device's power is unknown.
    """

    client: int
    work: Work
    seconds: dict[str, float] = field(default_factory=dict)
    energy_j: float = 0.0

    @property
    def total_s(self) -> float:
        """The whole turn."""
        return sum(self.seconds.values())


def turn(client: int, work: Work, device: Device, costs: CryptoCosts = FREE) -> Turn:
    """Return a client's training turn on its device; see the module for the formulas."""
    seconds = {
        "download": device.latency_s + 8 * work.download_bytes / device.downlink_bit_s,
        "open": costs.open_s / device.core_speed,
        **({"evaluate": work.evaluate_flops / device.flops_per_s} if work.evaluate_flops else {}),
        "train": work.slowness * work.flops / device.flops_per_s,
        "seal": costs.seal_s / device.core_speed,
        "upload": device.latency_s + 8 * work.upload_bytes / device.uplink_bit_s,
    }
    radio_s = seconds["download"] + seconds["upload"]
    busy_s = sum(seconds.values()) - radio_s
    return Turn(client, work, seconds, device.compute_w * busy_s + device.radio_w * radio_s)


@dataclass(frozen=True, slots=True)
class Policy:
    """When a round ends.

    Attributes:
        name: ``all``, ``deadline`` or ``first-k``.
        wanted: replies that are wanted; a round with a cut ends with them.
        deadline_s: of ``deadline``.
    """

    name: PolicyName = "all"
    wanted: int = 0
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True)
class Closing:
    """How a round ended.

    Attributes:
        at_s: seconds from its start.
        counted: clients whose replies count, in the order of arrival.
        late: client -> why it does not count.
    """

    at_s: float
    counted: tuple[int, ...]
    late: dict[int, str]


def close(turns: Iterable[Turn], policy: Policy, lost: int = 0) -> Closing:
    """Return when a round ends and who counts; equal times are in the order of the clients' numbers.

    Args:
        turns: of the clients that reply.
        policy: see :class:`Policy`.
        lost: clients that were asked and will never reply; a deadline is waited for on their account.
    """
    order = sorted(turns, key=lambda t: (t.total_s, t.client))
    if policy.name == "all":
        return Closing(order[-1].total_s if order else 0.0, tuple(t.client for t in order), {})
    limit_s = policy.deadline_s if policy.deadline_s is not None else float("inf")
    first = [t for t in order if t.total_s <= limit_s][: policy.wanted]
    rest = order[len(first) :]
    if len(first) == policy.wanted:
        at_s = first[-1].total_s if first else 0.0
    elif policy.deadline_s is not None and (rest or lost):
        at_s = policy.deadline_s
    else:
        at_s = first[-1].total_s if first else 0.0
    return Closing(at_s, tuple(t.client for t in first), {t.client: _why(t, at_s, limit_s, policy) for t in rest})


def _why(late: Turn, at_s: float, limit_s: float, policy: Policy) -> str:
    if late.total_s > limit_s:
        return f"needed {late.total_s:.4g} virtual s: the deadline is {limit_s:g} s (clock.deadline_s)"
    return f"needed {late.total_s:.4g} virtual s: the first {policy.wanted} replies were in after {at_s:.4g} s"


def server_end_s(arrivals_s: Sequence[float], closed_s: float, add_s: float) -> float:
    """Return when the server has added all: one after another, each when it is there; at least `closed_s`."""
    free_s = 0.0
    for arrival_s in sorted(arrivals_s):
        free_s = max(free_s, arrival_s) + add_s
    return max(free_s, closed_s)


class VirtualClock:
    """The clients' devices, the costs of cryptography, and the time since the start of the run.

    Args:
        devices: one a client.
        server: the server's device.
        costs: of the run's protection, on the reference core.
        policy: when a round ends.
        presence: who is there at which time.
        now_s: where a resumed run stands.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        server: Device,
        costs: CryptoCosts = FREE,
        policy: Policy | None = None,
        presence: Presence | None = None,
        now_s: float = 0.0,
    ) -> None:
        self.devices, self.server, self.costs = list(devices), server, costs
        self.policy = policy or Policy()
        self.presence: Presence = presence or Always()
        self.now_s = self._started_s = now_s
        self.turns: dict[int, Turn] = {}
        self.closing = Closing(0.0, (), {})
        self.ends_s: float | None = None

    @property
    def cuts(self) -> bool:
        """Whether some replies may not count, so that they must be seen before they are added."""
        return self.policy.name != "all" or self.presence.leaves

    def device(self, client: int) -> Device:
        """Return a client's device; in deployment there may be more clients than the settings say: they share."""
        return self.devices[client % len(self.devices)]

    def turn(self, client: int, work: Work) -> Turn:
        """Return a client's training turn."""
        return turn(client, work, self.device(client), self.costs)

    def evaluation(self, client: int, download_bytes: int, upload_bytes: int, flops: int) -> dict[str, float]:
        """Return the seconds of a client's evaluation by phase."""
        seconds = turn(client, Work(download_bytes, upload_bytes, flops), self.device(client), self.costs).seconds
        return {"evaluate" if phase == "train" else phase: s for phase, s in seconds.items() if phase != "seal"}

    def partial(self, client: int, download_bytes: int, upload_bytes: int) -> dict[str, float]:
        """Return the seconds of a committee member's part in opening the total, by phase."""
        seconds = turn(client, Work(download_bytes, upload_bytes), self.device(client)).seconds
        return {
            "download": seconds["download"],
            "open": self.costs.partial_s / self.device(client).core_speed,
            "upload": seconds["upload"],
        }

    def ask(self, server_round: int, clients: Sequence[int]) -> Collection[int]:
        """Begin a round: return who of the clients can be asked; time goes on until somebody can."""
        self._started_s = self.now_s
        self.now_s += self.presence.wait_s(self.now_s, clients)
        return self.presence.there(server_round, self.now_s, clients)

    def settle(self, turns: Mapping[int, Turn], lost: int = 0) -> dict[int, str]:
        """Close a round.

        Args:
            turns: client -> its turn, of those that reply.
            lost: clients that were asked and do not reply.

        Returns:
            client -> why its reply does not count.
        """
        self.turns = dict(turns)
        gone = {c: why for c, t in turns.items() if (why := self.presence.gone(c, self.now_s, t.total_s))}
        self.closing = close([t for c, t in turns.items() if c not in gone], self.policy, lost + len(gone))
        return self.closing.late | gone

    def add_s(self) -> float:
        """Seconds that the server takes to add one client's vector."""
        return self.costs.add_s / self.server.core_speed

    def open_s(self) -> float:
        """Seconds that the server takes to open a total, 0 where others do."""
        return self.costs.server_open_s / self.server.core_speed

    def end_round(self, committee_s: float = 0.0) -> float:
        """Return the round's virtual seconds, waiting for somebody to ask included, and move the clock.

        Args:
            committee_s: of the slowest committee member.

        A server that waits for nobody says when its step was due (:attr:`ends_s`, since the start of the run); its
        adding and opening, during which clients go on, then count nothing.
        """
        if self.ends_s is not None:
            round_s, self.ends_s = max(0.0, self.ends_s - self._started_s), None
            self.now_s = self._started_s = self._started_s + round_s
            return round_s
        arrivals = [self.turns[client].total_s for client in self.closing.counted]
        worked_s = server_end_s(arrivals, self.closing.at_s, self.add_s()) + committee_s + self.open_s()
        round_s = self.now_s - self._started_s + worked_s
        # In one step from where the round began, so that a resumed run, which adds up whole rounds, has the same bits.
        self.now_s = self._started_s = self._started_s + round_s
        return round_s

    def energy_j(self) -> float:
        """Estimated energy of all turns of the round, late ones included; 0 where no device's power is known."""
        return sum(t.energy_j for t in self.turns.values())
