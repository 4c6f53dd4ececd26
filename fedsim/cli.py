"""The command line ``fedsim``.

Nothing heavy is imported here: torch, Ray and Flower load inside the commands that use them, so ``fedsim --help`` is
quick.
"""

import importlib
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

from fedsim._cli.deploy import app as deploy
from fedsim._cli.devices import devices
from fedsim._cli.exits import exits, hushed, stoppable
from fedsim._cli.helper import helper
from fedsim._cli.keys import keys
from fedsim._cli.new import new
from fedsim._cli.partition import partition
from fedsim._cli.plugins import commands
from fedsim._cli.privacy import privacy
from fedsim._cli.sizes import sizes
from fedsim.errors import EXIT_CODES, FAILED, OK, UNAVAILABLE

_EPILOG = "Exit codes: " + "; ".join(f"{code}: {text.split(';')[0]}" for code, text in EXIT_CODES.items()) + "."

app = typer.Typer(
    name="fedsim",
    help="Federated and private learning: launch simulated federations and measure every byte and second.",
    epilog=_EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

ConfigFile = Annotated[Path | None, typer.Argument(help="Settings as TOML; without one, the defaults.")]
Sets = Annotated[
    list[str] | None, typer.Option("--set", "-s", metavar="SECTION.KEY=VALUE", help="Override one setting; repeatable.")
]
StrategyName = Annotated[str | None, typer.Option("--strategy", help="Short for --set strategy.name=...")]
ProtectionName = Annotated[str | None, typer.Option("--protection", help="Short for --set protection.name=...")]
EngineName = Annotated[str | None, typer.Option("--engine", help="Short for --set engine.name=...")]
Rounds = Annotated[int | None, typer.Option("--rounds", help="Short for --set federation.rounds=...")]
Clients = Annotated[int | None, typer.Option("--clients", help="Short for --set federation.num_clients=...")]
Seed = Annotated[int | None, typer.Option("--seed", help="Short for --set seed=...")]
RunName = Annotated[str | None, typer.Option("--name", help="Name of the run's folder.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON for programs, on standard output.")]


class Kind(StrEnum):
    """What `fedsim list` can list."""

    TASKS = "tasks"
    MODELS = "models"
    STRATEGIES = "strategies"
    PROTECTIONS = "protections"


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"fedsim {metadata.version('fedsim')}")
        raise typer.Exit(OK)


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def run(
    config: ConfigFile = None,
    set_: Sets = None,
    strategy: StrategyName = None,
    protection: ProtectionName = None,
    engine: EngineName = None,
    rounds: Rounds = None,
    clients: Clients = None,
    seed: Seed = None,
    name: RunName = None,
    as_json: AsJson = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show nothing but errors.")] = False,
    resume: Annotated[
        Path | None, typer.Option("--resume", help="Folder of a run that was cut off: go on with its settings.")
    ] = None,
) -> None:
    """Run one federation and leave a folder with its settings, ledger, model and report."""
    from fedsim.config import load_config
    from fedsim.progress import watching

    short = {
        "strategy.name": strategy,
        "protection.name": protection,
        "engine.name": engine,
        "federation.rounds": rounds,
        "federation.num_clients": clients,
        "seed": seed,
        "output.name": name and json.dumps(name),
    }
    with exits(sys.stdout if as_json else None):
        given = [f"{key}={value}" for key, value in short.items() if value is not None]
        refuse_contradictions(given, set_ or [])
        if resume is not None:
            config = resumed_config(resume, bool(given or set_ or config))
        settings = load_config(config, [*given, *(set_ or [])])
        with stoppable(), hushed(quiet), watching(sys.stdout, as_json=as_json, quiet=quiet) as observer:
            more = {"resume": True} if resume is not None else {}
            importlib.import_module("fedsim.runner").run(settings, observer, **more)


def refuse_contradictions(short: list[str], long: list[str]) -> None:
    """Refuse a setting that an option gives one value and ``--set`` another.

    Raises:
        ConfigError: names all of them.
    """
    from fedsim.errors import ConfigError, Problem

    given = dict(text.split("=", 1) for text in short)
    other = {key.strip(): value.strip() for key, _, value in (text.partition("=") for text in long)}
    problems = [
        Problem(key, other[key], f"is {given[key]} by its own option", "give one of the two")
        for key in given.keys() & other.keys()
        if other[key].strip("\"'") != given[key].strip("\"'")
    ]
    if problems:
        raise ConfigError(problems)


