"""The client half of strategies whose clients hold the model, see :mod:`strategies.replicated`."""

import hashlib
import hmac
import os
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from crypto import InputError, LayoutMismatch
from strategies.agreement import SNAPSHOT, Agreement
from strategies.client import ClientHalf, Sealed
from strategies.plan import RoundPlan
from strategies.protection import Protection
from strategies.records import NamedArrays, model_bytes, model_from_bytes, model_record, read_model, read_sealed

Arrays = dict[str, NDArray[Any]]
Floats = NDArray[np.float64]

#: Records of a message: what the receiver has, and by round the totals that it lacks.
NOTE, TOTAL, PLAN = "replica", "total.", "total-plan."
_NONCE_BYTES = 12
_START, _SHARED, _OWN, _MARK = "replica-start", "replica-shared", "replica-own", "replica-mark"


class ReplicatedHalf(ClientHalf):
    """Client half: keeps the state, opens totals, and says in which state an update was made."""

    # ----------------------------------------------------------------- what a paper says

    @abstractmethod
    def first(self, known: NamedArrays) -> Arrays:
        """Return the common state before round 1.

        Args:
            known: the shaped model's start weights.
        """

    @abstractmethod
    def advance(self, state: Arrays, means: list[Floats], plan: RoundPlan, secret: bytes) -> Arrays:
        """Return the common state after a round, the same bits at every client.

        Args:
            state: before the round; not modified.
            means: one vector for each that clients sent, padding included.
            plan: the round's.
            secret: 32 bytes that only the clients know, see :meth:`~strategies.protection.Protection.secret`.
        """

    @abstractmethod
    def model(self, state: Arrays, known: NamedArrays) -> NamedArrays:
        """Return the global model of a state."""

    @abstractmethod
    def vectors(self, state: Arrays, own: Arrays, change: NamedArrays, plan: RoundPlan, secret: bytes) -> list[Floats]:
        """Return what is sent, before weighting, and keep in `own` what is held back.

        Args:
            state: the common state.
            own: this client's own arrays; updated in place.
            change: local model minus global model, by name.
            plan: the round's.
            secret: see :meth:`advance`.
        """

    def returned(self, own: Arrays) -> None:
        """Take back, in `own`, an update that did not count."""

    def protections(self, protection: Protection) -> tuple[Protection, ...]:
        """Return the protection of each vector."""
        return (protection,)

    # ----------------------------------------------------------------- the round

    def receive(
        self,
        content: RecordDict,
        protection: Protection,
        known: NamedArrays | None,
        buffer_names: frozenset[str],
        memory: RecordDict,
    ) -> NamedArrays:
        """See :meth:`~strategies.client.ClientHalf.receive`: opens and applies the totals that this client lacks.

        Raises:
            LayoutMismatch: the start weights are not this client's, or a total between is missing.
        """
        start = self._start(content, known, memory)
        note = content.config_records.get(NOTE, ConfigRecord())
        plan = RoundPlan.from_record(content.config_records["config"])
        secret = protection.secret(plan.secure)
        shared, own, mark = self._recall(memory, start)
        shared, mark = _overtaken(content, shared, mark, secret)
        at, last = mark["round"], _whole(note, "last")
        if last < at:
            raise LayoutMismatch(
                f"this client has applied round {at}: the message ends at {last}; it is of another run"
            )
        for server_round in range(at + 1, last + 1):
            shared = self._apply(content, server_round, shared, protection, secret)
        if mark["sent"] and _whole(note, "counted") != mark["sent"]:
            self.returned(own)
        mark = {"round": last, "sent": 0, "asked": int(bool(note.get("snapshot")))}
        _keep(memory, shared, own, mark)
        return self.model(shared, start)

    def _start(self, content: RecordDict, known: NamedArrays | None, memory: RecordDict) -> NamedArrays:
        """Return the start weights: this client's own, else those that it was sent first."""
        held = memory.get(_START)
        if isinstance(held, ArrayRecord):
            return read_model(held)
        if "model" not in content.array_records:
            if known is None:
                raise LayoutMismatch("the message holds no start weights and this client has none; restart the client")
            return known
        sent = read_model(content.array_records["model"])
        if known is not None and state_digest(sent.arrays) != state_digest(known.arrays):
            raise LayoutMismatch(
                "the server's start weights are not this client's: seed, model and start weights must be the same in "
                "both settings"
            )
        if known is None:
            memory[_START] = model_record(sent)
        return known or sent

    def _recall(self, memory: RecordDict, start: NamedArrays) -> tuple[Arrays, Arrays, dict[str, int]]:
        shared, own, mark = memory.get(_SHARED), memory.get(_OWN), memory.get(_MARK)
        if not (isinstance(shared, ArrayRecord) and isinstance(own, ArrayRecord) and isinstance(mark, ConfigRecord)):
            return self.first(start), {}, {"round": 0, "sent": 0, "asked": 0}
        marks = {key: _whole(mark, key) for key in ("round", "sent", "asked")}
        return read_model(shared).arrays, read_model(own).arrays, marks

    def _apply(
        self, content: RecordDict, server_round: int, shared: Arrays, protection: Protection, secret: bytes
    ) -> Arrays:
        name = f"{TOTAL}{server_round}"
        if name not in content.array_records:
            raise LayoutMismatch(f"the total of round {server_round} is missing: every total must be applied in turn")
        notes = content.config_records[f"{PLAN}{server_round}"]
        plan, weight, lengths = RoundPlan.from_record(notes), notes["weight"], notes["lengths"]
        if not isinstance(weight, float) or not weight > 0 or not isinstance(lengths, list):
            raise LayoutMismatch(f"total weight {weight!r}, lengths {lengths!r}: versions must agree")
        parts = self.protections(protection)
        each = [p.secure_sum(plan.secure).aggregators for p in parts]
        blobs = read_sealed(content.array_records[name], sum(each))
        opened = []
        for part, count, length in zip(parts, each, [int(str(n)) for n in lengths], strict=True):
            vector = part.opener(plan.secure).open(blobs[:count], plan.tag(length))
            opened.append(vector / weight)
            blobs = blobs[count:]
        return self.advance(shared, opened, plan, secret)

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
    ) -> Sealed:
        """See :meth:`~strategies.client.ClientHalf.seal`; adds the agreement.

        Raises:
            InputError: no samples, or a value that is not finite.
        """
        if num_examples < 1:
            raise InputError(f"client {partition_id} has {num_examples} samples: it cannot take part; check the data")
        secret = protection.secret(plan.secure)
        shared, own, mark = self._recall(memory, before)
        proof = self._proof(shared, before, plan, secret)
        change = _change(before, after, buffer_names)
        vectors = self.vectors(shared, own, change, plan, secret)
        blobs: list[bytes] = []
        lengths, clipped = [], 0
        for part, vector in zip(self.protections(protection), vectors, strict=True):
            _check_finite(vector, partition_id)
            length = padded(vector.size, part.secure_sum(plan.secure).slots)
            weighted = np.zeros(length, np.float32)
            weighted[: vector.size] = vector * plan.weight(num_examples)
            sealer = part.sealer(plan.secure)
            blobs += sealer.seal(weighted, plan.tag(length))
            clipped += sealer.clipped
            lengths.append(length)
        _keep(memory, shared, own, {"round": mark["round"], "sent": plan.round, "asked": 0})
        notes = Agreement(tuple(lengths), proof).records()
        if mark["asked"]:
            notes[SNAPSHOT] = _snapshot(shared, mark["round"], secret)
        return Sealed(blobs, sum(lengths), clipped, notes=notes)

    def note(self, memory: RecordDict, arrays: Arrays) -> None:
        """Add arrays to this client's own, between :meth:`receive` and :meth:`seal`."""
        own = memory[_OWN]
        assert isinstance(own, ArrayRecord)
        memory[_OWN] = model_record(NamedArrays({**read_model(own).arrays, **arrays}))

    def _proof(self, shared: Arrays, before: NamedArrays, plan: RoundPlan, secret: bytes) -> bytes:
        """Return a hash of the common state under a key that the server does not have: it can compare, not test."""
        key = hmac.new(secret, b"fedsim-agreement-v1", hashlib.sha256).digest()
        text = plan.round.to_bytes(4, "little") + self.digest(before) + state_digest(shared)
        return hmac.new(key, text, hashlib.sha256).digest()


