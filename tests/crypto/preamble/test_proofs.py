"""One-block proofs: honest reports pass, several blocks or two public shares do not; each defence is seen to matter."""

from dataclasses import replace

import numpy as np
import pytest

from crypto.preamble import dpf, reference
from crypto.preamble.dpf import CHECK_BYTES, Group, Report, Shape

TASK = bytes(range(16))
SHAPE = Shape(group=Group.Z64, groups=1, blocks=8, length=2)
Pair = tuple[Report, Report]


class Forged(Report):
    """A report whose root seeds were chosen by an attacker, which no private seed would give."""

    def __init__(self, report: Report, roots: bytes) -> None:
        super().__init__(report.shape, report.task, report.nonce, report.seed, report.body)
        object.__setattr__(self, "_roots", roots)

    def roots(self, server: int) -> bytes:
        return bytes(self.__dict__["_roots"])


def honest(rng: np.random.Generator, shape: Shape = SHAPE) -> Pair:
    nonce, seeds = rng.bytes(16), (rng.bytes(16), rng.bytes(16))
    indices = rng.integers(0, shape.blocks, shape.groups).astype(np.uint32)
    payload = rng.integers(1, 2**32, (shape.groups, shape.length), dtype=np.uint64).astype(shape.group.dtype)
    body = dpf.shard(shape, TASK, nonce, seeds, indices, payload)
    return Report(shape, TASK, nonce, seeds[0], body), Report(shape, TASK, nonce, seeds[1], body)


def verdicts(pairs: list[Pair]) -> list[bool]:
    shape = pairs[0][0].shape
    proofs = [dpf.prove(shape, server, [p[server] for p in pairs]) for server in range(2)]
    return [a == b for a, b in zip(*proofs, strict=True)]


def blocks_of(pair: Pair) -> int:
    """Return the number of non-zero blocks of the vector that two reports add up to."""
    shape = pair[0].shape
    totals = [dpf.empty_total(shape) for _ in range(2)]
    for server in range(2):
        dpf.accumulate(shape, server, [pair[server]], totals[server])
    return int((dpf.unshard(shape, *totals) != 0).any(axis=2).sum())


def with_body(pair: Pair, body: bytes) -> Pair:
    return replace(pair[0], body=body), replace(pair[1], body=body)


@pytest.mark.parametrize("group", Group)
@pytest.mark.parametrize("blocks", [1, 2, 7, 8, 20])
def test_honest_reports_pass(group: Group, blocks: int) -> None:
    rng = np.random.default_rng(blocks)
    shape = Shape(group=group, groups=3, blocks=blocks, length=2)
    assert all(verdicts([honest(rng, shape) for _ in range(200)]))


def tampered(rng: np.random.Generator, pair: Pair, kind: str) -> Pair:
    """Flip one random bit of the part called `kind`, the same way for both servers (a root: for one of them)."""
    at_bits, at_checks = 16 * SHAPE.depth, 16 * SHAPE.depth + SHAPE.bit_bytes
    if kind == "root":
        roots = bytearray(pair[0].roots(0))
        bit = int(rng.integers(1, 128))
        roots[bit // 8] ^= 1 << bit % 8
        return Forged(pair[0], bytes(roots)), pair[1]
    first, bits = {"seed": (0, 8 * at_bits), "bit": (at_bits, 2 * SHAPE.depth), "check": (at_checks, 8 * CHECK_BYTES)}[
        kind
    ]
    bit = 8 * first + int(rng.integers(bits))
    body = bytearray(pair[0].body)
    body[bit // 8] ^= 1 << bit % 8
    return with_body(pair, bytes(body))


def test_ten_thousand_tamperings_never_pass_with_more_than_one_block() -> None:
    rng = np.random.default_rng(1)
    originals = [honest(rng) for _ in range(50)]
    kinds = ["seed", "bit", "check", "root"]
    pairs = [tampered(rng, originals[i % 50], kinds[i % 4]) for i in range(10_000)]
    accepted = [pair for pair, ok in zip(pairs, verdicts(pairs), strict=True) if ok]
    assert [blocks_of(p) for p in accepted if blocks_of(p) > 1] == []
    assert len(accepted) == 0


def equal_seed_attack(rng: np.random.Generator) -> Pair:
    """Equal roots, no seed correction, both bit corrections set, no check: every leaf's control bits differ."""
    pair = honest(rng)
    bits = (2 ** (2 * SHAPE.depth) - 1).to_bytes(SHAPE.bit_bytes, "little")
    block = pair[0].body[-SHAPE.block_bytes :]
    a, b = with_body(pair, bytes(16 * SHAPE.depth) + bits + bytes(CHECK_BYTES) + block)
    root = rng.bytes(16)
    return Forged(a, root), Forged(b, root)


def test_equal_seeds_are_refused_because_the_hash_covers_the_control_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = equal_seed_attack(np.random.default_rng(2))
    assert blocks_of(pair) == SHAPE.blocks
    assert verdicts([pair]) == [False]
    covered = reference.leaf_hash
    assert reference.prove(pair[0], 0) != reference.prove(pair[1], 1)
    monkeypatch.setattr(
        reference, "leaf_hash", lambda binding, group, index, seed, bit: covered(binding, group, index, seed, 0)
    )
    assert reference.prove(pair[0], 0) == reference.prove(pair[1], 1), "without the bit the attack passes"


def equivocation(rng: np.random.Generator) -> Pair:
    """The two servers get different block corrections."""
    first, second = honest(rng)
    body = bytearray(second.body)
    body[-1] ^= 1
    return first, replace(second, body=bytes(body))


@pytest.mark.report("U36")
def test_two_public_shares_are_refused_because_the_proof_binds_them() -> None:
    pairs = [equivocation(np.random.default_rng(seed)) for seed in range(20)]
    assert np.mean([blocks_of(p) for p in pairs]) > 2
    assert not any(verdicts(pairs))
    for first, second in pairs:
        # Were the digest not bound, that is, the same on both sides, the attack would pass.
        second.__dict__["digest"] = first.digest
        assert verdicts([(first, second)]) == [True]


def test_a_changed_block_correction_stays_one_block_and_passes() -> None:
    pair = honest(np.random.default_rng(4))
    body = bytearray(pair[0].body)
    body[-3] ^= 0x55
    changed = with_body(pair, bytes(body))
    assert verdicts([changed]) == [True]
    assert blocks_of(changed) == 1


def test_proofs_depend_on_task_and_nonce() -> None:
    pair = honest(np.random.default_rng(5))
    for other in (replace(pair[0], task=b"t" * 16), replace(pair[0], nonce=b"n" * 16)):
        assert dpf.prove(SHAPE, 0, [other]) != dpf.prove(SHAPE, 0, [pair[0]])


def test_proofs_do_not_depend_on_threads_or_batches() -> None:
    rng = np.random.default_rng(6)
    reports = [honest(rng)[0] for _ in range(9)]
    one_by_one = [dpf.prove(SHAPE, 0, [r])[0] for r in reports]
    assert dpf.prove(SHAPE, 0, reports, threads=4) == one_by_one
    assert dpf.prove(SHAPE, 0, []) == []
