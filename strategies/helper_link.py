"""How the leader talks to the helper: one request, one answer, length-prefixed frames over a byte stream.

Little-endian. A request is ``length u32 | operation u8 | payload``, an answer ``length u32 | status u8 | busy f64 |
payload``; the length counts what follows it, `busy` is the helper's own seconds for the request. Operations::

    1 hello    key id 8, parameter hash 16    -> nothing                  both sides run the same parameters
    2 open     round u32, layout hash 16, coordinates u64 -> 16 bytes     a round later than every released one; the
                                                                          secret that both verify norms with
    3 add      relayed report (framed part)   -> nothing                  the helper decodes it and lets it wait
    4 settle   the leader's proofs            -> the helper's proofs      both accept the same reports
    5 total    nothing                        -> framed total             released once, with noise

Status 0 is an answer, 1 refuses this request (the payload says why; the helper goes on). Nothing is unpickled.
"""

import socket
import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from crypto.base import Tag
from crypto.errors import CryptoError, InputError, WireError
from strategies.errors import HelperLost
from strategies.helper_tls import HELPER_NAME, leader_context

HELLO, OPEN, ADD, SETTLE, TOTAL = 1, 2, 3, 4, 5
ANSWERED, REFUSED = 0, 1
#: Longest frame that either side reads; a total of 2^27 words has 1 GiB.
MOST_BYTES = 2**31
OPEN_FIELDS = struct.Struct("<I16sQ")
HELLO_FIELDS = struct.Struct("<8s16s")
ANSWER_HEAD = struct.Struct("<Bd")
LENGTH = struct.Struct("<I")
#: Where the leader finds the helper: a file in the server's folder of keys that holds the address.
ADDRESS_FILE = "helper.address"
ANSWER_S = 300.0
_CONNECT_S = 30.0


class HelperRefused(WireError):
    """The helper did not take a message; its reason is the text."""


class Stream(Protocol):
    """What frames are read from; a socket's or a pipe's file."""

    def read(self, size: int, /) -> bytes:
        """Return `size` bytes, or fewer at the end."""
        ...


class Transport(ABC):
    """One way of reaching the helper: requests out, their answers back.

    Attributes:
        sent_bytes, received_bytes: what has travelled to the helper and from it, framing included.
    """

    sent_bytes: int = 0
    received_bytes: int = 0

    def exchange(self, bodies: Sequence[bytes]) -> list[bytes]:
        """Return the answers to some requests, in their order; see :meth:`request`."""
        answers = [self.request(body) for body in bodies]
        self.sent_bytes += sum(LENGTH.size + len(body) for body in bodies)
        self.received_bytes += sum(LENGTH.size + len(answer) for answer in answers)
        return answers

    @abstractmethod
    def request(self, body: bytes) -> bytes:
        """Return the answer to one request, both without the length prefix.

        Raises:
            HelperLost: no answer came.
        """

    def close(self) -> None:
        """Let go of the connection."""
        return


class SocketTransport(Transport):
    """Frames over a connected stream socket.

    Args:
        connected: the socket; closed with the transport.
        where: what to call the helper in messages.
        timeout_s: longest wait for one answer.
    """

    def __init__(self, connected: socket.socket, where: str, timeout_s: float = ANSWER_S) -> None:
        self._socket, self._where, self._timeout_s = connected, where, timeout_s
        self._socket.settimeout(timeout_s)
        self._stream = self._socket.makefile("rb")

    def request(self, body: bytes) -> bytes:
        """See :meth:`Transport.request`."""
        try:
            self._socket.sendall(LENGTH.pack(len(body)) + body)
            return read_frame(self._stream)
        except TimeoutError as error:
            raise HelperLost(
                f"the helper at {self._where} gave no answer in {self._timeout_s:g} s: look at it"
            ) from error
        except (OSError, EOFError, WireError) as error:
            raise HelperLost(f"the helper at {self._where} is gone ({error}): start it again and resume") from error

    def close(self) -> None:
        """See :meth:`Transport.close`."""
        self._stream.close()
        self._socket.close()


def parse_address(text: str) -> Path | tuple[str, int]:
    """Return a Unix socket's path, or host and port.

    Args:
        text: ``tls://HOST:PORT``, ``unix:PATH`` or a path alone; IPv6 addresses in brackets.

    Raises:
        InputError: neither.
    """
    if text.startswith("tls://"):
        host, colon, port = text.removeprefix("tls://").rpartition(":")
        if not colon or not host or not port.isdecimal() or int(port) > 65535:
            raise InputError(f"helper address '{text}': must be tls://HOST:PORT, such as tls://helper.example.org:9443")
        return host.removeprefix("[").removesuffix("]"), int(port)
    path = text.removeprefix("unix:")
    if not path or "://" in path:
        raise InputError(f"helper address '{text}': must be tls://HOST:PORT or the path of a Unix socket")
    return Path(path)


