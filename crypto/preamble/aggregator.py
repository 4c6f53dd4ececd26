"""The two servers of PREAMBLE: strict decoding, one-block proofs, sums without shares, noise once.

One round of a server::

    add(part) ...                     V0: strict decoding, replay set; the report waits
    mine = verify_init()              V1: a 32-byte proof for each waiting report; V3, V4: its norm message
    settle(theirs)                    accept where the proofs are equal, drop the rest, add the accepted
    total()                           noise, once; nothing can be added afterwards

Both servers must exchange the proofs of the same reports, in any order, before either adds them. Memory is one total
and one batch of reports, whatever the number of clients.
"""

import hashlib
import hmac
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from crypto import wire as frames
from crypto.base import Adder, Tag
from crypto.errors import BudgetExceeded, CryptoError, EmptySum, InputError, KeyMismatch, WireError
from crypto.fixed_point import to_residues
from crypto.preamble import dpf, norm, wire
from crypto.preamble.dpf import NONCE_BYTES, PROOF_BYTES, Report
from crypto.preamble.noise import Noise

if TYPE_CHECKING:
    from crypto.preamble.scheme import PreambleSum

COHORT = b"preamble-cohort"


class AlreadyReleased(CryptoError):
    """The total was handed out with its noise: a second release, or a later report, would need fresh privacy budget."""


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of a batch; nonces, in the order of arrival."""

    accepted: list[bytes]
    rejected: list[bytes]


class _ServerAdder(Adder):
    """What both servers do; they differ in how a part is decoded and in the sign, which the opener applies."""

    server: int

    def __init__(
        self, scheme: "PreambleSum", tag: Tag, noise: Noise, threads: int, verify_key: bytes | None = None
    ) -> None:
        self._scheme, self._tag, self._noise, self._threads = scheme, tag, noise, threads
        self._shape, self._task, self._header = scheme.shape(tag), scheme.task(tag), scheme.header(tag)
        self._circuit, self._proof_bytes = scheme.circuit(tag), scheme.proof_bytes(tag)
        if self._circuit is not None and (verify_key is None or len(verify_key) != 16):
            raise InputError("norms are proven: give both servers the same 16 secret bytes as verify_key")
        self._verify_key = verify_key or b""
        self._seen = wire.Seen()
        self._waiting: dict[bytes, Report] = {}
        self._proofs: dict[bytes, bytes] = {}
        self._accepted: list[bytes] = []
        self._words = dpf.empty_total(self._shape)
        self._released: bytes | None = None

    @abstractmethod
    def _decode(self, body: bytes) -> Report: ...

    @property
    def count(self) -> int:
        """Number of accepted reports."""
        return len(self._accepted)

    @property
    def waiting(self) -> int:
        """Number of reports that are decoded but not settled."""
        return len(self._waiting)

    def add(self, part: bytes) -> None:
        """Decode one part (V0) and let it wait for :meth:`settle`.

        Raises:
            WireError: (or a subclass) not a canonical report of this round, or seen before.
            BudgetExceeded: a full batch waits already.
            AlreadyReleased: the total was handed out.
        """
        self._admit(self._read(part))

    def _read(self, part: bytes) -> Report:
        self._refuse_after_release()
        if len(self._waiting) >= self._scheme.parameters.batch:
            raise BudgetExceeded(f"{len(self._waiting)} reports wait already: settle the batch before adding more")
        return self._decode(bytes(frames.decode(part, self._header, frames.PART).body))

    def _admit(self, report: Report) -> None:
        self._seen.add(report.nonce)
        self._waiting[report.nonce] = report

    def verify_init(self) -> bytes:
        """Return nonce and one-block proof of every waiting report, for the other server."""
        reports = [r for nonce, r in self._waiting.items() if nonce not in self._proofs]
        if self._scheme.parameters.verify == "blocks":
            proofs = dpf.prove(self._shape, self.server, reports, self._threads)
        else:
            proofs = [report.digest for report in reports]
        for report, proof in zip(reports, proofs, strict=True):
            self._proofs[report.nonce] = proof + self._norm_message(report)
        return b"".join(nonce + self._proofs[nonce] for nonce in self._waiting)

    def _norm_message(self, report: Report) -> bytes:
        if self._circuit is None:
            return b""
        sums = dpf.block_sums(report, self.server).reshape(-1).tolist()
        x = [(s if self.server == 0 else -s) % dpf.PRIME for s in sums]
        share = norm.decode_share(self._circuit, self.server, report.proof)
        message = norm.query(
            self._circuit, self.server, x, share, report.digest, report.seed, self._verify_key, report.nonce
        )
        return norm.encode_message(message)

    def _agree(self, mine: bytes, theirs: bytes) -> bool:
        if not hmac.compare_digest(mine[:PROOF_BYTES], theirs[:PROOF_BYTES]):
            return False
        if self._circuit is None:
            return True
        first, second = (norm.decode_message(self._circuit, m[PROOF_BYTES:]) for m in (mine, theirs))
        return norm.decide(self._circuit, first, second)

    def settle(self, theirs: bytes) -> Settled:
        """Accept the waiting reports whose proofs agree with the other server's, drop all others, add the accepted.

        Args:
            theirs: what the other server's :meth:`verify_init` returned.

        Raises:
            WireError: `theirs` is not a list of nonces and proofs; nothing is settled.
        """
        size = NONCE_BYTES + PROOF_BYTES + (0 if self._circuit is None else self._circuit.message_bytes)
        if len(theirs) % size:
            raise WireError(f"{len(theirs)} bytes of proofs: must be {size} for each report")
        entries = [theirs[i : i + size] for i in range(0, len(theirs), size)]
        other = {e[:NONCE_BYTES]: e[NONCE_BYTES:] for e in entries}
        self._refuse_after_release()
        self.verify_init()
        agreed = [n for n in self._waiting if n in other and self._agree(self._proofs[n], other[n])]
        reports = [self._waiting[n] for n in agreed]
        dpf.accumulate(self._shape, self.server, reports, self._words, self._threads)
        rejected = [n for n in self._waiting if n not in set(agreed)]
        self._accepted += agreed
        self._waiting.clear()
        self._proofs.clear()
        return Settled(agreed, rejected)

    def merge(self, total: bytes) -> None:
        """Refuse: a server is one party with one replay set and one noise.

        Raises:
            WireError: always. Let one adder a server take all parts; its threads make it fast.
        """
        raise WireError(
            f"total of {len(total)} bytes: these totals carry noise and do not merge; add all parts to one adder"
        )

    def total(self) -> bytes:
        """Return the framed noisy total; drawn once, the same bytes on every call.

        Raises:
            EmptySum: nothing was accepted.
            BudgetExceeded: reports wait unsettled, or fewer than the minimum cohort were accepted.
        """
        if self._released is None:
            self._refuse_small()
            noise = to_residues(self._noise.draw(self._shape.size), self._shape.group.order)
            words = noise.astype(self._shape.group.dtype).reshape(self._words.shape)
            words = dpf.add_words(self._shape.group, self._words, words)
            body = self._cohort() + words.astype(self._shape.group.dtype, copy=False).tobytes()
            self._released = frames.encode(self._header, frames.TOTAL, self.count, body)
            self._words = self._words[:0].copy()
        return self._released

    def _cohort(self) -> bytes:
        return hashlib.blake2b(b"".join(sorted(self._accepted)), person=COHORT, digest_size=32).digest()

    def _refuse_small(self) -> None:
        minimum = self._scheme.parameters.minimum_cohort
        if self._waiting:
            raise BudgetExceeded(f"{len(self._waiting)} reports wait: settle them with the other server first")
        if not self._accepted:
            raise EmptySum("the sum of no reports was asked for: at least one must be accepted by both servers")
        if self.count < minimum:
            raise BudgetExceeded(f"cohort of {self.count} reports: fewer than {minimum} would not hide in each other")

    def _refuse_after_release(self) -> None:
        if self._released is not None:
            raise AlreadyReleased("the total of this round was released: open a new round with a new tag")


class LeaderAdder(_ServerAdder):
    """Server 0: the party that talks to the clients. It relays what it cannot read."""

    server = 0

    def _decode(self, body: bytes) -> Report:
        report = wire.decode_leader(body, self._shape, self._task, self._proof_bytes)
        if self._circuit is not None:
            norm.decode_share(self._circuit, self.server, report.proof)
        return report

    def add_and_relay(self, leader_part: bytes, helper_part: bytes) -> bytes:
        """Add a client's leader part and return the framed message for the helper.

        Raises:
            WireError: as in :meth:`add`, or the helper's part is not one; then neither is counted.
        """
        size = wire.helper_bytes(self._proof_bytes)
        sealed = bytes(frames.decode(helper_part, self._header, frames.PART, size).body)
        report = self._read(leader_part)
        relayed = wire.relay(report, sealed, self._proof_bytes)
        self._admit(report)
        return frames.encode(self._header, frames.PART, 1, relayed)


class HelperAdder(_ServerAdder):
    """Server 1: adds what the leader relays and only it can open.

    Raises:
        KeyMismatch: the private key is not the one that clients seal to.
    """

    server = 1

    def __init__(
        self,
        scheme: "PreambleSum",
        tag: Tag,
        key: X25519PrivateKey,
        noise: Noise,
        threads: int,
        verify_key: bytes | None = None,
    ) -> None:
        super().__init__(scheme, tag, noise, threads, verify_key)
        public: X25519PublicKey = key.public_key()
        if public.public_bytes_raw() != scheme.helper_key:
            raise KeyMismatch("the helper's private key does not belong to the pinned public key; use one key pair")
        self._key = key

    def _decode(self, body: bytes) -> Report:
        return wire.decode_relayed(body, self._shape, self._task, self._key, self._proof_bytes)
