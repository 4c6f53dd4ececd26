"""The leader's fold of a two-server sum: relay reports to the helper, agree on what counts, add it on both sides."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from flwr.app import ConfigRecord, Message, RecordDict

from crypto import CryptoError, wire
from crypto.base import Tag
from crypto.errors import BudgetExceeded, WireError
from crypto.preamble.aggregator import LeaderAdder
from crypto.preamble.wire import relayed_nonce
from strategies.errors import HelperLost, TooFewReplies
from strategies.fold import Fold, HelperCosts, sealed_parts
from strategies.helper_link import HelperLink, HelperRefused
from strategies.records import wire_bytes

_DISAGREE = (
    "the two aggregators' proofs differ: the report is not one block a group, or its public share was changed; both "
    "dropped it"
)


class Journal:
    """The leader's account of a run's releases: one line ``round,event`` each, flushed to disk before it happens.

    ``asked`` stands before the helper is asked for its total, ``refused`` after it said no. A round that was asked for
    and not refused counts as released, though the leader may have died in between: its noise may be known. A last line
    without an end is of a leader that died, or had no room, while it wrote: nothing followed it.

    Args:
        path: of the file; made with the first line.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def note(self, server_round: int, event: Literal["asked", "refused"]) -> None:
        """Add a line."""
        with self._path.open("ab") as file:
            file.truncate(len(self._whole()))
            file.write(f"{server_round},{event}\n".encode())
            file.flush()
            os.fsync(file.fileno())

    def _whole(self) -> bytes:
        """Return the lines that were written to their ends."""
        data = self._path.read_bytes() if self._path.exists() else b""
        return data[: data.rfind(b"\n") + 1]

    def last_released(self) -> int:
        """Return the last round that counts as released, 0 for none.

        Raises:
            WireError: the file holds something else.
        """
        open_rounds: dict[int, str] = {}
        for line in self._whole().decode("utf-8", "backslashreplace").split("\n")[:-1]:
            number, _, event = line.partition(",")
            if not (number.isascii() and number.isdecimal()) or len(number) > 10 or event not in ("asked", "refused"):
                raise WireError(f"{self._path} has the line {line!r}: must be ROUND,asked or ROUND,refused; restore it")
            open_rounds[int(number)] = event
        return max((number for number, event in open_rounds.items() if event == "asked"), default=0)


class VerifiedFold(Fold):
    """Drives both aggregators through one round, from the leader's process.

    Args:
        leader: makes the leader's adder, given the 16 secret bytes that both aggregators verify with.
        link: reaches the helper; closed when the totals were taken or the round is refused.
        tag: the round.
        batch: reports that wait before they are verified.
        journal: told of the release before it happens.

    Raises:
        HelperLost: the helper refuses the round.
    """

    def __init__(
        self,
        leader: Callable[[bytes], LeaderAdder],
        link: HelperLink,
        tag: Tag,
        batch: int,
        journal: Journal | None = None,
    ) -> None:
        self._batch, self._link, self._round, self._journal = batch, link, tag.round, journal
        self._waiting: dict[bytes, ConfigRecord] = {}
        self._relayed: dict[bytes, bytes] = {}
        self._leader = leader(link.open(tag))

    @property
    def helper(self) -> HelperCosts:  # type: ignore[override]
        """See :class:`~strategies.fold.Fold`."""
        return HelperCosts(self._link.received_bytes, self._link.sent_bytes, self._link.busy_s)

    def take(self, replies: list[Message]) -> None:
        """See :meth:`~strategies.fold.Fold.take`; returns with every report settled."""
        for reply in replies:
            if reply.has_error():
                continue
            self._relay(reply.content)
            if self._leader.waiting >= self._batch:
                self._settle()
        self._settle()

    def totals(self) -> list[bytes]:
        """See :meth:`~strategies.fold.Fold.totals`; the helper first, so that the leader never releases alone."""
        self._note("asked")
        try:
            helper = self._link.total()
            return [self._leader.total(), helper]
        except (HelperRefused, BudgetExceeded) as error:
            if isinstance(error, HelperRefused):
                self._note("refused")
            raise TooFewReplies(f"no total was released: {error}") from error
        finally:
            self._link.close()

    def _note(self, event: Literal["asked", "refused"]) -> None:
        if self._journal is not None:
            self._journal.note(self._round, event)

    def _relay(self, content: RecordDict) -> None:
        started = time.perf_counter()
        notes = ConfigRecord({"upload_bytes": wire_bytes(content)})
        try:
            parts = sealed_parts(content, 2)
            notes["sealed_bytes"] = sum(map(len, parts))
            relayed = self._leader.add_and_relay(*parts)
            # Not counted until both have settled; what the helper does not take then, it does not prove either.
            nonce = relayed_nonce(memoryview(relayed)[wire.HEADER_BYTES :])
            self._waiting[nonce], self._relayed[nonce] = notes, relayed
        except CryptoError as error:
            notes["rejected"] = str(error)
        content.pop("sealed", None)
        notes["add_s"] = time.perf_counter() - started
        content["folded"] = notes

    def _settle(self) -> None:
        if not self._leader.waiting:
            return
        started = time.perf_counter()
        nonces = list(self._relayed)
        batch = self._link.add_and_settle(list(self._relayed.values()), self._leader.verify_init())
        self._relayed.clear()
        for place, reason in batch.refused.items():
            self._waiting[nonces[place]]["rejected"] = reason
        try:
            settled = self._leader.settle(batch.proofs)
        except CryptoError as error:
            raise HelperLost(f"the helper's proofs are none: {error}") from error
        share = (time.perf_counter() - started) / len(self._waiting)
        for nonce in settled.rejected:
            self._waiting[nonce].setdefault("rejected", _DISAGREE)
        for notes in self._waiting.values():
            spent = notes["add_s"]
            notes["add_s"] = share + (spent if isinstance(spent, float) else 0.0)
        self._waiting.clear()
