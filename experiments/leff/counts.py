"""Trainable parameters of the paper's models (Shen et al. 2025, table 5), counted on models without memory.

The models are built from configurations of the library `transformers` on torch's meta device: nothing is downloaded and
no weight is made. ``python -m experiments.leff.counts`` prints the table.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

__all__ = ["PAPER", "Counts", "count", "counts"]


@dataclass(frozen=True)
class Counts:
    """Parameters of a model by part.

    Attributes:
        stem: embeddings, frozen for all.
        block: one block.
        blocks: how many there are.
        tail: what every client trains.
    """

    stem: int
    block: int
    blocks: int
    tail: int

    @property
    def leff(self) -> int:
        """Trained by a client of one block."""
        return self.block + self.tail

    @property
    def full(self) -> int:
        """Trained by a client of all blocks: the paper's FedAvg."""
        return self.blocks * self.block + self.tail


def count(model: nn.Module, blocks: str, stem: tuple[str, ...]) -> Counts:
    """Count a model's parameters.

    Args:
        model: on any device.
        blocks: name of the list of blocks.
        stem: beginnings of the embeddings' names. A weight that is tied to one of these is the embeddings'.
    """
    parameters = dict(model.named_parameters())
    in_blocks = [p.numel() for n, p in parameters.items() if n.startswith(f"{blocks}.")]
    in_stem = [p.numel() for n, p in parameters.items() if n.startswith(stem)]
    number = len(model.get_submodule(blocks))  # type: ignore[arg-type]
    rest = sum(p.numel() for p in parameters.values()) - sum(in_blocks) - sum(in_stem)
    return Counts(sum(in_stem), sum(in_blocks) // number, number, rest)


def _deberta(dim: int, layers: int, heads: int) -> nn.Module:
    from transformers import DebertaV2Config, DebertaV2ForSequenceClassification

    config = DebertaV2Config(
        vocab_size=128100,
        hidden_size=dim,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * dim,
        relative_attention=True,
        position_buckets=256,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        pos_att_type=["p2c", "c2p"],
        position_biased_input=False,
        type_vocab_size=0,
        pooler_hidden_size=dim,
        num_labels=2,
    )
    return _made(DebertaV2ForSequenceClassification, config)


def _gpt2(dim: int, layers: int, heads: int) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return _made(GPT2LMHeadModel, GPT2Config(n_embd=dim, n_layer=layers, n_head=heads))


def _llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        tie_word_embeddings=False,
    )
    return _made(LlamaForCausalLM, config)


def _made(kind: Any, config: Any) -> nn.Module:
    with torch.device("meta"):
        model: nn.Module = kind(config)
    model.tie_weights()  # type: ignore[operator]
    return model


_DEBERTA = ("deberta.encoder.layer", ("deberta.embeddings.", "deberta.encoder.rel_embeddings."))
_GPT2 = ("transformer.h", ("transformer.wte.", "transformer.wpe."))

#: Name -> model, its blocks, its embeddings, and the paper's trainable parameters of LEFF and FedAvg.
PAPER: dict[str, tuple[Callable[[], nn.Module], str, tuple[str, ...], int, int]] = {
    "DeBERTaV3-base": (lambda: _deberta(768, 12, 12), *_DEBERTA, 7_681_538, 85_648_130),
    "DeBERTaV3-large": (lambda: _deberta(1024, 24, 16), *_DEBERTA, 13_649_922, 303_363_074),
    "GPT2": (lambda: _gpt2(768, 12, 12), *_GPT2, 7_089_408, 85_056_000),
    "GPT2-large": (lambda: _gpt2(1280, 36, 20), *_GPT2, 19_680_000, 708_390_400),
    "Llama-3.1-8B": (_llama, "model.layers", ("model.embed_tokens.",), 743_452_672, 0),
}


def counts(name: str) -> Counts:
    """Return the counts of one of the paper's models."""
    make, blocks, stem, _, _ = PAPER[name]
    return count(make(), blocks, stem)


def main() -> None:
    """Print the table."""
    print(f"{'model':16} {'one block':>12} {'tail':>12} {'LEFF, 1 block':>14} {'paper':>12} {'all blocks':>12}")
    for name, (_, _, _, leff, _) in PAPER.items():
        found = counts(name)
        print(f"{name:16} {found.block:>12,} {found.tail:>12,} {found.leff:>14,} {leff:>12,} {found.full:>12,}")


if __name__ == "__main__":
    main()
