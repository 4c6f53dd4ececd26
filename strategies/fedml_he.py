"""FedML-HE: encrypt the most sensitive coordinates, send the rest in the clear (Jin et al. 2023, arXiv 2303.10837).

Each client scores every weight by its mean absolute per-sample gradient, ``S[m] = mean_k |d(-log p(y_k)) / dw_m|``,
which for cross-entropy is the paper's mean over samples of the gradient's own sensitivity to the label (section 3.2).
The maps are summed under encryption, weighted like updates; the clients open the mean and all take its top share as the
one mask of all clients. A round's update goes in two vectors: the masked coordinates sealed, the others plain.

The maps travel with the update of a scoring round, the first and, with `every`, each so many later. Until there is a
mask all coordinates are sealed. Changes of the weights travel, not weights: the server could subtract the last sum.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import RecordDict
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from crypto import Layout, LayoutMismatch
from crypto.base import Plan
from crypto.packing import Segment
from strategies._freezing import refuse_batch_norm
from strategies.plan import RoundPlan
from strategies.protection import Plain, Protection
from strategies.records import NamedArrays
from strategies.replica import Arrays, Floats, padded, state_digest
from strategies.replicated import ReplicatedHalf, ReplicatedStrategy
from strategies.state import buffer_names, state_arrays

_SCORE = "score"
_MAP = "map"
#: Gradients of one example each that are held at once, in values.
_HELD = 2**25


class FedMLHE(ReplicatedStrategy):
    """Server half: adds sealed and clear vectors side by side.

    Args:
        every: rounds between two scorings; 0 scores once.
        common: see :class:`~strategies.replicated.ReplicatedStrategy`.
    """

    name = "fedml-he"

    def __init__(self, *, every: int = 0, **common: Any) -> None:
        if every < 0:
            raise ValueError(f"every {every} must be at least 0; 0 scores once")
        super().__init__(**common)
        self.every = every

    @classmethod
    def of(cls, options: Mapping[str, Any], **common: Any) -> "FedMLHE":
        """Return the half for a strategy's settings; the others are the clients' affair."""
        return cls(every=options["every"], snapshot_every=options["snapshot_every"], **common)

    def protections(self) -> tuple[Protection, ...]:
        """The run's own, and none."""
        return self.protection, Plain()

    def longest(self, layout: Layout) -> Layout:
        """Return a layout that holds a whole update and a whole map."""
        count = 2 * self.trained(layout)
        probe = Plan(length=max(count, 1), clients=1, bound=self.protection.bound)
        slots = self.protection.secure_sum(probe).slots
        return Layout((Segment(self.name, (padded(count, slots),), "float32"),))

    def extras(self, server_round: int) -> dict[str, int | float | str | bool | bytes]:
        """Say whether this is a scoring round."""
        return {_SCORE: server_round == 1 or (self.every > 0 and (server_round - 1) % self.every == 0)}


