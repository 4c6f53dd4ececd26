"""A very small vision transformer (Dosovitskiy et al. 2021), pre-norm, with separate query, key and value layers."""

import torch
from torch import Tensor, nn

from fedsim.tasks._checks import check_image
from fedsim.tasks.errors import BadOption
from fedsim.tasks.transformer import Block, BlockStack


class ViT(BlockStack):
    """Patches -> class token and positions -> encoder blocks -> linear head on the class token."""

    stem = ("patches", "class_token", "positions")

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_classes: int,
        patch: int,
        dim: int,
        depth: int,
        heads: int,
        lora_rank: int = 0,
    ) -> None:
        super().__init__()
        channels, height, width = input_shape
        tokens = (height // patch) * (width // patch) + 1
        self.patches = nn.Conv2d(channels, dim, patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.positions = nn.Parameter(0.02 * torch.randn(1, tokens, dim))
        self.blocks = nn.Sequential(*(Block(dim, heads, 2 * dim, lora_rank=lora_rank) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, num_classes)

    def embed(self, x: Tensor) -> tuple[Tensor, None]:
        """Return the class token and the patches, ``(batch, tokens, dim)``; there is no padding."""
        x = self.patches(x).flatten(2).transpose(1, 2)
        return torch.cat([self.class_token.expand(len(x), -1, -1), x], dim=1) + self.positions, None

    def tail(self, hidden: Tensor, valid: Tensor | None) -> Tensor:
        """Return logits of shape ``(batch, num_classes)``."""
        logits: Tensor = self.head(self.norm(hidden[:, 0]))
        return logits


def vit_tiny(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    patch: int = 0,
    dim: int = 64,
    depth: int = 4,
    heads: int = 4,
    lora_rank: int = 0,
) -> nn.Module:
    """ViT-tiny: width 64, 4 blocks, 4 heads (139k parameters at 28x28 with patch 7); patch 0 picks a quarter side."""
    check_image(input_shape, 2)
    side = input_shape[1]
    patch = patch or next(p for p in range(max(side // 4, 1), 0, -1) if all(s % p == 0 for s in input_shape[1:]))
    if any(s % patch for s in input_shape[1:]):
        raise BadOption(f"patch {patch} must divide the sides {input_shape[1:]}; choose a divisor, or 0")
    check_widths(dim, heads, depth, lora_rank)
    return ViT(input_shape, num_classes, patch, dim, depth, heads, lora_rank)


def check_widths(dim: int, heads: int, depth: int, lora_rank: int) -> None:
    """Raise :class:`~fedsim.tasks.errors.BadOption` unless these make a stack of blocks."""
    if heads < 1 or dim < 1 or dim % heads:
        raise BadOption(f"dim {dim} must be a multiple of heads {heads}; 64 and 4 are the defaults")
    if depth < 1 or lora_rank < 0:
        raise BadOption(f"depth {depth} must be at least 1, lora_rank {lora_rank} at least 0; 4 and 0 are usual")
