"""Every decoder that reads bytes of others or of a disk, with good inputs and the errors that it may raise.

A target is a function of bytes. It returns or raises an error that it promises; anything else is a fault, and so is a
process that ends. `forge` puts a right checksum over damaged content, so that what stands behind it is reached.
"""

import gzip
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from crypto import keys, wire
from crypto._openfhe import residues
from crypto.base import Plan, Tag
from crypto.errors import CryptoError, WireError
from crypto.packing import Layout
from crypto.plain import PlainSum
from crypto.preamble import dpf, norm
from crypto.preamble import wire as preamble_wire
from crypto.preamble.dpf import Group, Report, Shape
from crypto.preamble.noise import NoNoiseForTests
from crypto.preamble.scheme import Parameters, PreambleSum
from fedsim import checkpoint
from fedsim.config import RunConfig, from_run_config, load_config, to_run_config, to_toml
from fedsim.errors import FedsimError
from fedsim.helper import Helper, Task
from fedsim.measure.errors import MeasureError
from fedsim.measure.ledger import Entry, Ledger
from fedsim.measure.metrics import Metrics
from fedsim.measure.runfolder import RunFolder
from fedsim.measure.runs import read_partition, write_partition
from strategies.fold import ChunkSum, delivered
from strategies.plan import RoundPlan
from strategies.protection import Plain
from strategies.records import NamedArrays, blob, model_bytes, model_from_bytes, read_model, sealed_record
from strategies.sealed_state import SealedState

LENGTH = 40
TAG = Tag(round=7, layout_hash=b"layout-hash-0123", length=LENGTH)
PLAN = Plan(length=LENGTH, clients=10, bound=1.0)


@dataclass(frozen=True)
class Target:
    """One decoder.

    Attributes:
        good: inputs that it takes.
        read: the decoder.
        refuses: what it may raise.
        forge: makes damaged bytes look whole; ``None`` where nothing hides the content.
        cheap: whether a million executions take minutes, not hours.
    """

    good: list[bytes]
    read: Callable[[bytes], object]
    refuses: tuple[type[Exception], ...]
    forge: Callable[[bytes], bytes] | None = None
    cheap: bool = True


@cache
def folder() -> Path:
    """Return a folder for decoders that read files, in memory where there is any."""
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="fedsim-fuzz-", dir=memory if memory.is_dir() else None))


# ----------------------------------------------------------------------------------------- frames and keys


def _forge_frame(data: bytes) -> bytes:
    if len(data) < wire.HEADER_BYTES:
        return data
    size = wire._HEAD.size
    head, body = bytearray(data[:size]), data[wire.HEADER_BYTES :]
    head[-8:] = len(body).to_bytes(8, "little")
    return bytes(head) + wire._checksum(bytes(head), body) + body


def _frames() -> Target:
    scheme = PlainSum(PLAN)
    parts = scheme.sealer().seal(np.linspace(-1, 1, LENGTH, dtype=np.float32), TAG)
    adder = scheme.adder(TAG)
    adder.add(parts[0])
    good = [parts[0], adder.total()]

    def read(data: bytes) -> None:
        into = scheme.adder(TAG)
        try:
            into.add(data)
        except CryptoError:
            into.merge(data)
        scheme.opener().open([into.total()], TAG)

    return Target(good, read, (CryptoError,), _forge_frame)


def _forge_key(data: bytes) -> bytes:
    size = keys._HEAD.size
    if len(data) < keys._HEAD_BYTES:
        return data
    head, body = bytearray(data[:size]), data[keys._HEAD_BYTES :]
    public = int.from_bytes(head[-16:-8], "little") % (len(body) + 1)
    head[-16:-8], head[-8:] = public.to_bytes(8, "little"), (len(body) - public).to_bytes(8, "little")
    return bytes(head) + keys._checksum(bytes(head), body[:public], body[public:]) + body


def _key_files() -> Target:
    bundles = [
        keys.KeyBundle(role=role, scheme="bfv", params_hash=bytes(16), key_id=b"k" * 8, public=b"p" * 9, secret=secret)
        for role, secret in ((keys.SERVER, b""), (keys.CLIENTS, b"s" * 30), (keys.committee(3), b"t" * 5))
    ]
    return Target([b.encode() for b in bundles], lambda d: repr(keys.KeyBundle.decode(d)), (WireError,), _forge_key)


# ----------------------------------------------------------------------------------------- homomorphic encryption


def _ciphertexts(scheme_name: str) -> Target:
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

    return Target(good, read, (CryptoError,), _forge_frame, cheap=False)


def _residues() -> Target:
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


def _dpf_leader() -> Target:
    def read(data: bytes) -> None:
        report = preamble_wire.decode_leader(data, SHAPE, TASK)
        # What the decoder takes, the compiled code must survive.
        total = dpf.empty_total(SHAPE)
        dpf.accumulate(SHAPE, 0, [report], total)
        dpf.prove(SHAPE, 0, [report])

    return Target([_reports()[1].leader], read, (WireError,))


