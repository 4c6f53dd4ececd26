"""What a client sends to the two servers, and its strict decoding (stage V0).

Leader's part, little-endian::

    offset size
         0    1  version (1)
         1    1  role (0)
         2   16  task
        18   16  nonce, public
        34   16  private seed of server 0
        50    *  public share after its nonce, as crypto/native/dpf.hpp lays it out
         *    *  norm proof, where the parameters ask for one

Helper's part: version, role (1), and an HPKE ciphertext (X25519, HKDF-SHA256, ChaCha20-Poly1305; RFC 9180, base mode)
to the helper's public key, with version, task and parameters as ``info``, of::

         0   16  nonce
        16   16  private seed of server 1
        32   32  digest of the public share
        64    *  norm proof's helper part (80 or 112 bytes), where the parameters ask for one

The leader relays the public share (:func:`relay`)::

         0    1  version
         1    1  role (2)
         2   16  task
        18   16  nonce
        34    *  the HPKE ciphertext: encapsulated key 32, what is sealed, tag 16
         *    *  public share after its nonce

Lengths, shape and task come from the receiver's configuration, never from the message.
"""

import struct
from dataclasses import dataclass

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from crypto.errors import IntegrityError, ReplayError, WireError
from crypto.preamble.dpf import (
    CHECK_BYTES,
    PRIME,
    VERSION,
    Group,
    Report,
    Shape,
)

LEADER, HELPER, RELAYED = 0, 1, 2
SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)
#: Domain of the HPKE ``info``: the protocol, its version and the receiver's role.
HPKE_INFO = b"fedsim preamble/1 helper"

_LEADER = struct.Struct("<BB16s16s16s")
_HELPER = struct.Struct("<BB")
_RELAYED = struct.Struct("<BB16s16s")
_SECRET = struct.Struct("<16s16s32s")
_SEALING_BYTES = 32 + 16


@dataclass(frozen=True, slots=True)
class Parts:
    """One client's message to each server."""

    leader: bytes
    helper: bytes


@dataclass(frozen=True, slots=True)
class ProofBytes:
    """Lengths of both parts of a norm proof; zero where the parameters ask for none."""

    leader: int = 0
    helper: int = 0


NO_PROOF = ProofBytes()


def leader_bytes(shape: Shape, proof: ProofBytes = NO_PROOF) -> int:
    """Return the length of a leader's part."""
    return _LEADER.size + shape.body_bytes + proof.leader


def sealed_bytes(proof: ProofBytes = NO_PROOF) -> int:
    """Return the length of the HPKE ciphertext."""
    return _SEALING_BYTES + _SECRET.size + proof.helper


def helper_bytes(proof: ProofBytes = NO_PROOF) -> int:
    """Return the length of a helper's part, whatever the shape."""
    return _HELPER.size + sealed_bytes(proof)


def relayed_bytes(shape: Shape, proof: ProofBytes = NO_PROOF) -> int:
    """Return the length of what the leader relays to the helper."""
    return _RELAYED.size + sealed_bytes(proof) + shape.body_bytes


def _info(shape: Shape, task: bytes) -> bytes:
    return HPKE_INFO + struct.pack("<B16sBIII", VERSION, task, *shape.codes)


def encode(reports: tuple[Report, Report], helper_key: X25519PublicKey) -> Parts:
    """Return both parts of one client's message; the two reports share nonce and public share."""
    leader, helper = reports
    head = _LEADER.pack(VERSION, LEADER, leader.task, leader.nonce, leader.seed)
    secret = _SECRET.pack(helper.nonce, helper.seed, helper.digest) + helper.proof
    sealed = SUITE.encrypt(secret, helper_key, info=_info(helper.shape, helper.task))
    return Parts(head + leader.body + leader.proof, _HELPER.pack(VERSION, HELPER) + sealed)


def decode_leader(data: bytes, shape: Shape, task: bytes, proof: ProofBytes = NO_PROOF) -> Report:
    """Decode a leader's part.

    Raises:
        WireError: wrong length, version, role or task, or a public share that is not canonical.
    """
    _expect_length(data, leader_bytes(shape, proof), "leader's part")
    version, role, got_task, nonce, seed = _LEADER.unpack_from(data)
    _expect_head(version, role, LEADER)
    _expect_task(got_task, task)
    end = _LEADER.size + shape.body_bytes
    body = bytes(memoryview(data)[_LEADER.size : end])
    check_body(shape, body)
    return Report(shape, task, nonce, seed, body, bytes(memoryview(data)[end:]))


