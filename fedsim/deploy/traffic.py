"""Bytes that went through the proxy, beside those in a run's ledger.

The ledger counts Flower's serialised objects: model, sealed update, plan, metrics, with their heads. On the wire each
object travels in a request of its own, inside a protobuf envelope and HTTP headers, and beside it go messages'
metadata, questions for new messages, and heartbeats. All that is framing here, and shown apart. TLS and TCP come on
top; the proxy does not see them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from crypto.texts import json_of
from fedsim.errors import FedsimError
from fedsim.measure.ledger import Ledger
from fedsim.measure.runfolder import RunFolder

_UP, _DOWN = "/v1/fleet/push-object", "/v1/fleet/pull-object"
#: A run's times are whole seconds; its messages lie within this much of them.
_MARGIN_S = 1.0


@dataclass(slots=True)
class Direction:
    """Bytes of one direction, seen from the clients.

    Attributes:
        objects: number of objects.
        object_bytes: bodies of the requests or answers that carry objects: objects and envelopes.
        other_bytes: bodies of all others: metadata, questions, heartbeats, the app.
        head_bytes: request and status lines, headers.
    """

    objects: int = 0
    object_bytes: int = 0
    other_bytes: int = 0
    head_bytes: int = 0

    @property
    def http_bytes(self) -> int:
        """All bytes inside TLS."""
        return self.object_bytes + self.other_bytes + self.head_bytes


@dataclass(slots=True)
class Traffic:
    """What the proxy saw.

    Attributes:
        requests: number of requests.
        upload, download: see :class:`Direction`.
        clients: requests by the node's public key.
    """

    requests: int = 0
    upload: Direction = field(default_factory=Direction)
    download: Direction = field(default_factory=Direction)
    clients: dict[str, int] = field(default_factory=dict)

    def add(self, line: Mapping[str, Any]) -> None:
        """Count one line of the log."""
        self.requests += 1
        key = str(line["key"])
        self.clients[key] = self.clients.get(key, 0) + 1
        ways = (self.upload, "received", _UP), (self.download, "sent", _DOWN)
        for direction, name, path in ways:
            total, body = int(line[name]), int(line[f"{name}_body"] or 0)
            direction.head_bytes += total - body
            if line["path"] == path and line["status"] == "200":
                direction.objects += 1
                direction.object_bytes += body
            else:
                direction.other_bytes += body


def read_traffic(log: Path, since: float = 0.0, until: float = float("inf")) -> Traffic:
    """Add up a proxy's log.

    Args:
        log: one JSON object a line, see :mod:`fedsim.deploy.proxy`.
        since, until: seconds since 1970; other lines are left out.

    Raises:
        FedsimError: the log is missing, or a line is something else.
    """
    found, empty = Traffic(), True
    try:
        with log.open(encoding="utf-8") as lines:
            for line in _parsed(lines):
                empty = False
                if since <= float(line["time"]) <= until:
                    found.add(line)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FedsimError(f"{log} is no log of the proxy ({error}): name the file that nginx wrote") from error
    if empty and log.stat().st_size:
        raise FedsimError(f"{log} is no log of the proxy (no line is a JSON object): name the file that nginx wrote")
    return found


def _parsed(lines: Iterable[str]) -> Iterable[dict[str, Any]]:
    for line in lines:
        # Under compose the lines come with the service's name in front.
        start = line.find("{")
        if start >= 0 and line.rstrip().endswith("}"):
            yield json_of(line[start:])


@dataclass(frozen=True, slots=True)
class Comparison:
    """A run's ledger beside the proxy's count.

    Attributes:
        upload_bytes, download_bytes: of the clients, and of the node that relays to a helper, by the ledger.
        traffic: by the proxy, while the run went on.
    """

    upload_bytes: int
    download_bytes: int
    traffic: Traffic

    def rows(self) -> list[tuple[str, int, int]]:
        """Return (label, upload, download), in bytes; the third row and those after it are framing."""
        up, down = self.traffic.upload, self.traffic.download
        return [
            ("ledger", self.upload_bytes, self.download_bytes),
            ("objects on the wire", up.object_bytes, down.object_bytes),
            ("envelopes", up.object_bytes - self.upload_bytes, down.object_bytes - self.download_bytes),
            ("metadata, polls, heartbeats", up.other_bytes, down.other_bytes),
            ("HTTP heads", up.head_bytes, down.head_bytes),
            ("all inside TLS", up.http_bytes, down.http_bytes),
        ]


def compare(run: Path, log: Path) -> Comparison:
    """Return a run's ledger beside what the proxy saw between its start and end.

    Raises:
        FedsimError: (or a subclass) one of the two cannot be read.
    """
    record = RunFolder.open(run).record()
    since = datetime.fromisoformat(record.started).timestamp() - _MARGIN_S
    until = datetime.fromisoformat(record.ended).timestamp() + _MARGIN_S if record.ended else float("inf")
    ledger = Ledger.read(run)
    up, down = ledger.upload_bytes(), ledger.download_bytes()
    if (record.protection or {}).get("transport") == "relay":
        up += int(ledger.total("wire_bytes", phase="upload", party="helper"))
        down += int(ledger.total("wire_bytes", phase="download", party="helper"))
    return Comparison(up, down, read_traffic(log, since, until))


__all__ = ["Comparison", "Direction", "Traffic", "compare", "read_traffic"]
