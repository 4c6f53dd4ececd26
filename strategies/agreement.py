"""Sums whose shape the clients decide among themselves.

What such clients send follows from a state that the server does not have, so it can know neither the vector's length
nor its coordinates beforehand. Each reply states both as an :class:`Agreement`: the lengths in the clear, the rest as a
keyed hash. The server compares agreements for equality, adds up what agrees, and stops the run at the first that does
not: a sum of vectors with different coordinates would be a wrong model, and nothing else would show it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from flwr.app import ConfigRecord, Message, RecordDict

from crypto import CryptoError, WireError
from crypto.base import Plan, SecureSum, Tag
from strategies.errors import Disagreement, EmptyRound
from strategies.fold import Fold, Totals, add_reply, merge_partial
from strategies.protection import Protection
from strategies.records import read_sealed, sealed_record, wire_bytes

_RECORD = "agreement"
#: A client's common state, sealed under the clients' secret; see :mod:`strategies.replica`.
SNAPSHOT = "snapshot"
_PROOF_BYTES = 32
_DISAGREES = "does not agree with the other clients of its round"


@dataclass(frozen=True, slots=True)
class Agreement:
    """What a client says of its update.

    Attributes:
        lengths: coordinates of each of its vectors, padding included.
        proof: 32 bytes, a keyed hash of the round and of the state that decided them.
    """

    lengths: tuple[int, ...]
    proof: bytes

    def records(self) -> dict[str, ConfigRecord]:
        """Return the reply's record of it, by name."""
        return {_RECORD: ConfigRecord({"lengths": list(self.lengths), "proof": self.proof})}

    @classmethod
    def of(cls, content: RecordDict) -> "Agreement":
        """Read a reply's agreement.

        Raises:
            WireError: there is none, or it is not of this form.
        """
        record = content.config_records.get(_RECORD, ConfigRecord())
        lengths, proof = record.get("lengths"), record.get("proof")
        if not isinstance(lengths, list) or not lengths or not all(isinstance(n, int) and n > 0 for n in lengths):
            raise WireError(f"lengths {lengths!r}: must be positive numbers; client and server must run one strategy")
        if not isinstance(proof, bytes) or len(proof) != _PROOF_BYTES:
            raise WireError(f"the reply's proof is not {_PROOF_BYTES} bytes: versions must agree")
        return cls(tuple(int(n) for n in lengths), proof)


@dataclass(frozen=True)
class AgreedSum:
    """Sums one chunk of replies that agree; a picklable reducer, see :class:`~strategies.fold.ChunkSum`.

    Attributes:
        parts: how each of a client's vectors is protected, and what its sum was sized for.
        round: server round.
        layout_hash: of the round's public layout.
    """

    parts: tuple[tuple[Protection, Plan], ...]
    round: int
    layout_hash: bytes

    @property
    def sums(self) -> list[SecureSum]:
        """The secure sums, in the order of the parts."""
        return [protection.secure_sum(plan) for protection, plan in self.parts]

    @property
    def aggregators(self) -> int:
        """Sealed blobs of one client."""
        return sum(s.aggregators for s in self.sums)

    def totals(self, lengths: Sequence[int]) -> Totals:
        """Return empty running totals for vectors of these lengths.

        Raises:
            CryptoError: a length does not fit its plan.
        """
        if len(lengths) != len(self.parts):
            raise WireError(f"{len(lengths)} vectors: this round's strategy sends {len(self.parts)}")
        tags = [Tag(round=self.round, layout_hash=self.layout_hash, length=n) for n in lengths]
        return Totals([s.adder(t) for s, t in zip(self.sums, tags, strict=True) for _ in range(s.aggregators)])

    def __call__(self, replies: list[Message]) -> list[Message]:
        """Return one reply for each one given, in the same order; the first that counts carries the chunk's totals."""
        first: Agreement | None = None
        totals: Totals | None = None
        carrier: RecordDict | None = None
        for reply in replies:
            if reply.has_error():
                continue
            try:
                mine = Agreement.of(reply.content)
                self._try_rest(reply.content, mine.lengths)
                mine_totals = totals if totals is not None and mine == first else self.totals(mine.lengths)
            except CryptoError as error:
                refuse(reply.content, str(error))
                continue
            # Damage, an old round and another key show in the frame: only who sent a whole one can disagree.
            if not add_reply(reply.content, mine_totals, self.aggregators):
                continue
            if first is None:
                first, totals, carrier = mine, mine_totals, reply.content
            elif mine != first:
                reply.content.config_records["folded"]["rejected"] = _DISAGREES
        if carrier is not None and totals is not None:
            carrier["partial"] = sealed_record(totals.totals())
        return replies

    def _try_rest(self, content: RecordDict, lengths: Sequence[int]) -> None:
        """Add all blobs but the first to totals of their own, so that a client is added as a whole or not at all."""
        if len(self.parts) > 1 and "sealed" in content.array_records:
            self.totals(lengths).try_rest(read_sealed(content.array_records["sealed"], self.aggregators))


