"""DictPFL beside its baselines on one transformer, in one run: bytes, seconds of a round, accuracy.

``python -m experiments.bench.dictpfl`` trains a ViT of 4.2 million parameters with three clients from one start model,
once for each method, and prints what a client sent and the CPU seconds of a round (median, all clients and the server,
evaluation apart; wall time beside it), as ratios to FedHE-Full (FedAvg under bfv with its default parameters) and to
plain FedAvg. The saving is split into DePE (tables in place of weights: round 1, before anything is pruned) and PrME
(what pruning leaves of it over all rounds). Exit code 1 if a bar is missed.
"""

import argparse
import shutil
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from experiments.dictpfl.start import pretrain
from fedsim.config import RunConfig, load_config
from fedsim.events import NullObserver, RoundEnd
from fedsim.measure.ledger import Ledger
from fedsim.measure.metrics import Metrics
from fedsim.runner import run

CONFIG = Path(__file__).parents[1] / "configs" / "papers" / "dictpfl_vit.toml"
_BFV = ["protection.name=bfv"]
_DICT = [
    "strategy.name=dictpfl",
    "strategy.rank=1",
    "strategy.orient=auto",
    "strategy.dict_scale=u",
]
#: Method -> settings.
ARMS: dict[str, list[str]] = {
    "FedAvg, plain": [],
    "FedHE-Full": _BFV,
    "tables, plain": [*_DICT, "strategy.prune_share=0.0"],
    "FedHE-Top2": ["strategy.name=fedtop", *_BFV],
    "FedML-HE 10 %": ["strategy.name=fedml-he", "strategy.score_examples=32", *_BFV],
    "DictPFL, s = 0": [*_DICT, "strategy.prune_share=0.0", *_BFV],
    "DictPFL, of all": [*_DICT, *_BFV],
    "DictPFL": [*_DICT, "strategy.population=transmitted", *_BFV],
    "DictPFL, rlwe": [*_DICT, "strategy.population=transmitted", "protection.name=rlwe"],
}
#: The methods that the bars compare.
_BARRED = ("FedAvg, plain", "FedHE-Full", "tables, plain", "DictPFL")
#: Least ratios of upload and round to FedHE-Full, largest ratio of a round to plain FedAvg, largest loss of accuracy.
BARS = {"upload": 400.0, "round": 25.0, "plain": 2.0, "accuracy": 0.015}


@dataclass(frozen=True)
class Measured:
    """One method's run.

    Attributes:
        accuracy: of the last round's model, on all clients' test images.
        upload: mean bytes that a client sent in a round.
        first_upload: bytes that a client sent in round 1.
        round_s: median CPU seconds of a round without its evaluation, all clients and the server.
        wall_s: the same on the wall's clock, which other jobs of the machine stretch.
        crypto_s: median seconds of sealing, adding and opening in a round, over all clients: before pruning, and at the
            end.
    """

    accuracy: float
    upload: float
    first_upload: float
    round_s: float
    wall_s: float
    crypto_s: tuple[float, float]


class _CpuClock(NullObserver):
    """Notes the process's CPU seconds at the end of each round; the engine runs all clients in this process."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def round_end(self, event: RoundEnd) -> None:
        self.ends.append(time.process_time())


def measure(config: RunConfig, early: int = 3) -> Measured:
    """Run, and read what the run's folder says; in the first `early` rounds nothing is pruned."""
    clock = _CpuClock()
    result = run(config, clock)
    rounds, clients = config.federation.rounds, config.federation.num_clients
    ledger = Ledger.read(result.folder)
    uploads = [ledger.upload_bytes(r) / clients for r in range(1, rounds + 1)]
    rows = Metrics.read(result.folder).table().to_pylist()
    wall = [r["value"] for r in rows if r["name"] == "round_s" and r["round"] > 1]
    # The last round's end comes after its evaluation, the first's begin with loading the data.
    cpu = [after - before for before, after in pairwise(clock.ends[:-1])]
    crypto = [sum(ledger.phase_s(phase, r) for phase in ("seal", "add", "open")) for r in range(1, rounds + 1)]
    shutil.rmtree(result.folder)
    return Measured(
        accuracy=result.metrics["client_accuracy"],
        upload=statistics.mean(uploads),
        first_upload=uploads[0],
        round_s=statistics.median(cpu),
        wall_s=statistics.median(wall),
        crypto_s=(statistics.median(crypto[1:early]), statistics.median(crypto[-5:-1])),
    )


