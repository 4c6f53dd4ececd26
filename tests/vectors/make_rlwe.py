"""Write the stored messages of ``rlwe``: ``python tests/vectors/make_rlwe.py``.

From fixed seeds, so that every byte follows. Run it only when the format changes, into a new ``v<number>`` folder; the
old ones stay as bad versions. The keys in the files are made for them alone and protect nothing.
"""

import hashlib
import json
from pathlib import Path

import numpy as np

from crypto import wire
from crypto.base import Plan, Tag
from crypto.rlwe.engine import Seeds, secret_multiplier
from crypto.rlwe.scheme import RlweSealer, RlweSum
from crypto.rlwe.threshold import RlweThreshold, public_bundle, setup

HERE = Path(__file__).parent / "rlwe" / "v1"
PLAN = Plan(length=5, clients=3, bound=2.0)
TAG = Tag(round=4, layout_hash=bytes(range(16)), length=5)
VECTORS = [[0.0, 2.0, -2.0, 0.25, -0.0625], [0.5, 2.0, -2.0, 0.25, 1.0], [0.3, -0.3, 1e-3, -1e-3, 9.0]]
MODES = ("symmetric", "public")
MEMBERS = 3


def seed(name: str) -> bytes:
    """Return 16 bytes that follow from a name."""
    return hashlib.sha256(name.encode()).digest()[:16]


def build(mode: str) -> RlweSum:
    """Return the description that the stored messages of a mode belong to."""
    return RlweSum(PLAN, value_bits=16, mode=mode)  # type: ignore[arg-type]


def good(mode: str) -> dict[str, object]:
    """Return one mode's messages: key, parts, total, and the exact sum."""
    sum_ = build(mode)
    server, key = sum_.keys_from(seed("public"), seed("secret"))
    sum_ = sum_.with_key(server.key_id)
    sealer, adder = sum_.sealer(key), sum_.adder(TAG)
    parts = [
        sealer.seal_with(np.array(v), TAG, Seeds(seed(f"public {i}"), seed(f"secret {i}")))
        for i, v in enumerate(VECTORS)
    ]
    for part in parts:
        adder.add(part)
    opened = sum_.opener(key).open([adder.total()], TAG)
    return {
        "clients_key": key.encode().hex(),
        "ring": sum_.parameters.ring,
        "moduli": list(sum_.parameters.moduli),
        "plain_bits": sum_.parameters.plain_bits,
        "vectors": VECTORS,
        "parts": [part.hex() for part in parts],
        "total": adder.total().hex(),
        "sum": opened.tolist(),
    }


def committee() -> dict[str, object]:
    """Return digests of a committee's messages, which are long: set-up, part, total, partial decryptions."""
    sum_ = RlweThreshold(PLAN, MEMBERS, openings=10, value_bits=16)
    made = [setup(sum_, seed("public"), m, seed(f"member {m}")) for m in range(MEMBERS)]
    messages = [message for message, _ in made]
    clients = public_bundle(sum_, messages)
    sum_ = sum_.with_key(clients.key_id)
    sealer: RlweSealer = sum_.sealer(clients)
    part = sealer.seal_with(np.array(VECTORS[0]), TAG, Seeds(seed("public 0"), seed("secret 0")))
    adder = sum_.adder(TAG)
    adder.add(part)
    total = adder.total()
    body = memoryview(total)[wire.HEADER_BYTES :]
    partials = [
        sum_.partial_with(body, secret_multiplier(sum_.parameters, share.secret), m, seed(f"smudge {m}"))
        for m, (_, share) in enumerate(made)
    ]
    planes = [sum_.read_partial(memoryview(p)) for p in partials]
    return {
        "moduli": list(sum_.parameters.moduli),
        "smudge_bits": sum_.parameters.smudge_bits,
        "setup_sha256": [digest(m) for m in messages],
        "part_sha256": digest(part),
        "total_sha256": digest(total),
        "partial_sha256": [digest(p) for p in partials],
        "sum": sum_.fuse_partials(planes, PLAN.length, 1).tolist(),
    }


def digest(data: bytes) -> str:
    """Return SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def bad(mode: str) -> dict[str, tuple[str, str, bytes]]:
    """Return name -> (expected error, method, message)."""
    sum_ = build(mode)
    server, key = sum_.keys_from(seed("public"), seed("secret"))
    sum_ = sum_.with_key(server.key_id)
    part = sum_.sealer(key).seal_with(np.array(VECTORS[0]), TAG, Seeds(seed("public 0"), seed("secret 0")))
    adder = sum_.adder(TAG)
    adder.add(part)
    total, header = adder.total(), sum_.header(TAG)
    body = bytes(part[wire.HEADER_BYTES :])
    flipped = bytearray(part)
    flipped[len(part) // 2] ^= 1

    def framed(kind: int, count: int, content: bytes, tag: Tag = TAG, identity: bytes = b"") -> bytes:
        key_id = identity or header.key_id
        return wire.encode(
            wire.Header(scheme=header.scheme, params_hash=header.params_hash, key_id=key_id, tag=tag),
            kind,
            count,
            content,
        )

    return {
        "bad_flipped_bit": ("IntegrityError", "add", bytes(flipped)),
        "bad_truncated": ("WireError", "add", part[:-1]),
        "bad_trailing_byte": ("WireError", "add", part + b"\0"),
        "bad_trailing_ciphertext_byte": ("WireError", "add", framed(wire.PART, 1, body + b"\0")),
        "bad_version": ("WireError", "add", part[:4] + b"\x02" + part[5:]),
        "bad_round": (
            "ReplayError",
            "add",
            framed(wire.PART, 1, body, Tag(round=3, layout_hash=TAG.layout_hash, length=5)),
        ),
        "bad_layout": (
            "LayoutMismatch",
            "add",
            framed(wire.PART, 1, body, Tag(round=4, layout_hash=bytes(16), length=5)),
        ),
        "bad_key": ("KeyMismatch", "add", framed(wire.PART, 1, body, identity=b"otherkey")),
        "bad_empty_body": ("WireError", "add", framed(wire.PART, 1, b"")),
        "bad_seed_only": ("WireError", "add", framed(wire.PART, 1, body[:16])),
        "bad_residue": ("WireError", "add", framed(wire.PART, 1, body[:-6] + b"\xff" * 6)),
        "bad_total_as_part": ("WireError", "add", total),
        "bad_part_as_total": ("WireError", "merge", part),
        "bad_residue_of_a_total": (
            "WireError",
            "merge",
            framed(wire.TOTAL, 1, total[wire.HEADER_BYTES : -6] + b"\xff" * 6),
        ),
        "bad_count": ("WireError", "merge", framed(wire.TOTAL, 4, total[wire.HEADER_BYTES :])),
        "bad_count_of_none": ("WireError", "merge", framed(wire.TOTAL, 0, total[wire.HEADER_BYTES :])),
    }


def write(path: Path, record: dict[str, object]) -> None:
    """Write one file."""
    path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    HERE.mkdir(parents=True, exist_ok=True)
    for chosen in MODES:
        write(HERE / f"sum_of_three_{chosen}.json", good(chosen))
    write(HERE / "committee.json", committee())
    for name, (error, method, message) in bad("symmetric").items():
        write(HERE / f"{name}.json", {"error": error, "method": method, "message": message.hex()})
