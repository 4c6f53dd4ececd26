"""``fedsim sweep FILE``: many runs from one file, in parallel; a sweep that was killed goes on where it stopped.

Also ``python -m experiments.sweep FILE``. What a file looks like stands in :mod:`experiments.sweeps.spec`.
"""

import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["main", "sweep"]


def sweep(
    file: Annotated[Path, typer.Argument(help="The sweep, as TOML.")],
    folder: Annotated[Path, typer.Option("--folder", help="Where sweeps are kept.")] = Path("sweeps"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on: finished trials are not run again.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the trials and estimate the time; run none.")
    ] = False,
    report: Annotated[bool, typer.Option("--report", help="Write the report of what is there; run none.")] = False,
    png: Annotated[bool, typer.Option("--png/--no-png", help="PNG copies of the figures.")] = True,
) -> None:
    """Run a sweep: a grid or random draws, times seeds, in parallel, with one table and one report at the end."""
    from experiments.sweeps import driver
    from experiments.sweeps.results import collect, write_results
    from experiments.sweeps.spec import read_spec
    from fedsim._cli.exits import exits, stoppable, writing
    from fedsim.errors import FAILED

    failed: dict[str, str] = {}
    with exits(), stoppable():
        spec = read_spec(file, folder)
        place = folder / spec.name
        if dry_run:
            _list(spec)
            return
        with writing(folder, "--folder"):
            _claim(spec.text, place, resume or report)
        if not report:
            todo = driver.pending(spec)
            done, refused = len(spec.runnable) - len(todo), len(spec.trials) - len(spec.runnable)
            typer.echo(f"{spec.name}: {len(todo)} trials to run, {done} finished, {refused} refused")
            started = time.monotonic()
            failed = driver.run_sweep(spec, todo, place, typer.echo)
            typer.echo(
                f"{len(todo) - len(failed)} finished in {time.monotonic() - started:.0f} s, {len(failed)} failed"
            )
        rows = collect(spec)
        write_results(rows, place / "results.parquet")
        from experiments.sweeps.report import write_sweep_report

        typer.echo(f"results: {place / 'results.parquet'}")
        typer.echo(f"report: {write_sweep_report(spec, rows, place, png=png)}")
    if failed:
        raise typer.Exit(FAILED)


def _claim(text: str, place: Path, goes_on: bool) -> None:
    """Keep the sweep's file in its folder; refuse to mix two sweeps."""
    from fedsim.errors import ConfigError, Problem
    from fedsim.measure._files import write_text

    own = place / "sweep.toml"
    if not own.exists():
        write_text(own, text)
        return
    if not goes_on:
        raise ConfigError([Problem("sweep", str(place), "holds a sweep already", "give --resume, or another name")])
    if own.read_text(encoding="utf-8") != text:
        # Trials are known by their settings: what did not change is not run again.
        write_text(own, text)


def _list(spec: object) -> None:
    from experiments.sweeps import driver
    from experiments.sweeps.spec import Spec

    assert isinstance(spec, Spec)
    total_s, seen = 0.0, {}
    for trial in spec.trials:
        if trial.config is None:
            typer.echo(f"refused   {trial.name}  {trial.refused}")
            continue
        key = (trial.arm, tuple(sorted(map(str, trial.values.items()))))
        # Seeds of one combination take about as long.
        seen[key] = seen.get(key) or driver.estimate_s(trial)
        total_s += seen[key]
        words = ", ".join(f"{name} = {value}" for name, value in trial.values.items())
        typer.echo(f"{seen[key]:8.0f} s  {trial.name}  {words}, seed {trial.seed}")
    cores = os.cpu_count() or 1
    at_once = driver.concurrency(spec, cores)
    typer.echo(
        f"{len(spec.runnable)} trials, about {total_s:.0f} s of one core; {at_once} at once on {cores} cores: about "
        f"{total_s / at_once / 60:.1f} min"
    )


def main() -> None:
    """Entry point of ``python -m experiments.sweep``."""
    typer.run(sweep)


if __name__ == "__main__":
    sys.exit(main())