def _snapshot(shared: Arrays, server_round: int, secret: bytes) -> ConfigRecord:
    """Return the common state after a round, sealed to the clients: the server can keep it and not read it."""
    nonce = os.urandom(_NONCE_BYTES)
    sealed = _cipher(secret).encrypt(nonce, model_bytes(NamedArrays(shared)), server_round.to_bytes(4, "little"))
    return ConfigRecord({"round": server_round, "data": nonce + sealed})


def _overtaken(
    content: RecordDict, shared: Arrays, mark: dict[str, int], secret: bytes
) -> tuple[Arrays, dict[str, int]]:
    """Return the state and mark of a message's snapshot, where it is newer than the client's own.

    Raises:
        LayoutMismatch: it was not made under the clients' secret, or is of another round than it says.
    """
    note = content.config_records.get(SNAPSHOT, ConfigRecord())
    at, data = note.get("round"), note.get("data")
    if not isinstance(at, int) or not isinstance(data, bytes) or at <= mark["round"]:
        return shared, mark
    try:
        opened = _cipher(secret).decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], at.to_bytes(4, "little"))
    except InvalidTag as error:
        raise LayoutMismatch(
            f"the snapshot of round {at} was not sealed under this client's key: it is damaged or of another run"
        ) from error
    return model_from_bytes(opened).arrays, mark | {"round": at}


