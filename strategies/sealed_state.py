"""The global model where only clients can open it: the last sealed total, and what a client must know to open it."""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import safetensors
from flwr.app import ConfigRecord
from safetensors.numpy import load, save

from crypto import WireError
from crypto.texts import json_of
from strategies.plan import RoundPlan

_VERSION = "1"


@dataclass(slots=True)
class SealedState:
    """The global model as the server has it when only clients open: the last total and what it is of.

    Attributes:
        totals: one for each aggregator.
        plan: of the round that it is the total of.
        length: coordinates of a vector of that round.
        weight: sum of the clients' weights.
        count: number of clients inside.
        first_counts: whether the client whose buffers count under the ``first`` rule is among them.
    """

    totals: list[bytes]
    plan: RoundPlan
    length: int
    weight: float
    count: int
    first_counts: bool

    def to_bytes(self) -> bytes:
        """Return the state for a checkpoint: safetensors, the plan in its metadata. Nothing in it is secret."""
        values = dict(self.plan.record())
        notes = {
            "version": _VERSION,
            "plan": {k: v for k, v in values.items() if not isinstance(v, bytes)},
            "bytes": {k: v.hex() for k, v in values.items() if isinstance(v, bytes)},
            "length": self.length,
            "weight": self.weight,
            "count": self.count,
            "first_counts": self.first_counts,
        }
        arrays = {str(i): np.frombuffer(total, np.uint8) for i, total in enumerate(self.totals)}
        return save(arrays, {"fedsim": json.dumps(notes)})

    @classmethod
    def from_bytes(cls, data: bytes) -> "SealedState":
        """Read what :meth:`to_bytes` wrote.

        Raises:
            WireError: it is something else.
        """
        try:
            arrays = load(data)
            head = json_of(data[8 : 8 + int.from_bytes(data[:8], "little")])
            notes: dict[str, Any] = json_of(head["__metadata__"]["fedsim"])
            if notes["version"] != _VERSION:
                raise WireError(f"sealed state of version {notes['version']}: this program reads {_VERSION}")
            values = notes["plan"] | {k: bytes.fromhex(v) for k, v in notes["bytes"].items()}
            return cls(
                totals=[arrays[str(i)].tobytes() for i in range(len(arrays))],
                plan=RoundPlan.from_record(ConfigRecord(values)),
                length=int(notes["length"]),
                weight=float(notes["weight"]),
                count=int(notes["count"]),
                first_counts=bool(notes["first_counts"]),
            )
        except (safetensors.SafetensorError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise WireError(f"{len(data)} bytes are no sealed state ({error}): the file was damaged") from error