def _left_out(content: RecordDict) -> bool:
    """Tell whether a reply was refused for another reason than that it disagrees."""
    reason = content.config_records.get("folded", ConfigRecord()).get("rejected")
    return reason is not None and reason != _DISAGREES


def refuse(content: RecordDict, reason: str) -> None:
    """Note in a reply why it was not added."""
    notes: dict[str, int | str] = {"upload_bytes": wire_bytes(content), "rejected": reason}
    content.pop("sealed", None)
    content["folded"] = ConfigRecord(notes)  # type: ignore[arg-type]


class AgreedFold(Fold):
    """Sums chunks on the workers, merges them here, and compares all agreements.

    Args:
        parts: see :class:`AgreedSum`; protections as workers need them.
        server_round: the round.
        layout_hash: of the round's public layout.
    """

    def __init__(self, parts: tuple[tuple[Protection, Plan], ...], server_round: int, layout_hash: bytes) -> None:
        self._sum = AgreedSum(parts, server_round, layout_hash)
        self.reducer = self._sum
        self._totals: Totals | None = None
        self._agreed: tuple[Agreement, int] | None = None
        #: A sealed state that a client sent beside its update, if one was asked to.
        self.snapshot: ConfigRecord | None = None

    @property
    def lengths(self) -> tuple[int, ...]:
        """Coordinates of each vector of this round.

        Raises:
            EmptyRound: no client delivered.
        """
        if self._agreed is None:
            raise EmptyRound(f"round {self._sum.round}: no client delivered anything that counts; look at its errors")
        return self._agreed[0].lengths

    def take(self, replies: list[Message]) -> None:
        """See :meth:`~strategies.fold.Fold.take`.

        Raises:
            Disagreement: two clients do not agree.
        """
        for reply in replies:
            self._compare(reply)
            if not reply.has_error() and SNAPSHOT in reply.content.config_records:
                self.snapshot = reply.content.config_records[SNAPSHOT]
        for reply in replies:
            if self._totals is None and self._agreed is not None:
                self._totals = self._sum.totals(self.lengths)
            if self._totals is not None:
                merge_partial(reply, self._totals, self._sum.aggregators)

    def _compare(self, reply: Message) -> None:
        if reply.has_error() or _left_out(reply.content):
            return
        try:
            mine = Agreement.of(reply.content)
        except WireError:
            return
        node = reply.metadata.src_node_id
        if self._agreed is None:
            self._agreed = mine, node
        agreed, other = self._agreed
        if mine != agreed:
            what = "the same" if mine.lengths == agreed.lengths else f"{mine.lengths} and {agreed.lengths}"
            raise Disagreement(
                f"round {self._sum.round}: nodes {node} and {other} hold different states (lengths {what}): clients "
                "must have the same start weights, settings and keys and have applied every total; nothing of this "
                "round was applied; compare their settings and key folders, and start the run anew"
            )

    def totals(self) -> list[bytes]:
        """See :meth:`~strategies.fold.Fold.totals`."""
        _ = self.lengths
        return self._totals.totals() if self._totals is not None else []


__all__ = ["AgreedFold", "AgreedSum", "Agreement"]
