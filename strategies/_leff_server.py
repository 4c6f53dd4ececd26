"""What LEFF's server prepares for each client: which blocks, and students in place of the others."""

import copy
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from flwr.app import ConfigRecord, RecordDict
from numpy.typing import NDArray
from torch import Tensor, nn

from strategies._leff_blocks import TAIL, Parts, block_arrays, checked, joined, picked, piece_name
from strategies._leff_students import Distillation, compress, trace
from strategies.records import NamedArrays
from strategies.state import load_state_arrays, state_arrays, state_dtypes

#: A segment of the full model and how many blocks its student has: start, stop, kept.
Segment = tuple[int, int, int]
#: Students that are kept for later rounds, beyond those of the last one.
_KEPT_STUDENTS = 16


@dataclass(frozen=True)
class Assignment:
    """One client's round.

    Attributes:
        layers: blocks of the full model.
        count: blocks of the model that the client is sent.
        blocks: those of the full model that it trains.
        trained: their places in the model that it is sent.
        chosen: blocks that it chooses by itself, instead.
        withheld: blocks among its own that it does not send, because too few clients train them.
    """

    layers: int
    count: int
    blocks: tuple[int, ...]
    trained: tuple[int, ...]
    chosen: int = 0
    withheld: tuple[int, ...] = ()

    @property
    def pieces(self) -> frozenset[str]:
        """Names of the sums that the client must add to."""
        return frozenset([TAIL, *(piece_name(b) for b in self.blocks if b not in self.withheld)])

    @property
    def segments(self) -> list[Segment]:
        """What is compressed; a segment that is kept whole is none."""
        if self.count == self.layers:
            return []
        first, last = self.blocks[0], self.blocks[-1] + 1
        below = (0, first, self.trained[0])
        above = (last, self.layers, self.count - self.trained[-1] - 1)
        return [s for s in (below, above) if s[2] < s[1] - s[0]]

    def told(self, content: RecordDict, dense: bool) -> RecordDict:
        """Return a message's content with this assignment in its plan.

        Args:
            content: the round's, not modified.
            dense: the client answers with one vector of all blocks.
        """
        config = ConfigRecord(dict(content.config_records["config"]))
        config["x.leff-count"], config["x.leff-chosen"], config["x.leff-dense"] = self.count, self.chosen, dense
        config["x.leff-blocks"] = ",".join(map(str, self.blocks))
        config["x.leff-trained"] = ",".join(map(str, self.trained))
        config["x.leff-withheld"] = ",".join(map(str, self.withheld))
        return RecordDict({**content, "config": config})


def without_lonely(assignments: dict[int, Assignment], least: int) -> dict[int, Assignment]:
    """Return the assignments of a round, blocks that fewer than `least` clients train withheld."""
    counts = Counter(block for each in assignments.values() for block in each.blocks)
    lonely = {block for block, count in counts.items() if count < least}
    return {
        node: replace(each, withheld=tuple(b for b in each.blocks if b in lonely)) for node, each in assignments.items()
    }


@dataclass
class Compressor:
    """Makes students, one a segment and round, and keeps them to go on from.

    Attributes:
        how: see :class:`~strategies._leff_students.Distillation`.
        warm_start: go on from a segment's last student.
        made: students of the last round.
    """

    how: Distillation
    warm_start: bool
    made: int = 0
    students: dict[Segment, nn.Sequential] = field(default_factory=dict)

    def make(self, model: nn.Module, assignments: Collection[Assignment], inputs: Sequence[Tensor]) -> None:
        """Compress what the assignments of a round need, each segment once.

        Args:
            model: the full model as it is now.
            assignments: the round's.
            inputs: batches of proxy inputs, no labels.
        """
        wanted = sorted({segment for each in assignments for segment in each.segments})
        self.made = len(wanted)
        traces = trace(model, inputs) if wanted else []
        blocks = checked(model).blocks
        for segment in wanted:
            start, stop, kept = segment
            # Made anew it goes to the end: the oldest are forgotten first.
            old = self.students.pop(segment, None)
            warm = old if self.warm_start else None
            self.students[segment] = compress(blocks, start, stop, kept, traces, self.how, warm)
        most = max(len(wanted), _KEPT_STUDENTS if self.warm_start else 0)
        self.students = dict(list(self.students.items())[-most:]) if most else {}

    def arrays(self, segment: Segment, first: int) -> NamedArrays:
        """Return a student's arrays, under the names of blocks from `first` on."""
        student = self.students[segment]
        dtypes = {n: d for n, d in state_dtypes(student).items() if d == "bfloat16"}
        names = {name: _placed(name, first) for name in student.state_dict()}
        arrays = state_arrays(student)
        return NamedArrays({names[n]: a for n, a in arrays.items()}, {names[n]: d for n, d in dtypes.items()})

    def state_dict(self) -> dict[str, NDArray[np.generic]]:
        """Return the students by ``student/<start>/<stop>/<kept>/<name>``, if later rounds go on from them."""
        if not self.warm_start:
            return {}
        return {
            f"student/{'/'.join(map(str, segment))}/{name}": array
            for segment, student in self.students.items()
            for name, array in state_arrays(student).items()
        }

    def load_state_dict(self, state: dict[str, NDArray[np.generic]], blocks: nn.Sequential) -> None:
        """Take students as :meth:`state_dict` returned them; `blocks` gives their architecture."""
        found: dict[Segment, dict[str, NDArray[np.generic]]] = {}
        for key, array in state.items():
            _, start, stop, kept, name = key.split("/", 4)
            found.setdefault((int(start), int(stop), int(kept)), {})[name] = array
        self.students = {}
        for segment, arrays in found.items():
            student = nn.Sequential(*(copy.deepcopy(blocks[0]) for _ in range(segment[2])))
            load_state_arrays(student, arrays)
            self.students[segment] = student.eval().requires_grad_(False)


def hybrid(state: NamedArrays, parts: Parts, assignment: Assignment, compressor: Compressor) -> NamedArrays:
    """Return what a client is sent beside the embeddings: students, the blocks that it trains, the tail."""
    pieces, at = [], 0
    segments = {s[0]: s for s in assignment.segments}
    block = 0
    while block < assignment.layers:
        if block in segments:
            segment = segments[block]
            pieces.append(compressor.arrays(segment, at))
            block, at = segment[1], at + segment[2]
            continue
        pieces.append(block_arrays(state, parts, block, at))
        block, at = block + 1, at + 1
    return joined(*pieces, picked(state, parts.tail))


def _placed(name: str, first: int) -> str:
    index, _, rest = name.partition(".")
    return f"blocks.{first + int(index)}.{rest}"