def _cipher(secret: bytes) -> AESGCM:
    return AESGCM(hmac.new(secret, b"fedsim-snapshot-v1", hashlib.sha256).digest())


def padded(count: int, slots: int) -> int:
    """Return the length of a vector that fills whole ciphertexts, at least one."""
    return max(1, -(-count // slots)) * slots


def state_digest(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return SHA-256 over names, dtypes, shapes and bytes of arrays, in the mapping's order."""
    digest = hashlib.sha256()
    for name, array in arrays.items():
        digest.update(f"{name}\0{array.dtype.newbyteorder('=')}\0{array.shape}\0".encode())
        digest.update(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
    return digest.digest()


def _change(before: NamedArrays, after: NamedArrays, buffer_names: frozenset[str]) -> NamedArrays:
    """Return ``after - before`` in float64, of what trains."""
    names = [n for n, a in before.arrays.items() if n not in buffer_names and a.dtype.kind == "f"]
    return NamedArrays({n: after.arrays[n].astype(np.float64) - before.arrays[n].astype(np.float64) for n in names})


def _check_finite(vector: Floats, client: int) -> None:
    bad = np.flatnonzero(~np.isfinite(vector))
    if bad.size:
        raise InputError(
            f"client {client}: coordinate {int(bad[0])} of the update is {vector[bad[0]]} ({bad.size} such values): an "
            "update must be finite; lower training.lr or clip gradients (training.clip_norm)"
        )


def _keep(memory: RecordDict, shared: Arrays, own: Arrays, mark: Mapping[str, int]) -> None:
    memory[_SHARED], memory[_OWN] = model_record(NamedArrays(shared)), model_record(NamedArrays(own))
    memory[_MARK] = ConfigRecord(dict(mark))


def _whole(note: ConfigRecord, key: str) -> int:
    value = note.get(key)
    if not isinstance(value, int):
        raise LayoutMismatch(f"field '{key}' is {value!r}: must be a whole number; versions must agree")
    return value


__all__ = ["NOTE", "PLAN", "TOTAL", "Arrays", "Floats", "ReplicatedHalf", "padded", "state_digest"]
