"""PREAMBLE's speed as ratios, which hold on a busy machine: python -m experiments.bench.preamble [--quick].

Times are CPU seconds of this process, the least of several runs. Prints one line a measure with its bar; exits with 1
if a bar is missed, except where the machine lacks the instructions that the bar is about.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

from crypto import _native, prg
from crypto.preamble import dpf, reference
from crypto.preamble.dpf import Group, Report, Shape
from experiments.bench.peak import peak_bytes

TASK = bytes(16)


def cpu_s(work: Callable[[], object], repeats: int) -> float:
    """Return the least CPU time of one call, after one to warm up."""
    work()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def cpu_ratio(work: Callable[[], object], other: Callable[[], object], repeats: int) -> float:
    """Return least time over least time, run in turns, so that both meet the same neighbours."""
    pairs = [(cpu_s(work, 1), cpu_s(other, 1)) for _ in range(repeats)]
    return min(p[0] for p in pairs) / min(p[1] for p in pairs)


def make(shape: Shape, seed: int = 0) -> Report:
    """Return server 0's report of a random block-sparse vector."""
    rng = np.random.default_rng(seed)
    payload = rng.integers(0, shape.group.order, (shape.groups, shape.length), dtype=np.uint64).astype(
        shape.group.dtype
    )
    nonce, seeds = rng.bytes(16), (rng.bytes(16), rng.bytes(16))
    indices = rng.integers(0, shape.blocks, shape.groups).astype(np.uint32)
    return Report(shape, TASK, nonce, seeds[0], dpf.shard(shape, TASK, nonce, seeds, indices, payload))


def openssl_gb_s(processes: int | None = None) -> float | None:
    """Return what ``openssl speed`` gives for AES-128-CTR in 16 KiB buffers, or None without openssl.

    Args:
        processes: so many at one time, by wall time, all of them together; ``None`` for one by its CPU time.
    """
    command = ["openssl", "speed", "-seconds", "1", "-bytes", "16384", "-evp", "aes-128-ctr"]
    command += [] if processes is None else ["-elapsed", "-multi", str(processes)]
    try:
        text = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    except FileNotFoundError:
        return None
    found = re.findall(r"([0-9.]+)k", text)
    return float(found[-1]) / 1e6 if found else None


class Board:
    """Prints measures and remembers which bars were missed."""

    def __init__(self) -> None:
        self.missed = 0

    def say(
        self, name: str, value: float, unit: str, at_least: float | None = None, at_most: float | None = None
    ) -> None:
        """Print one measure; a bar decides the exit code."""
        bar = "" if at_least is None else f">= {at_least}"
        bar += "" if at_most is None else f"<= {at_most}"
        ok = (at_least is None or value >= at_least) and (at_most is None or value <= at_most)
        self.missed += not ok
        sys.stdout.write(
            f"{name:<58} {value:10.3f} {unit:<8} {bar:<10} {'ok' if bar and ok else 'MISSED' if bar else ''}\n"
        )


#: Output of the generator while a client is added, GB/s of one core, by instruction set.
FUSED_BARS = {"vaes": 9.0, "aesni": 6.0}


def prg_speed(board: Board, shape: Shape, repeats: int) -> None:
    """Keystream, and the same fused with correction and accumulation, beside openssl's."""
    theirs = openssl_gb_s()
    if theirs is not None:
        board.say("openssl speed -evp aes-128-ctr", theirs, "GB/s")
    out = np.empty(16384, np.uint8)
    report, total = make(shape), dpf.empty_total(shape)
    for isa in prg.isas():
        calls = 20 if isa == "generic" else 1000

        def stream(isa: str = isa, calls: int = calls) -> None:
            for _ in range(calls):
                _native.aes_stream(TASK, TASK, out, isa)

        board.say(f"AES-128-CTR, {isa}", calls * out.size / cpu_s(stream, repeats) / 1e9, "GB/s")
        batch = [report] * (1 if isa == "generic" else 8)
        spent = cpu_s(lambda isa=isa, batch=batch: dpf.accumulate(shape, 0, batch, total, 1, isa), repeats)  # type: ignore[misc]
        fused = len(batch) * total.nbytes / spent / 1e9
        board.say(f"PRG output while accumulating, {isa}", fused, "GB/s", at_least=FUSED_BARS.get(isa))
        if theirs is not None:
            bar = None if isa == "generic" else 0.6
            board.say(f"PRG output while accumulating / openssl, {isa}", fused / theirs, "ratio", at_least=bar)


def client_speed(board: Board, shape: Shape, repeats: int) -> None:
    """Key generation beside stretching its own payload twice."""
    rng = np.random.default_rng(1)
    payload = rng.integers(0, shape.group.order, (shape.groups, shape.length), dtype=np.uint64).astype(
        shape.group.dtype
    )
    indices, block = np.zeros(shape.groups, np.uint32), np.empty(shape.block_bytes, np.uint8)

    def stretch_twice() -> None:
        for _ in range(2 * shape.groups):
            _native.dpf_stretch(shape.group.value, TASK, block)

    def generate() -> None:
        dpf.shard(shape, TASK, TASK, (TASK, TASK), indices, payload)

    ratio = cpu_ratio(generate, stretch_twice, 6 * repeats)
    board.say(f"key generation / two stretches, {shape.group.name}", ratio, "ratio", at_most=1.5)


