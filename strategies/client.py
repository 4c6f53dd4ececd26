"""What all strategies share on a client: open -> train -> seal.

:class:`ClientHalf` is the client's side of a strategy; :func:`open_model` and :func:`seal_update` are used by our
client app, and :func:`seal_mod` does the same around any Flower `ClientApp` whose messages carry ordinary records.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from numpy.typing import NDArray
from torch import Tensor, nn

from crypto import InputError, Layout, LayoutMismatch
from crypto.base import Tag
from strategies.clipping import CLIP_NORM, clip_change
from strategies.fedavg import with_values
from strategies.outcome import mean_arrays
from strategies.piece_fold import SEALED
from strategies.plan import BufferRule, RoundPlan
from strategies.protection import Protection
from strategies.records import (
    NamedArrays,
    array_record,
    find,
    metric_record,
    need,
    read_model,
    read_sealed,
    read_shared_model,
    record_dict,
    sealed_record,
)
from strategies.state import load_state_arrays

Handler = Callable[[Message, Context], Message]


class ClientHalf:
    """Client half of FedAvg and all that train the whole model; other strategies override its steps."""

    #: The plan's strategy that this half serves.
    name: ClassVar[str] = "fedavg"

    #: Names of the records in a client's memory that the server can send again; all others must survive a restart.
    replaceable: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "ClientHalf":
        """Return the half for a strategy's settings."""
        return cls()

    def shape(self, model: nn.Module) -> None:
        """Shape the model in place, once, before its start weights are read; buffers do not train."""

    def digest(self, start: NamedArrays) -> bytes:
        """Return what all clients must have in common before round 1, hashed; empty for nothing."""
        return b""

    def export(self, state: NamedArrays) -> NamedArrays:
        """Return a global model as the unshaped model's own arrays."""
        return state

    def prepare(self, model: nn.Module, plan: RoundPlan) -> None:
        """Shape the model before training (freeze, decompose); it holds the global weights already."""

    def own_model(
        self, model: nn.Module, plan: RoundPlan, state: NamedArrays, data: tuple[Tensor, Tensor]
    ) -> tuple[nn.Module, RoundPlan]:
        """Return the module to train, holding the weights, and the plan as this client settles it.

        Args:
            model: the site's, shared by its clients; holds whatever was loaded last.
            plan: the round's.
            state: what :meth:`receive` returned.
            data: this client's examples and labels.
        """
        load_state_arrays(model, state.arrays)
        self.prepare(model, plan)
        return model, plan

    def full_passes(self, plan: RoundPlan) -> int:
        """Return how often the client's data goes through the site's whole model beside training."""
        return 0

    def complete(self, content: RecordDict, state: NamedArrays, memory: RecordDict) -> NamedArrays:
        """Return the whole global model from what a message brought and this client's own records of earlier rounds."""
        return state

    def receive(
        self,
        content: RecordDict,
        protection: Protection,
        known: NamedArrays | None,
        buffer_names: frozenset[str],
        memory: RecordDict,
    ) -> NamedArrays:
        """Return the whole global model that a message stands for.

        A half that keeps a state of its own opens the totals itself and applies them here
        (:mod:`strategies.replicated`).

        Args:
            content: the message's content.
            protection: opens totals.
            known: the start weights, or this client's last model; see :func:`open_model`.
            buffer_names: untrained state.
            memory: this client's own records, kept between its rounds; updated.
        """
        return self.complete(content, open_model(content, protection, known, buffer_names), memory)

    def seal(
        self,
        plan: RoundPlan,
        before: NamedArrays,
        after: NamedArrays,
        *,
        num_examples: int,
        partition_id: int,
        buffer_names: frozenset[str],
        protection: Protection,
        memory: RecordDict,
    ) -> "Sealed":
        """Return the sealed update; see :func:`seal_update`."""
        return seal_update(
            self,
            plan,
            before,
            after,
            num_examples=num_examples,
            partition_id=partition_id,
            buffer_names=buffer_names,
            protection=protection,
        )

    def examine(self, model: nn.Module, x: Tensor, y: Tensor, plan: RoundPlan, memory: RecordDict) -> None:
        """Look at the client's data before it trains; the model holds the global weights and is not changed."""

    def update(self, before: NamedArrays, after: NamedArrays, plan: RoundPlan) -> NamedArrays:
        """Return what travels, before weighting: the weights or their change, as the plan's payload says."""
        return after if plan.payload == "weights" else difference(before, after)


