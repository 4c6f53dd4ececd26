"""Our additive RLWE beside TenSEAL's usual context and seeded BFV on SEAL, in one run, with ratio gates.

``python -m experiments.bench.rlwe`` seals, adds and opens one million parameters for 1000 clients, 20-bit values, one
thread, and prints CPU seconds, their ratios, bytes a parameter at 20 and at 10 bits, and the rate at which the server
adds ciphertext: the arithmetic alone (unpack, check, expand the seed, add), and with the frame's checksum. ``--quick``
uses fewer parameters. Ends with 1 if a gate is missed.
"""

import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import typer

from crypto import _native, wire
from crypto.base import Plan, Tag
from crypto.he_seal import BfvSum
from crypto.prg import RLWE, stream_key
from crypto.rlwe.engine import empty_words, native_ring
from crypto.rlwe.parameters import SEED_BYTES
from crypto.rlwe.scheme import RlweSum
from crypto.rlwe.threshold import RlweThreshold
from experiments.bench.he import SEED, Measured, cpu_s, measure, measure_tenseal_usual


@dataclass(frozen=True, slots=True)
class Limit:
    """One gate: what it is, the measured figure, and its bar."""

    name: str
    value: float
    bar: float
    at_least: bool

    def met(self) -> bool:
        """Whether the figure is on the right side."""
        return self.value >= self.bar if self.at_least else self.value <= self.bar

    def __str__(self) -> str:
        word = "at least" if self.at_least else "at most"
        return f"{'ok    ' if self.met() else 'MISSED'}  {self.name:<62} {self.value:9.3g}   ({word} {self.bar:g})"


def add_rate(sum_: RlweSum, repeats: int) -> tuple[float, float]:
    """Return GB of ciphertext that one core adds in a CPU second: the arithmetic, and with the frame's checksum."""
    server, clients = sum_.make_keys()
    bound, length = sum_.with_key(server.key_id), sum_.plan.length
    tag = Tag(round=0, layout_hash=bytes(16), length=length)
    vector = np.random.default_rng(SEED).uniform(-1, 1, length).astype(np.float32)
    (part,) = bound.sealer(clients).seal(vector, tag)
    p = sum_.parameters
    ring, body = native_ring(p), memoryview(part)[wire.HEADER_BYTES :]
    first, second = empty_words(p, p.ciphertexts(length)), empty_words(p, p.ciphertexts(length))

    def arithmetic() -> None:
        assert ring.add_plane(np.frombuffer(body[SEED_BYTES:], np.uint8), first)
        ring.add_uniform(stream_key(bytes(body[:SEED_BYTES]), RLWE), second)

    adder = bound.adder(tag)
    adder.add(part)
    return tuple(  # type: ignore[return-value]
        len(part) / cpu_s(work, repeats) / 1e9 for work in (arithmetic, lambda: adder.add(part))
    )


def bytes_a_parameter(value_bits: int, length: int, clients: int) -> float:
    """Return the upload of the symmetric mode."""
    plan = Plan(length=length, clients=clients, bound=1.0)
    return RlweSum(plan, value_bits=value_bits).budget.upload_bytes / length


def threshold_opening(length: int, clients: int, parties: int, repeats: int) -> tuple[float, float]:
    """Return CPU seconds of one member's partial decryption and of the fusion of all."""
    sum_ = RlweThreshold(Plan(length=length, clients=clients, bound=1.0), parties, openings=100)
    server, public, *members = sum_.make_keys()
    bound, tag = sum_.with_key(server.key_id), Tag(round=0, layout_hash=bytes(16), length=length)
    adder = bound.adder(tag)
    adder.add(bound.sealer(public).seal(np.zeros(length, np.float32), tag)[0])
    total = adder.total()
    partials = [bound.partial_opener(member).partial(total, tag) for member in members]

    def fuse() -> None:
        fuser = bound.fuser(tag, total)
        for partial in partials:
            fuser.add(partial)
        fuser.open()

    return cpu_s(lambda: bound.partial_opener(members[1]).partial(total, tag), repeats), cpu_s(fuse, repeats)


def line(name: str, row: Measured, length: int) -> str:
    """Lay out one scheme's row."""
    figures = "  ".join(f"{1e3 * s:8.1f}" for s in (row.seal_s, row.add_s, row.open_s))
    return f"{name:<18} {row.upload_bytes / length:7.2f}  {figures}"


def all_limits(
    ours: Measured, bfv: Measured, tenseal: Measured, rate: float, size: Callable[[int], float]
) -> list[Limit]:
    """Return the gates."""
    return [
        Limit("bytes a parameter up, 20-bit values", size(20), 5.5, False),
        Limit("bytes a parameter up, 10-bit values", size(10), 4.2, False),
        Limit("seconds to seal, TenSEAL's usual context over rlwe", tenseal.seal_s / ours.seal_s, 20, True),
        Limit("seconds to seal, seeded bfv over rlwe", bfv.seal_s / ours.seal_s, 5, True),
        Limit("seconds to open, TenSEAL's usual context over rlwe", tenseal.open_s / ours.open_s, 20, True),
        Limit("GB of ciphertext a core adds in a second, arithmetic", rate, 1, True),
    ]


def main(
    length: Annotated[int, typer.Option(help="parameters")] = 1_000_000,
    clients: Annotated[int, typer.Option(help="clients that the parameters are chosen for")] = 1000,
    repeats: Annotated[int, typer.Option(help="repeats; medians are shown")] = 5,
    quick: Annotated[bool, typer.Option("--quick", help="100,000 parameters, 3 repeats")] = False,
) -> None:
    """Measure our additive RLWE and check its gates."""
    if quick:
        length, repeats = 100_000, 3
    plan = Plan(length=length, clients=clients, bound=1.0)
    ours = {mode: RlweSum(plan, value_bits=20, mode=mode) for mode in ("symmetric", "public")}  # type: ignore[arg-type]
    rows = {f"rlwe-{m}": measure(f"rlwe-{m}", s, s.ciphertexts(length), repeats) for m, s in ours.items()}
    bfv = BfvSum(plan, value_bits=20)
    rows["bfv-symmetric"] = measure("bfv-symmetric", bfv, bfv.ciphertexts(length), min(repeats, 2))
    rows["tenseal-usual"] = measure_tenseal_usual(length, 1)
    print(f"{length} parameters, {clients} clients, 20-bit values, ring kernels {_native.ring_isas()[0]}; CPU ms")
    print(f"{'scheme':<18} {'B/param':>7}  {'seal':>8}  {'add':>8}  {'open':>8}")
    for name, row in rows.items():
        print(line(name, row, length))
    partial_s, fuse_s = threshold_opening(length, clients, 3, min(repeats, 2))
    print(f"rlwe-threshold, 3 members: partial decryption {1e3 * partial_s:.1f} ms, fusion {1e3 * fuse_s:.1f} ms")
    rate, framed = add_rate(ours["symmetric"], repeats)
    block = bytes(5_000_000)
    checksum = 5e-3 / cpu_s(lambda: hashlib.blake2b(block), repeats)
    print(f"adding with the frame's checksum: {framed:.2f} GB/s (the checksum alone {checksum:.2f} GB/s)")
    limits = all_limits(
        rows["rlwe-symmetric"],
        rows["bfv-symmetric"],
        rows["tenseal-usual"],
        rate,
        lambda bits: bytes_a_parameter(bits, length, clients),
    )
    print("\n".join(str(limit) for limit in limits))
    sys.exit(0 if all(limit.met() for limit in limits) else 1)


if __name__ == "__main__":
    typer.run(main)
