"""Messages between processes: equal afterwards, and their array data not copied."""

import copy
import pickle

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.app.error import Error
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from fedsim.simulation import transit
from fedsim.simulation.transit import OUT_OF_BAND_BYTES, Packed, SharedArray, pack, unpack

LARGE = np.arange(OUT_OF_BAND_BYTES, dtype=np.float32)


def through_pickle(packed: Packed) -> Packed:
    """What a store does: large buffers beside the pickle, read-only on the other side."""
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(packed, protocol=5, buffer_callback=buffers.append)
    return pickle.loads(data, buffers=[memoryview(bytes(b)) for b in buffers])


@pytest.fixture
def content() -> RecordDict:
    records = {"arrays": ArrayRecord({"w": Array(LARGE), "b": Array(np.zeros(2, np.int64))})}
    records["config"] = ConfigRecord({"lr": 0.1, "names": ["a", "b"], "key": b"k", "on": True})
    records["metrics"] = MetricRecord({"loss": 1.5, "counts": [1, 2]})
    return RecordDict(records)


def test_a_message_comes_back_equal(identity, content) -> None:
    message = Message(content, 5, "train", group_id="3")
    back = unpack(through_pickle(pack(message)))
    assert back.metadata == message.metadata and dict(back.content) == dict(content)
    assert isinstance(back.content["arrays"]["w"], SharedArray)
    back.content["new"] = ConfigRecord({"x": 1})
    with pytest.raises(TypeError):
        back.content["wrong"] = 3


def test_an_error_comes_back_equal(identity) -> None:
    request = Message(RecordDict(), 5, "query", group_id="3")
    reply = Message(Error(101, "why"), reply_to=request)
    back = unpack(through_pickle(pack(reply)))
    assert back.error == reply.error and back.has_error() and not back.has_content()


def test_large_data_are_not_copied(content) -> None:
    packed = pack(content)
    assert len(packed.meta) < 2000 and packed.size_bytes >= LARGE.nbytes
    address = np.frombuffer(packed.buffers[0], np.uint8).ctypes.data
    assert address == np.frombuffer(content["arrays"]["w"].data, np.uint8).ctypes.data
    array = unpack(packed)["arrays"]["w"]
    assert np.frombuffer(transit.raw_data(array), np.uint8).ctypes.data == address


@given(
    npst.arrays(
        dtype=st.sampled_from([np.float16, np.float32, np.float64, np.int64, np.uint8, np.bool_, np.complex64]),
        shape=npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
        elements={"allow_nan": False},
    ),
    st.booleans(),
)
def test_a_shared_array_reads_as_the_stock_array(values, fortran) -> None:
    stock = Array(np.asfortranarray(values) if fortran else values)
    shared = SharedArray(stock.dtype, stock.shape, stock.stype, bytearray(stock.data))
    got, expected = shared.numpy(), stock.numpy()
    np.testing.assert_array_equal(got, expected)
    assert got.dtype == expected.dtype and got.shape == expected.shape and got.flags.writeable
    assert shared == stock and stock == shared and shared.data == stock.data
    assert shared.deflate() == stock.deflate()


@pytest.mark.filterwarnings("ignore:Stored array in format 3.0")
def test_a_newer_header_format_is_read() -> None:
    values = np.array([(1.0,), (2.0,)], dtype=[("μ-名", np.float32)])
    stock = Array(values)
    np.testing.assert_array_equal(SharedArray(stock.dtype, stock.shape, stock.stype, stock.data).numpy(), values)


def test_a_foreign_serialisation_type_is_refused_as_in_flower() -> None:
    shared = SharedArray("uint8", (3,), "fl/ckks-v1", b"abc")
    with pytest.raises(TypeError, match="fl/ckks-v1"):
        shared.numpy()
    assert shared.data == b"abc"


def test_python_objects_are_refused() -> None:
    import io

    out = io.BytesIO()
    np.save(out, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="Python objects are not allowed"):
        SharedArray("object", (1,), "numpy.ndarray", out.getvalue()).numpy()


def test_shared_records_travel_apart_and_come_back_as_own_copies(content) -> None:
    record = content["arrays"]
    packed = pack([content, content], shared={id(record): 0})
    assert not packed.buffers
    first, second = unpack(packed, [record])[0], unpack(packed, [record])[0]
    assert first["arrays"] == record and first["arrays"] is not record
    first["arrays"]["w"].data = b""
    assert second["arrays"]["w"].data == record["w"].data != b""


def test_a_copy_keeps_changes_to_itself(content) -> None:
    copied = transit.copy_content(content)
    copied["config"]["names"].append("c")
    copied["metrics"]["loss"] = 2.0
    copied["arrays"]["b"].data = b"x"
    del copied["arrays"]["w"]
    assert content["config"]["names"] == ["a", "b"] and content["metrics"]["loss"] == 1.5
    assert set(content["arrays"]) == {"w", "b"} and content["arrays"]["b"].data != b"x"


def test_owned_content_refers_to_no_shared_buffer(identity, content) -> None:
    message = unpack(through_pickle(pack(Message(content, 5, "train"))))
    transit.own_content(message)
    assert type(message.content["arrays"]["w"]) is Array and dict(message.content) == dict(content)
    assert transit.content_bytes(content) == sum(len(a.data) for a in content["arrays"].values())


def test_equal_packs_are_the_same(content) -> None:
    other = transit.copy_content(content)
    assert pack(content).same_as(pack(other))
    other["metrics"]["loss"] = 2.0
    assert not pack(content).same_as(pack(other))


def test_a_shared_array_can_be_copied_and_pickled(content) -> None:
    array = unpack(through_pickle(pack(content)))["arrays"]["w"]
    assert copy.deepcopy(array) == array and pickle.loads(pickle.dumps(array)) == array
