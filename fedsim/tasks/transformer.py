"""Transformer blocks that the models share: pre- or post-norm, with or without a causal mask, with low-rank adapters.

A model made of them is a *block stack*: ``embed`` turns an input into hidden states, ``blocks`` is a sequence of
blocks of one architecture, ``tail`` turns hidden states into logits, and ``stem`` names what belongs to ``embed``.
"""

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

Norm = Literal["pre", "post"]

__all__ = ["Attention", "Block", "BlockStack", "LoraLinear", "Norm"]

#: Score of a key that may not be looked at; finite, so that a row without any key gives no NaN.
_MASKED = -1e9


class LoraLinear(nn.Linear):
    """A linear layer with a low-rank adapter (Hu et al. 2022, section 4.1): ``W x + b + 2 B A x``, B zero at first.

    Args:
        rank: rows of A.
    """

    scaling: ClassVar[float] = 2.0

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__(inputs, outputs)
        self.lora_a = nn.Parameter(torch.randn(rank, inputs) / math.sqrt(inputs))
        self.lora_b = nn.Parameter(torch.zeros(outputs, rank))

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(..., outputs)`` for ``(..., inputs)``."""
        low = functional.linear(functional.linear(x, self.lora_a), self.lora_b)
        return super().forward(x) + self.scaling * low


def _linear(inputs: int, outputs: int, rank: int) -> nn.Linear:
    return LoraLinear(inputs, outputs, rank) if rank else nn.Linear(inputs, outputs)


class Attention(nn.Module):
    """Multi-head self-attention over ``(batch, tokens, dim)``."""

    def __init__(self, dim: int, heads: int, *, causal: bool = False, dropout: float = 0.0, lora_rank: int = 0) -> None:
        super().__init__()
        self.heads, self.causal, self.dropout = heads, causal, dropout
        self.query = _linear(dim, dim, lora_rank)
        self.key = _linear(dim, dim, lora_rank)
        self.value = _linear(dim, dim, lora_rank)
        self.out = _linear(dim, dim, lora_rank)

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """Return the attended tokens, same shape.

        Args:
            x: hidden states.
            valid: bool ``(batch, tokens)``, false for padding; ``None`` where there is none.
        """
        q, k, v = self._heads(x)
        rate = self.dropout if self.training else 0.0
        if valid is None:
            mixed = functional.scaled_dot_product_attention(q, k, v, dropout_p=rate, is_causal=self.causal)
        else:
            mask = self._allowed(valid, x.shape[1], x.device)
            mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=rate)
        return self._joined(mixed)

    def traced(self, x: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the attended tokens and the logarithm of the attention map, ``(batch, heads, queries, keys)``.

        Keys that may not be looked at have about -1e9. No dropout.
        """
        q, k, v = self._heads(x)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        allowed = self._allowed(valid, x.shape[1], x.device)
        if allowed is not None:
            scores = scores.masked_fill(~allowed, _MASKED)
        logs = scores.log_softmax(dim=-1)
        return self._joined(logs.exp() @ v), logs

    def _heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, tokens, _ = x.shape
        q, k, v = (
            layer(x).view(batch, tokens, self.heads, -1).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        return q, k, v

    def _joined(self, mixed: Tensor) -> Tensor:
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out

    def _allowed(self, valid: Tensor | None, tokens: int, device: torch.device) -> Tensor | None:
        """Return which keys each query may look at, to be broadcast to ``(batch, heads, queries, keys)``."""
        past = torch.ones(tokens, tokens, dtype=torch.bool, device=device).tril() if self.causal else None
        if valid is None:
            return past
        keys = valid[:, None, None, :]
        return keys if past is None else keys & past


class Block(nn.Module):
    """Attention and a two-layer perceptron, each beside a shortcut, normed before (``pre``) or after (``post``).

    Args:
        dim, heads, mlp_dim: widths.
        norm: ``pre`` as in GPT-2 and ViT, ``post`` as in BERT.
        causal: a token sees itself and what stands before it.
        dropout: after attention and perceptron, and on the attention map.
        eps: of the layer norms.
        lora_rank: rank of the adapters on all linear layers, 0 for none.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        mlp_dim: int,
        *,
        norm: Norm = "pre",
        causal: bool = False,
        dropout: float = 0.0,
        eps: float = 1e-5,
        lora_rank: int = 0,
    ) -> None:
        super().__init__()
        self.pre = norm == "pre"
        self.norm1 = nn.LayerNorm(dim, eps)
        self.attention = Attention(dim, heads, causal=causal, dropout=dropout, lora_rank=lora_rank)
        self.norm2 = nn.LayerNorm(dim, eps)
        self.fc1 = _linear(dim, mlp_dim, lora_rank)
        self.fc2 = _linear(mlp_dim, dim, lora_rank)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """Return hidden states of the same shape, ``(batch, tokens, dim)``; `valid` is false for padding."""
        if self.pre:
            x = x + self.drop(self.attention(self.norm1(x), valid))
            return x + self._mlp(self.norm2(x))
        x = self.norm1(x + self.drop(self.attention(x, valid)))
        out: Tensor = self.norm2(x + self._mlp(x))
        return out

    def traced(self, x: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return hidden states and the logarithm of the attention map, see :meth:`Attention.traced`."""
        mixed, logs = self.attention.traced(self.norm1(x) if self.pre else x, valid)
        if self.pre:
            x = x + self.drop(mixed)
            return x + self._mlp(self.norm2(x)), logs
        x = self.norm1(x + self.drop(mixed))
        return self.norm2(x + self._mlp(x)), logs

    def _mlp(self, x: Tensor) -> Tensor:
        out: Tensor = self.drop(self.fc2(functional.gelu(self.fc1(x))))
        return out


class BlockStack(nn.Module):
    """A model of embeddings, blocks of one architecture, and a tail.

    Attributes:
        stem: names of the submodules and parameters that :meth:`embed` uses; what is neither there nor in `blocks`
            is the tail's.
        blocks: called in order, each as ``block(hidden, valid)``.
    """

    stem: ClassVar[tuple[str, ...]]
    blocks: nn.Sequential

    def embed(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return hidden states ``(batch, tokens, dim)`` and which of the tokens are no padding, ``None`` for all."""
        raise NotImplementedError

    def tail(self, hidden: Tensor, valid: Tensor | None) -> Tensor:
        """Return logits ``(batch, num_classes)``."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``(batch, num_classes)``."""
        hidden, valid = self.embed(x)
        for block in self.blocks:
            hidden = block(hidden, valid)
        return self.tail(hidden, valid)
