"""Counted operations against torch's own counter, which is slow to load and the reference."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from fedsim.tasks import flops
from fedsim.tasks.flops import flops_per_example
from fedsim.tasks.models import build_model


class Odd(nn.Module):
    """A product that is not among the known ones."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 4, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a batched product."""
        return torch.bmm(x.expand(3, *x.shape), self.weight)


MODELS: list[tuple[str, tuple[int, ...], dict[str, Any]]] = [
    ("logistic", (1, 4, 4), {}),
    ("mlp", (1, 4, 4), {"hidden": (5, 3)}),
    ("cnn", (1, 8, 8), {"width": 2}),
    ("resnet8", (3, 8, 8), {"width": 2}),
    ("resnet8", (3, 8, 8), {"width": 2, "norm": "batch"}),
]


@pytest.mark.parametrize(("name", "shape", "options"), MODELS)
@pytest.mark.parametrize("frozen", [lambda i: False, lambda i: i < 2, lambda i: i % 3 != 0])
@pytest.mark.parametrize("backward", [True, False])
def test_the_graph_gives_what_torchs_counter_gives(
    name: str, shape: tuple[int, ...], options: dict[str, Any], frozen: Any, backward: bool
) -> None:
    model = build_model(name, input_shape=shape, num_classes=3, seed=0, **options)
    for i, parameter in enumerate(model.parameters()):
        parameter.requires_grad_(not frozen(i))
    trains = [p.requires_grad for p in model.parameters()]
    found = flops._from_graph(copy.deepcopy(model), torch.zeros(2, *shape), backward)
    assert found is not None and found == flops._by_counter(copy.deepcopy(model), torch.zeros(2, *shape), backward)
    assert flops_per_example(model, shape, backward=backward) == found // 2
    assert [p.requires_grad for p in model.parameters()] == trains


def test_what_the_graph_does_not_tell_is_left_to_torchs_counter() -> None:
    model = Odd()
    assert flops._from_graph(copy.deepcopy(model), torch.zeros(2, 4), True) is None
    assert flops_per_example(model, (4,)) == 2 * 3 * 4 * 2 * 2
    strided = nn.Sequential(nn.Conv2d(2, 4, 3, stride=2, dilation=2, padding=1), nn.Flatten())
    grouped = nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Flatten())
    for one, known in ((strided, True), (grouped, False)):
        found = flops._from_graph(copy.deepcopy(one), torch.zeros(2, 2, 9, 9), True)
        reference = flops._by_counter(copy.deepcopy(one), torch.zeros(2, 2, 9, 9), True)
        assert found == (reference if known else None)
        assert flops_per_example(one, (2, 9, 9)) == reference // 2