def resumed_config(folder: Path, changed: bool) -> Path:
    """Return the settings' file of a run to resume.

    Raises:
        ConfigError: other settings were given too, or the folder holds no run, or the run was started elsewhere.
    """
    from fedsim.config import load_config
    from fedsim.errors import ConfigError, Problem

    file = folder / "config.toml"
    if changed:
        raise ConfigError([Problem("--resume", str(folder), "takes no other settings", "leave them out")])
    if not file.exists():
        raise ConfigError([Problem("--resume", str(folder), "holds no config.toml", "name a run's folder")])
    output = load_config(file).output
    if (Path(output.folder) / (output.name or "")).resolve() != folder.resolve():
        remedy = f"call it from where {output.folder}/{output.name} is this folder"
        raise ConfigError([Problem("--resume", str(folder), "is not where its settings say", remedy)])
    return file


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs; several are compared.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write; default: in the first folder.")
    ] = None,
) -> None:
    """Write the report of a run, or a comparison of several."""
    with exits():
        path = importlib.import_module("fedsim.measure.report").write_report(runs, out)
        typer.echo(f"report: {path}")


@app.command(name="list")
def list_(
    kind: Annotated[Kind | None, typer.Argument(help="What to list; all if left out.")] = None,
    as_json: AsJson = False,
) -> None:
    """List tasks, models, strategies and protections, with what is missing on this machine."""
    from fedsim._cli import listing
    from fedsim.doctor import backend_missing

    listers: dict[Kind, Callable[[], list[listing.Row]]] = {
        Kind.TASKS: listing.tasks,
        Kind.MODELS: listing.models,
        Kind.STRATEGIES: listing.strategies,
        Kind.PROTECTIONS: lambda: listing.protections(backend_missing),
    }
    with exits():
        found = {each: listers[each]() for each in ([kind] if kind else list(Kind))}
    if as_json:
        typer.echo(json.dumps({str(each): [asdict(row) for row in rows] for each, rows in found.items()}))
        return
    for each, rows in found.items():
        typer.echo(f"{each}:")
        width = max(len(row.name) for row in rows)
        for row in rows:
            missing = f"  [not available: {row.missing}]" if row.missing else ""
            typer.echo(f"  {row.name:<{width}}  {row.summary}{missing}")


@app.command()
def doctor(
    folder: Annotated[Path, typer.Option("--folder", help="Where runs are kept.")] = Path("runs"),
    run: Annotated[
        Path | None,
        typer.Option(
            "--run", help="Look into a run's folder, a wheel or an image's tar file for keys and plain models."
        ),
    ] = None,
    keys: Annotated[Path | None, typer.Option("--keys", help="With --run: keys whose bytes are looked for.")] = None,
    as_json: AsJson = False,
) -> None:
    """Examine this machine: Python, processor, backends and why they do not load, Ray, disk, memory."""
    if run is not None:
        with exits():
            checks = importlib.import_module("fedsim.hygiene").scan(run, keys)
    else:
        checks = importlib.import_module("fedsim.doctor").examine(folder)
    if as_json:
        typer.echo(json.dumps([asdict(check) for check in checks]))
    else:
        width = max(len(check.name) for check in checks)
        for check in checks:
            remedy = f"\n{'':<{width + 11}}-> {check.remedy}" if check.remedy else ""
            typer.echo(f"{check.status:<9}  {check.name:<{width}}  {check.detail}{remedy}")
    bad = FAILED if run is not None else UNAVAILABLE
    raise typer.Exit(bad if any(check.status == "failed" for check in checks) else OK)


@app.command(name="config")
def config_(
    config: ConfigFile = None,
    set_: Sets = None,
    template: Annotated[
        bool, typer.Option("--template", help="Defaults, with the keys of all strategies and protections.")
    ] = False,
) -> None:
    """Check settings and print them in full as TOML."""
    from fedsim.config import load_config, to_toml
    from fedsim.config import template as whole

    if template and (config or set_):
        raise typer.BadParameter("--template prints the defaults alone; leave it out to print these settings in full")
    with exits():
        settings = load_config(config, set_ or [])
    typer.echo(whole() if template else to_toml(settings), nl=False)


app.command()(new)
app.command()(privacy)
app.command()(keys)
app.command()(sizes)
app.add_typer(helper, name="helper")
app.command()(devices)
app.command()(partition)
app.add_typer(deploy)


for _name, _command in commands().items():
    app.command(name=_name)(_command)


def main() -> None:
    """Entry point of the command line."""
    app()


if __name__ == "__main__":
    main()
