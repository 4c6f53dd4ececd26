"""Decoders of what travels between clients and aggregators, and of keys."""

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from kit import LENGTH, PLAN, TAG, Target, added_and_opened, folder, forge_frame

from crypto import keys
from crypto._openfhe import residues
from crypto.base import Plan, Tag
from crypto.errors import CryptoError, WireError
from crypto.plain import PlainSum
from crypto.preamble import dpf, norm
from crypto.preamble import wire as preamble_wire
from crypto.preamble.dpf import Group, Report, Shape
from crypto.preamble.noise import NoNoiseForTests
from crypto.preamble.scheme import Parameters, PreambleSum
from fedsim.helper import Helper, Task


def frames() -> Target:
    scheme = PlainSum(PLAN)
    parts = scheme.sealer().seal(np.linspace(-1, 1, LENGTH, dtype=np.float32), TAG)
    adder = scheme.adder(TAG)
    adder.add(parts[0])
    good = [parts[0], adder.total()]

    return Target(good, added_and_opened(scheme, scheme.opener()), (CryptoError,), forge_frame)


def forge_key(data: bytes) -> bytes:
    size = keys._HEAD.size
    if len(data) < keys._HEAD_BYTES:
        return data
    head, body = bytearray(data[:size]), data[keys._HEAD_BYTES :]
    public = int.from_bytes(head[-16:-8], "little") % (len(body) + 1)
    head[-16:-8], head[-8:] = public.to_bytes(8, "little"), (len(body) - public).to_bytes(8, "little")
    return bytes(head) + keys._checksum(bytes(head), body[:public], body[public:]) + body


def key_files() -> Target:
    bundles = [
        keys.KeyBundle(role=role, scheme="bfv", params_hash=bytes(16), key_id=b"k" * 8, public=b"p" * 9, secret=secret)
        for role, secret in ((keys.SERVER, b""), (keys.CLIENTS, b"s" * 30), (keys.committee(3), b"t" * 5))
    ]
    return Target([b.encode() for b in bundles], lambda d: repr(keys.KeyBundle.decode(d)), (WireError,), forge_key)


# ----------------------------------------------------------------------------------------- homomorphic encryption


def ciphertexts(scheme_name: str) -> Target:
    from crypto.he_seal import BfvSum
    from crypto.he_tenseal import CkksSum

    described = BfvSum(PLAN, stochastic=False) if scheme_name == "bfv" else CkksSum(PLAN)
    _, key = described.make_keys()
    scheme = described.with_key(key.key_id)
    good = scheme.sealer(key).seal(np.full(LENGTH, 0.5, np.float32), TAG)
    opener = scheme.opener(key)

    def read(data: bytes) -> None:
        adder = scheme.adder(TAG)
        adder.add(data)
        opener.open([adder.total()], TAG)

    return Target(good, read, (CryptoError,), forge_frame, cheap=False)


def openfhe_residues() -> Target:
    moduli = np.array([(1 << 60) - 93, (1 << 60) - 107], np.uint64)
    values = np.random.default_rng(1).integers(0, 1 << 59, (2, 2, 16), dtype=np.uint64)

    def read(data: bytes) -> None:
        residues.unpack(memoryview(data), 60, moduli, (2, 2, 16))

    return Target([residues.pack(values, 60).tobytes()], read, (CryptoError,))


# ----------------------------------------------------------------------------------------- PREAMBLE

SHAPE = Shape(group=Group.FIELD64, groups=2, blocks=5, length=3)
TASK = bytes(range(16))
HELPER_KEY = X25519PrivateKey.from_private_bytes(bytes(range(32)))


def _reports() -> tuple[tuple[Report, Report], preamble_wire.Parts]:
    payload = np.ones((SHAPE.groups, SHAPE.length), SHAPE.group.dtype)
    seeds, nonce = (b"\1" * 16, b"\2" * 16), b"n" * 16
    body = dpf.shard(SHAPE, TASK, nonce, seeds, np.zeros(SHAPE.groups, np.uint32), payload)
    pair = Report(SHAPE, TASK, nonce, seeds[0], body), Report(SHAPE, TASK, nonce, seeds[1], body)
    return pair, preamble_wire.encode(pair, HELPER_KEY.public_key())


def dpf_leader() -> Target:
    def read(data: bytes) -> None:
        report = preamble_wire.decode_leader(data, SHAPE, TASK)
        # What the decoder takes, the compiled code must survive.
        total = dpf.empty_total(SHAPE)
        dpf.accumulate(SHAPE, 0, [report], total)
        dpf.prove(SHAPE, 0, [report])

    return Target([_reports()[1].leader], read, (WireError,))


def dpf_relayed() -> Target:
    reports, parts = _reports()

    def read(data: bytes) -> None:
        preamble_wire.decode_relayed(data, SHAPE, TASK, HELPER_KEY)

    return Target([preamble_wire.relay(reports[0], parts.helper)], read, (WireError,))


def dpf_body() -> Target:
    def read(data: bytes) -> None:
        preamble_wire.check_body(SHAPE, data)
        report = Report(SHAPE, TASK, b"n" * 16, b"\3" * 16, data)
        for server in range(2):
            dpf.accumulate(SHAPE, server, [report], dpf.empty_total(SHAPE))

    return Target([_reports()[0][0].body], read, (CryptoError,))


def norm_proofs() -> Target:
    circuit = norm.NormCircuit(length=4, word_bits=8, bound=100)
    good = [bytes(circuit.leader_bytes), bytes(circuit.message_bytes)]

    def read(data: bytes) -> None:
        try:
            norm.decode_share(circuit, 0, data)
        except CryptoError:
            norm.encode_message(norm.decode_message(circuit, data))

    return Target(good, read, (CryptoError,))


def helper_requests() -> Target:
    from strategies.helper_link import ADD, HELLO, HELLO_FIELDS, OPEN, OPEN_FIELDS, SETTLE, TOTAL

    plan = Plan(length=64, clients=4, bound=1.0)
    parameters = Parameters(norm_bound=1.0, block_size=16, groups=2, sigma=0.0, fraction_bits=20)
    scheme = PreambleSum(plan, parameters, helper_key=HELPER_KEY.public_key().public_bytes_raw(), run=bytes(16))
    helper = Helper(
        Task(run=bytes(16), plan=plan, parameters=parameters, rounds=10**9), HELPER_KEY, folder() / "released"
    )
    tag = Tag(round=1, layout_hash=bytes(16), length=64)
    header = scheme.header(tag)
    opening = OPEN_FIELDS.pack(1, bytes(16), 64)
    helper.handle(bytes([OPEN]) + opening)
    relayed = scheme.leader(tag, NoNoiseForTests()).add_and_relay(*scheme.sealer().seal(np.full(64, 0.1), tag))
    good = [
        bytes([HELLO]) + HELLO_FIELDS.pack(header.key_id, header.params_hash),
        bytes([OPEN]) + opening,
        bytes([ADD]) + relayed,
        bytes([SETTLE]) + bytes(64),
        bytes([TOTAL]),
    ]
    return Target(good, lambda data: helper.handle(data or b"\xff"), ())
