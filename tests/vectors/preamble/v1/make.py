"""Writes the vectors beside this file, with the slow reference only; run it when the protocol's version changes."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from crypto.preamble import reference
from crypto.preamble.dpf import PRIME, Group, Report, Shape

HERE = Path(__file__).parent
TASK, NONCE = bytes(range(16)), bytes(range(16, 32))
SEEDS = (bytes(range(32, 48)), bytes(range(48, 64)))
SHAPES = {
    "z32_t3": Shape(group=Group.Z32, groups=2, blocks=3, length=5),
    "z32_t64": Shape(group=Group.Z32, groups=1, blocks=64, length=4),
    "z64_t1": Shape(group=Group.Z64, groups=3, blocks=1, length=4),
    "z64_t12": Shape(group=Group.Z64, groups=2, blocks=12, length=17),
    "field64_t5": Shape(group=Group.FIELD64, groups=2, blocks=5, length=3),
    "field64_t8": Shape(group=Group.FIELD64, groups=1, blocks=8, length=33),
}
#: Leaf seeds whose first 4096 words hold one at or above p, found by search; the word's index beside it.
REJECTING = {"68e80a00000000000000000000000000": 3425, "8c570d00000000000000000000000000": 1972}


def describe(shape: Shape) -> dict[str, Any]:
    return {"group": shape.group.name, "groups": shape.groups, "blocks": shape.blocks, "length": shape.length}


def write(name: str, content: dict[str, Any]) -> None:
    (HERE / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")


def payload(shape: Shape) -> np.ndarray:
    """Words with small, large and negative values."""
    words = [
        pow(7, i, shape.group.order) if i % 3 else (-i) % shape.group.order for i in range(shape.groups * shape.length)
    ]
    return np.array(words, shape.group.dtype).reshape(shape.groups, shape.length)


def head(role: int, version: int = 1, task: bytes = TASK) -> bytes:
    return bytes([version, role]) + task + NONCE + SEEDS[0]


def good(name: str, shape: Shape) -> bytes:
    indices = [(shape.blocks - 1 - g) % shape.blocks for g in range(shape.groups)]
    body = reference.shard(shape, TASK, NONCE, SEEDS, indices, payload(shape))
    views = [Report(shape, TASK, NONCE, seed, body) for seed in SEEDS]
    write(
        name,
        {
            "shape": describe(shape),
            "task": TASK.hex(),
            "nonce": NONCE.hex(),
            "seeds": [s.hex() for s in SEEDS],
            "indices": indices,
            "payload": payload(shape).tobytes().hex(),
            "body": body.hex(),
            "digest": views[0].digest.hex(),
            "proof": reference.prove(views[0], 0).hex(),
            "expansions": [reference.expand(v, b).tobytes().hex() for b, v in enumerate(views)],
            "leader": (head(0) + body).hex(),
        },
    )
    return body


def bad(name: str, shape: Shape, data: bytes, error: str, match: str) -> None:
    write(
        f"bad_{name}",
        {"shape": describe(shape), "task": TASK.hex(), "leader": data.hex(), "error": error, "match": match},
    )


def main() -> None:
    bodies = {name: good(name, shape) for name, shape in SHAPES.items()}
    for seed, at in REJECTING.items():
        words = reference.stretch(Group.FIELD64, int.from_bytes(bytes.fromhex(seed), "little"), 4096)
        write(
            f"field64_rejection_{at}",
            {
                "seed": seed,
                "rejected_at": at,
                "around": [int(w) for w in words[at - 1 : at + 2]],
                "sha256": hashlib.sha256(words.tobytes()).hexdigest(),
            },
        )
    shape, body = SHAPES["z32_t3"], bodies["z32_t3"]
    bad("short", shape, (head(0) + body)[:-1], "WireError", "these parameters make exactly")
    bad("trailing_byte", shape, head(0) + body + b"\0", "WireError", "these parameters make exactly")
    bad("empty", shape, b"", "WireError", "part of 0 bytes")
    bad("version", shape, head(0, version=2) + body, "WireError", "version 2")
    bad("role", shape, head(1) + body, "WireError", "role 1")
    bad("other_task", shape, head(0, task=b"x" * 16) + body, "ReplayError", "old messages are not counted")
    bad("other_depth", SHAPES["z64_t12"], head(0) + body, "WireError", "these parameters make exactly")
    set_bit = bytearray(body)
    set_bit[16] |= 1
    bad("seed_bit", shape, head(0) + bytes(set_bit), "WireError", "lowest bit")
    unused = bytearray(body)
    unused[2 * 2 * 16 + 1] |= 1 << 4
    bad("unused_bits", shape, head(0) + bytes(unused), "WireError", "above level 2")
    field, field_body = SHAPES["field64_t5"], bodies["field64_t5"]
    bad("field_word", field, head(0) + field_body[:-8] + PRIME.to_bytes(8, "little"), "WireError", "not canonical")


if __name__ == "__main__":
    main()
