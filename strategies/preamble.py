"""PREAMBLE under any strategy: clipped changes of weights, block-sparse shares for two servers, differential privacy.

The leader is the server of the federation; the helper is a party of its own (:mod:`strategies.helper_link`). Clients
find the helper's pinned public key in their own folder of keys; the server's folder holds the same public key and says
where the helper listens.
"""

import hashlib
from dataclasses import dataclass, replace
from functools import partial
from math import sqrt
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from crypto import InputError, KeyMismatch
from crypto.base import FloatVector, Opener, Plan, Sealer, Tag
from crypto.keys import SERVER
from crypto.preamble.aggregator import LeaderAdder
from crypto.preamble.noise import NoNoiseForTests
from crypto.preamble.scheme import PreambleSum
from strategies.errors import HelperLost
from strategies.helper_link import ADDRESS_FILE, HelperLink, Transport, connect
from strategies.helper_relay import Relay
from strategies.preamble_keys import KEY_PARAMS, SCHEME, helper_key, make_keys
from strategies.preamble_plan import (
    DEFAULT_SAVING,
    VERIFICATION,
    PreambleSettings,
    Sized,
    describe,
    of_round,
    round_epsilon,
    secure_sum,
    sized,
    without_keys,
)
from strategies.protection import Protection
from strategies.verified_fold import Journal, VerifiedFold

#: The leader's account of released rounds, in a run's folder.
JOURNAL_FILE = "releases.csv"
_RUN = b"preamble-run/1"


@dataclass(frozen=True, kw_only=True)
class PreambleProtection(PreambleSettings, Protection):
    """PREAMBLE, as a strategy sees it; attributes as in :class:`~strategies.preamble_plan.PreambleSettings`."""

    name = SCHEME
    payload = "delta"
    uniform_only = True
    spends = True

    @property
    def bound(self) -> float:
        """The norm bounds each coordinate."""
        return self.clip_norm

    def clip(self, vector: FloatVector) -> tuple[FloatVector, float]:
        """Scale a vector down to the norm C where it is longer.

        Raises:
            InputError: a value is not finite; names the first.
        """
        bad = np.flatnonzero(~np.isfinite(vector))
        if bad.size:
            raise InputError(f"coordinate {bad[0]} is {vector[bad[0]]} ({bad.size} such values): must be finite")
        wide = vector.astype(np.float64)
        norm = sqrt(float(np.einsum("i,i->", wide, wide)))  # not BLAS, whose order of sums depends on its threads
        factor = min(1.0, self.clip_norm / norm) if norm > 0 else 1.0
        return wide * factor, factor

    def secure_sum(self, plan: Plan) -> PreambleSum:
        """See :meth:`~strategies.protection.Protection.secure_sum`; without keys, good for its budget alone."""
        return secure_sum(self, plan)

    def sealer(self, plan: Plan) -> Sealer:
        """See :meth:`~strategies.protection.Protection.sealer`."""
        if self.keys is None:
            raise KeyMismatch(
                "protection 'preamble' needs the helper's public key and no folder of keys was given: name it "
                "(node config 'keys', or FEDSIM_KEYS)"
            )
        return _RoundSealer(self, plan)

    def opener(self, plan: Plan) -> Opener:
        """See :meth:`~strategies.protection.Protection.opener`; whoever holds both totals can."""
        return _RoundOpener(self, plan)

    @property
    def relayed(self) -> bool:
        """See :attr:`~strategies.protection.Protection.relayed`."""
        return self.transport == "relay"

    def fold(self, plan: Plan, tag: Tag, relay: Relay | None = None) -> VerifiedFold:
        """See :meth:`~strategies.protection.Protection.fold`: verified together with the helper.

        Raises:
            HelperLost: there is no helper, or it refuses the round.
            BudgetExceeded: the round's vector is longer than the plan's.
        """
        secure, whole = of_round(self, plan, tag)
        # The helper is greeted with the plan's parameters and derives the round's itself.
        link = self._link(self.secure_sum(plan), tag, self._transport(tag.round, relay))
        return VerifiedFold(partial(self.leader, secure, whole), link, tag, secure.parameters.batch, self._journal)

    def leader(self, secure: PreambleSum, tag: Tag, verify_key: bytes) -> LeaderAdder:
        """Return the leader's adder of a round, with its noise."""
        return secure.leader(tag, None if self.noisy else NoNoiseForTests(), verify_key=verify_key)

    def journaled(self, folder: Path) -> "PreambleProtection":
        """See :meth:`~strategies.protection.Protection.journaled`; the account is ``releases.csv``."""
        return replace(self, journal=str(folder / JOURNAL_FILE))

    @property
    def _journal(self) -> Journal | None:
        return None if self.journal is None else Journal(Path(self.journal))

    def last_opened(self) -> int:
        """See :meth:`~strategies.protection.Protection.last_opened`."""
        return 0 if self._journal is None else self._journal.last_released()

    def greet(self, plan: Plan) -> None:
        """Ask the helper whether it holds the pinned key and runs these parameters.

        Raises:
            HelperLost: it does not answer, or says no and why.
        """
        tag = Tag(round=0, layout_hash=bytes(16), length=plan.length)
        self._link(self.secure_sum(plan), tag, self._transport(tag.round, None)).close()

    def _link(self, secure: PreambleSum, tag: Tag, transport: Transport) -> HelperLink:
        header = secure.header(tag)
        return HelperLink(transport, header.key_id, header.params_hash)

    def _transport(self, server_round: int, relay: Relay | None) -> Transport:
        if not self.relayed:
            return connect(self._address(), Path(self.keys or "") / SERVER, self.timeout_s)
        if relay is None:
            raise HelperLost(
                "protection.transport is relay: the leader reaches the helper inside a run alone, through the node of "
                "its owner; ask on that machine (`fedsim helper alive --listen SOCKET`), or set transport = direct"
            )
        return relay.transport(server_round, self.timeout_s)

    def _address(self) -> str:
        path = Path(self.keys or "") / ADDRESS_FILE
        if self.keys is None or not path.is_file():
            raise HelperLost(
                f"the server knows no helper ({path} is not there): start the helper and write its address there, a "
                "socket's path or tls://HOST:PORT"
            )
        return path.read_text(encoding="utf-8").strip()

    def round_facts(self, plan: Plan, tag: Tag) -> dict[str, float]:
        """Return a round's blocks, noise and epsilon: what shorter rounds than the plan's change."""
        secure, _ = of_round(self, plan, tag)
        p = secure.parameters
        known = {"preamble_blocks": float(p.groups), "preamble_sigma": p.sigma}
        if not self.noisy:
            return known
        return known | {"preamble_epsilon": round_epsilon(without_keys(self), plan, secure.plan.length)}

    def facts(self, plan: Plan) -> dict[str, object]:
        """Return the guarantee and what it costs; see :func:`describe`."""
        return describe(self, plan)