def settings(arm: str, work: Path, start: Path, more: Sequence[str]) -> RunConfig:
    """Return an arm's settings, its folder made empty."""
    name = "".join(c if c.isalnum() else "-" for c in arm).strip("-")
    shutil.rmtree(work / name, ignore_errors=True)
    own = [f"output.folder={work}", f"output.name={name}", f"model.weights={start}"]
    return load_config(CONFIG, [*ARMS[arm], *own, *more])


def line(arm: str, one: Measured, found: dict[str, Measured]) -> str:
    """Return a method's row of the table."""
    full, plain = found.get("FedHE-Full"), found["FedAvg, plain"]
    upload = full.upload / one.upload if full else float("nan")
    quicker = full.round_s / one.round_s if full else float("nan")
    return (
        f"{arm:16s} {100 * one.accuracy:6.1f} %  {one.upload / 1e3:10.1f} kB  {upload:7.1f}   {one.round_s:8.3f} s  "
        f"{quicker:7.1f}  {one.round_s / plain.round_s:7.2f}   {one.wall_s:8.3f} s"
    )


def verdicts(found: dict[str, Measured]) -> list[tuple[bool, str]]:
    """Compare DictPFL with the bars; say how its saving splits, and what pruning does to the time of encryption."""
    plain, full, dict_ = found["FedAvg, plain"], found["FedHE-Full"], found["DictPFL"]
    tables = found["tables, plain"]
    upload, quicker = full.upload / dict_.upload, full.round_s / dict_.round_s
    lost = full.accuracy - dict_.accuracy
    depe, prme = full.first_upload / dict_.first_upload, dict_.first_upload / dict_.upload
    early, late = dict_.crypto_s
    return [
        (upload >= BARS["upload"], f"upload, FedHE-Full / DictPFL {upload:.0f} (DePE {depe:.0f} x PrME {prme:.2f})"),
        (quicker >= BARS["round"], f"round, FedHE-Full / DictPFL {quicker:.1f}"),
        (
            dict_.round_s <= BARS["plain"] * plain.round_s,
            f"round, DictPFL / FedAvg {dict_.round_s / plain.round_s:.2f}",
        ),
        (
            dict_.round_s <= BARS["plain"] * tables.round_s,
            f"round, DictPFL / plain tables {dict_.round_s / tables.round_s:.2f}",
        ),
        (lost <= BARS["accuracy"], f"accuracy, FedHE-Full less DictPFL {100 * lost:.1f} points"),
        (True, f"sealing, adding, opening: at the end {late / early:.2f} of the first rounds' time"),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(prog="experiments.bench.dictpfl", description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("runs/bench-dictpfl"))
    parser.add_argument("--only", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--small", action="store_true", help="a smaller transformer and the methods with bars alone")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="further settings of all methods")
    args = parser.parse_args(argv)
    if args.small:
        args.only, args.work = [*_BARRED], args.work / "small"
        args.set = ["model.options.dim=128", "federation.rounds=6", "federation.evaluate_every=6", *args.set]
    start = args.work / "start.safetensors"
    if not start.exists():
        shapes = [f"model.options.{k}={v}" for k, v in load_config(CONFIG, args.set).model.options.items()]
        pretrain(start, ["task.name=digits", "model.name=vit-tiny", *shapes], images=400, turns=0, epochs=20)
    print(
        "method           accuracy  upload a round  Full/it   CPU a round  Full/it  it/FedAvg  wall a round", flush=True
    )
    found: dict[str, Measured] = {}
    for arm in args.only:
        found[arm] = measure(settings(arm, args.work, start, args.set))
        print(line(arm, found[arm], found), flush=True)
    if not set(_BARRED) <= set(found):
        return 0
    checked = verdicts(found)
    print("\n".join(f"{'ok    ' if good else 'MISSED'} {text}" for good, text in checked))
    return 0 if all(good for good, _ in checked) else 1


if __name__ == "__main__":
    sys.exit(main())
