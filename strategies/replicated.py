"""Strategies whose clients hold the model: the server adds what it cannot read and hands every total on.

Each client keeps a state that is the same, bit for bit, at all of them: the arrays that make the model, and whatever
decides what is sent next. It starts from public weights and moves on with every total, which each client opens for
itself. The server never holds it, not even under ``plain``: it keeps the totals, and sends each client those that it
has not had, so that one that was away or failed catches up. What a client sends says which state it was made in
(:class:`~strategies.agreement.Agreement`).

A client may hold back part of its update for later rounds; a reply that did not arrive in time is held back as well.
"""

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from crypto import Layout
from crypto.base import Plan, Tag
from crypto.packing import Segment
from strategies.agreement import SNAPSHOT, AgreedFold
from strategies.base import FederatedStrategy
from strategies.errors import Disagreement, Incompatible
from strategies.fold import Fold
from strategies.nodes import Node, ask_setup
from strategies.outcome import RoundRecord, means
from strategies.plan import RoundPlan
from strategies.protection import Protection
from strategies.records import model_record, sealed_record
from strategies.replica import NOTE, PLAN, TOTAL, Floats, ReplicatedHalf, padded
from strategies.sealed_state import SealedState

log = logging.getLogger(__name__)

#: What a client holds that has not answered yet: not even the start weights.
_NOTHING = -1
#: Arrays of a checkpoint, by round.
_TOTALS, _LENGTHS, _SNAPSHOT = "totals/", "lengths/", "snapshot"


