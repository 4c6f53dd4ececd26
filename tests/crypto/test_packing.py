"""Layouts: the packed vector against a slow obvious reference."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from crypto import InputError, Layout, LayoutMismatch, Segment
from crypto.packing import cast

SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
FLOATS = st.floats(-1e6, 1e6, width=32)


@st.composite
def named_arrays(draw):
    dtypes = [np.float16, np.float32, np.float64, np.dtype(">f4"), np.int64, np.int32, np.uint8, np.bool_]
    arrays = {}
    for i in range(draw(st.integers(0, 4))):
        dtype = np.dtype(draw(st.sampled_from(dtypes)))
        if dtype.kind == "f":
            elements = st.floats(-1000, 1000, width=16)
        else:
            elements = None if dtype.kind == "b" else st.integers(0, 200)
        arrays[f"a{i}"] = draw(hnp.arrays(dtype, draw(SHAPES), elements=elements))
    return arrays


@given(named_arrays(), st.floats(-4, 4))
@settings(max_examples=60, deadline=None)
def test_pack_equals_concatenation_of_scaled_ravels(arrays, scale):
    layout = Layout.of(arrays)
    want = [np.float32(np.float64(x) * scale) for a in arrays.values() for x in a.reshape(-1)]
    np.testing.assert_array_equal(layout.pack(arrays, scale), np.array(want, np.float32))


@given(named_arrays())
@settings(max_examples=60, deadline=None)
def test_unpack_restores_shapes_dtypes_and_values(arrays):
    layout = Layout.of(arrays)
    back = layout.unpack(layout.pack(arrays).astype(np.float64))
    for name, array in arrays.items():
        assert back[name].shape == array.shape
        assert back[name].dtype == array.dtype.newbyteorder("=")
        np.testing.assert_array_equal(back[name], array)


@pytest.mark.report("U58")
@pytest.mark.parametrize("view", [lambda a: a.T, lambda a: a[::2], lambda a: a.astype(">f4"), lambda a: a[:, ::-1]])
def test_strided_and_big_endian_arrays_pack_like_contiguous_copies(view):
    array = view(np.arange(12, dtype=np.float32).reshape(4, 3))
    copy = np.ascontiguousarray(array).astype(np.float32)
    np.testing.assert_array_equal(Layout.of({"a": array}).pack({"a": array}), Layout.of({"a": copy}).pack({"a": copy}))


def test_scalars_keep_shape_and_dtype():
    layout = Layout.of({"count": np.array(7, np.int64)})
    back = layout.unpack(np.array([19.6]))
    assert back["count"].shape == () and back["count"].dtype == np.int64 and back["count"] == 20


@pytest.mark.report("U17", "the client refuses with the array and the index; the round completes without it")
def test_names_the_array_and_the_index_of_a_value_that_is_not_finite():
    array = np.zeros((2, 3), np.float32)
    array[1, 2] = np.nan
    with pytest.raises(InputError, match=r"'w' holds nan at index \(1, 2\) \(1 such values\)"):
        Layout.of({"w": array}).pack({"w": array})


def test_refuses_what_leaves_float32():
    with pytest.raises(InputError, match="must be finite in float32"):
        Layout.of({"w": np.array([1e300])}).pack({"w": np.array([1e300])})


def test_large_finite_values_of_both_signs_pass():
    array = np.array([3e38, 3e38, -3e38], np.float32)
    np.testing.assert_array_equal(Layout.of({"w": array}).pack({"w": array}), array)


@pytest.mark.report("U56")
def test_float16_times_a_large_weight_does_not_overflow():
    array = np.array([2.0], np.float16)
    assert Layout.of({"w": array}).pack({"w": array}, 60_000.0)[0] == 120_000.0


def test_refuses_a_missing_array_and_another_shape():
    layout = Layout.of({"a": np.zeros(3, np.float32), "b": np.zeros(2, np.float32)})
    with pytest.raises(LayoutMismatch, match="'b' is missing"):
        layout.pack({"a": np.zeros(3)})
    with pytest.raises(LayoutMismatch, match=r"'b' has shape \(1,\)"):
        layout.pack({"a": np.zeros(3), "b": np.zeros(1)})


def test_refuses_names_that_stand_twice():
    with pytest.raises(InputError, match="'a' stands twice"):
        Layout((Segment("a", (1,), "float32"), Segment("a", (2,), "float32")))


def test_coordinates_pack_only_those_entries():
    segment = Segment("w", (2, 3), "float32", np.array([0, 4]))
    layout = Layout((segment,))
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(layout.pack({"w": array}), [0, 4])
    np.testing.assert_array_equal(layout.unpack(np.array([1.0, 2.0]))["w"], [1, 2])


@pytest.mark.parametrize("coordinates", [[1, 1], [2, 1], [-1, 0], [0, 6]])
def test_refuses_coordinates_that_are_unsorted_repeated_or_outside(coordinates):
    with pytest.raises(InputError, match="sorted, distinct and within"):
        Segment("w", (2, 3), "float32", np.array(coordinates))


def test_hash_tells_names_shapes_dtypes_order_and_coordinates_apart():
    def one(**kinds):
        return Layout(tuple(Segment(n, *k) for n, k in kinds.items())).hash

    hashes = {
        one(a=((2,), "float32"), b=((2,), "float32")),
        one(b=((2,), "float32"), a=((2,), "float32")),
        one(a=((1, 2), "float32"), b=((2,), "float32")),
        one(a=((2,), "float64"), b=((2,), "float32")),
        Layout((Segment("a", (2,), "float32", np.array([0])), Segment("b", (2,), "float32"))).hash,
        Layout((Segment("a", (2,), "float32", np.array([1])), Segment("b", (2,), "float32"))).hash,
    }
    assert len(hashes) == 6


@pytest.mark.report("U50", "each round's layout has a hash; a difference is an error that names the first ones")
def test_first_difference_is_named():
    one = Layout.of({"a": np.zeros(2), "b": np.zeros(3)})
    two = Layout.of({"a": np.zeros(2), "b": np.zeros(4)})
    with pytest.raises(LayoutMismatch, match=r"'b', \[4\]"):
        one.check_same(two)
    with pytest.raises(LayoutMismatch, match="layout of 1 arrays: expected 2"):
        one.check_same(one.only(["a"]))


def test_only_keeps_order_and_refuses_unknown_names():
    layout = Layout.of({"a": np.zeros(1), "b": np.zeros(1), "c": np.zeros(1)})
    assert layout.only(["c", "a"]).names == ("a", "c")
    with pytest.raises(LayoutMismatch, match="'z' is not in the layout"):
        layout.only(["z"])


def test_refuses_unknown_dtypes():
    with pytest.raises(InputError, match="complex64"):
        Layout.of({"a": np.zeros(1, np.complex64)})


@pytest.mark.parametrize(
    ("value", "dtype", "want"),
    [(0.5, "int64", 0), (1.5, "int64", 2), (300.0, "uint8", 255), (-1.0, "uint8", 0), (1e30, "int32", 2**31 - 1)],
)
def test_integers_round_half_to_even_and_clamp(value, dtype, want):
    got = cast(np.array([value]), dtype)
    assert got.dtype == np.dtype(dtype) and got[0] == want


def test_int64_top_does_not_wrap():
    assert cast(np.array([1e30]), "int64")[0] > 2**62
