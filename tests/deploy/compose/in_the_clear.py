"""Sends a run's models in the clear between two containers, as Flower would without TLS: in_the_clear.py FOLDER NETWORK

The control of eavesdrop.py: what it must not hear of a run, it must hear of this.
"""

import subprocess
import sys
import uuid
from pathlib import Path

from eavesdrop import models
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from crypto.base import Tag
from crypto.wire import NO_KEY, PART, Header, encode
from strategies.records import blob, sealed_record

_TAKE = """\
import socket
server = socket.create_server(("0.0.0.0", 8000))
print("ready", flush=True)
with server.accept()[0] as taken:
    while taken.recv(65536):
        pass
"""
_SEND = """\
import socket, sys
with socket.create_connection((sys.argv[1], 8000), timeout=30) as out:
    out.sendall(sys.stdin.buffer.read())
"""


def requests(folder: Path) -> bytes:
    """Return an update of each model that a run left, in Flower's own form, as the bodies of its requests."""
    said = []
    for data in models([folder / "runs", folder / "out"]):
        tag = Tag(round=1, layout_hash=bytes(16), length=len(data) // 4)
        header = Header(scheme="plain", params_hash=bytes(16), key_id=NO_KEY, tag=tag)
        content = RecordDict(
            {
                "arrays": ArrayRecord({"model": blob(data, "model")}),
                "update": sealed_record([encode(header, PART, 1, data)]),
                "config": ConfigRecord({"layout-hash": bytes(16)}),
                "metrics": MetricRecord({"num-examples": 1}),
            }
        )
        for item in get_all_nested_objects(content).values():
            body = item.deflate()
            said.append(b"POST /v1/fleet/push-object HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    return b"".join(said)


def main(folder: Path, network: str) -> None:
    """Send them; both containers are gone afterwards."""
    name = f"in-the-clear-{uuid.uuid4().hex[:8]}"
    start = ["docker", "run", "--rm", "--network", network]
    take = [*start, "--name", name, "fedsim:latest", "python", "-c", _TAKE]
    with subprocess.Popen(take, stdout=subprocess.PIPE, text=True) as taker:
        assert taker.stdout is not None and taker.stdout.readline() == "ready\n", "the control did not start"
        send = [*start, "-i", "fedsim:latest", "python", "-c", _SEND, name]
        subprocess.run(send, input=requests(folder), check=True, timeout=120)
        assert taker.wait(timeout=60) == 0


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
