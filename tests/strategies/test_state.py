"""A model as arrays and back: names, shapes, dtypes, ties, ownership."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from crypto.packing import Layout
from fedsim.tasks.models import build_model
from strategies.state import StateMismatch, buffer_names, load_state_arrays, state_arrays, state_dtypes

ORDERS = ["C", "F", "flip", ">f4", "readonly"]


class Tied(nn.Module):
    """An embedding whose table is also the head's."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 3)
        self.head = nn.Linear(3, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embedding(x))


def _batch_norm_net(seed: int = 0) -> nn.Module:
    return build_model("resnet8", input_shape=(1, 8, 8), num_classes=3, seed=seed, norm="batch", width=4)


@pytest.mark.report("U42", "names, shapes and dtypes come back as they were; a counter stays a scalar of int64")
def test_round_trip_keeps_names_order_shapes_dtypes_and_values() -> None:
    source, target = _batch_norm_net(1), _batch_norm_net(2)
    source(torch.randn(4, 1, 8, 8))
    load_state_arrays(target, state_arrays(source))
    want, got = source.state_dict(), target.state_dict()
    assert list(state_arrays(source)) == list(want)
    for name in want:
        assert got[name].dtype == want[name].dtype and got[name].shape == want[name].shape
        assert torch.equal(got[name], want[name])


@pytest.mark.report("U42")
def test_counters_stay_scalars_of_int64_through_a_layout() -> None:
    model = _batch_norm_net()
    model(torch.randn(4, 1, 8, 8))
    arrays = state_arrays(model)
    counter = arrays["norm.num_batches_tracked"]
    assert counter.shape == () and counter.dtype == np.int64 and counter == 1
    layout = Layout.of(arrays, state_dtypes(model))
    back = layout.unpack(layout.pack(arrays))
    assert back["norm.num_batches_tracked"].shape == () and back["norm.num_batches_tracked"].dtype == np.int64
    load_state_arrays(model, back)


@pytest.mark.report("U57", "sent once, counted once, and still tied after loading")
def test_tied_weights_are_sent_once_and_stay_tied() -> None:
    model = Tied()
    arrays = state_arrays(model)
    assert list(arrays) == ["embedding.weight"]
    load_state_arrays(model, {"embedding.weight": np.full((7, 3), 2.5, np.float32)})
    assert model.head.weight is model.embedding.weight
    assert torch.equal(model.head.weight, torch.full((7, 3), 2.5))


