"""Bytes, CPU seconds and memory of the homomorphic secure sums, beside TenSEAL's usual context in the same run.

``python -m experiments.bench.he`` prints one row a scheme for 1M parameters, the ratios to TenSEAL's ``ckks_vector`` on
[60, 40, 40, 60] at N = 8192, and the CPU seconds per ciphertext that ``crypto/sizes.py`` stores as ``COSTS``.
``--memory`` adds the peaks of a client that seals 10M parameters and of a server that adds 100 clients of 1M.

Times are process CPU time, the median over chunks, one thread: other processes on the machine disturb them little.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from crypto.base import Plan, Tag
from crypto.ckks import CkksParameters
from crypto.he_seal import BfvSum
from crypto.he_tenseal import CkksSum
from crypto.keys import KeyedSum
from experiments.bench.peak import peak_bytes, reset_peak

SEED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One scheme's costs per ciphertext and for the whole vector.

    Attributes:
        name: scheme and mode.
        ciphertexts: number for the whole vector.
        upload_bytes: measured length of a client's message.
        seal_s: CPU seconds to seal the whole vector.
        add_s: CPU seconds to add one such message.
        open_s: CPU seconds to open the total.
    """

    name: str
    ciphertexts: int
    upload_bytes: int
    seal_s: float
    add_s: float
    open_s: float


def cpu_s(work: Callable[[], object], repeats: int) -> float:
    """Return the median CPU seconds of `work`."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return statistics.median(times)


def measure(name: str, sum_: KeyedSum, ciphertexts: int, repeats: int) -> Measured:
    """Measure one of our sums on uniform values within the bound."""
    server, clients = sum_.make_keys()[:2]
    bound = sum_.with_key(server.key_id)
    length = sum_.plan.length
    vector = np.random.default_rng(SEED).uniform(-1, 1, length).astype(np.float32)
    tag = Tag(round=0, layout_hash=bytes(16), length=length)
    sealer, opener, adder = bound.sealer(clients), bound.opener(clients), bound.adder(tag)
    part = sealer.seal(vector, tag)[0]
    adder.add(part)
    total = adder.total()
    return Measured(
        name=name,
        ciphertexts=ciphertexts,
        upload_bytes=len(part),
        seal_s=cpu_s(lambda: sealer.seal(vector, tag), repeats),
        add_s=cpu_s(lambda: adder.add(part), repeats),
        open_s=cpu_s(lambda: opener.open([total], tag), repeats),
    )


def measure_tenseal_usual(length: int, repeats: int) -> Measured:
    """Measure TenSEAL's own vector class as tutorials use it: public key, [60, 40, 40, 60] at N = 8192, scale 2^40."""
    import tenseal

    context = tenseal.context(tenseal.SCHEME_TYPE.CKKS, 8192, 0, [60, 40, 40, 60], n_threads=1)
    context.global_scale = 2**40
    vector = np.random.default_rng(SEED).uniform(-1, 1, length)
    chunks = [vector[at : at + 4096] for at in range(0, length, 4096)]
    parts = [tenseal.ckks_vector(context, c).serialize() for c in chunks]
    totals = [tenseal.ckks_vector_from(context, p) for p in parts]

    def seal() -> None:
        for chunk in chunks:
            tenseal.ckks_vector(context, chunk).serialize()

    def add() -> None:
        for total, part in zip(totals, parts, strict=True):
            total.add_(tenseal.ckks_vector_from(context, part))

    def open_() -> None:
        for part in parts:
            tenseal.ckks_vector_from(context, part).decrypt()

    return Measured(
        name="tenseal-usual",
        ciphertexts=len(chunks),
        upload_bytes=sum(len(p) for p in parts),
        seal_s=cpu_s(seal, repeats),
        add_s=cpu_s(add, repeats),
        open_s=cpu_s(open_, repeats),
    )


