"""The helper: the second aggregator of PREAMBLE, which alone holds its private key.

Everything it promises follows from its own two files: the key (``FOLDER/helper/preamble.key``) and the task, which says
what run, parameters, noise, rounds and smallest cohort its owner agreed to. The leader can choose none of these. It
keeps one running sum and releases each round once. :mod:`fedsim.helper_daemon` is the process around it.
"""

import json
import logging
import os
import struct
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from crypto import BudgetExceeded, CryptoError, InputError, ReplayError, WireError
from crypto.base import Plan, Tag
from crypto.preamble.aggregator import HelperAdder
from crypto.preamble.dpf import Group
from crypto.preamble.noise import NoNoiseForTests
from crypto.preamble.scheme import Parameters, PreambleSum
from crypto.texts import json_of
from strategies.helper_link import (
    ADD,
    HELLO,
    HELLO_FIELDS,
    OPEN,
    OPEN_FIELDS,
    SETTLE,
    TOTAL,
    answer,
    refusal,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What the helper's owner agreed to.

    Attributes:
        run: 16 bytes.
        plan: length, clients and bound of every round.
        parameters: blocks, noise and smallest cohort.
        rounds: how many totals may be released; the guarantee of the run is composed over them.
    """

    run: bytes
    plan: Plan
    parameters: Parameters
    rounds: int

    def write(self, path: Path) -> None:
        """Write the task as JSON."""
        parameters = asdict(self.parameters) | {"group": self.parameters.group.name}
        values = {"run": self.run.hex(), "rounds": self.rounds, "plan": asdict(self.plan), "parameters": parameters}
        path.write_text(json.dumps(values, indent=1), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> "Task":
        """Read a task.

        Raises:
            InputError: a field is missing, unknown or of the wrong type.
        """
        try:
            values = json_of(path.read_text(encoding="utf-8"))
            given = values["parameters"]
            if unknown := set(given) - {f.name for f in fields(Parameters)}:
                raise KeyError(f"unknown parameters {sorted(unknown)}")
            parameters = Parameters(**given | {"group": Group[given["group"]]})
            return cls(
                run=bytes.fromhex(values["run"]),
                rounds=int(values["rounds"]),
                plan=Plan(**values["plan"]),
                parameters=parameters,
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise InputError(f"{path} is no helper task ({error}): write it anew with the run's settings") from error


class Helper:
    """The helper's rounds: what it accepts and when it releases.

    Args:
        task: see :class:`Task`.
        key: its private key.
        released: file that remembers the last released round, so that a restart cannot release it again.

    Raises:
        InputError: `released` holds something else.
    """

    def __init__(self, task: Task, key: X25519PrivateKey, released: Path) -> None:
        self._task, self._key, self._file = task, key, released
        public = key.public_key().public_bytes_raw()
        self._scheme = PreambleSum(task.plan, task.parameters, helper_key=public, run=task.run)
        self._adder: HelperAdder | None = None
        self._opened = 0
        self._round, self._releases = read_released(released, task.run)
        self._handlers: dict[int, Callable[[bytes], bytes]] = {
            HELLO: self._hello,
            OPEN: self._open,
            ADD: self._add,
            SETTLE: self._settle,
            TOTAL: self._total,
        }

    def handle(self, request: bytes) -> bytes:
        """Return the answer to one request; refusals are answers."""
        started = time.perf_counter()
        try:
            handler = self._handlers.get(request[0])
            if handler is None:
                raise WireError(f"operation {request[0]}: there is none; versions must agree")
            result = handler(request[1:])
        except CryptoError as error:
            logger.warning("refused operation %d: %s", request[0], error)
            return refusal(error, time.perf_counter() - started)
        return answer(result, time.perf_counter() - started)

    def _hello(self, payload: bytes) -> bytes:
        key_id, params_hash = _unpack(HELLO_FIELDS, payload)
        mine = self._scheme.header(Tag(round=0, layout_hash=bytes(16), length=self._task.plan.length))
        if key_id != mine.key_id:
            raise WireError(f"key {key_id.hex()}: this helper's is {mine.key_id.hex()}; pin the key of this helper")
        if params_hash != mine.params_hash:
            raise WireError(
                f"parameters {params_hash.hex()[:8]}: this helper agreed to {mine.params_hash.hex()[:8]}; leader and "
                "helper must run the same settings"
            )
        return b""

    def _open(self, payload: bytes) -> bytes:
        number, layout_hash, length = _unpack(OPEN_FIELDS, payload)
        if number <= self._round:
            raise ReplayError(f"round {number}: round {self._round} was released already; rounds only go up")
        if self._releases >= self._task.rounds:
            raise BudgetExceeded(f"{self._releases} totals were released: the privacy budget has no more rounds")
        # The round's blocks and noise follow from the task and the length alone; the leader chooses neither.
        scheme = self._scheme.shortened(length)
        tag = Tag(round=number, layout_hash=layout_hash, length=scheme.plan.length)
        noise = NoNoiseForTests() if self._task.parameters.sigma == 0 else None
        # A round that was opened and not released begins anew; nothing of it has left.
        verify_key = os.urandom(16)
        self._adder = scheme.helper(tag, self._key, noise, verify_key=verify_key)
        self._opened = number
        return verify_key

    def _add(self, payload: bytes) -> bytes:
        self._running().add(payload)
        return b""

    def _settle(self, payload: bytes) -> bytes:
        adder = self._running()
        mine = adder.verify_init()
        settled = adder.settle(payload)
        logger.info("accepted %d reports, rejected %d", len(settled.accepted), len(settled.rejected))
        return mine

    def _total(self, payload: bytes) -> bytes:
        total = self._running().total()
        if self._opened > self._round:
            self._round, self._releases = self._opened, self._releases + 1
            _write_released(self._file, self._task.run, self._round, self._releases)
        return total

    def _running(self) -> HelperAdder:
        if self._adder is None:
            raise WireError(
                "no round is open: open one first; a helper that was started again has forgotten the round, so resume "
                "the run"
            )
        return self._adder


def _unpack(form: struct.Struct, payload: bytes) -> tuple[Any, ...]:
    if len(payload) != form.size:
        raise WireError(f"request of {len(payload)} bytes: must have {form.size}; versions must agree")
    return form.unpack(payload)


def read_released(path: Path, run: bytes) -> tuple[int, int]:
    """Return the last round of a run that was released, and how many were; zeros where nothing was noted.

    Raises:
        InputError: the file is damaged.
    """
    if not path.exists():
        return 0, 0
    try:
        held = json_of(path.read_text(encoding="utf-8"))
        last, count = held.get(run.hex(), [0, 0])
        return int(last), int(count)
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"{path} is damaged ({error}): without it rounds could be released twice; restore it"
        ) from error


def _write_released(path: Path, run: bytes, last: int, count: int) -> None:
    held = json_of(path.read_text(encoding="utf-8")) if path.exists() else {}
    fresh = path.with_suffix(".new")
    with fresh.open("w", encoding="utf-8") as file:
        json.dump(held | {run.hex(): [last, count]}, file)
        # The total is handed out next: what was noted must outlive a loss of power.
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)


__all__ = ["Helper", "Task", "read_released"]
