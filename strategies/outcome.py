"""What came of a round: the record of it, means of metrics, and the mean of what was summed."""

from dataclasses import dataclass, field

import numpy as np
from flwr.app import ArrayRecord, RecordDict
from numpy.typing import NDArray

from crypto import Layout
from strategies.errors import EmptyRound, TooFewReplies
from strategies.fold import Delivered, HelperCosts
from strategies.nodes import Node
from strategies.plan import BufferRule
from strategies.wire_size import buffer_of


@dataclass(slots=True, kw_only=True)
class RoundRecord:
    """What happened in one round.

    Attributes:
        round: server round, from 1.
        rounds: number of rounds of the run.
        nodes: sampled clients in order; `delivered` runs beside it.
        delivered: what each one delivered, or why it was left out.
        evaluated: the same for client-side evaluation, by partition id.
        committee: the same for the committee's partial decryptions, by partition id.
        download_bytes: what Flower moves to one client for training.
        logical_download_bytes: of these, the model or the sealed total.
        downloads: both for each sampled client, in order, where a strategy sends some clients less.
        evaluate_downloads: both for each client that was asked to evaluate, by partition id.
        metrics: means over clients (``train_*``, ``client_*``) and server-side evaluation (``server_*``).
        round_s: seconds from the first message to the applied update.
        committee_download_bytes: what Flower moves to one member of the committee.
        open_s: seconds that opening the total took on the server.
        server_train_s: seconds that the server itself trained or scored, such as distillation.
        helper: what a second aggregator cost, where there is one.
    """

    round: int
    rounds: int
    nodes: list[Node] = field(default_factory=list)
    delivered: list[Delivered] = field(default_factory=list)
    evaluated: dict[int, Delivered] = field(default_factory=dict)
    committee: dict[int, Delivered] = field(default_factory=dict)
    download_bytes: int = 0
    logical_download_bytes: int = 0
    downloads: list[tuple[int, int]] = field(default_factory=list)
    evaluate_downloads: dict[int, tuple[int, int]] = field(default_factory=dict)
    committee_download_bytes: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    round_s: float = 0.0
    open_s: float = 0.0
    server_train_s: float = 0.0
    helper: HelperCosts | None = None

    @property
    def accepted(self) -> int:
        """Number of clients that count."""
        return sum(not d.error for d in self.delivered)

    def pairs(self) -> list[tuple[Node, Delivered]]:
        """The sampled clients with what they delivered."""
        return list(zip(self.nodes, self.delivered, strict=False))

    def download(self, at: int) -> tuple[int, int]:
        """Return the bytes that Flower moves to the sampled client at this place, and of these the model's."""
        return self.downloads[at] if self.downloads else (self.download_bytes, self.logical_download_bytes)

    def require(self, min_replies: int) -> None:
        """Check that the round counts.

        Raises:
            EmptyRound: nobody delivered.
            TooFewReplies: fewer than `min_replies` did.
        """
        failed = [f"\n  client {n.partition_id}: {d.error}" for n, d in self.pairs() if d.error]
        reasons = "".join(failed[:5])
        if self.accepted == 0:
            raise EmptyRound(f"round {self.round}: none of {len(self.nodes)} clients delivered.{reasons}")
        if self.accepted < min_replies:
            raise TooFewReplies(
                f"round {self.round}: {self.accepted} of {len(self.nodes)} clients delivered, min_replies is "
                f"{min_replies}; lower it or look at the reasons.{reasons}"
            )

    @property
    def failures(self) -> list[str]:
        """One line for each client that was left out."""
        return [f"round {self.round}, client {n.partition_id}: {d.error}" for n, d in self.pairs() if d.error]


def mean_arrays(
    vector: NDArray[np.float64], layout: Layout, weight: float, buffers: BufferRule, first_counts: bool
) -> dict[str, NDArray[np.float64]]:
    """Return the weighted mean of a round's vectors as float64 arrays by name.

    Under the ``first`` rule buffers are one client's own, unweighted; they are absent if that client did not deliver.
    """
    mean: dict[str, NDArray[np.float64]] = {}
    at = 0
    for segment in layout.segments:
        part = vector[at : at + segment.size]
        at += segment.size
        if buffers.mode == "first" and segment.name in buffers.names:
            if not first_counts:
                continue
            part = part.copy()
        else:
            part = part / weight
        mean[segment.name] = part.reshape(segment.shape) if segment.coordinates is None else part
    return mean


def means(items: list[Delivered], prefix: str) -> dict[str, float]:
    """Return means of the clients' metrics weighted by their examples; a metric counts over those that report it."""
    sums: dict[str, tuple[float, float]] = {}
    for item in items:
        for key, value in item.metrics.items():
            total, weight = sums.get(key, (0.0, 0.0))
            sums[key] = (total + item.num_examples * value, weight + item.num_examples)
    return {prefix + k: total / weight for k, (total, weight) in sums.items() if weight > 0}


def logical_bytes(content: RecordDict) -> int:
    return sum(len(buffer_of(a)) for r in content.values() if isinstance(r, ArrayRecord) for a in r.values())
