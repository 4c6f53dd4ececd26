"""Client half of LEFF: trains its blocks and the tail of the shorter model that it is sent."""

import dataclasses

import numpy as np
import torch
from flwr.app import RecordDict
from torch import Tensor, nn
from torch.nn import functional

from crypto import LayoutMismatch
from strategies._leff_blocks import TAIL, Parts, checked, parts_of, picked, piece_name, renamed, stack_of, train_only
from strategies.client import ClientHalf, Sealed, difference, seal_pieces, seal_update
from strategies.frozen import with_frozen
from strategies.plan import RoundPlan
from strategies.protection import Protection
from strategies.records import NamedArrays
from strategies.state import load_state_arrays

_SCORED_BATCH = 64


class LeffClient(ClientHalf):
    """Client half of :class:`strategies.leff.LEFF`."""

    name = "leff"

    def __init__(self) -> None:
        self._stem: tuple[str, ...] = ()

    def complete(self, content: RecordDict, state: NamedArrays, memory: RecordDict) -> NamedArrays:
        """Return the model that came, with the embeddings that this client was sent once."""
        return with_frozen(content, state, memory)

    def own_model(
        self, model: nn.Module, plan: RoundPlan, state: NamedArrays, data: tuple[Tensor, Tensor]
    ) -> tuple[nn.Module, RoundPlan]:
        """Return a model of the blocks that came, in which the client's own and the tail train.

        Raises:
            LayoutMismatch: the plan is not of this strategy.
        """
        self._stem = tuple(checked(model).stem)
        stack = stack_of(model, _whole(plan, "leff-count"))
        load_state_arrays(stack, state.arrays)
        parts = parts_of(state.arrays, self._stem)
        if chosen := _whole(plan, "leff-chosen"):
            best = ",".join(map(str, _largest_gradients(stack, parts, data, chosen)))
            plan = dataclasses.replace(plan, extras={**plan.extras, "leff-blocks": best, "leff-trained": best})
        trained = [name for j in _numbers(plan, "leff-trained") for name in parts.blocks[j]]
        train_only(stack, (*trained, *parts.tail))
        return stack, plan

    def full_passes(self, plan: RoundPlan) -> int:
        """One pass over the data where the client scores the blocks itself."""
        return int(_whole(plan, "leff-chosen") > 0)

    def seal(
        self,
        plan: RoundPlan,
        before: NamedArrays,
        after: NamedArrays,
        *,
        num_examples: int,
        partition_id: int,
        buffer_names: frozenset[str],
        protection: Protection,
        memory: RecordDict,
    ) -> Sealed:
        """Return the sealed blocks and tail, each for its own sum; or one vector of all blocks."""
        if plan.extras.get("leff-dense"):
            whole = self.update(before, after, plan)
            zeros = NamedArrays({n: np.zeros_like(a) for n, a in whole.arrays.items()}, whole.dtypes)
            return seal_update(
                ClientHalf(),
                plan,
                zeros,
                whole,
                num_examples=num_examples,
                partition_id=partition_id,
                buffer_names=buffer_names,
                protection=protection,
            )
        return seal_pieces(self.pieces(before, after, plan), plan, plan.weight(num_examples), protection)

    def pieces(self, before: NamedArrays, after: NamedArrays, plan: RoundPlan) -> dict[str, NamedArrays]:
        """Return each trained block, and the tail, under the full model's names."""
        parts = parts_of(after.arrays, self._stem)
        update = after if plan.payload == "weights" else difference(before, after)
        found = {
            piece_name(block): _moved(picked(update, parts.blocks[j]), block) for block, j in _places(plan).items()
        }
        return found | {TAIL: picked(update, parts.tail)}

    def update(self, before: NamedArrays, after: NamedArrays, plan: RoundPlan) -> NamedArrays:
        """Return all that travels in one vector: zeros for the blocks that this client did not train."""
        parts = parts_of(after.arrays, self._stem)
        update = after if plan.payload == "weights" else difference(before, after)
        places = _places(plan)
        arrays, dtypes = {}, {}
        for name in plan.names:
            block = int(name.split(".")[1]) if name.startswith("blocks.") else None
            here = name if block is None else renamed(name, places.get(block, 0))
            if here not in update.arrays or (block is None and name not in parts.tail):
                raise LayoutMismatch(f"array '{name}' travels and is not in this client's model: models must agree")
            array = update.arrays[here]
            arrays[name] = array if block is None or block in places else np.zeros_like(array)
            if here in after.dtypes:
                dtypes[name] = after.dtypes[here]
        return NamedArrays(arrays, dtypes)


def _places(plan: RoundPlan) -> dict[int, int]:
    """Return the full model's blocks that the client sends -> their places in its own."""
    pairs = zip(_numbers(plan, "leff-blocks"), _numbers(plan, "leff-trained"), strict=True)
    withheld = _numbers(plan, "leff-withheld")
    return {block: j for block, j in pairs if block not in withheld}


def _moved(arrays: NamedArrays, block: int) -> NamedArrays:
    names = {name: renamed(name, block) for name in arrays.arrays}
    return NamedArrays({names[n]: a for n, a in arrays.arrays.items()}, {names[n]: d for n, d in arrays.dtypes.items()})


def _largest_gradients(model: nn.Module, parts: Parts, data: tuple[Tensor, Tensor], count: int) -> list[int]:
    """Return the blocks of the largest gradient norm of the loss on the client's own data."""
    train_only(model, [name for names in parts.blocks for name in names])
    model.eval()
    x, y = data
    for at in range(0, len(y), _SCORED_BATCH):
        rows = slice(at, at + _SCORED_BATCH)
        loss = functional.cross_entropy(model(x[rows]), y[rows], reduction="sum") / len(y)
        loss.backward()  # type: ignore[no-untyped-call]
    norms = [
        sum(float(p.grad.double().square().sum()) for p in block.parameters() if p.grad is not None)
        for block in checked(model).blocks
    ]
    model.train()
    return sorted(int(i) for i in torch.tensor(norms).topk(min(count, len(norms))).indices)


def _numbers(plan: RoundPlan, key: str) -> list[int]:
    text = str(plan.extras.get(key, ""))
    return [int(number) for number in text.split(",") if number]


def _whole(plan: RoundPlan, key: str) -> int:
    value = plan.extras.get(key)
    if not isinstance(value, int):
        raise LayoutMismatch(f"plan field '{key}' is {value!r}: must be a whole number; versions must agree")
    return value