def test_tensors_that_share_memory_by_a_view_are_sent_once() -> None:
    model = Tied()
    model.head.weight = nn.Parameter(model.embedding.weight.detach().view(7, 3))
    assert list(state_arrays(model)) == ["embedding.weight"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_floats_round_trip_exactly(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    source, target = nn.Linear(5, 4).to(dtype), nn.Linear(5, 4).to(dtype)
    arrays = state_arrays(source)
    assert arrays["weight"].dtype == (np.float32 if dtype == torch.bfloat16 else np.dtype(str(dtype)[6:]))
    assert state_dtypes(source)["weight"] == str(dtype)[6:]
    load_state_arrays(target, arrays)
    assert target.weight.dtype == dtype and torch.equal(target.weight, source.weight)


@pytest.mark.report(
    "U48", "every value goes bfloat16 -> float32 -> bfloat16 exactly, in two bytes, with its dtype in the header"
)
def test_every_bfloat16_value_is_carried_exactly() -> None:
    bits = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    finite = bits[torch.isfinite(bits)]
    model = nn.Module()
    model.register_parameter("w", nn.Parameter(finite.clone()))
    arrays = state_arrays(model)
    with torch.no_grad():
        model.w.zero_()
    load_state_arrays(model, arrays)
    assert torch.equal(model.w.view(torch.int16), finite.view(torch.int16))


@pytest.mark.report("U58", "any memory order, stride and byte order gives what a plain copy gives")
@settings(max_examples=25, deadline=None)
@given(shape=st.lists(st.integers(0, 4), max_size=3).map(tuple), how=st.sampled_from(ORDERS))
def test_any_memory_order_loads_like_a_plain_copy(shape: tuple[int, ...], how: str) -> None:
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    given_array = {
        "C": values,
        "F": np.array(values, order="F"),
        "flip": values[..., ::-1].copy()[..., ::-1] if values.ndim else values,
        ">f4": values.astype(">f4"),
        "readonly": np.frombuffer(values.tobytes(), np.float32).reshape(shape),
    }[how]
    model = nn.Module()
    model.register_parameter("w", nn.Parameter(torch.zeros(shape)))
    load_state_arrays(model, {"w": given_array})
    assert np.array_equal(model.w.detach().numpy(), values)


def test_non_contiguous_tensors_come_out_in_c_order() -> None:
    model = nn.Module()
    model.register_parameter("w", nn.Parameter(torch.arange(6.0).view(2, 3).t()))
    array = state_arrays(model)["w"]
    assert array.flags.c_contiguous and array.tolist() == [[0, 3], [1, 4], [2, 5]]


def test_loading_keeps_no_hold_of_the_arrays_and_arrays_none_of_the_model() -> None:
    model = nn.Linear(2, 2)
    arrays = state_arrays(model)
    before = arrays["weight"].copy()
    with torch.no_grad():
        model.weight.add_(1)
    assert np.array_equal(arrays["weight"], before)
    memory = model.weight.data_ptr()
    load_state_arrays(model, arrays)
    arrays["weight"] += 7
    assert model.weight.data_ptr() == memory and np.array_equal(model.weight.detach().numpy(), before)


@pytest.mark.report("U67")
def test_read_only_arrays_load_and_the_model_trains_on_its_own_copy() -> None:
    model = nn.Linear(2, 2)
    arrays = state_arrays(model)
    for array in arrays.values():
        array.flags.writeable = False
    load_state_arrays(model, arrays)
    with torch.no_grad():
        model.weight[0] += 1
    assert not np.array_equal(arrays["weight"], model.weight.detach().numpy())


@pytest.mark.report("U50")
def test_refuses_missing_and_extra_names_and_changes_nothing() -> None:
    model = nn.Linear(2, 2)
    before = state_arrays(model)
    with pytest.raises(StateMismatch, match=r"1 arrays missing \['bias'\], 1 unknown \['scale'\].*all must be given"):
        load_state_arrays(model, {"weight": np.zeros((2, 2), np.float32), "scale": np.zeros(2, np.float32)})
    assert np.array_equal(state_arrays(model)["weight"], before["weight"])


def test_refuses_another_shape_or_kind_and_changes_nothing() -> None:
    model = nn.Linear(2, 2)
    before = state_arrays(model)
    zeros = np.zeros((2, 2), np.float32)
    with pytest.raises(StateMismatch, match=r"'bias' has shape \(1,\): the model's is \(2,\)"):
        load_state_arrays(model, {"weight": zeros, "bias": np.zeros(1, np.float32)})
    with pytest.raises(StateMismatch, match=r"'bias' is int64: the model's tensor is torch.float32"):
        load_state_arrays(model, {"weight": zeros, "bias": np.zeros(2, np.int64)})
    assert np.array_equal(state_arrays(model)["weight"], before["weight"])


def test_a_float_counter_is_refused() -> None:
    arrays = dict(state_arrays(_batch_norm_net()))
    arrays["norm.num_batches_tracked"] = np.float32(2.5).reshape(())
    with pytest.raises(StateMismatch, match="round or cast"):
        load_state_arrays(_batch_norm_net(), arrays)


def test_buffers_are_told_from_parameters() -> None:
    model = _batch_norm_net()
    assert buffer_names(model) == {name for name, _ in model.named_buffers()}
    assert buffer_names(Tied()) == frozenset()


def test_refuses_what_is_not_a_dense_real_tensor() -> None:
    model = nn.Module()
    model.register_buffer("phase", torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(StateMismatch, match="'phase'.*dense real"):
        state_arrays(model)
