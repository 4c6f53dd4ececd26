"""Block stacks as strategies see them: embeddings, blocks of one architecture, tail; and shorter stacks of the same.

Any torch module will do that is called as :class:`BlockModel` says; its arrays are told apart by their names alone.
"""

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from crypto import Layout
from strategies.errors import Incompatible
from strategies.records import NamedArrays

BLOCKS = "blocks"


@runtime_checkable
class BlockModel(Protocol):
    """A model of embeddings, blocks of one architecture called in order, and a tail.

    Attributes:
        stem: names of the submodules and parameters that `embed` uses; what is neither there nor in `blocks` is the
            tail's.
        blocks: each is called as ``block(hidden, valid)``; ``block.traced(hidden, valid)`` returns the logarithm of its
            attention map too, ``(batch, heads, queries, keys)``.
    """

    stem: Sequence[str]
    blocks: nn.Sequential

    def embed(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return hidden states ``(batch, tokens, dim)`` and bool ``(batch, tokens)``, false for padding (or None)."""
        ...

    def tail(self, hidden: Tensor, valid: Tensor | None) -> Tensor:
        """Return logits ``(batch, classes)``."""
        ...


@dataclass(frozen=True)
class Parts:
    """A block model's array names by part, each in the model's order.

    Attributes:
        stem: the embeddings'.
        blocks: each block's, in order.
        tail: all others: final norm, pooler, head.
    """

    stem: tuple[str, ...]
    blocks: tuple[tuple[str, ...], ...]
    tail: tuple[str, ...]

    @property
    def trained(self) -> tuple[str, ...]:
        """Names of all blocks and the tail."""
        return tuple(name for names in (*self.blocks, self.tail) for name in names)


def checked(model: nn.Module) -> BlockModel:
    """Return the model as a block model.

    Raises:
        Incompatible: it is none.
    """
    if not isinstance(model, BlockModel):
        raise Incompatible(
            f"model {type(model).__name__} is no stack of blocks: the strategy needs one with embeddings, blocks and a "
            "tail; take model.name = vit-tiny, encoder-tiny, decoder-tiny or minilm"
        )
    return model


def parts_of(names: Iterable[str], stem: Sequence[str]) -> Parts:
    """Tell a model's arrays apart by their names.

    Args:
        names: as in the state dict.
        stem: submodules and parameters of the embeddings.
    """
    found: dict[int, list[str]] = {}
    embeddings, tail = [], []
    for name in names:
        top, *rest = name.split(".")
        if top == BLOCKS:
            found.setdefault(int(rest[0]), []).append(name)
        elif top in stem:
            embeddings.append(name)
        else:
            tail.append(name)
    return Parts(tuple(embeddings), tuple(tuple(found[i]) for i in sorted(found)), tuple(tail))


def renamed(name: str, block: int) -> str:
    """Return the name of the same array in another block."""
    top, _, rest = name.split(".", 2)
    return f"{top}.{block}.{rest}"


def block_arrays(state: NamedArrays, parts: Parts, block: int, as_block: int) -> NamedArrays:
    """Return one block's arrays under the names of another place; the arrays are shared, not copied."""
    names = {name: renamed(name, as_block) for name in parts.blocks[block]}
    return NamedArrays(
        {new: state.arrays[old] for old, new in names.items()},
        {new: state.dtypes[old] for old, new in names.items() if old in state.dtypes},
    )


def picked(state: NamedArrays, names: Iterable[str]) -> NamedArrays:
    """Return the arrays of these names, shared."""
    wanted = list(names)
    return NamedArrays(
        {name: state.arrays[name] for name in wanted}, {n: d for n, d in state.dtypes.items() if n in wanted}
    )


def joined(*states: NamedArrays) -> NamedArrays:
    """Return several states as one."""
    arrays = {name: array for state in states for name, array in state.arrays.items()}
    return NamedArrays(arrays, {name: dtype for state in states for name, dtype in state.dtypes.items()})


def stack_of(model: nn.Module, count: int) -> nn.Module:
    """Return a model of the same architecture with `count` blocks.

    The embeddings' tensors are shared with `model`, all others are the copy's own; values are left to be loaded.
    """
    blocks = checked(model).blocks
    stem = {name for name in checked(model).stem}
    shared = [p for name, p in model.named_parameters() if name.split(".")[0] in stem]
    shared_buffers = [b for name, b in model.named_buffers() if name.split(".")[0] in stem]
    memo: dict[int, object] = {id(tensor): tensor for tensor in (*shared, *shared_buffers)}
    memo[id(blocks)] = nn.Sequential(*(copy.deepcopy(blocks[0]) for _ in range(count)))
    return copy.deepcopy(model, memo)


def train_only(model: nn.Module, names: Iterable[str]) -> None:
    """Let the parameters of these names be trained, and no others."""
    wanted = set(names)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in wanted)
        parameter.grad = None


def piece_layouts(layout: Layout, parts: Parts) -> dict[str, Layout]:
    """Return the layouts of what travels: one a block, by :func:`piece_name`, and the tail's."""
    have = set(layout.names)
    pieces = {piece_name(i): names for i, names in enumerate(parts.blocks)} | {TAIL: parts.tail}
    return {piece: layout.only(n for n in names if n in have) for piece, names in pieces.items()}


#: Name of the tail's own sum.
TAIL = "tail"


def piece_name(block: int) -> str:
    """Return the name of a block's own sum."""
    return f"block-{block}"