def difference(before: NamedArrays, after: NamedArrays) -> NamedArrays:
    """Return ``after - before`` by name; integer arrays as float64, so that they cannot wrap."""
    arrays: dict[str, NDArray[np.generic]] = {}
    for name, array in after.arrays.items():
        old = before.arrays[name]
        kind = array.dtype if array.dtype.kind == "f" else np.dtype(np.float64)
        arrays[name] = array.astype(kind) - old.astype(kind)
    return NamedArrays(arrays, after.dtypes)


def open_model(
    content: RecordDict,
    protection: Protection,
    known: NamedArrays | None,
    buffer_names: frozenset[str] = frozenset(),
) -> NamedArrays:
    """Return the global model that a message brings: as it is, or by opening the last sealed total.

    Args:
        content: the message's content.
        protection: opens the total.
        known: this client's own state; arrays that do not travel are taken from it.
        buffer_names: untrained state, for the ``first`` rule.

    Raises:
        WireError: neither a model nor a total, or one that does not match its plan.
    """
    if (model := find(content, "model", ArrayRecord)) is not None:
        return read_shared_model(model)
    total = find(content, "total", ArrayRecord)
    if total is None or known is None:
        raise LayoutMismatch("the message holds neither a model nor a sealed total: server and client must agree")
    notes = need(content, "total-plan", ConfigRecord)
    plan = RoundPlan.from_record(notes)
    layout = known.layout.only(plan.names)
    _check_layout(layout, plan)
    totals = read_sealed(total, protection.secure_sum(plan.secure).aggregators)
    vector = protection.opener(plan.secure).open(totals, plan.tag(layout.length))
    weight = notes["weight"]
    if not isinstance(weight, float) or not weight > 0:
        raise LayoutMismatch(f"total weight {weight!r}: must be a positive number")
    rule = BufferRule(mode=plan.buffers, names=buffer_names)
    return with_values(known, mean_arrays(vector, layout, weight, rule, bool(notes["first-counts"])))


@dataclass(frozen=True, slots=True)
class Sealed:
    """A client's sealed update.

    Attributes:
        parts: one per aggregator.
        length: coordinates of the vector.
        clipped: how many of them were clipped to the bound.
        clip_factor: by how much the whole vector was scaled to keep its norm, in (0, 1].
        notes: more records for the reply, by name.
        pieces: the parts of each piece, in a round of several sums; `parts` is empty then.
    """

    parts: list[bytes]
    length: int
    clipped: int
    clip_factor: float = 1.0
    notes: Mapping[str, ConfigRecord] = field(default_factory=dict)
    pieces: Mapping[str, list[bytes]] = field(default_factory=dict)

    def records(self) -> dict[str, ArrayRecord | MetricRecord | ConfigRecord]:
        """Return a reply's records: the sealed parts and the notes."""
        parts = {SEALED + piece: sealed_record(each) for piece, each in self.pieces.items()}
        return {**(parts or {"sealed": sealed_record(self.parts)}), **self.notes}

    def content(self) -> RecordDict:
        """Return the same as a reply's content."""
        return record_dict(self.records())


def seal_update(
    half: ClientHalf,
    plan: RoundPlan,
    before: NamedArrays,
    after: NamedArrays,
    *,
    num_examples: int,
    partition_id: int,
    buffer_names: frozenset[str],
    protection: Protection,
) -> Sealed:
    """Lay out, weight and seal one client's result.

    Raises:
        LayoutMismatch: the client's model is not the one that the plan is of.
        InputError: no samples, or a value that is not finite; names the array and the index.
    """
    if num_examples < 1:
        raise InputError(f"client {partition_id} has {num_examples} samples: it cannot take part; check the partition")
    limit, kept = plan.extras.get(CLIP_NORM), 1.0
    if isinstance(limit, float):
        after, kept = clip_change(before, after, plan.names, limit)
    update = half.update(before, after, plan)
    layout = update.layout.only(plan.names) if plan.payload == "weights" else before.layout.only(plan.names)
    _check_layout(layout, plan)
    scales: dict[str, float] = {}
    if plan.buffers == "first":
        scales = dict.fromkeys(buffer_names, 1.0 if partition_id == plan.first_partition else 0.0)
    # A server that waits for nobody tells each client how much its change counts; the weight it divides by is the full.
    scale = plan.extras.get("update-scale", 1.0)
    weight = plan.weight(num_examples) * (float(scale) if isinstance(scale, int | float) else 1.0)
    vector = layout.pack(update.arrays, weight, scales)
    clipped, factor = protection.clip(vector)
    sealer = protection.sealer(plan.secure)
    parts = sealer.seal(clipped, plan.tag(layout.length))
    return Sealed(parts, layout.length, sealer.clipped, kept * factor)


