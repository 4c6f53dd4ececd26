"""Arrays that never change in a run are sent to each client once, and kept by it.

The server notes who holds them: clients whose reply counted. One that did not answer, or that starts anew, is sent
them again; one that was taken to hold them and does not says so, and is sent them next time. Notes of who holds what
are part of a checkpoint, as clients' memories are where they are simulated; see :data:`HELD`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from crypto import LayoutMismatch
from strategies._leff_blocks import joined
from strategies.records import NamedArrays, model_record, read_model

#: Key of a strategy's state: nodes that hold what was sent once. Left out where clients' memories are not restored.
HELD = "held"
_NOTE, _KEPT = "frozen", "frozen-arrays"


@dataclass
class FrozenOnce:
    """The server's notes on who holds the frozen arrays.

    Attributes:
        arrays: that never change.
    """

    arrays: NamedArrays
    _held: set[int] = field(default_factory=set)
    _asked: set[int] = field(default_factory=set)

    @property
    def key(self) -> bytes:
        """Hash of the arrays' layout; a client keeps those of one model."""
        return self.arrays.layout.hash

    @classmethod
    def resumed(cls, arrays: NamedArrays, state: Mapping[str, NDArray[np.generic]]) -> "FrozenOnce":
        """Return notes that go on from a strategy's state, see :meth:`held`."""
        return cls(arrays, {int(node) for node in state.get(HELD, ())})

    def held(self) -> dict[str, NDArray[np.generic]]:
        """Return who holds the arrays, for a checkpoint: nodes' ids as uint64; nothing where nobody does."""
        return {HELD: np.array(sorted(self._held), np.uint64)} if self._held else {}

    def missing(self, node: int) -> bool:
        """Note that a node is asked, and tell whether it must be sent the arrays."""
        lacks = node not in self._held
        self._held.discard(node)
        self._asked.add(node)
        return lacks

    def fill(self, content: RecordDict, state: NamedArrays, *, send: bool) -> RecordDict:
        """Return a message's content with the model's other arrays, and the frozen ones where they are to be sent."""
        made = RecordDict(dict(content))
        made["model"] = model_record(joined(self.arrays, state) if send else state)
        made[_NOTE] = ConfigRecord({"key": self.key, "sent": send, "names": list(self.arrays.arrays)})
        return made

    def delivered(self, nodes: Collection[int]) -> None:
        """Note that these nodes answered, and so hold the arrays."""
        self._held |= self._asked.intersection(nodes)
        self._asked = set()


def with_frozen(content: RecordDict, state: NamedArrays, memory: RecordDict) -> NamedArrays:
    """Return a client's model with the frozen arrays, from the message or from the client's memory, which is updated.

    Raises:
        LayoutMismatch: they were not sent and are not here.
    """
    note = content.config_records.get(_NOTE)
    if note is None:
        return state
    if note["sent"]:
        names = note["names"]
        kept = {n: a for n, a in state.arrays.items() if isinstance(names, list) and n in names}
        memory[_KEPT] = model_record(NamedArrays(kept, {n: d for n, d in state.dtypes.items() if n in kept}))
        return state
    record = memory.get(_KEPT)
    held = read_model(record) if isinstance(record, ArrayRecord) else None
    if held is None or held.layout.hash != note["key"]:
        raise LayoutMismatch("this client does not hold the embeddings that were sent to it once; they come again next")
    return joined(held, state)