@dataclass(frozen=True, slots=True)
class _Heard:
    """One round's totals as every client must have them."""

    totals: list[bytes]
    plan: RoundPlan
    lengths: tuple[int, ...]
    weight: float

    def records(self) -> dict[str, ArrayRecord | ConfigRecord]:
        """Return a message's records of it, by name."""
        notes = self.plan.record()
        notes["weight"], notes["lengths"] = self.weight, list(self.lengths)
        at = self.plan.round
        return {f"{TOTAL}{at}": sealed_record(self.totals), f"{PLAN}{at}": notes}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return it for a checkpoint."""
        state = SealedState(self.totals, self.plan, sum(self.lengths), self.weight, 1, False)
        return {
            f"{_TOTALS}{self.plan.round}": np.frombuffer(state.to_bytes(), np.uint8),
            f"{_LENGTHS}{self.plan.round}": np.array(self.lengths, np.int64),
        }

    @classmethod
    def of(cls, totals: NDArray[Any], lengths: NDArray[Any]) -> "_Heard":
        """Read what :meth:`arrays` returned.

        Raises:
            WireError: it is something else.
        """
        state = SealedState.from_bytes(totals.tobytes())
        return cls(state.totals, state.plan, tuple(lengths.tolist()), state.weight)


class ReplicatedStrategy(FederatedStrategy):
    """Server half: adds, compares, keeps the totals.

    Args:
        snapshot_every: rounds after which one client is asked for the common state, sealed under the clients' secret;
            it then stands for all older totals, which are forgotten. 0 keeps every total.
        common: see :class:`~strategies.base.FederatedStrategy`.

    Raises:
        Incompatible: the clients cannot open the protection's totals, or would not get the same bits.
    """

    payload = "delta"

    def __init__(self, *, snapshot_every: int = 0, **common: Any) -> None:
        if snapshot_every < 0:
            raise ValueError(f"snapshot_every {snapshot_every} must be at least 0; 0 keeps every total")
        super().__init__(**common)
        self.snapshot_every = snapshot_every
        self.snapshot: ConfigRecord | None = None
        if not self.protection.clients_open:
            raise Incompatible(
                f"strategy '{self.name}' with protection '{self.protection.name}': the clients hold the model and must "
                "open every sum, which goes to the server here; use bfv, ckks or openfhe-bgv (or plain)"
            )
        if not self.protection.repeatable:
            raise Incompatible(
                f"strategy '{self.name}' with protection '{self.protection.name}': clients must get the same bits from "
                "one total, and its decryption adds fresh noise each time; use bfv, ckks or openfhe-bgv"
            )
        self.heard: dict[int, _Heard] = {}
        self._held: dict[int, int] = {}
        self._counted: dict[int, int] = {}
        self._sent = 0
        self._loaded: dict[str, NDArray[np.generic]] = {}

    # ----------------------------------------------------------------- what a paper says

    def trained(self, layout: Layout) -> int:
        """Return how many coordinates train: all floats but buffers, which the client half made of what is frozen."""
        kept = [s for s in layout.segments if s.name not in self.buffers.names and s.dtype.startswith("float")]
        return sum(s.size for s in kept)

    def protections(self) -> tuple[Protection, ...]:
        """Return the protection of each of a client's vectors."""
        return (self.protection,)

    def travelling(self, layout: Layout, server_round: int) -> Layout:
        """Return a public layout of one vector, padded to whole ciphertexts; its coordinates only the clients know."""
        return self.longest(layout)

    def longest(self, layout: Layout) -> Layout:
        """See :meth:`travelling`."""
        count = self.trained(layout)
        if not count:
            raise Incompatible(f"strategy '{self.name}': no part of the model trains; see the strategy's settings")
        probe = Plan(length=count, clients=1, bound=self.protection.bound)
        slots = self.protection.secure_sum(probe).slots
        return Layout((Segment(self.name, (padded(count, slots),), "float32"),))

    def apply(self, mean: Mapping[str, Floats], server_round: int) -> None:
        """Never called: the clients apply.

        Raises:
            Incompatible: always.
        """
        raise Incompatible(f"strategy '{self.name}': totals are applied by the clients, never by the server")

    # ----------------------------------------------------------------- the round

    def begin(self, grid: Grid, initial_arrays: ArrayRecord) -> None:
        """See :meth:`~strategies.base.FederatedStrategy.begin`; asks the clients for a hash of what they begin with.

        Raises:
            Disagreement: two of them begin with different things.
        """
        super().begin(grid, initial_arrays)
        self._restore()
        digests = ask_setup(grid, self._nodes, self.participation.connect_s)
        first = next(iter(digests.items()), None)
        for node, digest in digests.items():
            if first is not None and digest != first[1]:
                raise Disagreement(
                    f"nodes {node} and {first[0]} begin with different start weights or dictionaries "
                    f"({digest.hex()[:8]} and {first[1].hex()[:8]}): their updates cannot be added; give both the same "
                    "settings and start weights, and the same versions of torch"
                )

    def _restore(self) -> None:
        """Take what :meth:`load_state_dict` was given, else begin with nothing."""
        nodes = {n.partition_id: n.node_id for n in self._nodes}
        notes = self._loaded.pop("clients", np.zeros((0, 3), np.int64)).tolist()
        self._held = {nodes[client]: held for client, held, _ in notes if client in nodes}
        self._counted = {nodes[client]: counted for client, _, counted in notes if client in nodes}
        rounds = [k.removeprefix(_LENGTHS) for k in self._loaded if k.startswith(_LENGTHS)]
        self.heard = {int(r): _Heard.of(self._loaded[_TOTALS + r], self._loaded[_LENGTHS + r]) for r in rounds}
        self.snapshot = None
        if _SNAPSHOT in self._loaded:
            at, data = int(self._loaded[f"{_SNAPSHOT}-round"]), self._loaded[_SNAPSHOT].tobytes()
            self.snapshot = ConfigRecord({"round": at, "data": data})
        self._loaded = {}

    def state_dict(self) -> dict[str, NDArray[np.generic]]:
        """All totals, which clients that fall behind may need, and for each client what it has and what counted."""
        rows = [
            (n.partition_id, self._held.get(n.node_id, _NOTHING), self._counted.get(n.node_id, 0)) for n in self._nodes
        ]
        own: dict[str, NDArray[np.generic]] = {"clients": np.array(rows, np.int64).reshape(-1, 3)}
        for heard in self.heard.values():
            own |= heard.arrays()
        if self.snapshot is not None:
            own[_SNAPSHOT] = np.frombuffer(bytes(self.snapshot["data"]), np.uint8)  # type: ignore[arg-type]
            own[f"{_SNAPSHOT}-round"] = np.array(self.snapshot["round"], np.int64)
        return own

    def load_state_dict(self, state: dict[str, NDArray[np.generic]]) -> None:
        """See :meth:`~strategies.base.FederatedStrategy.load_state_dict`."""
        self._loaded = dict(state)

    def _content(self, plan: RoundPlan, config: ConfigRecord | None) -> RecordDict:
        record = plan.record()
        for key, value in (config or {}).items():
            record.setdefault(key, value)
        return RecordDict({"config": record})

    def message_content(self, server_round: int) -> RecordDict:
        """Return what a client without any memory is sent after this round: the start weights and all totals."""
        plan, _ = self._plan(server_round, server_round, [])
        return self._catch_up(self._content(plan, None), _NOTHING, 0)

    def contents(self, content: RecordDict, nodes: list[Node], server_round: int) -> list[RecordDict]:
        """Return each client's message with the totals that it lacks; clients that lack the same share one object."""
        made: dict[tuple[int, int], RecordDict] = {}
        self._sent = max(self.heard, default=0)
        due = self.snapshot_every > 0 and self._sent > 0 and self._sent % self.snapshot_every == 0
        found = []
        for node in nodes:
            key = self._held.get(node.node_id, _NOTHING), self._counted.get(node.node_id, 0)
            if key not in made:
                made[key] = self._catch_up(content, *key)
            found.append(made[key])
        if due and found:
            found[0] = RecordDict({**found[0], NOTE: ConfigRecord({**found[0].config_records[NOTE], "snapshot": True})})
        return found

    def answered(self, nodes: Collection[int]) -> None:
        """Note that these have all totals up to the last one that they were sent."""
        self._held |= dict.fromkeys(nodes, self._sent)

    def _catch_up(self, content: RecordDict, held: int, counted: int) -> RecordDict:
        made = RecordDict(dict(content))
        last = max(self.heard, default=0)
        made[NOTE] = ConfigRecord({"base": max(held, 0), "last": last, "counted": counted})
        if held == _NOTHING and self.state is not None:
            made["model"] = model_record(self.state)
        oldest = max(held, 0)
        if self.snapshot is not None and held < int(str(self.snapshot["round"])):
            made[SNAPSHOT], oldest = self.snapshot, int(str(self.snapshot["round"]))
        for at in range(oldest + 1, last + 1):
            made.update(self.heard[at].records())
        return made

    def _new_fold(self, tag: Tag) -> Fold:
        if self._secure_plan is None:
            raise RuntimeError("begin() must come first")
        plan = self._secure_plan
        parts = tuple((p.public(plan), plan) for p in self.protections())
        return AgreedFold(parts, tag.round, tag.layout_hash)

    def _settle(
        self, fold: Fold, plan: RoundPlan, layout: Layout, record: RoundRecord, grid: Grid | None = None
    ) -> None:
        counted = [d for d in record.delivered if not d.error]
        record.metrics |= means(counted, "train_")
        assert isinstance(fold, AgreedFold)
        weight = sum(plan.weight(d.num_examples) for d in counted)
        totals, self.moved_round = fold.totals(), plan.round
        self.heard[plan.round] = _Heard(totals, plan, fold.lengths, weight)
        self.sealed = SealedState(totals, plan, sum(fold.lengths), weight, len(counted), False)
        if fold.snapshot is not None:
            self.snapshot = fold.snapshot
            at = int(str(self.snapshot["round"]))
            self.heard = {r: heard for r, heard in self.heard.items() if r > at}
        self._counted |= {d.node_id: plan.round for d in counted}
        self.answered([d.node_id for d in counted])


__all__ = ["ReplicatedHalf", "ReplicatedStrategy"]
