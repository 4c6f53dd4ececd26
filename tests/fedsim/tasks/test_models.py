"""Models: sizes, seeds, and refusals."""

import pytest
import torch

from fedsim.tasks.errors import BadOption, UnknownName
from fedsim.tasks.models import build_model, list_models, model_options

PARAMETERS = {
    "logistic": 7_850,
    "mlp": 109_386,
    "cnn": 105_866,
    "resnet8": 77_754,
    "resnet20": 272_186,
    "vit-tiny": 139_018,
}

TEXT_PARAMETERS = {"encoder-tiny": 139_914, "decoder-tiny": 205_962}


def test_every_model_is_counted_here() -> None:
    assert set(list_models()) == {*PARAMETERS, *TEXT_PARAMETERS, "minilm"} and all(list_models().values())


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameter_counts_and_output_shape(name: str) -> None:
    model = build_model(name, input_shape=(1, 28, 28), num_classes=10, seed=0)
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS[name]
    assert model(torch.zeros(3, 1, 28, 28)).shape == (3, 10)


@pytest.mark.parametrize("name", TEXT_PARAMETERS)
def test_text_models_are_counted_and_read_token_ids(name: str) -> None:
    model = build_model(name, input_shape=(64,), num_classes=10, seed=0, vocab=18)
    assert sum(p.numel() for p in model.parameters()) == TEXT_PARAMETERS[name]
    assert model(torch.randint(1, 18, (3, 64), dtype=torch.int32)).shape == (3, 10)


@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32)])
def test_models_adapt_to_the_input(name: str, shape: tuple[int, ...]) -> None:
    model = build_model(name, input_shape=shape, num_classes=62, seed=0)
    assert model(torch.zeros(2, *shape)).shape == (2, 62)


def test_cnn_on_digits_is_small() -> None:
    model = build_model("cnn", input_shape=(1, 8, 8), num_classes=10, seed=0)
    assert sum(p.numel() for p in model.parameters()) == 13_706


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_seed_decides_the_weights_and_the_global_generator_is_left_alone(name: str) -> None:
    weights = []
    for seed in (1, 1, 2):
        torch.manual_seed(len(weights))
        before = torch.get_rng_state()
        model = build_model(name, input_shape=(1, 8, 8), num_classes=4, seed=seed)
        weights.append(torch.cat([p.flatten() for p in model.parameters()]))
        assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


def test_norm_decides_whether_there_are_buffers() -> None:
    for name in ("resnet8", "resnet20"):
        buffers = {
            norm: len(list(build_model(name, input_shape=(1, 8, 8), num_classes=2, seed=0, norm=norm).buffers()))
            for norm in model_options(name)["norm"].split() + ["batch"]
        }
        assert buffers["group"] == 0 and buffers["batch"] > 0


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("cmm", {}, "model 'cmm' does not exist: choose one of logistic"),
        ("cnn", {"depth": 3}, "model 'cnn' has no option 'depth': it takes width"),
        ("cnn", {"width": 0}, "width 0 must be at least 1"),
        ("mlp", {"hidden": ()}, "hidden .. must be one or more positive widths"),
        ("resnet8", {"norm": "layer"}, "norm 'layer' is unknown: choose group"),
        ("vit-tiny", {"patch": 5}, "patch 5 must divide the sides"),
        ("vit-tiny", {"dim": 30}, "dim 30 must be a multiple of heads 4"),
    ],
)
def test_refuses_bad_options(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises((BadOption, UnknownName), match=message):
        build_model(name, input_shape=(1, 28, 28), num_classes=10, seed=0, **options)


def test_image_models_refuse_vectors_and_all_refuse_one_class() -> None:
    for name in ("cnn", "resnet8", "vit-tiny"):
        with pytest.raises(BadOption, match=r"input shape \(30,\): an image model needs"):
            build_model(name, input_shape=(30,), num_classes=2, seed=0)
    with pytest.raises(BadOption, match="num_classes 1 must be at least 2"):
        build_model("mlp", input_shape=(30,), num_classes=1, seed=0)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mlp", {"hidden": -1}),
        ("mlp", {"hidden": (10**14,)}),
        ("mlp", {"hidden": ("a", "b")}),
        ("cnn", {"width": "x"}),
        ("cnn", {"width": 1.5}),
    ],
)
def test_options_that_a_model_cannot_be_made_with_are_named_with_those_that_work(name, options):
    with pytest.raises(BadOption, match=f"model '{name}' cannot be made with .*: give values of the kind"):
        build_model(name, input_shape=(1, 28, 28), num_classes=10, seed=0, **options)
