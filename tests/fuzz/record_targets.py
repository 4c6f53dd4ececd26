"""Decoders of the records that strategies send and keep."""

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from kit import LENGTH, PLAN, TAG, Target, forge_frame
from sum_targets import frames

from crypto.errors import CryptoError
from crypto.packing import Layout
from strategies.fold import ChunkSum, delivered
from strategies.plan import RoundPlan
from strategies.protection import Plain
from strategies.records import NamedArrays, blob, model_bytes, model_from_bytes, read_model, sealed_record
from strategies.sealed_state import SealedState


def example_model() -> NamedArrays:
    arrays = {
        "w": np.ones((3, 2), np.float32),
        "half": np.ones(4, np.float32),
        "n": np.array(3, np.int64),
        "flag": np.array([True]),
    }
    return NamedArrays(arrays, {"half": "bfloat16"})


def models() -> Target:
    good = [model_bytes(example_model()), model_bytes(NamedArrays({"x": np.zeros((0, 3), np.float16)}))]
    return Target(good, lambda data: model_bytes(model_from_bytes(data)), (CryptoError,))


def example_plan() -> RoundPlan:
    layout = Layout.of(example_model().arrays)
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


def plans() -> Target:
    good = example_plan().record().deflate()

    def read(data: bytes) -> None:
        try:
            record = ConfigRecord.inflate(data)
        except Exception:  # Flower's own decoder; what passes it is what we read
            return
        RoundPlan.from_record(record)

    return Target([good], read, (CryptoError,))


def sealed_states() -> Target:
    state = SealedState([b"total" * 9, b"other"], example_plan(), LENGTH, 12.5, 3, True)
    return Target([state.to_bytes()], lambda data: SealedState.from_bytes(data).to_bytes(), (CryptoError,))


def replies() -> Target:
    """A reply whose sealed part, numbers and names come from the input, folded as a worker and the server do."""
    good = frames().good[:1]
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

    return Target(good, read, (), forge_frame)


def model_records() -> Target:
    good = [Array(np.ones((2, 3), np.float32)).data]

    def read(data: bytes) -> None:
        read_model(ArrayRecord({"x": blob(data, "numpy.ndarray")}))

    return Target(good, read, (CryptoError,))