class _RoundSealer(Sealer):
    def __init__(self, protection: PreambleProtection, plan: Plan) -> None:
        self._protection, self._plan, self._clipped = protection, plan, 0

    def seal(self, vector: FloatVector, tag: Tag) -> list[bytes]:
        if vector.shape != (tag.length,):
            raise InputError(f"vector of shape {vector.shape}: the round's has ({tag.length},); use the round's layout")
        secure, whole = of_round(self._protection, self._plan, tag)
        sealer = secure.sealer()
        parts = sealer.seal(np.pad(vector.astype(np.float64, copy=False), (0, whole.length - tag.length)), whole)
        self._clipped = sealer.clipped
        return parts

    @property
    def clipped(self) -> int:
        return self._clipped


class _RoundOpener(Opener):
    def __init__(self, protection: PreambleProtection, plan: Plan) -> None:
        self._protection, self._plan = protection, plan

    def open(self, totals: list[bytes], tag: Tag) -> NDArray[np.float64]:
        secure, whole = of_round(self._protection, self._plan, tag)
        return secure.opener().open(totals, whole)[: tag.length].copy()


def run_id(*public: object) -> bytes:
    """Return the 16 bytes that name a run, from public values with a stable ``repr``."""
    return hashlib.blake2b(repr(public).encode(), person=_RUN, digest_size=16).digest()


__all__ = [
    "DEFAULT_SAVING",
    "JOURNAL_FILE",
    "KEY_PARAMS",
    "SCHEME",
    "VERIFICATION",
    "PreambleProtection",
    "Sized",
    "describe",
    "helper_key",
    "make_keys",
    "of_round",
    "run_id",
    "sized",
]
