"""The trainable parameters that the paper prints, to the digit."""

import pytest
import torch
from torch import nn

from experiments.leff.counts import PAPER, count, counts
from fedsim.tasks.models import build_model
from tests.text_packages import needs


@needs("transformers")
@pytest.mark.parametrize("name", PAPER)
def test_15_counts_are_the_papers(name):
    _, _, _, leff, full = PAPER[name]
    found = counts(name)
    assert found.leff == leff and full in (0, found.full)


def test_a_tied_head_belongs_to_the_embeddings():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.norm = nn.Embedding(10, 4), nn.LayerNorm(4)
            self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
            self.head = nn.Linear(4, 10, bias=False)
            self.head.weight = self.embed.weight

    with torch.device("meta"):
        found = count(Tied(), "blocks", ("embed.",))
    assert (found.stem, found.block, found.blocks, found.tail) == (40, 20, 2, 8)


def test_our_own_models_are_counted_alike():
    model = build_model("vit-tiny", input_shape=(1, 8, 8), num_classes=10, seed=0)
    found = count(model, "blocks", tuple(model.stem))
    assert found.stem + found.full == sum(p.numel() for p in model.parameters())
