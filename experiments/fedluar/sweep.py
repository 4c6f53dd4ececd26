"""FedLUAR's ablations on a real data set: number of recycled layers, recycle against drop, controls.

``python -m experiments.fedluar.sweep experiments/configs/papers/fedluar_digits.toml --out digits.csv`` runs the arms
with paired seeds, one row a run (:mod:`experiments.fedluar.table`), and goes on where the table ends. Bytes are the
ledger's.
"""

import argparse
import logging
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from experiments.fedluar.table import Row, fill, frequencies, markdown
from fedsim.checkpoint import latest_checkpoint
from fedsim.config import load_config
from fedsim.events import NullObserver, RoundEnd
from fedsim.measure.ledger import Ledger
from fedsim.runner import run

#: What stands before the number of layers in an arm's name -> further settings.
KINDS: dict[str, list[str]] = {
    "luar": [],
    "drop": ["strategy.drop=true"],
    "uniform": ["strategy.sampler=uniform"],
    "round-robin": ["strategy.sampler=round_robin"],
    "deterministic": ["strategy.sampler=deterministic"],
}
_ARM = re.compile(rf"({'|'.join(KINDS)})-(\d+)(?:-cap-(\d+))?")


def settings_of(arm: str) -> list[str]:
    """Return the settings of an arm: ``fedavg``, or kind, layers and limit of staleness, such as ``luar-2-cap-3``.

    Raises:
        ValueError: no such arm.
    """
    if arm == "fedavg":
        return ["strategy.delta=0"]
    found = _ARM.fullmatch(arm)
    if found is None:
        raise ValueError(
            f"arm '{arm}' must be fedavg, or one of {', '.join(KINDS)} with a number: luar-2, luar-2-cap-3"
        )
    kind, delta, cap = found.groups()
    limit = [f"strategy.max_staleness={cap}"] if cap else []
    return [f"strategy.delta={delta}", "strategy.downlink=delta", *KINDS[kind], *limit]


class _Longest(NullObserver):
    rounds = 0

    def round_end(self, event: RoundEnd) -> None:
        self.rounds = max(self.rounds, int(event.metrics.get("luar_oldest", 0)))


def run_arm(config: Path, arm: str, seed: int, work: Path, rows: Sequence[Row], more: Sequence[str] = ()) -> Row:
    """Run one arm of one seed in a folder of its own, which is removed afterwards."""
    name = f"{config.stem}-{arm}-{seed}"
    shutil.rmtree(work / name, ignore_errors=True)
    own = [f"seed={seed}", f"output.folder={work}", f"output.name={name}", "engine.name=inline"]
    longest = _Longest()
    result = run(load_config(config, [*own, *settings_of(arm), *more]), longest)
    ledger, point = Ledger.read(result.folder), latest_checkpoint(result.folder / "checkpoints")
    assert point is not None
    up, down = ledger.upload_bytes(), ledger.download_bytes()
    rounds, uploads = int(point.strategy["luar/rounds"]), point.strategy["luar/uploads"]
    layers = [n for n, a in point.state.arrays.items() if a.ndim > 1]
    shutil.rmtree(result.folder)
    base = next((r.upload_bytes + r.download_bytes for r in rows if (r.arm, r.seed) == ("fedavg", seed)), up + down)
    return Row(
        arm=arm,
        seed=seed,
        rounds=rounds,
        accuracy=round(result.metrics["server_accuracy"], 4),
        comm=round(result.metrics["server_luar_comm"], 4),
        longest_run=longest.rounds,
        upload_bytes=up,
        download_bytes=down,
        two_way=round((up + down) / base, 4),
        frequencies=frequencies(layers, uploads, rounds) if uploads.any() else "",
    )


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--arms", nargs="*", default=["fedavg", "luar-2", "drop-2", "uniform-2"], help="fedavg first")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="further settings of all arms")
    parser.add_argument("--work", type=Path, default=Path("runs"))
    parser.add_argument("--out", type=Path, default=Path("fedluar.csv"))
    args = parser.parse_args()
    logging.basicConfig(format="%(message)s")
    logging.getLogger("experiments.fedluar").setLevel(logging.INFO)
    jobs = [(arm, seed) for seed in range(1, args.seeds + 1) for arm in args.arms]
    rows = fill(args.out, jobs, lambda a, s, done: run_arm(args.config, a, s, args.work, done, args.set))
    print(markdown(rows))


if __name__ == "__main__":
    main()
