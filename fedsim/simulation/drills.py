"""Drills: clients that fail, lie or are slow on purpose, so that one sees what becomes of a round.

========== ============================================================================================================
drill      what the client does
========== ============================================================================================================
drop_before  does not train
drop_during  trains, and its connection breaks while it sends
drop_after   delivers, and answers nothing more in that round: no evaluation, no part in a decryption
slow         trains ``slow_factor`` times as long in virtual time
duplicate    its reply arrives twice
stale        sends what it sent in the round before; honest in its first round
corrupt      one bit of what it sends is flipped
nan          its first trained array is all NaN
wrong_key    seals under a key of its own
lie          states ``lie_factor`` times the examples that it has
========== ============================================================================================================

Drills act in the client's own process, and so on every engine; what becomes of them is the product's doing alone. The
expected outcome under each protection stands in docs/heterogeneity.md and is tested.
"""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from crypto.base import Plan
from fedsim.config import FaultsConfig
from strategies.keyed import KeyedProtection
from strategies.preamble import PreambleProtection
from strategies.protection import Protection
from strategies.records import NamedArrays

__all__ = ["DRILLS", "Dropped", "Honest", "drill_of"]

#: What an earlier reply is kept under in a client's own records.
_EARLIER = "drill-earlier"


class Dropped(ConnectionError):
    """A drill made a client vanish; its reply is an error."""


class Honest:
    """A client without a drill: every step leaves things as they are. Drills override one step each.

    Args:
        faults: the settings.
    """

    def __init__(self, faults: FaultsConfig) -> None:
        self._faults = faults

    def begin(self) -> None:
        """The message is there."""

    def trained(self, after: NamedArrays) -> NamedArrays:
        """Return the model after training."""
        return after

    def examples(self, count: int) -> int:
        """Return the number of examples that the client states."""
        return count

    @contextmanager
    def protection(self, own: Protection, plan: Plan) -> Iterator[Protection]:
        """Yield what the client seals with."""
        yield own

    def send(self, reply: RecordDict, memory: RecordDict) -> None:
        """Change the reply on its way out."""

    def ask_again(self) -> None:
        """A later message of the same round is there."""


class DropBefore(Honest):
    """See the module."""

    def begin(self) -> None:
        """Vanish."""
        raise Dropped("drill drop_before: lost before training")


class DropDuring(Honest):
    """See the module."""

    def send(self, reply: RecordDict, memory: RecordDict) -> None:
        """Vanish."""
        raise Dropped("drill drop_during: the connection broke while the update was sent")


class DropAfter(Honest):
    """See the module."""

    def ask_again(self) -> None:
        """Vanish."""
        raise Dropped("drill drop_after: gone after its update was delivered")


class Slow(Honest):
    """See the module."""

    def send(self, reply: RecordDict, memory: RecordDict) -> None:
        """Note the factor for the virtual clock."""
        reply.metric_records.setdefault("phases", MetricRecord())["slowness"] = self._faults.slow_factor


class Stale(Honest):
    """See the module."""

    def send(self, reply: RecordDict, memory: RecordDict) -> None:
        """Swap the sealed records for those of the client's last round."""
        own = {name: copy.deepcopy(record) for name, record in reply.items() if _sealed(name, record)}
        for name in own:
            kept = memory.get(f"{_EARLIER}-{name}")
            if kept is not None:
                reply[name] = kept
            memory[f"{_EARLIER}-{name}"] = own[name]


class Corrupt(Honest):
    """See the module."""

    def send(self, reply: RecordDict, memory: RecordDict) -> None:
        """Flip the lowest bit of the byte in the middle."""
        for record in reply.array_records.values():
            name, array = next(iter(record.items()))
            data = bytearray(array.data)
            data[len(data) // 2] ^= 1
            record[name] = Array(dtype=array.dtype, shape=tuple(array.shape), stype=array.stype, data=bytes(data))


class Nan(Honest):
    """See the module."""

    def trained(self, after: NamedArrays) -> NamedArrays:
        """Spoil the first array of floats."""
        name = next(name for name, array in after.arrays.items() if array.dtype.kind == "f")
        spoilt = np.full_like(after.arrays[name], np.nan)
        return NamedArrays({**after.arrays, name: spoilt}, after.dtypes)


class WrongKey(Honest):
    """See the module."""

    @contextmanager
    def protection(self, own: Protection, plan: Plan) -> Iterator[Protection]:
        """Yield the same protection over keys that were made just now."""
        from fedsim.protections import write_bundles, write_keys
        from strategies import preamble

        with TemporaryDirectory(prefix="fedsim-drill-") as folder:
            root = Path(folder)
            if isinstance(own, KeyedProtection):
                write_keys(own.describe(plan), root / "server", root / "clients")
                yield replace(own, keys=str(root / "clients"))
            elif isinstance(own, PreambleProtection):
                places = {role: root / role for role in ("server", "clients", "helper")}
                write_bundles(preamble.make_keys(), places)
                yield replace(own, keys=str(root / "clients"))
            else:
                yield own


class Lie(Honest):
    """See the module."""

    def examples(self, count: int) -> int:
        """State too many."""
        return round(count * self._faults.lie_factor)


#: Name in the settings -> what the client does; ``duplicate`` is the network's doing, see :mod:`~.duplicates`.
DRILLS: Mapping[str, type[Honest]] = {
    "drop_before": DropBefore,
    "drop_during": DropDuring,
    "drop_after": DropAfter,
    "slow": Slow,
    "duplicate": Honest,
    "stale": Stale,
    "corrupt": Corrupt,
    "nan": Nan,
    "wrong_key": WrongKey,
    "lie": Lie,
}


def drill_of(faults: FaultsConfig, seed: int, server_round: int, client: int) -> Honest:
    """Return what a client does in a round, by the settings; a random dropout comes before all drills."""
    if faults.dropout and _draw(seed, server_round, client) < faults.dropout:
        return DropBefore(faults)
    if faults.rounds and server_round not in faults.rounds:
        # A stale client must have kept something from an honest round.
        return Keeping(faults) if client in faults.stale else Honest(faults)
    name = next((name for name in DRILLS if client in getattr(faults, name)), "")
    return DRILLS.get(name, Honest)(faults)


class Keeping(Honest):
    """An honest client that will be stale in a later round."""

    def send(self, reply: RecordDict, memory: RecordDict) -> None:
        """Keep what is sent."""
        for name, record in list(reply.items()):
            if _sealed(name, record):
                memory[f"{_EARLIER}-{name}"] = copy.deepcopy(record)


def _sealed(name: str, record: ArrayRecord | MetricRecord | ConfigRecord) -> bool:
    return name not in ("metrics", "phases")


def _draw(seed: int, server_round: int, client: int) -> float:
    return float(np.random.default_rng([0x64726F70, seed, server_round, client]).random())
