"""Read a table of :mod:`experiments.leff.finetune`: means, paired differences, and costs against one arm.

``python -m experiments.leff.compare experiments/results/leff_digits_even.csv --against full`` prints one row an arm, in
Markdown. Differences are seed by seed, over the seeds that both arms have, so that a seed's luck of data and start
falls out of them.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from experiments.leff.finetune import Row, interval, read

__all__ = ["compared", "differences", "main"]

_HEAD = (
    "arm",
    "accuracy by seed",
    "mean, 95 % interval",
    "points less {against}, paired",
    "round, virtual",
    "shorter by",
    "slowest : fastest",
    "memory of the smallest client",
    "sent up",
)


def differences(rows: Sequence[Row], arm: str, against: str) -> list[float]:
    """Return the accuracy of one arm less that of another, seed by seed, for the seeds that both have."""
    others = {row.seed: row.accuracy for row in rows if row.arm == against}
    return [row.accuracy - others[row.seed] for row in rows if row.arm == arm and row.seed in others]


def compared(rows: Sequence[Row], against: str) -> list[list[str]]:
    """Return a row of text for each arm, in the order in which they first appear.

    Raises:
        ValueError: no row is of the arm that the others are compared with.
    """
    if not any(row.arm == against for row in rows):
        raise ValueError(f"arm '{against}' has no row: must be one of {', '.join(dict.fromkeys(r.arm for r in rows))}")
    return [_line(rows, arm, against) for arm in dict.fromkeys(row.arm for row in rows)]


def _line(rows: Sequence[Row], arm: str, against: str) -> list[str]:
    own, base = ([row for row in rows if row.arm == each] for each in (arm, against))
    found = [row.accuracy for row in own]
    round_s, (memory, base_memory) = _mean(own, "round_s"), (_mean(each, "peak_first_bytes") for each in (own, base))
    return [
        arm,
        ", ".join(f"{value:.3f}" for value in found),
        _points(found),
        "" if arm == against else _points([100 * d for d in differences(rows, arm, against)], digits=1),
        f"{round_s:.3f} s",
        f"{_mean(base, 'round_s') / round_s:.2f}",
        f"{_mean(own, 'spread'):.2f}",
        # That client may take no part in an arm: its memory is 0 then.
        f"{memory / 1e6:.1f} MB ({memory / base_memory:.2f})" if memory and base_memory else "none",
        f"{_mean(own, 'upload_bytes') / 1e6:.1f} MB",
    ]


def _mean(rows: Sequence[Row], name: str) -> float:
    return sum(float(getattr(row, name)) for row in rows) / len(rows)


def _points(values: Sequence[float], digits: int = 3) -> str:
    mean, half = interval(values)
    return f"{mean:.{digits}f} ± {half:.{digits}f}"


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path)
    parser.add_argument("--against", default="full")
    args = parser.parse_args()
    head = [each.format(against=args.against) for each in _HEAD]
    for line in (head, ["---"] * len(head), *compared(read(args.table), args.against)):
        print(f"| {' | '.join(line)} |")


if __name__ == "__main__":
    main()
