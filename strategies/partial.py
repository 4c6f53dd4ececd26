"""FedAvg of a part of the model: the same part for every client, the rest frozen.

The usual ways to fine-tune a pre-trained model, as baselines and in their own right: all blocks and the tail
(embeddings frozen), the tail alone, all biases and the tail (FedBitFit), low-rank adapters and the tail (FedLoRA; the
adapters are averaged as they are). What is frozen is sent to each client once.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray
from torch import nn

from crypto import Layout
from strategies._leff_blocks import Parts, checked, parts_of, picked, train_only
from strategies.base import FederatedStrategy
from strategies.client import ClientHalf
from strategies.errors import Incompatible
from strategies.fedavg import Floats, replace
from strategies.frozen import FrozenOnce, with_frozen
from strategies.nodes import Node
from strategies.plan import RoundPlan
from strategies.records import NamedArrays

Trained = Literal["blocks", "tail", "bias", "lora"]


class FedPartial(FederatedStrategy):
    """Server half.

    Args:
        stem: returns the names of the model's submodules and parameters that make up its embeddings.
        trained: ``blocks``, ``tail``, ``bias`` or ``lora``; the tail is always trained.
        common: see :class:`~strategies.base.FederatedStrategy`.
    """

    name = "partial"

    def __init__(self, *, stem: Callable[[], Sequence[str]], trained: Trained = "blocks", **common: Any) -> None:
        super().__init__(**common)
        self.stem, self.trained = stem, trained
        self._frozen: FrozenOnce | None = None
        self._resumed: dict[str, NDArray[np.generic]] = {}

    def travelling(self, layout: Layout, server_round: int) -> Layout:
        """Return the layout of what is trained.

        Raises:
            Incompatible: nothing is, beside the tail.
        """
        layout = super().travelling(layout, server_round)
        names = trained_names(parts_of(layout.names, self.stem()), self.trained)
        return layout.only(names)

    def longest(self, layout: Layout) -> Layout:
        """Every round is alike."""
        return self.travelling(layout, 0)

    def begin(self, grid: Grid, initial_arrays: ArrayRecord) -> None:
        """See :meth:`~strategies.base.FederatedStrategy.begin`."""
        super().begin(grid, initial_arrays)
        assert self.state is not None
        moving = set(self.travelling(self.state.layout, 0).names)
        frozen = picked(self.state, [n for n in self.state.arrays if n not in moving])
        self._frozen = FrozenOnce.resumed(frozen, self._resumed)

    def _training_content(self, plan: RoundPlan, config: ConfigRecord | None) -> RecordDict:
        if self.protection.opened_by == "clients":
            return self._content(plan, config)
        return self._plan_content(plan, config)

    def contents(self, content: RecordDict, nodes: list[Node], server_round: int) -> list[RecordDict]:
        """Return each client's message: what is trained, and the rest where the client does not hold it.

        Where only clients can open the sum they are sent the whole model first, and sealed totals afterwards.
        """
        if "model" in content or "total" in content:
            return super().contents(content, nodes, server_round)
        assert self._frozen is not None and self.state is not None
        moving = picked(self.state, [n for n in self.state.arrays if n not in self._frozen.arrays.arrays])
        made: dict[bool, RecordDict] = {}
        found = []
        for node in nodes:
            send = self._frozen.missing(node.node_id)
            if send not in made:
                made[send] = self._frozen.fill(content, moving, send=send)
            found.append(made[send])
        return found

    def answered(self, nodes: Collection[int]) -> None:
        """Note that these nodes hold the frozen arrays now."""
        if self._frozen is not None:
            self._frozen.delivered(nodes)

    def state_dict(self) -> dict[str, NDArray[np.generic]]:
        """Who holds the frozen arrays."""
        return self._frozen.held() if self._frozen is not None else {}

    def load_state_dict(self, state: dict[str, NDArray[np.generic]]) -> None:
        """See :meth:`~strategies.base.FederatedStrategy.load_state_dict`."""
        self._resumed = state

    def apply(self, mean: Floats, server_round: int) -> None:
        """Replace what was trained by its mean."""
        replace(self, mean)


def stem_of(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the submodules and parameters that make up a model's embeddings.

    Raises:
        Incompatible: it is no stack of blocks.
    """
    return tuple(checked(model).stem)


def trained_names(parts: Parts, trained: Trained) -> list[str]:
    """Return the names of the arrays that train.

    Raises:
        Incompatible: ``bias`` or ``lora``, and the blocks have none.
    """
    blocks = [name for names in parts.blocks for name in names]
    chosen = {
        "blocks": blocks,
        "tail": [],
        "bias": [n for n in blocks if n.endswith(".bias")],
        "lora": [n for n in blocks if "lora_" in n],
    }[trained]
    if not chosen and trained != "tail":
        raise Incompatible(
            f"trained '{trained}': the model's {len(parts.blocks)} blocks have no such arrays; take a model of blocks, "
            "and set model.options.lora_rank = 8 for adapters"
        )
    return [*chosen, *parts.tail]


class PartialClient(ClientHalf):
    """Client half of :class:`FedPartial`: trains what travels, and nothing else."""

    name = "partial"

    def complete(self, content: RecordDict, state: NamedArrays, memory: RecordDict) -> NamedArrays:
        """Return the model that came, with what this client was sent once."""
        return with_frozen(content, state, memory)

    def prepare(self, model: nn.Module, plan: RoundPlan) -> None:
        """Freeze what does not travel."""
        checked(model)
        train_only(model, plan.names)


__all__ = ["FedPartial", "PartialClient", "stem_of", "trained_names"]
