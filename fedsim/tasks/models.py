"""Models by name, with an initialisation that depends on the seed alone."""

import inspect
from collections.abc import Callable
from itertools import pairwise
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from fedsim.own import is_own
from fedsim.tasks._checks import bad_options, check_image, own_function
from fedsim.tasks.errors import BadOption, UnknownName
from fedsim.tasks.resnet import resnet8, resnet20
from fedsim.tasks.text_models import decoder_tiny, encoder_tiny, minilm
from fedsim.tasks.vit import vit_tiny

__all__ = ["build_model", "list_models", "model_options"]

Shape = tuple[int, ...]


def build_model(name: str, *, input_shape: Shape, num_classes: int, seed: int, **options: Any) -> nn.Module:
    """Return a freshly initialised float32 model on the CPU; torch's global generator is left as it was.

    Args:
        name: one of :func:`list_models`, or ``module:function`` of your own, called with input shape and classes.
        input_shape: shape of one example; ``(channels, height, width)`` for the image models.
        num_classes: number of outputs, at least 2.
        seed: decides the initial weights.
        options: the model's own, see :func:`model_options`.

    Raises:
        UnknownName: no model has this name.
        BadOption: an option is unknown or out of range, or the model cannot take this input.
    """
    known = model_options(name)
    for option in sorted(options):
        if option not in known:
            raise BadOption(f"model '{name}' has no option '{option}': it takes {', '.join(known) or 'none'}")
    if num_classes < 2:
        raise BadOption(f"num_classes {num_classes} must be at least 2")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            return _builder(name)(tuple(input_shape), num_classes, **options)
        except Exception as error:
            raise bad_options(f"model '{name}'", options, known, error) from error


def list_models() -> dict[str, str]:
    """Return each model's name with one line about it."""
    return {name: (inspect.getdoc(builder) or "").splitlines()[0] for name, builder in _BUILDERS.items()}


def model_options(name: str) -> dict[str, Any]:
    """Return a model's options with their defaults.

    Raises:
        UnknownName: no model has this name.
    """
    parameters = inspect.signature(_builder(name)).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def _builder(name: str) -> Callable[..., nn.Module]:
    if is_own(name) and name not in _BUILDERS:
        return own_function(name)
    if name not in _BUILDERS:
        raise UnknownName(f"model '{name}' does not exist: choose one of {', '.join(_BUILDERS)}")
    return _BUILDERS[name]


def logistic(input_shape: Shape, num_classes: int) -> nn.Module:
    """Multinomial logistic regression: one linear layer."""
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(input_shape), num_classes))


def mlp(input_shape: Shape, num_classes: int, *, hidden: tuple[int, ...] = (128, 64)) -> nn.Module:
    """Multi-layer perceptron with ReLU; `hidden` are the widths between input and output."""
    if not hidden or min(hidden) < 1:
        raise BadOption(f"hidden {hidden} must be one or more positive widths; (128, 64) is the default")
    layers: list[nn.Module] = [nn.Flatten()]
    for wide, narrow in pairwise((prod(input_shape), *hidden)):
        layers += [nn.Linear(wide, narrow), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(hidden[-1], num_classes))


class SmallCNN(nn.Module):
    """Two 3x3 convolutions with pooling, then two linear layers; 105,866 parameters for 28x28 grey and 10 classes."""

    def __init__(self, input_shape: Shape, num_classes: int, width: int) -> None:
        super().__init__()
        channels, height, side = input_shape
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.fc1 = nn.Linear(2 * width * (height // 4) * (side // 4), 64)
        self.fc2 = nn.Linear(64, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits of shape ``(batch, num_classes)``."""
        # Pooling before ReLU gives the same values on a quarter of the entries.
        x = torch.relu(nn.functional.max_pool2d(self.conv1(x), 2))
        x = torch.relu(nn.functional.max_pool2d(self.conv2(x), 2))
        logits: Tensor = self.fc2(torch.relu(self.fc1(x.flatten(1))))
        return logits


def cnn(input_shape: Shape, num_classes: int, *, width: int = 16) -> nn.Module:
    """Small CNN: two convolutions, two linear layers (106k parameters at 28x28, 14k at 8x8)."""
    check_image(input_shape, 4)
    if width < 1:
        raise BadOption(f"width {width} must be at least 1; 16 is the default")
    return SmallCNN(input_shape, num_classes, width)


_BUILDERS: dict[str, Callable[..., nn.Module]] = {
    "logistic": logistic,
    "mlp": mlp,
    "cnn": cnn,
    "resnet8": resnet8,
    "resnet20": resnet20,
    "vit-tiny": vit_tiny,
    "encoder-tiny": encoder_tiny,
    "decoder-tiny": decoder_tiny,
    "minilm": minilm,
}
