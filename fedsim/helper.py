"""The helper: the second aggregator of PREAMBLE, a process of its own that alone holds its private key.

    python -m fedsim.helper --task helper.json --keys FOLDER --socket PATH

Everything it promises follows from its own two files: the key (``FOLDER/helper/preamble.key``) and the task, which says
what run, parameters, noise, rounds and smallest cohort its owner agreed to. The leader can choose none of these. It
serves one connection at a time on a Unix socket (mode 0600), keeps one running sum and releases each round once. With
`--tied` it ends when its standard input does, so that it never outlives whoever started it.
"""

import argparse
import json
import logging
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from crypto import BudgetExceeded, CryptoError, InputError, ReplayError, WireError
from crypto.base import Plan, Tag
from crypto.keys import HELPER, load_key
from crypto.preamble.aggregator import HelperAdder
from crypto.preamble.dpf import Group
from crypto.preamble.noise import NoNoiseForTests
from crypto.preamble.scheme import Parameters, PreambleSum
from fedsim.errors import EngineError
from strategies.helper_link import (
    ADD,
    HELLO,
    HELLO_FIELDS,
    LENGTH,
    OPEN,
    OPEN_FIELDS,
    SETTLE,
    TOTAL,
    answer,
    read_frame,
    refusal,
)

logger = logging.getLogger(__name__)

READY = b"ready\n"


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
            values = json.loads(path.read_text(encoding="utf-8"))
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
        except (KeyError, TypeError, ValueError) as error:
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
        self._round, self._releases = _read_released(released, task.run)
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
        if length != self._task.plan.length:
            raise BudgetExceeded(f"{length} coordinates: the noise was computed for {self._task.plan.length}")
        tag = Tag(round=number, layout_hash=layout_hash, length=length)
        noise = NoNoiseForTests() if self._task.parameters.sigma == 0 else None
        # A round that was opened and not released begins anew; nothing of it has left.
        verify_key = os.urandom(16)
        self._adder = self._scheme.helper(tag, self._key, noise, verify_key=verify_key)
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
            raise WireError("no round is open: open one first")
        return self._adder


def _unpack(form: struct.Struct, payload: bytes) -> tuple[Any, ...]:
    if len(payload) != form.size:
        raise WireError(f"request of {len(payload)} bytes: must have {form.size}; versions must agree")
    return form.unpack(payload)


def _read_released(path: Path, run: bytes) -> tuple[int, int]:
    if not path.exists():
        return 0, 0
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        last, count = held.get(run.hex(), [0, 0])
        return int(last), int(count)
    except (AttributeError, TypeError, ValueError) as error:
        raise InputError(
            f"{path} is damaged ({error}): without it rounds could be released twice; restore it"
        ) from error


def _write_released(path: Path, run: bytes, last: int, count: int) -> None:
    held = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(held | {run.hex(): [last, count]}), encoding="utf-8")
    os.replace(fresh, path)


def serve(helper: Helper, listener: socket.socket) -> None:
    """Serve one connection after the other, for ever; a connection that breaks ends alone."""
    while True:
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as stream:
            try:
                while True:
                    reply = helper.handle(read_frame(stream))
                    connection.sendall(LENGTH.pack(len(reply)) + reply)
            except EOFError:
                continue
            except (OSError, WireError) as error:
                logger.warning("connection dropped: %s", error)


def listen(path: Path) -> socket.socket:
    """Return a listening Unix socket that only its owner may use."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(before)
    listener.listen(1)
    return listener


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the helper until it is stopped; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m fedsim.helper", description="The second aggregator of PREAMBLE.")
    parser.add_argument("--task", type=Path, required=True, help="what the owner agreed to, JSON")
    parser.add_argument("--keys", type=Path, required=True, help="folder that holds helper/preamble.key")
    parser.add_argument("--socket", type=Path, required=True, help="path of the socket to listen on")
    parser.add_argument("--tied", action="store_true", help="end when standard input ends")
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="helper: %(message)s")
    bundle = load_key(given.keys, HELPER, "preamble")
    key = X25519PrivateKey.from_private_bytes(bundle.secret)
    helper = Helper(Task.read(given.task), key, given.keys / HELPER / "released.json")
    listener = listen(given.socket)
    if given.tied:
        threading.Thread(target=_end_with, args=(sys.stdin.buffer,), daemon=True).start()
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    serve(helper, listener)
    return 0


def _end_with(stream: BinaryIO) -> None:
    stream.read()
    os._exit(0)


@contextmanager
def helper_process(
    task: Path, keys: Path, socket_path: Path, log: Path, start_s: float = 60.0
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a helper beside the caller, from when it listens until the end of the block.

    Args:
        task, keys, socket_path: its arguments.
        log: file for what it says.
        start_s: longest wait until it listens.

    Raises:
        EngineError: it did not start; the message holds what it said.
    """
    places = {"--task": task, "--keys": keys, "--socket": socket_path}
    command = [
        sys.executable,
        "-m",
        "fedsim.helper",
        "--tied",
        *(str(word) for pair in places.items() for word in pair),
    ]
    with log.open("wb") as said:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said)
    try:
        _await_ready(process, log, start_s)
        yield process
    finally:
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _await_ready(process: "subprocess.Popen[bytes]", log: Path, start_s: float) -> None:
    timer = threading.Timer(start_s, process.kill)
    timer.start()
    try:
        line = process.stdout.readline() if process.stdout is not None else b""
    finally:
        timer.cancel()
    if line != READY:
        words = log.read_text(encoding="utf-8", errors="replace")[-2000:]
        raise EngineError(f"the helper did not start within {start_s:g} s; it said:\n{words}")


if __name__ == "__main__":
    sys.exit(main())
