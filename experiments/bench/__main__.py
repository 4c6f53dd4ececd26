"""All benchmarks, one after another, each in a process of its own: ``python -m experiments.bench [--full]``.

Small sizes by default, a few minutes in all. What it prints are ratios, which hold on a busy machine. Its own limits
are wide, to catch what is broken rather than what is slow today; each benchmark by itself has narrow bars.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

SMALL = {
    "engine": ["--clients", "60", "--model-mb", "0.1", "--rounds", "2"],
    "he": ["--length", "100000", "--repeats", "1"],
    "preamble": ["--quick"],
    "rlwe": ["--quick"],
    "dictpfl": ["--small"],
}
FULL: dict[str, list[str]] = {
    "engine": ["--clients", "1000"],
    "he": ["--memory"],
    "preamble": [],
    "rlwe": [],
    "dictpfl": [],
}


@dataclass(frozen=True, slots=True)
class Gate:
    """A wide limit on one printed figure.

    Attributes:
        bench: which benchmark prints it.
        name: what it is.
        pattern: finds the figure as its one group.
        at_least, at_most: the limit.
    """

    bench: str
    name: str
    pattern: str
    at_least: float = float("-inf")
    at_most: float = float("inf")

    def check(self, output: str) -> str:
        """Return one line on the figure; it starts with ``ok`` or ``MISSED``."""
        found = re.search(self.pattern, output, flags=re.MULTILINE)
        if found is None:
            return f"MISSED  {self.bench}: {self.name} was not printed"
        value = float(found[1])
        word = "ok    " if self.at_least <= value <= self.at_most else "MISSED"
        limit = f"at least {self.at_least:g}" if self.at_most == float("inf") else f"at most {self.at_most:g}"
        return f"{word}  {self.bench}: {self.name} {value:g} ({limit})"


_CELL = r"\s*│\s*"
_FIGURE = r"([0-9.]+)"
GATES = (
    Gate("engine", "CPU of Flower's engine over Ray's", rf"^ray .*\s{_FIGURE}$", at_least=2),
    Gate("engine", "CPU of Flower's engine over inline's", rf"^inline .*\s{_FIGURE}$", at_least=5),
    Gate("he", "bfv, bytes a parameter", rf"bfv-symmetric{_CELL}{_FIGURE}", at_most=7.5),
    Gate("he", "ckks, bytes a parameter", rf"ckks-symmetric{_CELL}{_FIGURE}", at_most=31),
    Gate(
        "he",
        "seconds to seal, bfv over TenSEAL's usual context",
        rf"bfv-symmetric(?:{_CELL}[0-9.]+){{3}}{_CELL}{_FIGURE}",
        at_most=0.8,
    ),
    Gate("dictpfl", "upload of FedHE-Full over DictPFL's", rf"upload, FedHE-Full / DictPFL {_FIGURE}", at_least=40),
    Gate(
        "dictpfl", "CPU of a round of FedHE-Full over DictPFL's", rf"round, FedHE-Full / DictPFL {_FIGURE}", at_least=2
    ),
    Gate("preamble", "numpy reference over native", rf"^numpy reference / native.*?\s{_FIGURE} ratio", at_least=5),
    Gate("rlwe", "TenSEAL over rlwe, seconds to seal", rf"TenSEAL's usual context over rlwe\s+{_FIGURE} ", at_least=10),
    Gate("rlwe", "seeded bfv over rlwe, seconds to seal", rf"seeded bfv over rlwe\s+{_FIGURE} ", at_least=3),
    Gate("rlwe", "bytes a parameter, 20-bit values", rf"20-bit values\s+{_FIGURE} ", at_most=5.7),
    Gate("preamble", "pass over adding one array", rf"^pass / adding one array, Z32.*?\s{_FIGURE} ratio", at_most=6),
)


def run(name: str, options: Sequence[str]) -> tuple[int, str]:
    """Run one benchmark in a fresh process with one thread a library; return its exit code and output."""
    quiet = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0"}
    command = [sys.executable, "-m", f"experiments.bench.{name}", *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | quiet)
    return done.returncode, done.stdout


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmarks and check the gates; return 0, or 1 if a gate is missed or a benchmark breaks."""
    parser = argparse.ArgumentParser(prog="experiments.bench", description=__doc__)
    parser.add_argument("--full", action="store_true", help="the sizes that the documentation speaks of; much longer")
    parser.add_argument("--only", nargs="+", choices=list(SMALL), default=list(SMALL), help="some of them")
    args = parser.parse_args(argv)
    options = FULL if args.full else SMALL
    verdicts = []
    for name in args.only:
        print(f"--- {name} {' '.join(options[name])}".rstrip(), flush=True)
        started = time.monotonic()
        code, output = run(name, options[name])
        print(output.rstrip(), flush=True)
        print(f"--- {name}: {time.monotonic() - started:.0f} s", flush=True)
        checked = [gate.check(output) for gate in GATES if gate.bench == name]
        # A benchmark that misses a narrow bar of its own ends with 1 and has printed all the same.
        if code not in (0, 1) or "Traceback (most recent call last)" in output:
            checked.append(f"MISSED  {name}: ended with exit code {code}")
        verdicts += checked
    print("\n".join(verdicts))
    return 1 if any(line.startswith("MISSED") for line in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
