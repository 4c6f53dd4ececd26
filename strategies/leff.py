"""LEFF: each client fine-tunes a window of blocks that fits it, the rest compressed (Shen et al., NeurIPS 2025).

In a round the server scores each transformer block of the global model on proxy data (eq. 3 and 4), draws for each
client a window of as many consecutive blocks as it can train (eq. 5 and 6), and compresses the blocks below and above
the window by distillation (eq. 7). The client is sent embeddings (once), students, window and tail, trains window and
tail alone, and sends those back; each block is averaged over the clients that trained it, by their number of examples
(eq. 8). A block that nobody trained stays. The full model stays on the server, and is what is evaluated.

Embeddings are frozen for every client; the tail (final norm, head) is trained by every client. Each block has a sum of
its own, over a public set of clients. A block that fewer than `min_layer_clients` clients train is not sent, and stays
as it was; nor is it applied where clients fell out and fewer are left. Under a protection that opens one vector a round
(PREAMBLE; a committee, which answers once a round), what a client does not send is zero in it, and nothing is saved on
the way up.

Controls: other selectors of windows; ``uniform`` blocks that are no neighbours (as LISA draws them) and ``gradient``,
where each client picks the blocks of its largest gradient norm (arXiv 2408.15600). Both need the whole model on the
client, so nothing is compressed.
"""

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray
from torch import Tensor, nn

from crypto import Layout
from crypto.base import Tag
from strategies._leff_blocks import (
    TAIL,
    Parts,
    checked,
    parts_of,
    picked,
    piece_layouts,
    piece_name,
    stack_of,
    train_only,
)
from strategies._leff_client import LeffClient
from strategies._leff_importance import Batch, importance
from strategies._leff_server import Assignment, Compressor, hybrid, without_lonely
from strategies._leff_students import Distillation, student_sizes
from strategies._leff_windows import (
    SCORED,
    Capacity,
    Selector,
    draw_start,
    round_robin,
    scattered,
    window_probabilities,
)
from strategies.base import FederatedStrategy
from strategies.errors import Incompatible
from strategies.fedavg import Floats, replace
from strategies.fold import Fold
from strategies.frozen import HELD, FrozenOnce
from strategies.memory import training_bytes
from strategies.nodes import Node
from strategies.outcome import RoundRecord, mean_arrays, means
from strategies.piece_fold import Expected, PieceFold
from strategies.plan import RoundPlan
from strategies.state import load_state_arrays

log = logging.getLogger(__name__)

#: Inputs ``(n, ...)`` and labels, or ``None`` for a proxy of another task.
Proxy = tuple[Tensor, Tensor | None]


