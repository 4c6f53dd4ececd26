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
    """One way of reaching the helper: a request out, its answer back."""

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


class HelperLink:
    """The leader's view of the helper in one round.

    Args:
        transport: reaches it.
        key_id: of the pinned public key, 8 bytes.
        params_hash: 16 bytes.

    Attributes:
        received_bytes: what the helper was sent in this round, length prefixes included.
        sent_bytes: what it answered.
        busy_s: its own seconds.

    Raises:
        HelperLost: it does not answer, or runs other parameters.
    """

    def __init__(self, transport: Transport, key_id: bytes, params_hash: bytes) -> None:
        self._transport = transport
        self.received_bytes = self.sent_bytes = 0
        self.busy_s = 0.0
        self._must(HELLO, HELLO_FIELDS.pack(key_id, params_hash))

    def open(self, tag: Tag) -> bytes:
        """Begin a round; return the 16 secret bytes that both aggregators verify it with.

        Raises:
            HelperLost: it refuses: the round was released before, or is beyond its budget.
        """
        return self._must(OPEN, OPEN_FIELDS.pack(tag.round, tag.layout_hash, tag.length))

    def add(self, relayed: bytes) -> None:
        """Relay one report.

        Raises:
            HelperRefused: the helper does not take it; says why.
        """
        self._ask(ADD, relayed)

    def settle(self, proofs: bytes) -> bytes:
        """Send the leader's proofs of the waiting reports and return the helper's."""
        return self._must(SETTLE, proofs)

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
            raise HelperLost(f"the helper refuses to go on: {error}") from error

    def _ask(self, operation: int, payload: bytes) -> bytes:
        body = bytes([operation]) + payload
        answer = self._transport.request(body)
        self.received_bytes += LENGTH.size + len(body)
        self.sent_bytes += LENGTH.size + len(answer)
        if len(answer) < ANSWER_HEAD.size:
            raise HelperLost(f"answer of {len(answer)} bytes: shorter than its head; versions must agree")
        status, busy_s = ANSWER_HEAD.unpack_from(answer)
        rest = answer[ANSWER_HEAD.size :]
        if 0 <= busy_s < float("inf"):
            self.busy_s += busy_s
        if status == ANSWERED:
            return rest
        raise HelperRefused(rest.decode("utf-8", "replace"))


def refusal(error: CryptoError, busy_s: float) -> bytes:
    """Return the answer that refuses a request."""
    return ANSWER_HEAD.pack(REFUSED, busy_s) + str(error).encode()


def answer(payload: bytes, busy_s: float) -> bytes:
    """Return an answer's body."""
    return ANSWER_HEAD.pack(ANSWERED, busy_s) + payload
