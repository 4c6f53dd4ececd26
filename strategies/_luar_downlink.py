"""FedLUAR's way down: a client that holds an earlier model re-applies updates that it has instead of being sent layers.

The server notes what each client holds: the round of its last model, and the arrays whose last update it saw (it was
sent the weights before and after a fresh aggregation). An array that was recycled in every round since then is left
out of the message; the client repeats the addition that the server did, to the same bits. A client that evaluated the
model which the round begins with holds all of it. A client that did not answer, or answered too late, is taken to hold
nothing and gets the whole model.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from crypto import LayoutMismatch
from crypto.packing import cast
from strategies._luar_state import advance, change
from strategies.client import ClientHalf
from strategies.records import NamedArrays, model_record, read_model

_NOTE = "held"
_MODEL, _UPDATES, _ROUND = "luar-model", "luar-updates", "luar-round"


@dataclass(frozen=True)
class _Holding:
    """What a client has: the model of a round, and the arrays whose last update it knows."""

    round: int
    known: frozenset[str]


@dataclass
class Downlink:
    """The server's notes on what clients hold.

    Attributes:
        drop: recycled layers stand still, so that no update needs to be known.
    """

    drop: bool = False
    _held: dict[int, _Holding] = field(default_factory=dict)
    _sent: dict[int, _Holding] = field(default_factory=dict)

    def contents(
        self,
        content: RecordDict,
        state: NamedArrays,
        ages: Mapping[str, int],
        nodes: Collection[int],
        server_round: int,
    ) -> list[RecordDict]:
        """Return each node's message; nodes that need the same share one object.

        Args:
            content: the message with the whole model.
            state: the model.
            ages: for each array that may be recycled, in how many rounds running up to now it was.
            nodes: node ids.
            server_round: the round that begins with this model.
        """
        self._sent = {}
        made: dict[tuple[int, frozenset[str]], RecordDict] = {}
        found = []
        for node in nodes:
            base, kept, known = self._plan(self._held.pop(node, None), state, ages, server_round)
            self._sent[node] = _Holding(server_round, known)
            if (base, kept) not in made:
                made[base, kept] = self._content(content, state, base, kept, server_round)
            found.append(made[base, kept])
        return found

    def _plan(
        self, held: _Holding | None, state: NamedArrays, ages: Mapping[str, int], server_round: int
    ) -> tuple[int, frozenset[str], frozenset[str]]:
        """Return the base round (0 for none), what is left out, and the arrays whose last update is then known."""
        # bfloat16 is rounded on its way: the client's copy is not the server's.
        exact = [n for n in ages if n not in state.dtypes]
        if held is None:
            return 0, frozenset(), frozenset()
        since = server_round - held.round
        if since == 0:
            return held.round, frozenset(state.arrays), held.known
        usable = exact if self.drop else [n for n in exact if n in held.known]
        kept = frozenset(n for n in usable if 0 < since <= ages[n])
        fresh = {n for n in exact if since == 1 and ages[n] == 0}
        return (held.round if kept or since == 1 else 0), kept, kept | fresh

    def _content(
        self, content: RecordDict, state: NamedArrays, base: int, kept: frozenset[str], server_round: int
    ) -> RecordDict:
        sent = NamedArrays(
            {n: a for n, a in state.arrays.items() if n not in kept},
            {n: d for n, d in state.dtypes.items() if n not in kept},
        )
        made = RecordDict(dict(content))
        if kept:
            made["model"] = model_record(sent)
        steps = 0 if self.drop else server_round - base
        made[_NOTE] = ConfigRecord({"round": server_round, "base": base, "steps": steps})
        return made

    def delivered(self, nodes: Collection[int]) -> None:
        """Note that these nodes answered the last messages, and so hold what they were sent."""
        self._held |= {n: self._sent[n] for n in nodes if n in self._sent}


class LuarClient(ClientHalf):
    """Client half of FedLUAR: trains the whole model, sends what the plan names, completes the model it is sent."""

    name = "fedluar"
    replaceable = frozenset({_MODEL, _UPDATES, _ROUND})

    def complete(self, content: RecordDict, state: NamedArrays, memory: RecordDict) -> NamedArrays:
        """Return the whole model: what came, and what this client makes of its own memory.

        Args:
            content: the message.
            state: the arrays that came.
            memory: the client's own records, kept between rounds; updated.

        Raises:
            LayoutMismatch: the client does not hold the model that the message builds on.
        """
        note = content.config_records.get(_NOTE)
        if note is None:
            return state
        base, steps = _whole(note, "base"), _whole(note, "steps")
        held = _held(memory, base) if base else None
        updates = read_model(_array_record(memory, _UPDATES)).arrays if held else {}
        whole = _replayed(held, updates, state, steps) if held else state
        learned = {
            n: change(a, held.arrays[n]) if n in state.arrays else updates[n]
            for n, a in whole.arrays.items()
            if held and a.dtype.kind == "f" and (n in state.arrays or n in updates)
        }
        memory[_MODEL], memory[_UPDATES] = model_record(whole), model_record(NamedArrays(learned))
        memory[_ROUND] = ConfigRecord({"round": _whole(note, "round")})
        return whole


def _replayed(
    held: NamedArrays, updates: Mapping[str, NDArray[np.generic]], state: NamedArrays, steps: int
) -> NamedArrays:
    """Return the model in the held one's order: what came as it is, the rest moved on by its own last update."""
    arrays = {}
    for name, old in held.arrays.items():
        if name in state.arrays:
            arrays[name] = state.arrays[name]
            continue
        for _ in range(steps):
            if name not in updates:
                raise LayoutMismatch(f"array '{name}' was left out and its last update is not here: restart the client")
            old = cast(advance(old, updates[name]), str(old.dtype))
        arrays[name] = old
    return NamedArrays(arrays, state.dtypes)


def _held(memory: RecordDict, base: int) -> NamedArrays:
    note = memory.get(_ROUND)
    held = note.get("round") if isinstance(note, ConfigRecord) else None
    if held != base:
        raise LayoutMismatch(
            f"this client holds the model of round {held!r}: the message builds on round {base}; it comes whole next"
        )
    return read_model(_array_record(memory, _MODEL))


def _array_record(memory: RecordDict, name: str) -> ArrayRecord:
    record = memory.get(name)
    if not isinstance(record, ArrayRecord):
        raise LayoutMismatch(f"this client's memory lacks '{name}': it is sent the whole model next time")
    return record


def _whole(note: ConfigRecord, key: str) -> int:
    value = note.get(key)
    if not isinstance(value, int):
        raise LayoutMismatch(f"field '{key}' is {value!r}: must be a whole number; versions must agree")
    return value
