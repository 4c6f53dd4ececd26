"""The way to the helper through a node of its owner's: the helper needs no port of its own, the server no address.

Both halves side by side. The leader packs its frames (:mod:`strategies.helper_link`) into a Flower message of the type
``query.relay``; the app of the designated node passes them, unread, to the helper's daemon on a Unix socket of that
machine and answers with what the daemon said. A node is designated by its own configuration alone, ``helper = SOCKET``,
which the server cannot set: it can ask any node, and those without a socket refuse. The node holds no key, and its app,
which the server ships, could not read one that belongs to another user: what the helper promises rests on the daemon.

==================  ===========================================================
record              holds
==================  ===========================================================
``frames``          requests, and in the reply answers, one blob each, in order
``relay``           in the message ``timeout-s``, in the reply ``lost``: why there are no answers
==================  ===========================================================
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from crypto.errors import InputError, WireError
from strategies.errors import HelperLost, NoSuchNodes
from strategies.helper_link import ANSWER_S, LENGTH, MOST_BYTES, Transport, connect, parse_address
from strategies.nodes import RELAY_KEY, Node
from strategies.records import read_sealed, sealed_record, wire_bytes
from strategies.rounds import stream

log = logging.getLogger(__name__)

#: Type of the messages.
RELAY_QUERY = "query.relay"
#: Frames that one message carries, in bytes; a larger one travels alone.
MESSAGE_BYTES = 64 * 2**20
# Beyond the helper's own time: a message lies in queues, and a node asks for it after a pause.
_MARGIN_S = 30.0
_LONGEST_S = 3600.0


class RelayTransport(Transport):
    """The leader's half: frames in messages to the designated node.

    Args:
        grid: reaches the node.
        node_id: of the designated node.
        server_round: that the frames belong to.
        timeout_s: longest wait for the helper's answers to one message.
    """

    def __init__(self, grid: Grid, node_id: int, server_round: int, timeout_s: float = ANSWER_S) -> None:
        self._grid, self._node_id, self._round, self._timeout_s = grid, node_id, server_round, timeout_s

    def request(self, body: bytes) -> bytes:
        """See :meth:`~strategies.helper_link.Transport.request`."""
        return self.exchange([body])[0]

    def exchange(self, bodies: Sequence[bytes]) -> list[bytes]:
        """See :meth:`~strategies.helper_link.Transport.exchange`; as few messages as their size allows."""
        return [answer for part in _parts(bodies) for answer in self._send(part)]

    def _send(self, bodies: list[bytes]) -> list[bytes]:
        content = RecordDict({"frames": sealed_record(bodies), "relay": ConfigRecord({"timeout-s": self._timeout_s})})
        message = Message(content, dst_node_id=self._node_id, message_type=RELAY_QUERY, group_id=str(self._round))
        self.sent_bytes += wire_bytes(content)
        ((_, (reply,)),) = stream(self._grid, [[message]], timeout=self._timeout_s + _MARGIN_S)
        if reply.has_error():
            reason = reply.error.reason or "no reason given"
            raise HelperLost(
                f"the node that relays to the helper ({self._node_id}) gave no answer ({reason}): look at that node "
                "and at the helper beside it, then resume the run"
            )
        self.received_bytes += wire_bytes(reply.content)
        return _answers(reply.content, len(bodies))


def _parts(bodies: Sequence[bytes]) -> Iterator[list[bytes]]:
    part: list[bytes] = []
    size = 0
    for body in bodies:
        if part and size + len(body) > MESSAGE_BYTES:
            yield part
            part, size = [], 0
        part.append(body)
        size += len(body) + LENGTH.size
    if part:
        yield part


def _answers(content: RecordDict, count: int) -> list[bytes]:
    lost = content.config_records.get("relay", ConfigRecord()).get("lost")
    if lost is not None:
        raise HelperLost(str(lost))
    if "frames" not in content.array_records:
        raise HelperLost("the relaying node's reply holds no frames: it runs another version; install the same")
    try:
        return read_sealed(content.array_records["frames"], count)
    except WireError as error:
        raise HelperLost(f"the relaying node's reply is no answer of the helper: {error}") from error


@dataclass(frozen=True)
class Relay:
    """The designated node of a federation, as the server knows it.

    Attributes:
        grid: reaches it.
        node_id: Flower's id.
    """

    grid: Grid
    node_id: int

    @classmethod
    def among(cls, grid: Grid, nodes: Sequence[Node]) -> "Relay":
        """Return the one designated node.

        Raises:
            NoSuchNodes: there is none, or more than one.
        """
        found = [node.node_id for node in nodes if node.relay]
        if len(found) == 1:
            return cls(grid, found[0])
        if found:
            raise NoSuchNodes(
                f"nodes {', '.join(map(str, found))} all relay to a helper: a run has one helper; take `{RELAY_KEY}` "
                "out of the configuration of all but one"
            )
        raise NoSuchNodes(
            f"none of {len(nodes)} nodes relays to the helper: start the node of the helper's owner, whose own "
            f"configuration names the daemon's socket ({RELAY_KEY} = SOCKET), or set protection.transport = direct"
        )

    def transport(self, server_round: int, timeout_s: float) -> RelayTransport:
        """Return the way to the helper in a round."""
        return RelayTransport(self.grid, self.node_id, server_round, timeout_s)


def pass_on(content: RecordDict, address: object) -> RecordDict:
    """Answer a message of :class:`RelayTransport` on the designated node: the app's half.

    Args:
        content: the message's.
        address: of the daemon's Unix socket, as this node's own configuration says; ``None`` or empty if it does not.

    Returns:
        The reply's content; what fails is said in it, in a sentence for the server's run.
    """
    try:
        return RecordDict({"frames": sealed_record(_pass_on(content, _socket_of(address)))})
    except (HelperLost, InputError, WireError) as error:
        log.warning("nothing was relayed: %s", error)
        return RecordDict({"relay": ConfigRecord({"lost": str(error)})})


def _socket_of(address: object) -> str:
    if not isinstance(address, str) or not address:
        raise InputError(
            f"this node relays to no helper: only the node of the helper's owner does, by its own configuration "
            f"({RELAY_KEY} = SOCKET); ask that one"
        )
    if not isinstance(parse_address(address), Path):
        raise InputError(
            f"this node's configuration has {RELAY_KEY} = {address}: must be the path of a Unix socket, for a relaying "
            "node holds no key for TLS"
        )
    return address


def _pass_on(content: RecordDict, address: str) -> list[bytes]:
    frames = content.array_records.get("frames")
    asked = content.config_records.get("relay", ConfigRecord()).get("timeout-s")
    if frames is None or not isinstance(asked, int | float) or not 0 < asked <= _LONGEST_S:
        raise WireError(f"a relayed message has frames, and timeout-s in (0, {_LONGEST_S:g}]: versions must agree")
    bodies = read_sealed(frames, len(frames))
    if bad := [len(body) for body in bodies if not 0 < len(body) <= MOST_BYTES]:
        raise WireError(f"frame of {bad[0]} bytes: must have 1 to {MOST_BYTES}; versions must agree")
    transport = connect(address, Path(), float(asked))
    try:
        return transport.exchange(bodies)
    finally:
        transport.close()


__all__ = ["MESSAGE_BYTES", "RELAY_QUERY", "Relay", "RelayTransport", "pass_on"]