def _dpf_relayed() -> Target:
    reports, parts = _reports()

    def read(data: bytes) -> None:
        preamble_wire.decode_relayed(data, SHAPE, TASK, HELPER_KEY)

    return Target([preamble_wire.relay(reports[0], parts.helper)], read, (WireError,))


def _dpf_body() -> Target:
    def read(data: bytes) -> None:
        preamble_wire.check_body(SHAPE, data)
        report = Report(SHAPE, TASK, b"n" * 16, b"\3" * 16, data)
        for server in range(2):
            dpf.accumulate(SHAPE, server, [report], dpf.empty_total(SHAPE))

    return Target([_reports()[0][0].body], read, (CryptoError,))


def _norm_proofs() -> Target:
    circuit = norm.NormCircuit(length=4, word_bits=8, bound=100)
    good = [bytes(circuit.leader_bytes), bytes(circuit.message_bytes)]

    def read(data: bytes) -> None:
        try:
            norm.decode_share(circuit, 0, data)
        except CryptoError:
            norm.encode_message(norm.decode_message(circuit, data))

    return Target(good, read, (CryptoError,))


def _helper_requests() -> Target:
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


# ----------------------------------------------------------------------------------------- strategies' records


def _model() -> NamedArrays:
    arrays = {
        "w": np.ones((3, 2), np.float32),
        "half": np.ones(4, np.float32),
        "n": np.array(3, np.int64),
        "flag": np.array([True]),
    }
    return NamedArrays(arrays, {"half": "bfloat16"})


def _models() -> Target:
    good = [model_bytes(_model()), model_bytes(NamedArrays({"x": np.zeros((0, 3), np.float16)}))]
    return Target(good, lambda data: model_bytes(model_from_bytes(data)), (CryptoError,))


def _round_plan() -> RoundPlan:
    layout = Layout.of(_model().arrays)
    return RoundPlan(
        strategy="fedavg",
        round=3,
        rounds=9,
        names=layout.names,
        layout_hash=layout.hash,
        payload="weights",
        weighting="examples",
        weight_scale=10.0,
        buffers="average",
        first_partition=-1,
        secure=PLAN,
        extras={"mu": 0.5},
    )


def _plans() -> Target:
    good = _round_plan().record().deflate()

    def read(data: bytes) -> None:
        try:
            record = ConfigRecord.inflate(data)
        except Exception:  # Flower's own decoder; what passes it is what we read
            return
        RoundPlan.from_record(record)

    return Target([good], read, (CryptoError,))


def _sealed_states() -> Target:
    state = SealedState([b"total" * 9, b"other"], _round_plan(), LENGTH, 12.5, 3, True)
    return Target([state.to_bytes()], lambda data: SealedState.from_bytes(data).to_bytes(), (CryptoError,))


def _replies() -> Target:
    """A reply whose sealed part, numbers and names come from the input, folded as a worker and the server do."""
    good = _frames().good[:1]
    fold = ChunkSum(Plain(), PLAN, TAG)

    class Reply:
        def __init__(self, content: RecordDict) -> None:
            self.content = content

        def has_error(self) -> bool:
            return False

    def read(data: bytes) -> None:
        coin = data[0] if data else 0
        examples = (1, 0, -1, 1.5, float("nan"), float("inf"), 2**62, 10**18)[coin % 8]
        content = RecordDict({"metrics": MetricRecord({"num-examples": examples, "loss": 0.5})})
        if coin & 8:
            content["sealed"] = ArrayRecord(
                {"1" if coin & 16 else "0": blob(data, "numpy" if coin & 32 else "fedsim/sealed")}
            )
        elif coin & 64:
            content["sealed"] = sealed_record([data, data])
        else:
            content["sealed"] = sealed_record([data])
        fold([Reply(content)])  # type: ignore[list-item]
        delivered(Reply(content), 1)  # type: ignore[arg-type]

    return Target(good, read, (), _forge_frame)


def _model_records() -> Target:
    good = [Array(np.ones((2, 3), np.float32)).data]

    def read(data: bytes) -> None:
        read_model(ArrayRecord({"x": blob(data, "numpy.ndarray")}))

    return Target(good, read, (CryptoError,))


# ----------------------------------------------------------------------------------------- files of a run


def _forge_checkpoint(data: bytes) -> bytes:
    line, _, body = data.partition(b"\n")
    try:
        head = json.loads(line)
        lengths = [[str(name), abs(int(size))] for name, size in head["sections"]]
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return data
    if not isinstance(head, dict) or not lengths:
        return data
    lengths[-1][1] = max(0, len(body) - sum(size for _, size in lengths[:-1]))
    sections, start = [], 0
    for _, size in lengths:
        sections.append(body[start : start + size])
        start += size
    digest = checkpoint._digest(head.get("round"), lengths, sections)
    return json.dumps(head | {"sections": lengths, "sha256": digest}).encode() + b"\n" + body


def _read_file(name: str, read: Callable[[Path], object]) -> Callable[[bytes], None]:
    def through(data: bytes) -> None:
        path = folder() / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        read(path)

    return through


