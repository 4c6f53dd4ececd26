"""What the trials of a sweep cost and reached: one Parquet file, one row a trial, read back from their folders."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from experiments.sweeps.spec import Spec, Trial
from experiments.sweeps.trials import folder_of, state_of
from fedsim.measure.ledger import PHASES
from fedsim.measure.metrics import ACCURACY
from fedsim.measure.runs import Run, load_run
from fedsim.measure.summary import at, cumulative, round_bytes, summarize

__all__ = ["collect", "read_results", "write_results"]


def collect(spec: Spec) -> list[dict[str, Any]]:
    """Return one row a trial, refused and failed ones included, in the order of the sweep.

    Columns: trial, arm, seed, status, reason, the varied keys as text (``set:KEY``), accuracies, bytes, seconds
    (virtual and measured, in all and a round by phase), accuracies of tiers, and curves: round, accuracy, what was
    spent by then.
    """
    return [_row(trial, spec.varied) for trial in spec.trials]


def _row(trial: Trial, varied: list[str]) -> dict[str, Any]:
    row: dict[str, Any] = {"trial": trial.name, "arm": trial.arm, "seed": trial.seed}
    row |= {f"set:{key}": _text(trial.values[key]) if key in trial.values else "" for key in varied}
    if trial.config is None:
        return row | {"status": "refused", "reason": trial.refused}
    state = state_of(trial.config)
    row |= {"status": state.status, "reason": "" if state.status == "finished" else state.reason}
    return row | (_measured(load_run(folder_of(trial.config))) if state.status == "finished" else {})


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _measured(run: Run) -> dict[str, Any]:
    summary, ledger = summarize(run), run.ledger
    accuracy = run.best_known(ACCURACY)
    spent = {
        "bytes": cumulative(round_bytes(run)),
        "virtual_s": cumulative(run.round_seconds(virtual=True)),
        "measured_s": cumulative(run.round_seconds()),
    }
    names = sorted(set(run.metrics.table()["name"].to_pylist()))
    tiers = [name for name in names if name.startswith("accuracy_tier_")]
    rounds = max(summary.rounds, 1)
    return {
        "final_accuracy": summary.final_accuracy,
        "best_accuracy": summary.best_accuracy,
        "worst_decile_accuracy": _last(run, "accuracy_worst_decile"),
        "rounds": summary.rounds,
        "upload_bytes": summary.upload_wire_bytes,
        "download_bytes": summary.download_wire_bytes,
        "helper_bytes": summary.helper_wire_bytes,
        "virtual_s": summary.virtual_s,
        "measured_s": summary.measured_s,
        "turns": summary.turns,
        "ok_turns": summary.ok_turns,
        **{f"virtual_{phase}_s": ledger.phase_s(phase, virtual=True) / rounds for phase in PHASES},
        **{f"measured_{phase}_s": ledger.phase_s(phase) / rounds for phase in PHASES},
        "tiers": [name.removeprefix("accuracy_tier_") for name in tiers],
        "tier_accuracy": [_last(run, name) for name in tiers],
        "curve_round": list(accuracy),
        "curve_accuracy": list(accuracy.values()),
        **{f"curve_{name}": [at(series, round) or 0.0 for round in accuracy] for name, series in spent.items()},
    }


def _last(run: Run, name: str) -> float | None:
    series = run.metrics.series(name, "server")
    return next(reversed(series.values())) if series else None


def write_results(rows: list[dict[str, Any]], path: Path) -> None:
    """Write the rows as Parquet."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = pa.Table.from_pylist([{name: row.get(name) for name in names} for row in rows])
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, compression="zstd")


def read_results(path: Path) -> list[dict[str, Any]]:
    """Return the rows of :func:`write_results`."""
    rows: list[dict[str, Any]] = pq.read_table(path, memory_map=False).to_pylist()
    return rows
