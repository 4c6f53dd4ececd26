"""Records: a model travels bit for bit, and its size on the wire is known without serialising it."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from hypothesis import given, settings
from hypothesis import strategies as st

from crypto import InputError, WireError
from strategies.records import (
    NamedArrays,
    array_record,
    blob,
    model_bytes,
    model_from_bytes,
    model_record,
    read_model,
    read_sealed,
    read_shared_model,
    sealed_record,
    wire_bytes,
)


def example():
    rng = np.random.default_rng(0)
    return NamedArrays(
        {
            "w": rng.normal(size=(3, 4)).astype(np.float32),
            "count": np.array(2**40, np.int64),
            "half": rng.normal(size=5).astype(np.float16),
            "strided": rng.normal(size=(4, 6)).astype(np.float32).T,
            "brain": np.array([1.0, -2.5, 3.140625], np.float32),
            "flag": np.array([True, False]),
            "empty": np.zeros((0, 3), np.float32),
        },
        {"brain": "bfloat16"},
    )


@pytest.mark.parametrize("via", [lambda s: model_from_bytes(model_bytes(s)), lambda s: read_model(model_record(s))])
def test_round_trip_keeps_order_names_shapes_dtypes_and_bits(via):
    state = example()
    back = via(state)
    assert list(back.arrays) == list(state.arrays) and back.dtypes == state.dtypes
    for name, array in state.arrays.items():
        got = back.arrays[name]
        assert got.shape == array.shape and got.dtype == array.dtype
        np.testing.assert_array_equal(got, array)
    back.arrays["w"][0, 0] = 5.0  # the reader owns its memory


@pytest.mark.report("U48")
def test_bfloat16_takes_two_bytes_and_rounds_to_nearest_even():
    values = np.array([1.0, 1.00390625, 1.01171875, np.inf, -np.inf, np.nan, 3e38], np.float32)
    state = NamedArrays({"b": values}, {"b": "bfloat16"})
    back = model_from_bytes(model_bytes(state)).arrays["b"]
    torch = pytest.importorskip("torch")
    np.testing.assert_array_equal(back, torch.tensor(values).bfloat16().float().numpy())


def test_ordinary_flower_records_are_read_too():
    state = NamedArrays({"a": np.arange(3.0), "b": np.array(4, np.int64)})
    back = read_model(array_record(state))
    np.testing.assert_array_equal(back.arrays["a"], [0, 1, 2])
    assert back.arrays["b"].shape == ()


def test_refuses_damaged_models_and_foreign_arrays():
    data = model_bytes(example())
    for bad in (b"", data[:-1], data[:20], b"\xff" * 100, data[8:]):
        with pytest.raises(WireError):
            model_from_bytes(bad)
    with pytest.raises(WireError, match="numpy arrays"):
        read_model(ArrayRecord({"x": blob(b"abc", "other/type")}))


def test_refuses_dtypes_that_do_not_travel():
    with pytest.raises(InputError, match="complex128"):
        model_bytes(NamedArrays({"z": np.zeros(1, complex)}))


def test_sealed_parts_keep_aggregator_order():
    assert read_sealed(sealed_record([b"one", b"two"]), 2) == [b"one", b"two"]
    with pytest.raises(WireError, match="each of 2 aggregators"):
        read_sealed(sealed_record([b"one"]), 2)
    with pytest.raises(WireError, match="expected 'fedsim/sealed'"):
        read_sealed(ArrayRecord({"0": Array(np.zeros(2))}), 1)


@pytest.mark.report("U64")
@given(
    st.lists(st.integers(0, 2000), max_size=3),
    st.dictionaries(
        st.text(max_size=8),
        st.integers(-(2**63), 2**64 - 1)
        | st.floats()
        | st.booleans()
        | st.text(max_size=200)
        | st.binary(max_size=200)
        | st.lists(st.floats(), min_size=1, max_size=3),
        max_size=5,
    ),
)
@settings(max_examples=100, deadline=None)
def test_wire_bytes_equal_flowers_serialised_objects(sizes, notes):
    rng = np.random.default_rng(1)
    arrays = {f"a{i}": blob(rng.bytes(size + 1), "fedsim/sealed") for i, size in enumerate(sizes)}
    content = RecordDict(
        {"x": ArrayRecord(arrays), "m": MetricRecord({"loss": 0.5, "n": -3, "": 2**63}), "c": ConfigRecord(notes)}
    )
    assert wire_bytes(content) == sum(len(o.deflate()) for o in get_all_nested_objects(content).values())


@pytest.mark.report("U81", "a model is one array, which Flower moves in chunks of 5 MB; the ledger counts each")
def test_wire_bytes_of_a_blob_of_several_chunks():
    data = np.random.default_rng(2).bytes(12 * 2**20 + 5)
    content = RecordDict({"model": ArrayRecord({"model": blob(data, "fedsim/safetensors")})})
    assert wire_bytes(content) == sum(len(o.deflate()) for o in get_all_nested_objects(content).values())


def test_a_model_that_many_clients_get_is_read_once_and_cannot_be_changed():
    record = model_record(NamedArrays({"w": np.arange(3, dtype=np.float32)}))
    one, two = read_shared_model(record), read_shared_model(record.copy())
    assert one.arrays["w"] is two.arrays["w"]
    with pytest.raises(ValueError, match="read-only"):
        one.arrays["w"][0] = 1
    one.arrays["more"] = np.zeros(1)
    assert set(read_shared_model(record).arrays) == {"w"}, "its dictionary is the caller's own"
    other = model_record(NamedArrays({"w": np.zeros(3, np.float32)}))
    assert read_shared_model(other).arrays["w"].tolist() == [0, 0, 0]
