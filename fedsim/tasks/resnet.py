"""Small residual networks of the CIFAR kind (He et al. 2016, sec. 4.2), with group or batch normalisation."""

from math import gcd

import torch
from torch import Tensor, nn

from fedsim.tasks._checks import check_image
from fedsim.tasks.errors import BadOption

_GROUPS = 8


def _norm(kind: str, channels: int) -> nn.Module:
    if kind == "group":
        return nn.GroupNorm(gcd(_GROUPS, channels), channels)
    if kind == "batch":
        return nn.BatchNorm2d(channels)
    raise BadOption(f"norm '{kind}' is unknown: choose group (no buffers to average) or batch")


class Block(nn.Module):
    """Two 3x3 convolutions around a shortcut; the shortcut is a 1x1 convolution where the shape changes."""

    def __init__(self, narrow: int, wide: int, stride: int, norm: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(narrow, wide, 3, stride, padding=1, bias=False)
        self.norm1 = _norm(norm, wide)
        self.conv2 = nn.Conv2d(wide, wide, 3, padding=1, bias=False)
        self.norm2 = _norm(norm, wide)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or narrow != wide:
            self.shortcut = nn.Sequential(nn.Conv2d(narrow, wide, 1, stride, bias=False), _norm(norm, wide))

    def forward(self, x: Tensor) -> Tensor:
        """Return features of shape ``(batch, wide, height / stride, width / stride)``."""
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """A stem, three stages of `depth` blocks at widths w, 2w, 4w, mean pooling and a linear head."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, depth: int, width: int, norm: str) -> None:
        super().__init__()
        self.stem = nn.Conv2d(input_shape[0], width, 3, padding=1, bias=False)
        self.norm = _norm(norm, width)
        blocks, narrow = [], width
        for stage in range(3):
            for place in range(depth):
                stride = 2 if stage and not place else 1
                blocks.append(Block(narrow, width << stage, stride, norm))
                narrow = width << stage
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(narrow, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits of shape ``(batch, num_classes)``."""
        x = self.blocks(torch.relu(self.norm(self.stem(x))))
        logits: Tensor = self.head(x.mean(dim=(2, 3)))
        return logits


def resnet8(input_shape: tuple[int, ...], num_classes: int, *, norm: str = "group", width: int = 16) -> nn.Module:
    """ResNet-8: one block a stage (78k parameters at width 16), group or batch norm."""
    return _resnet(input_shape, num_classes, 1, width, norm)


def resnet20(input_shape: tuple[int, ...], num_classes: int, *, norm: str = "group", width: int = 16) -> nn.Module:
    """ResNet-20: three blocks a stage (0.27M parameters at width 16), group or batch norm."""
    return _resnet(input_shape, num_classes, 3, width, norm)


def _resnet(input_shape: tuple[int, ...], num_classes: int, depth: int, width: int, norm: str) -> nn.Module:
    check_image(input_shape, 4)
    if width < 1:
        raise BadOption(f"width {width} must be at least 1; 16 is the paper's")
    return ResNet(input_shape, num_classes, depth, width, norm)