def relay(leader_report: Report, helper_part: bytes, proof: ProofBytes = NO_PROOF) -> bytes:
    """Return what the leader sends to the helper for one client; the leader cannot read the helper's seed.

    Raises:
        WireError: the helper's part has the wrong length, version or role.
    """
    _expect_length(helper_part, helper_bytes(proof), "helper's part")
    version, role = _HELPER.unpack_from(helper_part)
    _expect_head(version, role, HELPER)
    head = _RELAYED.pack(VERSION, RELAYED, leader_report.task, leader_report.nonce)
    return b"".join((head, helper_part[_HELPER.size :], leader_report.body))


def relayed_nonce(data: bytes | memoryview) -> bytes:
    """Return the nonce of what :func:`relay` made: the name of the report between the two servers."""
    return bytes(_RELAYED.unpack_from(data)[3])


def decode_relayed(
    data: bytes, shape: Shape, task: bytes, helper_key: X25519PrivateKey, proof: ProofBytes = NO_PROOF
) -> Report:
    """Decode and open what the leader relayed.

    Raises:
        WireError: wrong length, version, role or task, or a public share that is not canonical.
        IntegrityError: not sealed to this key for this task, or the public share is not the one that the client sealed.
    """
    _expect_length(data, relayed_bytes(shape, proof), "relayed part")
    version, role, got_task, nonce = _RELAYED.unpack_from(data)
    _expect_head(version, role, RELAYED)
    _expect_task(got_task, task)
    end = _RELAYED.size + sealed_bytes(proof)
    sealed, body = bytes(memoryview(data)[_RELAYED.size : end]), bytes(memoryview(data)[end:])
    try:
        secret = SUITE.decrypt(sealed, helper_key, info=_info(shape, task))
    except InvalidTag:
        raise IntegrityError(
            "helper's part does not open: sealed to another key, task or parameters; pin the helper's public key"
        ) from None
    sealed_nonce, seed, digest = _SECRET.unpack_from(secret)
    report = Report(shape, task, nonce, seed, body, secret[_SECRET.size :])
    if sealed_nonce != nonce or digest != report.digest:
        raise IntegrityError("public share differs from the one that the client sealed: changed on the way; drop it")
    check_body(shape, body)
    return report


def check_body(shape: Shape, body: bytes) -> None:
    """Refuse a public share that an honest client cannot make: every share has exactly one encoding.

    Raises:
        WireError: wrong length, a set bit that must be zero, or a field word at or above p.
    """
    _expect_length(body, shape.body_bytes, "public share")
    raw = np.frombuffer(body, np.uint8)
    at_bits = 16 * shape.groups * shape.depth
    at_blocks = at_bits + shape.groups * (shape.bit_bytes + CHECK_BYTES)
    if (raw[:at_bits:16] & 1).any():
        raise WireError("a seed correction has its lowest bit set: that bit must be zero; the sender is left out")
    used = 2 * shape.depth % 8
    last = raw[at_bits : at_bits + shape.groups * shape.bit_bytes].reshape(shape.groups, -1)[:, -1:]
    if used and (last >> used).any():
        raise WireError(f"control bits above level {shape.depth} are set: they must be zero; the sender is left out")
    if shape.group is Group.FIELD64 and (np.frombuffer(body, "<u8", offset=at_blocks) >= np.uint64(PRIME)).any():
        raise WireError("a block correction is at or above p = 2^64 - 2^32 + 1: not canonical; the sender is left out")


class Seen:
    """Replay set of one task: a nonce counts once. Grows by 16 bytes a report."""

    def __init__(self) -> None:
        self._nonces: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._nonces)

    def add(self, nonce: bytes) -> None:
        """Remember a nonce.

        Raises:
            ReplayError: it was there already.
        """
        if nonce in self._nonces:
            raise ReplayError(f"nonce {nonce.hex()[:8]} was seen before in this task: a report counts once; drop it")
        self._nonces.add(nonce)


def _expect_length(data: bytes, expected: int, what: str) -> None:
    if len(data) != expected:
        raise WireError(f"{what} of {len(data)} bytes: these parameters make exactly {expected}; use one config")


def _expect_head(version: int, role: int, expected: int) -> None:
    if version != VERSION or role != expected:
        raise WireError(f"version {version}, role {role}: expected version {VERSION}, role {expected}")


def _expect_task(got: bytes, expected: bytes) -> None:
    if got != expected:
        raise ReplayError(f"task {got.hex()[:8]}: this is task {expected.hex()[:8]}; old messages are not counted")
