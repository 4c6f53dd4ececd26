"""Decoders of the files of a run and of its settings."""

import gzip
import json
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from kit import LENGTH, Target, folder, read_file
from record_targets import example_model, example_plan

from crypto.base import Plan
from crypto.errors import CryptoError
from crypto.preamble.scheme import Parameters
from fedsim import checkpoint
from fedsim.config import RunConfig, from_run_config, load_config, to_run_config, to_toml
from fedsim.errors import FedsimError
from fedsim.helper import Task
from fedsim.measure.errors import MeasureError
from fedsim.measure.ledger import Entry, Ledger
from fedsim.measure.metrics import Metrics
from fedsim.measure.runfolder import RunFolder
from fedsim.measure.runs import read_partition, write_partition
from strategies.records import blob
from strategies.sealed_state import SealedState


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


def checkpoints() -> Target:
    sealed = SealedState([b"total" * 9], example_plan(), LENGTH, 12.5, 3, True)
    points = [
        checkpoint.Checkpoint(3, example_model(), {"velocity/w": np.ones((3, 2))}),
        checkpoint.Checkpoint(4, example_model(), {}, sealed),
    ]
    good = [checkpoint.save_checkpoint(folder() / "made", point).read_bytes() for point in points]
    read = read_file("round-000001.ckpt", checkpoint.load_checkpoint)
    return Target(good, read, (FedsimError,), _forge_checkpoint)


def client_states() -> Target:
    states = {
        0: RecordDict({"buffers": ArrayRecord({"m": blob(b"abc", "x")}), "n": MetricRecord({"a": 1.5})}),
        3: RecordDict({"c": ConfigRecord({"k": b"v", "t": "x"})}),
    }
    good = [checkpoint.save_clients(folder() / "made", 1, states).read_bytes()]
    read = read_file("states/round-000001.state", lambda path: checkpoint.load_clients(path.parent, 1))
    return Target(good, read, (FedsimError,), _forge_checkpoint)


def settings() -> Target:
    good = [
        to_toml(RunConfig()).encode(),
        to_toml(load_config(None, ["protection.name=preamble", "strategy.name=fedavgm"])).encode(),
        b'seed = 1\n[federation]\nrounds = 3\n[strategy]\nname = "fedprox"\nmu = 0.1\n',
    ]
    return Target(good, read_file("config.toml", load_config), (FedsimError,), cheap=False)


def flat_settings() -> Target:
    good = [json.dumps(to_run_config(RunConfig())).encode()]

    def read(data: bytes) -> None:
        try:
            values = json.loads(data)
        except (ValueError, RecursionError):
            return
        if isinstance(values, dict):
            from_run_config(values)

    return Target(good, read, (FedsimError,), cheap=False)


def tables(suffix: str) -> Target:
    made = folder() / "made-tables"
    ledger = Ledger(made)
    ledger.extend([Entry(round=1, client=c, phase="upload", wire_bytes=5, measured_s=0.5) for c in range(3)])
    ledger.write()
    good = [(made / f"ledger.{suffix}").read_bytes()]

    def read(path: Path) -> None:
        Ledger.read(path.parent).table()
        Metrics.read(path.parent).table()

    return Target(good, read_file(f"{suffix}/ledger.{suffix}", read), (MeasureError,), cheap=False)


def run_records() -> Target:
    made = RunFolder.create(folder() / "made-run", "seed = 1\n", 1, {"platform": "x"}, datetime(2026, 1, 1, tzinfo=UTC))
    read = read_file("record/run.json", lambda path: RunFolder(path.parent).record())
    return Target([made.run.read_bytes()], read, (MeasureError,))


def partitions() -> Target:
    made = RunFolder(folder() / "made-partition")
    write_partition(made, [3, 4], ["0", "1"], [[1, 2], [2, 2]], {"label_emd": 0.5})
    read = read_file("parts/partition.json", lambda path: read_partition(RunFolder(path.parent)))
    return Target([made.partition.read_bytes()], read, (MeasureError,))


def helper_tasks() -> Target:
    plan = Plan(length=64, clients=4, bound=1.0)
    parameters = Parameters(norm_bound=1.0, block_size=16, groups=2, sigma=0.0, fraction_bits=20)
    path = folder() / "made-task.json"
    Task(run=bytes(16), plan=plan, parameters=parameters, rounds=2).write(path)
    return Target([path.read_bytes()], read_file("task.json", Task.read), (CryptoError,))


def idx_files() -> Target:
    from fedsim.tasks.errors import TaskError
    from fedsim.tasks.sets.fashion_mnist import read_idx

    good = [bytes([0, 0, 8, 3]) + b"".join(n.to_bytes(4, "big") for n in (2, 3, 3)) + bytes(18)]
    return Target(list(map(gzip.compress, good)), read_file("images-idx3-ubyte", read_idx), (TaskError,), gzip.compress)