class FedMLHEClient(ReplicatedHalf):
    """Client half.

    Args:
        encrypted_share: p, share of the coordinates that are sealed, in [0, 1].
        score_examples: examples that a client scores with, its first; 0 for all.
    """

    name = "fedml-he"

    def __init__(self, encrypted_share: float = 0.1, score_examples: int = 0) -> None:
        if not 0 <= encrypted_share <= 1:
            raise ValueError(f"encrypted_share {encrypted_share} must lie in [0, 1]")
        self.share, self.examples = encrypted_share, score_examples
        self.names: tuple[str, ...] = ()

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "FedMLHEClient":
        """See :meth:`~strategies.client.ClientHalf.of`."""
        return cls(options["encrypted_share"], options["score_examples"])

    def shape(self, model: nn.Module) -> None:
        """Note what trains: all parameters.

        Raises:
            Incompatible: the model normalises over batches.
        """
        refuse_batch_norm(model)
        kept = buffer_names(model)
        self.names = tuple(n for n in state_arrays(model) if n not in kept)

    def digest(self, start: NamedArrays) -> bytes:
        """See :meth:`~strategies.client.ClientHalf.digest`."""
        return state_digest(start.arrays)

    def examine(self, model: nn.Module, x: Tensor, y: Tensor, plan: RoundPlan, memory: RecordDict) -> None:
        """Score the weights in a scoring round; the map is kept until the update is sealed."""
        if plan.extras.get(_SCORE):
            some = slice(self.examples or None)
            scores = sensitivity(model, x[some], y[some], self.names)
            self.note(memory, {_MAP: np.minimum(scores, plan.secure.bound)})

    # ----------------------------------------------------------------- the common state

    def first(self, known: NamedArrays) -> Arrays:
        """See :meth:`~strategies.replica.ReplicatedHalf.first`: the weights as one vector, all of them masked."""
        if not self.names:
            raise LayoutMismatch("the model was not shaped: call shape(model) before its weights are read")
        values = np.concatenate([known.arrays[n].reshape(-1).astype(np.float64) for n in self.names])
        return {"values": values, "mask": np.ones(values.size, np.bool_)}

    def model(self, state: Arrays, known: NamedArrays) -> NamedArrays:
        """See :meth:`~strategies.replica.ReplicatedHalf.model`."""
        arrays, at = dict(known.arrays), 0
        for name in self.names:
            old = arrays[name]
            arrays[name] = state["values"][at : at + old.size].reshape(old.shape).astype(old.dtype)
            at += old.size
        return NamedArrays(arrays, known.dtypes)

    def advance(self, state: Arrays, means: list[Floats], plan: RoundPlan, secret: bytes) -> Arrays:
        """See :meth:`~strategies.replica.ReplicatedHalf.advance`.

        Raises:
            LayoutMismatch: a total is shorter than what this client would have sent.
        """
        mask, values = state["mask"], state["values"].copy()
        hidden, scored = int(mask.sum()), bool(plan.extras.get(_SCORE))
        wanted = hidden + (values.size if scored else 0), values.size - hidden
        if any(len(mean) < n for mean, n in zip(means, wanted, strict=True)):
            raise LayoutMismatch(f"round {plan.round}: totals of {[len(m) for m in means]} values: {wanted} were sent")
        values[mask] += means[0][:hidden]
        values[~mask] += means[1][: values.size - hidden]
        return {"values": values, "mask": top(means[0][hidden : wanted[0]], self.share) if scored else mask}

    # ----------------------------------------------------------------- what is sent

    def protections(self, protection: Protection) -> tuple[Protection, ...]:
        """The run's own, and none."""
        return protection, Plain()

    def vectors(self, state: Arrays, own: Arrays, change: NamedArrays, plan: RoundPlan, secret: bytes) -> list[Floats]:
        """See :meth:`~strategies.replica.ReplicatedHalf.vectors`: masked coordinates and the map, then the others."""
        flat = np.concatenate([change.arrays[n].reshape(-1) for n in self.names])
        sealed = [flat[state["mask"]]]
        if plan.extras.get(_SCORE):
            if _MAP not in own:
                raise LayoutMismatch("a scoring round, and this client has no map: call examine() before training")
            sealed.append(own.pop(_MAP))
        return [np.concatenate(sealed), flat[~state["mask"]]]


def sensitivity(model: nn.Module, x: Tensor, y: Tensor, names: tuple[str, ...]) -> Floats:
    """Return the mean over examples of the absolute gradient of each one's loss, flat in the order of `names`.

    Args:
        model: not changed; evaluated without dropout.
        x: examples.
        y: labels, int64.
        names: parameters.
    """
    parameters = {n: p.detach() for n, p in model.named_parameters() if n in set(names)}
    constants = {n: b.detach() for n, b in model.named_buffers()}

    def loss(weights: dict[str, Tensor], one: Tensor, label: Tensor) -> Tensor:
        logits = functional_call(model, (weights, constants), (one[None],))
        return functional.cross_entropy(logits, label[None])

    each = vmap(grad(loss), in_dims=(None, 0, 0))
    sums = {n: torch.zeros_like(p) for n, p in parameters.items()}
    at_once = max(1, _HELD // max(1, sum(p.numel() for p in parameters.values())))
    training = model.training
    model.eval()
    try:
        for some, labels in zip(torch.split(x, at_once), torch.split(y, at_once), strict=True):
            for name, gradient in each(parameters, some, labels).items():
                sums[name] += gradient.abs().sum(0)
    finally:
        model.train(training)
    return np.concatenate([sums[n].reshape(-1).to(torch.float64).numpy() for n in names]) / len(y)


def top(scores: Floats, share: float) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return which coordinates are among the top share, ``ceil(share * n)`` of them; of equals the first."""
    mask = np.zeros(scores.size, np.bool_)
    mask[np.argsort(-scores, kind="stable")[: int(np.ceil(share * scores.size))]] = True
    return mask


__all__ = ["FedMLHE", "FedMLHEClient", "sensitivity", "top"]
