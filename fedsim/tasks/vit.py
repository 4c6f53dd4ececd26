"""A very small vision transformer (Dosovitskiy et al. 2021), pre-norm, with separate query, key and value layers."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsim.tasks._checks import check_image
from fedsim.tasks.errors import BadOption


class Attention(nn.Module):
    """Multi-head self-attention over ``(batch, tokens, dim)``."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Return the attended tokens, same shape."""
        batch, tokens, dim = x.shape
        q, k, v = (
            layer(x).view(batch, tokens, self.heads, -1).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, tokens, dim)
        out: Tensor = self.out(mixed)
        return out


class EncoderBlock(nn.Module):
    """Attention and a two-layer perceptron, each behind a layer norm and beside a shortcut."""

    def __init__(self, dim: int, heads: int, mlp_dim: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attention = Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, mlp_dim)
        self.fc2 = nn.Linear(mlp_dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Return tokens of the same shape."""
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.fc2(functional.gelu(self.fc1(self.norm2(x))))
        return out


class ViT(nn.Module):
    """Patches -> class token and positions -> encoder blocks -> linear head on the class token."""

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, patch: int, dim: int, depth: int, heads: int
    ) -> None:
        super().__init__()
        channels, height, width = input_shape
        tokens = (height // patch) * (width // patch) + 1
        self.patches = nn.Conv2d(channels, dim, patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.positions = nn.Parameter(0.02 * torch.randn(1, tokens, dim))
        self.blocks = nn.Sequential(*(EncoderBlock(dim, heads, 2 * dim) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits of shape ``(batch, num_classes)``."""
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], dim=1) + self.positions
        logits: Tensor = self.head(self.norm(self.blocks(x)[:, 0]))
        return logits


def vit_tiny(
    input_shape: tuple[int, ...], num_classes: int, *, patch: int = 0, dim: int = 64, depth: int = 4, heads: int = 4
) -> nn.Module:
    """ViT-tiny: width 64, 4 blocks, 4 heads (139k parameters at 28x28 with patch 7); patch 0 picks a quarter side."""
    check_image(input_shape, 2)
    side = input_shape[1]
    patch = patch or next(p for p in range(max(side // 4, 1), 0, -1) if all(s % p == 0 for s in input_shape[1:]))
    if any(s % patch for s in input_shape[1:]):
        raise BadOption(f"patch {patch} must divide the sides {input_shape[1:]}; choose a divisor, or 0")
    if dim % heads:
        raise BadOption(f"dim {dim} must be a multiple of heads {heads}; 64 and 4 are the defaults")
    return ViT(input_shape, num_classes, patch, dim, depth, heads)