def seal_pieces(pieces: Mapping[str, NamedArrays], plan: RoundPlan, weight: float, protection: Protection) -> Sealed:
    """Weight and seal each piece on its own; an aggregator refuses a piece whose layout is not the round's.

    Args:
        pieces: what travels, by the name of its sum.
        plan: the round's; its secure sum is sized for the longest piece.
        weight: the client's.
        protection: the secure sum.

    Raises:
        InputError: a value is not finite; names the array and the index.
    """
    sealer = protection.sealer(plan.secure)
    sealed: dict[str, list[bytes]] = {}
    length = clipped = 0
    for piece, arrays in pieces.items():
        layout = arrays.layout
        tag = Tag(round=plan.round, layout_hash=layout.hash, length=layout.length)
        sealed[piece] = sealer.seal(layout.pack(arrays.arrays, weight), tag)
        length, clipped = length + layout.length, clipped + sealer.clipped
    return Sealed([], length, clipped, pieces=sealed)


def _check_layout(layout: Layout, plan: RoundPlan) -> None:
    if layout.hash != plan.layout_hash:
        raise LayoutMismatch(
            f"this client's model has layout {layout.hash.hex()[:8]} ({layout.length} values): the round's is "
            f"{plan.layout_hash.hex()[:8]}; model and options must agree on both sides"
        )


def seal_mod(
    protection: Protection, half: ClientHalf | None = None, buffer_names: frozenset[str] = frozenset()
) -> Callable[[Message, Context, Handler], Message]:
    """Return a Flower mod that lets an ordinary `ClientApp` work under any of our strategies.

    The wrapped handler gets ``arrays`` (an `ArrayRecord` of numpy arrays) and ``config``, and answers a training
    message with ``arrays`` and ``metrics`` (with ``num-examples``), as Flower's own examples do.

    Example:
        >>> app = ClientApp(mods=[seal_mod(Plain())])  # doctest: +SKIP
    """
    side = half or ClientHalf()

    def mod(message: Message, context: Context, call_next: Handler) -> Message:
        if message.metadata.message_type.startswith("query"):
            return call_next(message, context)
        content = message.content
        known = read_model(context.state["fedsim-model"]) if "fedsim-model" in context.state else None  # type: ignore[arg-type]
        before = side.receive(content, protection, known, buffer_names, context.state)
        context.state["fedsim-model"] = array_record(before)
        message.content = RecordDict({"arrays": array_record(before), "config": content["config"]})
        reply = call_next(message, context)
        if message.metadata.message_type.startswith("train") and not reply.has_error():
            _seal_reply(reply, before, content.config_records["config"], context)
        return reply

    def _seal_reply(reply: Message, before: NamedArrays, config: ConfigRecord, context: Context) -> None:
        records = reply.content
        metrics = records.metric_records.setdefault("metrics", MetricRecord())
        examples = metrics.get("num-examples", 0)
        sealed = side.seal(
            RoundPlan.from_record(config),
            before,
            read_model(records.array_records["arrays"]),
            num_examples=int(examples) if isinstance(examples, int | float) else 0,
            partition_id=int(context.node_config.get("partition-id", -1)),
            buffer_names=buffer_names,
            protection=protection,
            memory=context.state,
        )
        records.pop("arrays")
        records.update(sealed.records())

    return mod


class Stopwatch:
    """Seconds per phase of one client's round: each lap ends a phase, so the phases add up to the whole.

    Example:
        >>> watch = Stopwatch()
        >>> watch.lap("download")
        >>> watch.lap("train")
        >>> list(watch.seconds)
        ['download', 'train']
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._started = self._at = time.perf_counter()

    def lap(self, phase: str, seconds: float | None = None) -> None:
        """Count the time since the last lap towards `phase`; or `seconds`, where part of it was not this client's."""
        now = time.perf_counter()
        passed = now - self._at
        own = passed if seconds is None else seconds
        self._started += passed - own
        self.seconds[phase] = self.seconds.get(phase, 0.0) + own
        self._at = now

    def record(self, costs: Mapping[str, float] | None = None) -> MetricRecord:
        """Return ``<phase>_s`` for each phase, the whole up to the last lap as ``round_s``, and other named costs."""
        values = {f"{phase}_s": seconds for phase, seconds in self.seconds.items()}
        return metric_record({**values, "round_s": self._at - self._started, **(costs or {})})


__all__ = ["ClientHalf", "Stopwatch", "difference", "open_model", "seal_mod", "seal_pieces", "seal_update"]