def connect(address: str, keys: Path, timeout_s: float = ANSWER_S) -> SocketTransport:
    """Reach the helper.

    Args:
        address: see :func:`parse_address`.
        keys: the server's own folder of keys, for TLS.
        timeout_s: longest wait for the connection and for each answer.

    Raises:
        HelperLost: nobody listens there, or it is not the pinned helper.
        InputError: the address is none.
    """
    place = parse_address(address)
    if isinstance(place, Path):
        plain = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        plain.settimeout(min(timeout_s, _CONNECT_S))
        try:
            plain.connect(str(place))
        except OSError as error:
            plain.close()
            raise HelperLost(f"no helper listens at {place} ({error}): start it again and resume the run") from error
        return SocketTransport(plain, str(place), timeout_s)
    context = leader_context(keys)
    try:
        connected = socket.create_connection(place, timeout=min(timeout_s, _CONNECT_S))
    except OSError as error:
        raise HelperLost(f"no helper listens at {address} ({error}): start it again and resume the run") from error
    keep_alive(connected)
    try:
        return SocketTransport(context.wrap_socket(connected, server_hostname=HELPER_NAME), address, timeout_s)
    except OSError as error:
        connected.close()
        raise HelperLost(
            f"the helper at {address} is not the pinned one ({error}): copy keys/server and keys/helper of one set"
        ) from error


def keep_alive(connected: socket.socket) -> None:
    """Let a TCP connection notice within minutes that the other machine is gone."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def read_frame(stream: Stream) -> bytes:
    """Return one frame's body.

    Raises:
        EOFError: the stream ended.
        WireError: a length beyond :data:`MOST_BYTES`, or an empty frame.
    """
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        raise EOFError("the connection was closed")
    (size,) = LENGTH.unpack(head)
    if not 0 < size <= MOST_BYTES:
        raise WireError(f"frame of {size} bytes: must have 1 to {MOST_BYTES}; the other side speaks something else")
    body = stream.read(size)
    if len(body) < size:
        raise EOFError(f"the connection was closed after {len(body)} of {size} bytes")
    return body


@dataclass(frozen=True, slots=True)
class Batch:
    """The helper's answers to a batch of reports.

    Attributes:
        refused: place in the batch -> why the helper does not take that report.
        proofs: of the reports that it took.
    """

    refused: dict[int, str]
    proofs: bytes


class HelperLink:
    """The leader's view of the helper in one round.

    Args:
        transport: reaches it.
        key_id: of the pinned public key, 8 bytes.
        params_hash: 16 bytes.

    Attributes:
        busy_s: the helper's own seconds in this round.

    Raises:
        HelperLost: it does not answer, or runs other parameters.
    """

    def __init__(self, transport: Transport, key_id: bytes, params_hash: bytes) -> None:
        self._transport = transport
        self.busy_s = 0.0
        self._must(HELLO, HELLO_FIELDS.pack(key_id, params_hash))

    @property
    def received_bytes(self) -> int:
        """What the helper was sent in this round, as it travelled."""
        return self._transport.sent_bytes

    @property
    def sent_bytes(self) -> int:
        """What it answered."""
        return self._transport.received_bytes

    def open(self, tag: Tag) -> bytes:
        """Begin a round; return the 16 secret bytes that both aggregators verify it with.

        Raises:
            HelperLost: it refuses: the round was released before, or is beyond its budget.
        """
        return self._must(OPEN, OPEN_FIELDS.pack(tag.round, tag.layout_hash, tag.length))

    def add_and_settle(self, reports: Sequence[bytes], proofs: bytes) -> Batch:
        """Relay reports and the leader's proofs of them, in one exchange.

        Raises:
            HelperLost: the helper does not answer, or refuses to go on.
        """
        requests = [(ADD, report) for report in reports] + [(SETTLE, proofs)]
        *added, settled = self._exchange(requests)
        if isinstance(settled, HelperRefused):
            raise _stuck(settled)
        return Batch({i: str(a) for i, a in enumerate(added) if isinstance(a, HelperRefused)}, settled)

    def total(self) -> bytes:
        """Return the helper's noisy total.

        Raises:
            HelperRefused: the cohort is too small, or nothing was accepted.
        """
        return self._ask(TOTAL, b"")

    def close(self) -> None:
        """Let go of the connection."""
        self._transport.close()

    def _must(self, operation: int, payload: bytes) -> bytes:
        try:
            return self._ask(operation, payload)
        except HelperRefused as error:
            raise _stuck(error) from error

    def _ask(self, operation: int, payload: bytes) -> bytes:
        (found,) = self._exchange([(operation, payload)])
        if isinstance(found, HelperRefused):
            raise found
        return found

    def _exchange(self, requests: Sequence[tuple[int, bytes]]) -> list[bytes | HelperRefused]:
        answers = self._transport.exchange([bytes([operation]) + payload for operation, payload in requests])
        if len(answers) != len(requests):
            raise HelperLost(f"{len(answers)} answers to {len(requests)} requests: versions must agree")
        return [self._read(answer) for answer in answers]

    def _read(self, answer: bytes) -> bytes | HelperRefused:
        if len(answer) < ANSWER_HEAD.size:
            raise HelperLost(f"answer of {len(answer)} bytes: shorter than its head; versions must agree")
        status, busy_s = ANSWER_HEAD.unpack_from(answer)
        rest = answer[ANSWER_HEAD.size :]
        if 0 <= busy_s < float("inf"):
            self.busy_s += busy_s
        return rest if status == ANSWERED else HelperRefused(rest.decode("utf-8", "replace"))


def _stuck(error: HelperRefused) -> HelperLost:
    return HelperLost(f"the helper refuses to go on: {error}")


def refusal(error: CryptoError, busy_s: float) -> bytes:
    """Return the answer that refuses a request."""
    return ANSWER_HEAD.pack(REFUSED, busy_s) + str(error).encode()


def answer(payload: bytes, busy_s: float) -> bytes:
    """Return an answer's body."""
    return ANSWER_HEAD.pack(ANSWERED, busy_s) + payload
