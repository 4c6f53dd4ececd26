"""Write the stored messages of the homomorphic sums: ``python tests/vectors/make_he.py``.

Run it only when the wire format changes, into a new ``v<number>`` folder; the old ones stay as bad versions. The keys
in the files are made for them alone and protect nothing.
"""

import base64
import json
from pathlib import Path

import numpy as np

from crypto import wire
from crypto.base import Plan, Tag
from crypto.ckks import CkksParameters
from crypto.he_seal import BfvSum
from crypto.he_tenseal import CkksSum
from crypto.keys import KeyedSum

HERE = Path(__file__).parent
PLAN = Plan(length=5, clients=3, bound=2.0)
TAG = Tag(round=4, layout_hash=bytes(range(16)), length=5)
VECTORS = [[0.0, 2.0, -2.0, 0.25, -0.0625], [0.5, 2.0, -2.0, 0.25, 1.0], [0.0, 0.0, 0.0, 0.0, 0.0]]


def text(data: bytes | bytearray) -> str:
    """Return bytes as they stand in the files."""
    return base64.b64encode(bytes(data)).decode()


def build(scheme: str) -> KeyedSum:
    """Return the description that the stored messages belong to."""
    if scheme == "bfv":
        return BfvSum(PLAN, value_bits=16, stochastic=False)
    return CkksSum(PLAN, parameters=CkksParameters(2048, (54,), 40, special=False))


def bad(sum_: KeyedSum, part: bytes, total: bytes) -> dict[str, tuple[str, str, bytes]]:
    """Return name -> (expected error, method, message)."""
    header, body = sum_.header(TAG), bytes(wire.decode(part, sum_.header(TAG), wire.PART).body)
    flipped = bytearray(part)
    flipped[len(part) // 2] ^= 1

    def framed(kind: int, count: int, content: bytes, tag: Tag = TAG) -> bytes:
        return wire.encode(
            wire.Header(scheme=header.scheme, params_hash=header.params_hash, key_id=header.key_id, tag=tag),
            kind,
            count,
            content,
        )

    other_round = Tag(round=3, layout_hash=TAG.layout_hash, length=5)
    other_layout = Tag(round=4, layout_hash=bytes(16), length=5)
    return {
        "bad_flipped_bit": ("IntegrityError", "add", bytes(flipped)),
        "bad_truncated": ("WireError", "add", part[:-1]),
        "bad_trailing_byte": ("WireError", "add", part + b"\0"),
        "bad_trailing_ciphertext_byte": ("WireError", "add", framed(wire.PART, 1, body + b"\0")),
        "bad_version": ("WireError", "add", part[:4] + b"\x02" + part[5:]),
        "bad_round": ("ReplayError", "add", framed(wire.PART, 1, body, other_round)),
        "bad_layout": ("LayoutMismatch", "add", framed(wire.PART, 1, body, other_layout)),
        "bad_empty_body": ("WireError", "add", framed(wire.PART, 1, b"")),
        "bad_ciphertext_length": ("WireError", "add", framed(wire.PART, 1, b"\xff\xff\xff\xff" + body[4:])),
        "bad_total_as_part": ("WireError", "add", total),
        "bad_part_as_total": ("WireError", "merge", part),
        "bad_count": ("WireError", "merge", framed(wire.TOTAL, 4, total[wire.HEADER_BYTES :])),
    }


def write(scheme: str, folder: Path) -> None:
    """Write one scheme's files."""
    folder.mkdir(parents=True, exist_ok=True)
    sum_ = build(scheme)
    _, key = sum_.make_keys()
    sum_ = sum_.with_key(key.key_id)
    sealer, adder = sum_.sealer(key), sum_.adder(TAG)
    parts = [sealer.seal(np.array(v), TAG)[0] for v in VECTORS]
    for part in parts:
        adder.add(part)
    total = adder.total()
    good = {
        "clients_key": text(key.encode()),
        "vectors": VECTORS,
        "parts": [text(p) for p in parts],
        "total": text(total),
        "sum": [float(x) for x in np.sum(VECTORS, axis=0)],
    }
    (folder / "sum_of_three.json").write_text(json.dumps(good, indent=1) + "\n")
    for name, (error, method, message) in bad(sum_, parts[0], total).items():
        record = {"error": error, "method": method, "message": text(message)}
        (folder / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    for name in ("bfv", "ckks"):
        write(name, HERE / name / "v1")