def _checkpoints() -> Target:
    sealed = SealedState([b"total" * 9], _round_plan(), LENGTH, 12.5, 3, True)
    points = [
        checkpoint.Checkpoint(3, _model(), {"velocity/w": np.ones((3, 2))}),
        checkpoint.Checkpoint(4, _model(), {}, sealed),
    ]
    good = [checkpoint.save_checkpoint(folder() / "made", point).read_bytes() for point in points]
    read = _read_file("round-000001.ckpt", checkpoint.load_checkpoint)
    return Target(good, read, (FedsimError,), _forge_checkpoint)


def _client_states() -> Target:
    states = {
        0: RecordDict({"buffers": ArrayRecord({"m": blob(b"abc", "x")}), "n": MetricRecord({"a": 1.5})}),
        3: RecordDict({"c": ConfigRecord({"k": b"v", "t": "x"})}),
    }
    good = [checkpoint.save_clients(folder() / "made", 1, states).read_bytes()]
    read = _read_file("states/round-000001.state", lambda path: checkpoint.load_clients(path.parent, 1))
    return Target(good, read, (FedsimError,), _forge_checkpoint)


def _settings() -> Target:
    good = [
        to_toml(RunConfig()).encode(),
        to_toml(load_config(None, ["protection.name=preamble", "strategy.name=fedavgm"])).encode(),
        b'seed = 1\n[federation]\nrounds = 3\n[strategy]\nname = "fedprox"\nmu = 0.1\n',
    ]
    return Target(good, _read_file("config.toml", load_config), (FedsimError,), cheap=False)


def _flat_settings() -> Target:
    good = [json.dumps(to_run_config(RunConfig())).encode()]

    def read(data: bytes) -> None:
        try:
            values = json.loads(data)
        except (ValueError, RecursionError):
            return
        if isinstance(values, dict):
            from_run_config(values)

    return Target(good, read, (FedsimError,), cheap=False)


def _tables(suffix: str) -> Target:
    made = folder() / "made-tables"
    ledger = Ledger(made)
    ledger.extend([Entry(round=1, client=c, phase="upload", wire_bytes=5, measured_s=0.5) for c in range(3)])
    ledger.write()
    good = [(made / f"ledger.{suffix}").read_bytes()]

    def read(path: Path) -> None:
        Ledger.read(path.parent).table()
        Metrics.read(path.parent).table()

    return Target(good, _read_file(f"{suffix}/ledger.{suffix}", read), (MeasureError,), cheap=False)


def _run_records() -> Target:
    made = RunFolder.create(folder() / "made-run", "seed = 1\n", 1, {"platform": "x"}, datetime(2026, 1, 1, tzinfo=UTC))
    read = _read_file("record/run.json", lambda path: RunFolder(path.parent).record())
    return Target([made.run.read_bytes()], read, (MeasureError,))


def _partitions() -> Target:
    made = RunFolder(folder() / "made-partition")
    write_partition(made, [3, 4], ["0", "1"], [[1, 2], [2, 2]], {"label_emd": 0.5})
    read = _read_file("parts/partition.json", lambda path: read_partition(RunFolder(path.parent)))
    return Target([made.partition.read_bytes()], read, (MeasureError,))


def _helper_tasks() -> Target:
    plan = Plan(length=64, clients=4, bound=1.0)
    parameters = Parameters(norm_bound=1.0, block_size=16, groups=2, sigma=0.0, fraction_bits=20)
    path = folder() / "made-task.json"
    Task(run=bytes(16), plan=plan, parameters=parameters, rounds=2).write(path)
    return Target([path.read_bytes()], _read_file("task.json", Task.read), (CryptoError,))


def _idx_files() -> Target:
    from fedsim.tasks.errors import TaskError
    from fedsim.tasks.sets.fashion_mnist import read_idx

    good = [bytes([0, 0, 8, 3]) + b"".join(n.to_bytes(4, "big") for n in (2, 3, 3)) + bytes(18)]
    return Target(
        list(map(gzip.compress, good)), _read_file("images-idx3-ubyte", read_idx), (TaskError,), gzip.compress
    )


MAKERS: dict[str, Callable[[], Target]] = {
    "frames": _frames,
    "key files": _key_files,
    "bfv ciphertexts": lambda: _ciphertexts("bfv"),
    "ckks ciphertexts": lambda: _ciphertexts("ckks"),
    "openfhe residues": _residues,
    "dpf leader parts": _dpf_leader,
    "dpf relayed parts": _dpf_relayed,
    "dpf bodies": _dpf_body,
    "norm proofs": _norm_proofs,
    "helper requests": _helper_requests,
    "models": _models,
    "model records": _model_records,
    "round plans": _plans,
    "sealed states": _sealed_states,
    "client replies": _replies,
    "checkpoints": _checkpoints,
    "client states": _client_states,
    "settings": _settings,
    "flat settings": _flat_settings,
    "ledger csv": lambda: _tables("csv"),
    "ledger parquet": lambda: _tables("parquet"),
    "run records": _run_records,
    "partitions": _partitions,
    "helper tasks": _helper_tasks,
    "idx files": _idx_files,
}


def names() -> Iterator[str]:
    """Return the targets' names, in their order."""
    yield from MAKERS


@cache
def target(name: str) -> Target:
    """Return a target, made once a process."""
    return MAKERS[name]()
