"""Listens to all containers' interfaces, and searches what they say: eavesdrop.py listen|search FILE FOLDER...

`listen` writes all frames until it is stopped; `search` ends with 1 where a word of Flower's messages, or 64 bytes of a
model that the run left, went over a network in the clear.
"""

import socket
import sys
from pathlib import Path

_ALL = 0x0003
#: Stand in every message of a run, and in nothing else that containers say to each other.
WORDS = (b"num-examples", b"safetensors", b"layout-hash", b"ArrayRecord", b"/v1/fleet/pull-object")


def listen(file: Path) -> None:
    """Write all frames that pass a bridge or the end of a container."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL)) as wire, file.open("wb", 0) as out:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 2**20)
        while True:
            frame, (interface, *_) = wire.recvfrom(2**16)
            # What two containers say to each other passes their own ends, and not the bridge itself.
            if interface.startswith(("br-", "veth")):
                out.write(frame)


def search(file: Path, folders: list[Path]) -> int:
    """Say what was found; returns the exit code."""
    heard = file.read_bytes()
    models = [path for folder in folders for path in folder.rglob("model.safetensors")]
    # The middle of a model is weights, which no other file has.
    pieces = [data[len(data) // 2 :][:64] for data in (path.read_bytes() for path in models)]
    found = [word for word in (*WORDS, *pieces) if word in heard]
    print(f"heard {len(heard)} bytes, searched {len(WORDS)} words and {len(pieces)} models, found {len(found)}")
    if len(heard) < 100_000 or not pieces:
        print("that is less than a run: nothing was listened to, or no model was left")
        return 1
    return 1 if found else 0


if __name__ == "__main__":
    if sys.argv[1] == "listen":
        listen(Path(sys.argv[2]))
    sys.exit(search(Path(sys.argv[2]), [Path(name) for name in sys.argv[3:]]))
