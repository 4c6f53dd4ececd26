"""Damages the inputs of every decoder: ``python tests/fuzz/drive.py --executions 1000000 [--only NAME] [--seconds S]``.

Prints how many executions each target had and how they ended. An input that a target does not survive is kept in
``fuzz-findings/`` with its traceback, and the exit code is 1. A process that ends by a signal says so by itself.
"""

import argparse
import hashlib
import logging
import random
import sys
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from mutations import mutate
from targets import names, target

FINDINGS = Path("fuzz-findings")


def run(name: str, executions: int, seed: int, until_s: float = float("inf")) -> Counter[str]:
    """Execute one target; return counts of ``taken``, ``refused`` and ``FAULT``."""
    what, coin = target(name), random.Random(f"{name} {seed}")
    counts: Counter[str] = Counter()
    for _ in range(executions):
        if time.monotonic() > until_s:
            break
        data = mutate(coin.choice(what.good), what.good, coin)
        if what.forge is not None and coin.random() < 0.5:
            data = what.forge(data)
        try:
            what.read(data)
            counts["taken"] += 1
        except what.refuses:
            counts["refused"] += 1
        except Exception:
            counts["FAULT"] += 1
            _keep(name, data)
    return counts


def _keep(name: str, data: bytes) -> None:
    path = FINDINGS / f"{name.replace(' ', '-')}-{hashlib.sha256(data).hexdigest()[:12]}"
    FINDINGS.mkdir(exist_ok=True)
    path.write_bytes(data)
    path.with_suffix(".txt").write_text(traceback.format_exc(), encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Run the targets; return 1 if any had a fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--executions", type=int, default=1000, help="a target's; expensive ones get a hundredth")
    parser.add_argument("--only", action="append", choices=list(names()), help="this target; repeatable")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after so long; targets share it")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    total: Counter[str] = Counter()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    until = time.monotonic() + chosen.seconds
    wanted = chosen.only or list(names())
    for number, name in enumerate(wanted):
        share, now = 1 if target(name).cheap else 100, time.monotonic()
        # What one leaves of its time is the others'.
        turn = now + (until - now) / (len(wanted) - number)
        counts = run(name, max(1, chosen.executions // share), chosen.seed, turn)
        total += counts
        print(f"{name:<20} {counts.total():>9} executions  {dict(counts)}", flush=True)
    print(f"{'all':<20} {total.total():>9} executions  {dict(total)}")
    return int(total["FAULT"] > 0)


if __name__ == "__main__":
    sys.exit(main())