def measure_all(length: int, clients: int, repeats: int) -> list[Measured]:
    """Measure our schemes and TenSEAL's usual context for one plan; the latter comes last."""
    plan = Plan(length=length, clients=clients, bound=1.0)
    rows = []
    for mode in ("symmetric", "public"):
        exact = BfvSum(plan, mode=mode)
        rows.append(measure(f"bfv-{mode}", exact, exact.ciphertexts(length), repeats))
        real = CkksSum(plan, parameters=CkksParameters(), mode=mode)
        rows.append(measure(f"ckks-{mode}", real, real.ciphertexts(length), repeats))
    return [*rows, measure_tenseal_usual(length, repeats)]


def seal_memory(length: int) -> tuple[int, int]:
    """Return (extra peak bytes while sealing, payload bytes) for a vector of `length`; call in a fresh process."""
    sum_ = BfvSum(Plan(length=length, clients=1000, bound=1.0))
    _, key = sum_.make_keys()
    sealer = sum_.sealer(key)
    vector = np.zeros(length, np.float32)
    vector += 0.5
    before = reset_peak()
    part = sealer.seal(vector, Tag(round=0, layout_hash=bytes(16), length=length))[0]
    return peak_bytes() - before, len(part)


def add_memory(length: int, clients: int) -> tuple[int, int]:
    """Return (extra peak bytes while adding `clients` messages, Budget.memory_bytes); call in a fresh process."""
    sum_ = BfvSum(Plan(length=length, clients=max(1000, clients), bound=1.0))
    server, key = sum_.make_keys()
    tag = Tag(round=0, layout_hash=bytes(16), length=length)
    part = sum_.sealer(key).seal(np.full(length, 0.5, np.float32), tag)[0]
    before = reset_peak()
    adder = sum_.with_key(server.key_id).adder(tag)
    for _ in range(clients):
        adder.add(part)
    return peak_bytes() - before, sum_.budget.memory_bytes


def in_fresh_process(call: str) -> tuple[int, int]:
    """Evaluate ``seal_memory(...)`` or ``add_memory(...)`` in a new interpreter, whose peak starts low."""
    code = f"from experiments.bench.he import *; print(*{call})"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    return int(out[0]), int(out[1])


def table(rows: list[Measured], length: int) -> Table:
    """Lay out the rows with ratios to the last."""
    usual = rows[-1]
    shown = Table(title=f"{length} parameters; CPU seconds, one thread; ratios to TenSEAL's usual context")
    for column in ("scheme", "B/param", "bytes ratio", "seal s", "seal ratio", "add s", "open s", "ms a ciphertext"):
        shown.add_column(column, justify="left" if column == "scheme" else "right")
    for row in rows:
        each = [f"{1e3 * s / row.ciphertexts:.3f}" for s in (row.seal_s, row.add_s, row.open_s)]
        shown.add_row(
            row.name,
            f"{row.upload_bytes / length:.2f}",
            f"{row.upload_bytes / usual.upload_bytes:.3f}",
            f"{row.seal_s:.3f}",
            f"{row.seal_s / usual.seal_s:.3f}",
            f"{row.add_s:.3f}",
            f"{row.open_s:.3f}",
            " / ".join(each),
        )
    return shown


def main(
    length: Annotated[int, typer.Option(help="parameters")] = 1_000_000,
    clients: Annotated[int, typer.Option(help="clients that the parameters are chosen for")] = 1000,
    repeats: Annotated[int, typer.Option(help="repeats; medians are shown")] = 3,
    memory: Annotated[bool, typer.Option(help="measure peaks as well: 10M parameters, then 100 clients of 1M")] = False,
) -> None:
    """Measure the homomorphic sums."""
    console = Console(width=140)
    console.print(table(measure_all(length, clients, repeats), length))
    if memory:
        extra, payload = in_fresh_process("seal_memory(10_000_000)")
        console.print(f"sealing 10M: peak +{extra / 1e6:.0f} MB; payload {payload / 1e6:.1f} MB")
        extra, budget = in_fresh_process("add_memory(1_000_000, 100)")
        console.print(f"adding 100 x 1M: peak +{extra / 1e6:.0f} MB; budget {budget / 1e6:.1f} MB")


if __name__ == "__main__":
    typer.run(main)
