"""A round's public plan: what the server tells every client about the vector that it wants.

The plan travels in the message's `ConfigRecord`; both ends derive the same layout from it, and the layout's hash is
compared before anything is trained or summed.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, TypeVar

from flwr.app import ConfigRecord

from crypto import Layout, WireError
from crypto.base import Plan, Tag
from crypto.texts import json_of

Payload = Literal["weights", "delta"]
Weighting = Literal["examples", "uniform"]
Buffers = Literal["average", "local", "first"]
_T = TypeVar("_T")
_L = TypeVar("_L", bound=str)
_SCALARS = (bool, int, float, str, bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferRule:
    """What happens to arrays that are state but not trained (BatchNorm's statistics and counters).

    Attributes:
        mode: ``average`` like parameters; ``local`` never sent, each side keeps its own; ``first`` taken from the
            first client of the round's order.
        names: the buffers' names.
    """

    mode: Buffers = "average"
    names: frozenset[str] = frozenset()

    def travelling(self, layout: Layout) -> Layout:
        """Return the layout without what stays local."""
        if self.mode != "local":
            return layout
        return layout.only(n for n in layout.names if n not in self.names)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPlan:
    """One round's plan.

    Attributes:
        strategy: name of the client half.
        round: server round, from 1.
        rounds: number of rounds of the run.
        names: names of the arrays that travel back, in the model's order.
        layout_hash: hash of their layout.
        payload: ``weights`` sends w_i x_i, ``delta`` sends w_i (x_i - x).
        weighting: w_i is n_i / weight_scale (``examples``) or 1 (``uniform``).
        weight_scale: divides the number of examples, so that weights stay within the declared bound.
        buffers: rule for untrained state.
        first_partition: the client whose buffers count under ``first``; -1 for none.
        secure: length, clients and bound that the secure sum was sized for.
        extras: the strategy's own scalars.
    """

    strategy: str
    round: int
    rounds: int
    names: tuple[str, ...]
    layout_hash: bytes
    payload: Payload
    weighting: Weighting
    weight_scale: float
    buffers: Buffers
    first_partition: int
    secure: Plan
    extras: dict[str, int | float | str | bool | bytes] = field(default_factory=dict)

    def weight(self, num_examples: int) -> float:
        """Return w_i of a client with this many examples."""
        return 1.0 if self.weighting == "uniform" else num_examples / self.weight_scale

    def tag(self, length: int) -> Tag:
        """Return what the round's sealed vectors are for."""
        return Tag(round=self.round, layout_hash=self.layout_hash, length=length)

    def record(self) -> ConfigRecord:
        """Return the plan as a Flower record."""
        values: dict[str, int | float | str | bool | bytes] = {
            "server-round": self.round,
            "num-rounds": self.rounds,
            "strategy": self.strategy,
            "names": json.dumps(self.names),
            "layout-hash": self.layout_hash,
            "payload": self.payload,
            "weighting": self.weighting,
            "weight-scale": self.weight_scale,
            "buffers": self.buffers,
            "first-partition": self.first_partition,
            "plan-length": self.secure.length,
            "plan-clients": self.secure.clients,
            "plan-bound": self.secure.bound,
        }
        values.update({f"x.{k}": v for k, v in self.extras.items()})
        return ConfigRecord(values)  # type: ignore[arg-type]

    @classmethod
    def from_record(cls, record: ConfigRecord) -> "RoundPlan":
        """Read a plan.

        Raises:
            WireError: a field is missing or of the wrong type; names it.
        """

        try:
            return _parsed(tuple([(key, type(value), value) for key, value in record.items()]))
        except TypeError:  # a list, which no plan of ours has: not hashable
            return cls._parse(dict(record))

    @classmethod
    def _parse(cls, record: Mapping[str, object]) -> "RoundPlan":
        def read(key: str, kind: type[_T]) -> _T:
            value = record.get(key)
            if not isinstance(value, kind):
                raise WireError(f"plan field '{key}' is {value!r}: expected {kind.__name__}; versions must agree")
            return value

        return cls(
            strategy=read("strategy", str),
            round=read("server-round", int),
            rounds=read("num-rounds", int),
            names=_names(read("names", str)),
            layout_hash=read("layout-hash", bytes),
            payload=_one_of(read("payload", str), ("weights", "delta")),
            weighting=_one_of(read("weighting", str), ("examples", "uniform")),
            weight_scale=read("weight-scale", float),
            buffers=_one_of(read("buffers", str), ("average", "local", "first")),
            first_partition=read("first-partition", int),
            secure=_secure(read("plan-length", int), read("plan-clients", int), read("plan-bound", float)),
            extras={k[2:]: v for k, v in record.items() if k.startswith("x.") and isinstance(v, _SCALARS)},
        )


@lru_cache(maxsize=16)
def _parsed(items: tuple[tuple[str, type, object], ...]) -> RoundPlan:
    """Read a plan, which all clients of a round share."""
    return RoundPlan._parse({key: value for key, _, value in items})


def _secure(length: int, clients: int, bound: float) -> Plan:
    try:
        return Plan(length=length, clients=clients, bound=bound)
    except ValueError as error:
        raise WireError(f"the plan's secure sum cannot be: {error}") from error


def _names(text: str) -> tuple[str, ...]:
    try:
        names = json_of(text)
    except ValueError as error:
        raise WireError(f"plan field 'names' is no list of names ({error}): versions must agree") from error
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise WireError(f"plan field 'names' is {names!r:.80}: expected a list of names; versions must agree")
    return tuple(names)


def _one_of(value: str, allowed: Collection[_L]) -> _L:
    for option in allowed:
        if value == option:
            return option
    raise WireError(f"plan value '{value}': must be one of {sorted(allowed)}; versions must agree")


__all__ = ["BufferRule", "Buffers", "Payload", "RoundPlan", "Weighting"]