class LEFF(FederatedStrategy):
    """Server half.

    Args:
        model: makes a block model of the federation's architecture, for the server's own use; called once.
        proxy: returns the server's proxy data; called once.
        capacity: how many blocks each client can train, where it does not state it itself (``capacity`` in its node's
            settings; told before the first round, and with each reply for the next one).
        selector: ``importance`` is the paper's with normalised scores, ``raw`` as printed; the others are controls.
        temperature: see :func:`~strategies._leff_windows.window_probabilities`.
        per_layer: the same.
        rate: r, the share of the other blocks that their students have, in (0, 1]; 1 sends copies.
        distillation: how students are trained.
        batch: proxy examples in a batch, of importance and distillation.
        batches: batches of a round.
        warm_start: a student goes on from the last round's of the same segment.
        min_layer_clients: blocks of fewer clients are left as they were; ``None`` for 1 in the clear and 2 else.
        client_batch: examples in a client's step, for capacities that follow from memory.
        layer_seed: of the draws; `seed` if ``None``.
        common: see :class:`~strategies.base.FederatedStrategy`.

    Raises:
        ValueError: an argument is out of range.
        Incompatible: clients that choose blocks by themselves, under a protection of one vector a client.
    """

    name = "leff"
    needs_open_model = True

    def __init__(
        self,
        *,
        model: Callable[[], nn.Module],
        proxy: Callable[[], Proxy],
        capacity: Capacity | None = None,
        selector: Selector = "importance",
        temperature: float = 1.0,
        per_layer: bool = False,
        rate: float = 0.5,
        distillation: Distillation | None = None,
        batch: int = 64,
        batches: int = 4,
        warm_start: bool = True,
        min_layer_clients: int | None = None,
        client_batch: int = 32,
        layer_seed: int | None = None,
        **common: Any,
    ) -> None:
        least = min_layer_clients
        if not (0 < rate <= 1 and temperature > 0 and batch > 0 and batches > 0 and (least is None or least > 0)):
            raise ValueError(
                f"rate {rate} must lie in (0, 1]; temperature {temperature}, batch {batch}, batches {batches} and "
                f"min_layer_clients {min_layer_clients} must be positive"
            )
        super().__init__(**common)
        self.capacity, self.rate = capacity or Capacity(seed=self.seed), rate
        self.selector: Selector = selector
        self.temperature, self.per_layer = temperature, per_layer
        self.batch, self.batches = batch, batches
        self.min_layer_clients = least or (2 if self.protection.bounded else 1)
        self.client_batch = client_batch
        self.layer_seed = self.seed if layer_seed is None else layer_seed
        self.compressor = Compressor(distillation or Distillation(), warm_start)
        if self.protection.one_sum and selector == "gradient":
            raise Incompatible(
                f"selector 'gradient' with protection '{self.protection.name}': the blocks that a client chooses must "
                "be known to divide its sum; use another selector, or a protection with a sum for each block"
            )
        self._make_model, self._make_proxy = model, proxy
        self._own: tuple[nn.Module, Parts] | None = None
        self._proxy: Proxy | None = None
        self._frozen: FrozenOnce | None = None
        self._resumed: dict[str, NDArray[np.generic]] = {}
        self.assigned: dict[int, Assignment] = {}
        self.stated: dict[int, int] = {}
        self.scores: NDArray[np.float64] = np.zeros(0)
        self._importance_s = self._distil_s = 0.0
        self._left_out = 0

    # ----------------------------------------------------------------- the model and its parts

    @property
    def model(self) -> nn.Module:
        """The server's own block model; holds the weights of the round that was last planned."""
        return self._built()[0]

    @property
    def parts(self) -> Parts:
        """The model's array names by part."""
        return self._built()[1]

    def _built(self) -> tuple[nn.Module, Parts]:
        if self._own is None:
            model = self._make_model().eval()
            stack = checked(model)
            for name, parameter in model.named_parameters():
                parameter.requires_grad_(name.split(".")[0] == "blocks")
            self._own = model, parts_of(model.state_dict(), stack.stem)
        return self._own

    def proxy_batches(self, server_round: int) -> list[Batch]:
        """Return a round's batches of proxy data: other rows each round, the same for the same round."""
        if self._proxy is None:
            self._proxy = self._make_proxy()
        x, y = self._proxy
        rng = np.random.default_rng([self.layer_seed, server_round, _PROXY])
        order = rng.permutation(len(x))[: self.batch * self.batches]
        found = []
        for at in range(0, len(order), self.batch):
            rows = order[at : at + self.batch]
            found.append((x[rows], None if y is None else y[rows]))
        return found

    # ----------------------------------------------------------------- what travels

    def travelling(self, layout: Layout, server_round: int) -> Layout:
        """Return the layout without the embeddings."""
        layout, trained = super().travelling(layout, server_round), set(self.parts.trained)
        return layout.only(n for n in layout.names if n in trained)

    def longest(self, layout: Layout) -> Layout:
        """Return the layout of the longest sum: of a block or the tail, or of all where a round has one sum."""
        travelling = self.travelling(layout, 0)
        if self.protection.one_sum:
            return travelling
        return max(piece_layouts(travelling, self.parts).values(), key=lambda each: each.length)

    def begin(self, grid: Grid, initial_arrays: ArrayRecord) -> None:
        """See :meth:`~strategies.base.FederatedStrategy.begin`.

        Raises:
            Incompatible: the model is no stack of blocks, or has buffers that do not travel.
        """
        super().begin(grid, initial_arrays)
        assert self.state is not None
        if self.buffers.names and self.buffers.mode != "average":
            raise Incompatible(
                f"buffers '{self.buffers.mode}' with strategy 'leff': a client has some of the blocks only; use average"
            )
        self._frozen = FrozenOnce.resumed(picked(self.state, self.parts.stem), self._resumed)

    def _training_content(self, plan: RoundPlan, config: ConfigRecord | None) -> RecordDict:
        return self._plan_content(plan, config)

    def contents(self, content: RecordDict, nodes: list[Node], server_round: int) -> list[RecordDict]:
        """Return each client's message: its students, window and tail; clients that need the same share one object.

        For an evaluation that is the full model.
        """
        if "model" in content:
            return super().contents(content, nodes, server_round)
        self.assign(nodes, server_round)
        made: dict[tuple[Assignment, bool], RecordDict] = {}
        found = []
        for node in nodes:
            assert self._frozen is not None and self.state is not None
            key = self.assigned[node.node_id], self._frozen.missing(node.node_id)
            if key not in made:
                state = hybrid(self.state, self.parts, key[0], self.compressor)
                made[key] = self._frozen.fill(key[0].told(content, self.protection.one_sum), state, send=key[1])
            found.append(made[key])
        return found

    def answered(self, nodes: Collection[int]) -> None:
        """Note that these nodes hold the embeddings now."""
        if self._frozen is not None:
            self._frozen.delivered(nodes)

    def assign(self, nodes: list[Node], server_round: int) -> None:
        """Score the blocks, choose each client's, and compress the rest."""
        assert self.state is not None
        load_state_arrays(self.model, self.state.arrays)
        started = time.perf_counter()
        batches = self.proxy_batches(server_round) if self.selector in SCORED or self.rate < 1 else []
        if self.selector in SCORED:
            self.scores = importance(self.model, batches)
        self._importance_s = time.perf_counter() - started
        for node in nodes:
            if node.capacity:
                self.stated.setdefault(node.partition_id, node.capacity)
        assigned = {node.node_id: self.assignment(node.partition_id, server_round) for node in nodes}
        self.assigned = without_lonely(assigned, self.min_layer_clients)
        started = time.perf_counter()
        self.compressor.make(self.model, self.assigned.values(), [x for x, _ in batches])
        self._distil_s = time.perf_counter() - started

    def assignment(self, client: int, server_round: int) -> Assignment:
        """Return one client's blocks; depends on the model, the client's number and the round alone."""
        layers = len(self.parts.blocks)
        stated = self.stated.get(client)
        length = min(stated, layers) if stated else self._capacity_of(client, server_round)
        if self.selector == "gradient":
            return Assignment(layers, layers, (), (), chosen=length)
        if self.selector == "uniform":
            blocks = scattered(layers, length, self.layer_seed, server_round, client)
            return Assignment(layers, layers, blocks, trained=blocks)
        start = self._start(length, client, server_round)
        below, above = student_sizes(start, layers - length - start, self.rate)
        return Assignment(
            layers, below + length + above, tuple(range(start, start + length)), tuple(range(below, below + length))
        )

    def _capacity_of(self, client: int, server_round: int) -> int:
        return self.capacity.blocks(client, server_round, len(self.parts.blocks), self._peak_bytes)

    def _start(self, length: int, client: int, server_round: int) -> int:
        layers = len(self.parts.blocks)
        if self.selector == "round_robin":
            return round_robin(layers, length, server_round, client)
        scores = self.scores if self.selector in SCORED else np.zeros(layers)
        raw = self.selector == "raw"
        probabilities = window_probabilities(
            scores, length, raw=raw, temperature=self.temperature, per_layer=self.per_layer
        )
        return draw_start(probabilities, self.layer_seed, server_round, client)

    def _peak_bytes(self, length: int) -> float:
        """Return what a client with the dearest window of this length needs, for capacities that follow from memory."""
        # The bottom window: all activations up to the output are kept.
        _, above = student_sizes(0, len(self.parts.blocks) - length, self.rate)
        stack = stack_of(self.model, length + above)
        blocks = [name for j in range(length) for name in self.parts.blocks[j]]
        train_only(stack, (*blocks, *self.parts.tail))
        return training_bytes(stack, self.proxy_batches(0)[0][0][:1], self.client_batch, moments=2)

    # ----------------------------------------------------------------- the sums

    def _new_fold(self, tag: Tag) -> Fold:
        if self.protection.one_sum or self._secure_plan is None or self.state is None:
            return super()._new_fold(tag)
        tags = {
            piece: Tag(round=tag.round, layout_hash=layout.hash, length=layout.length)
            for piece, layout in self._pieces().items()
        }
        expected = {node: Expected(a.pieces, a.chosen) for node, a in self.assigned.items()}
        return PieceFold(self.protection.public(self._secure_plan), self._secure_plan, tags, expected)

    def _pieces(self) -> dict[str, Layout]:
        assert self.state is not None
        return piece_layouts(self.travelling(self.state.layout, 0), self.parts)

    def _settle(
        self, fold: Fold, plan: RoundPlan, layout: Layout, record: RoundRecord, grid: Grid | None = None
    ) -> None:
        self._left_out = 0
        if isinstance(fold, PieceFold):
            self._settle_pieces(fold, plan, record, grid)
        else:
            super()._settle(fold, plan, layout, record, grid)
        stated = {n.partition_id: d.metrics.get("capacity", 0.0) for n, d in record.pairs()}
        self.stated |= {client: int(blocks) for client, blocks in stated.items() if 1 <= blocks < math.inf}
        record.server_train_s = self._importance_s + self._distil_s
        record.metrics |= self._measured(record)

    def _settle_pieces(self, fold: PieceFold, plan: RoundPlan, record: RoundRecord, grid: Grid | None) -> None:
        """Open each piece's sum that enough clients are in, and divide it by their weights."""
        counted = [d for d in record.delivered if not d.error]
        self.answered([d.node_id for d in counted])
        record.metrics |= means(counted, "train_")
        mean: Floats = {}
        for piece, layout in self._pieces().items():
            members = [d for d in record.delivered if piece in d.pieces]
            if len(members) < self.min_layer_clients:
                self._left_out += bool(members)
                continue
            tag = Tag(round=plan.round, layout_hash=layout.hash, length=layout.length)
            own = dataclasses.replace(plan, layout_hash=layout.hash)
            vector = self._open(fold.totals(piece), own, tag, record, grid)
            weight = sum(plan.weight(d.num_examples) for d in members)
            mean |= mean_arrays(vector, layout, weight, self.buffers, first_counts=True)
        self._advance(self._moved(mean) if plan.payload != self.payload else mean, plan.round)

    def apply(self, mean: Floats, server_round: int) -> None:
        """Replace what was trained by its mean."""
        replace(self, mean)

    def _weighed(self, mean: Floats, record: RoundRecord, plan: RoundPlan) -> Floats:
        """Return the means over the clients that trained each block, given the sums divided by all clients' weight."""
        counted = [d for d in record.delivered if not d.error]
        whole = sum(plan.weight(d.num_examples) for d in counted)
        found: Floats = {}
        for piece, layout in self._pieces().items():
            members = [d for d in counted if piece in self.assigned[d.node_id].pieces]
            if not members or len(members) < self.min_layer_clients:
                self._left_out += bool(members)
                continue
            factor = whole / sum(plan.weight(d.num_examples) for d in members)
            found |= {name: mean[name] * factor for name in layout.names}
        return found

    def _measured(self, record: RoundRecord) -> dict[str, float]:
        counted = [self.assigned[d.node_id] for d in record.delivered if not d.error]
        trained = {b for d in record.delivered for b in d.pieces} or {p for a in counted for p in a.pieces}
        found = {
            "server_leff_trained_blocks": float(len(trained - {TAIL})),
            "server_leff_left_out": float(self._left_out),
            "server_leff_distillations": float(self.compressor.made),
            "server_leff_importance_s": self._importance_s,
            "server_leff_distil_s": self._distil_s,
        }
        shares = self.scores / (self.scores.sum() or 1.0)
        return found | {f"server_leff_share_{piece_name(i)}": float(s) for i, s in enumerate(shares)}

    # ----------------------------------------------------------------- checkpoints

    def state_dict(self) -> dict[str, NDArray[np.generic]]:
        """The students that the next round's go on from, stated capacities, and who holds the embeddings.

        Draws follow from seed and round.
        """
        held = self._frozen.held() if self._frozen is not None else {}
        stated = np.array(sorted(self.stated.items()), np.int64).reshape(-1, 2)
        return self.compressor.state_dict() | ({"stated": stated} if len(stated) else {}) | held

    def load_state_dict(self, state: dict[str, NDArray[np.generic]]) -> None:
        """See :meth:`~strategies.base.FederatedStrategy.load_state_dict`."""
        self._resumed = state
        students = {key: array for key, array in state.items() if key not in ("stated", HELD)}
        self.compressor.load_state_dict(students, checked(self.model).blocks)
        self.stated = {int(client): int(blocks) for client, blocks in state.get("stated", [])}


_PROXY = 0x4C454650

__all__ = ["LEFF", "Capacity", "Distillation", "LeffClient", "Proxy"]
