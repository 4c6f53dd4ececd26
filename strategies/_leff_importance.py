"""How much each block matters: first-order Taylor importance on the server's proxy data.

Molchanov et al. 2019, as Shen et al. use it (eq. 3 and 4): ``I_l`` is the sum over a block's parameters of
``(g theta)^2``, the squared change of the loss that setting a parameter to zero would make, to first order.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from strategies._leff_blocks import checked

Batch = tuple[Tensor, Tensor | None]


def importance(model: nn.Module, batches: Sequence[Batch]) -> NDArray[np.float64]:
    """Return each block's importance, the mean over batches of the sum of (batch gradient x weight)^2.

    Args:
        model: a block model in evaluation mode; weights and gradients are left as they are.
        batches: inputs and labels. Without labels the model's own most likely class stands in for them: against its own
            distribution the gradient would be zero.

    Returns:
        float64 of shape ``(blocks,)``, finite.

    Raises:
        ValueError: there is no batch.
    """
    if not batches:
        raise ValueError("importance of no batches: at least one batch of proxy data is needed")
    owned = [(i, p) for i, block in enumerate(checked(model).blocks) for p in block.parameters() if p.requires_grad]
    scores = np.zeros(len(checked(model).blocks))
    for x, labels in batches:
        logits = model(x)
        loss = functional.cross_entropy(logits, logits.detach().argmax(dim=1) if labels is None else labels)
        gradients = torch.autograd.grad(loss, [p for _, p in owned], allow_unused=True)
        for (block, parameter), gradient in zip(owned, gradients, strict=True):
            if gradient is not None:
                scores[block] += float((gradient * parameter.detach()).double().square().sum())
    return scores / len(batches)