def server_speed(board: Board, shape: Shape, repeats: int, bar: float | None) -> None:
    """One pass over a client's report beside one addition of an array as long as the total."""
    report, total = make(shape), dpf.empty_total(shape)
    other = np.ones_like(total)
    batch = [report] * 8
    one_pass = cpu_s(lambda: dpf.accumulate(shape, 0, batch, total), repeats) / len(batch)

    def add_array() -> None:
        np.add(total, other, out=total)

    together = cpu_ratio(lambda: dpf.accumulate(shape, 0, batch, total), add_array, repeats) / len(batch)
    alone = cpu_ratio(lambda: dpf.accumulate(shape, 0, batch[:1], total), add_array, repeats)
    name = f"{shape.group.name}, {total.nbytes >> 20} MiB"
    board.say(f"EvalAll + accumulate, {name}, a client", one_pass * 1e3, "ms")
    board.say(f"PRG output while accumulating, {name}", total.nbytes / one_pass / 1e9, "GB/s")
    board.say(f"pass / adding one array, {name}", together, "ratio", at_most=bar)
    board.say(f"the same for a client alone, {name}", alone, "ratio", at_most=bar)
    proof = cpu_s(lambda: dpf.prove(shape, 0, [report]), repeats)
    board.say(f"one-block proof / pass, {name}", proof / one_pass, "ratio")


def against_reference(board: Board, repeats: int) -> None:
    """Native beside the numpy reference, one report of 2^18 words."""
    shape = Shape(group=Group.Z32, groups=16, blocks=16, length=1024)
    report, total = make(shape), dpf.empty_total(shape)
    slow = cpu_s(lambda: reference.accumulate(shape, 0, [report], total), max(1, repeats // 3))
    fast = cpu_s(lambda: [dpf.accumulate(shape, 0, [report], total) for _ in range(10)], repeats) / 10
    board.say("numpy reference / native, Z32, 1 MiB", slow / fast, "ratio", at_least=15)


#: Load of a machine that is quiet, and what two threads of it must give there.
_QUIET_LOAD, _TWO_THREADS = 0.5, 1.7


def threads(board: Board, turns: int = 5) -> None:
    """Two threads beside one by wall time, and beside them what two processors give two processes of openssl's.

    The bar holds where both processors are ours: on a quiet machine, or under a real-time scheduler (`chrt -f 5`). All
    are run in turns and the best of each counts, so that neighbours who come and go spoil single turns only.
    """
    load = os.getloadavg()[0]
    alone = load < _QUIET_LOAD or os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR)
    shape = Shape(group=Group.Z64, groups=32, blocks=64, length=1024)
    batch, total = [make(shape)] * 8, dpf.empty_total(shape)

    def wall(count: int) -> float:
        start = time.perf_counter()
        dpf.accumulate(shape, 0, batch, total, count)
        return time.perf_counter() - start

    wall(2)
    times, theirs = [], []
    for _ in range(turns):
        times += [(wall(1), wall(2)) for _ in range(10)]
        theirs.append((openssl_gb_s(1) or 0.0, openssl_gb_s(2) or 0.0))
    ours = min(t[0] for t in times) / min(t[1] for t in times)
    bar = _TWO_THREADS if alone else None
    board.say(f"one thread / two threads, wall time, load {load:.1f}", ours, "ratio", at_least=bar)
    if max(t[0] for t in theirs) > 0:
        ceiling = max(t[1] for t in theirs) / max(t[0] for t in theirs)
        board.say("openssl speed, two processes / one, wall time", ceiling, "ratio")
        board.say("two threads / two processes of openssl's", ours / ceiling, "ratio")


def memory(board: Board, clients: int) -> None:
    """Peak memory of a server that adds many clients of 2^20 words in batches."""
    shape = Shape(group=Group.Z64, groups=64, blocks=16, length=1024)
    total = dpf.empty_total(shape)
    dpf.accumulate(shape, 0, [make(shape, 0)] * 16, total)
    before = peak_bytes()
    start = time.process_time()
    for i in range(0, clients, 16):
        dpf.accumulate(shape, 0, [make(shape, i)] * min(16, clients - i), total)
    spent = time.process_time() - start
    grown = (peak_bytes() - before) / 2**20
    board.say(f"{clients} clients x 2^20 words, CPU", spent, "s")
    board.say(f"{clients} clients x 2^20 words, growth of peak memory", grown, "MiB", at_most=16)


def main(arguments: list[str] | None = None) -> int:
    """Run all measures; return the exit code: 1 if a bar was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a sixteenth of the sizes, to see that it runs")
    parser.add_argument("--threads", action="store_true", help="one and two threads alone")
    given = parser.parse_args(arguments)
    quick = given.quick
    repeats, groups = (2, 4) if quick else (7, 64)
    board = Board()
    if given.threads:
        threads(board)
        return 1 if board.missed else 0
    against_reference(board, repeats)
    z32 = Shape(group=Group.Z32, groups=groups, blocks=128, length=1024)
    z64 = Shape(group=Group.Z64, groups=groups, blocks=64, length=2048)
    field = Shape(group=Group.FIELD64, groups=groups, blocks=64, length=2048)
    prg_speed(board, z32, repeats)
    for shape in (z32, z64, field):
        client_speed(board, shape, repeats)
    server_speed(board, z32, repeats, bar=1.5)
    server_speed(board, z64, repeats, bar=None)
    server_speed(board, field, repeats, bar=None)
    threads(board, 1 if quick else 5)
    memory(board, 32 if quick else 1000)
    return 1 if board.missed else 0


if __name__ == "__main__":
    sys.exit(main())
