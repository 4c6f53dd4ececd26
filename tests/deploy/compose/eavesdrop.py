"""Listens to all containers' interfaces, and searches what they say: eavesdrop.py listen|search|hear FILE FOLDER...

`listen` writes all frames until it is stopped; `search` ends with 1 where a word of Flower's messages, the head of a
sealed vector, or a piece of a model that the run left went over a network in the clear. `hear` is the opposite, for a
control: it ends with 1 unless all words and most pieces are there.
"""

import socket
import sys
from pathlib import Path

_ALL = 0x0003
#: Stand in every message of a run, and in nothing else that containers say to each other. The last is the head of
#: every update, total and share, whatever protects it.
WORDS = (b"num-examples", b"layout-hash", b"ArrayRecord", b"/v1/fleet/push-object", b"FSIM\x01\x01")
_PIECES, _PIECE_BYTES = 16, 64


def listen(file: Path) -> None:
    """Write all frames that pass a bridge or the end of a container."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL)) as wire, file.open("wb", 0) as out:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 2**20)
        while True:
            frame, (interface, *_) = wire.recvfrom(2**16)
            # What two containers say to each other passes their own ends, and not the bridge itself.
            if interface.startswith(("br-", "veth")):
                out.write(frame)


def models(folders: list[Path]) -> list[bytes]:
    """Return all models and checkpoints that a run left."""
    files = [p for f in folders for end in ("safetensors", "ckpt") for p in f.rglob(f"*.{end}")]
    return [path.read_bytes() for path in files]


def pieces(folders: list[Path]) -> list[bytes]:
    """Return pieces of all models that a run left: weights, which no other file has."""
    found = set()
    for data in models(folders):
        for at in range(_PIECES):
            piece = data[len(data) * (2 * at + 1) // (2 * _PIECES) :][:_PIECE_BYTES]
            # Not a row of zeros, which other data have as well.
            if len(set(piece)) > _PIECE_BYTES // 2:
                found.add(piece)
    return sorted(found)


def search(file: Path, folders: list[Path], *, must: bool) -> int:
    """Say what was found; returns the exit code.

    Args:
        file: what was listened to.
        folders: that hold models.
        must: whether the words and pieces must be there, or must not.
    """
    heard, wanted = file.read_bytes(), pieces(folders)
    words = [word for word in WORDS if word in heard]
    weights = [piece for piece in wanted if piece in heard]
    print(
        f"heard {len(heard)} bytes: found {len(words)} of {len(WORDS)} words and {len(weights)} of {len(wanted)} "
        "pieces of models"
    )
    if len(heard) < 100_000 or not wanted:
        print("that is less than a run: nothing was listened to, or no model was left")
        return 1
    if must:
        # A piece may lie across two frames.
        return int(len(words) < len(WORDS) or 2 * len(weights) < len(wanted))
    return int(bool(words or weights))


if __name__ == "__main__":
    if sys.argv[1] == "listen":
        listen(Path(sys.argv[2]))
    sys.exit(search(Path(sys.argv[2]), [Path(name) for name in sys.argv[3:]], must=sys.argv[1] == "hear"))
