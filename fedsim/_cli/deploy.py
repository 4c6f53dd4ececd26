"""``fedsim deploy``: a real federation, in containers or on real hosts."""

import math
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedsim._cli.exits import exits, stoppable, writing
from fedsim.errors import OK, UNAVAILABLE

app = typer.Typer(
    name="deploy",
    help="A real federation: make its keys, start its services, run it. docs/deployment.md is the guide.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Folder = Annotated[Path, typer.Argument(help="Folder of the deployment, made by `fedsim deploy init`.")]
Direct = Annotated[bool, typer.Option("--direct", help="Without containers: the SuperLink runs on this machine.")]
File = Annotated[Path, typer.Option("--file", "-f", help="The compose file.")]
COMPOSE = Path("docker-compose.yml")


def _seconds(value: float) -> float:
    if not 0 <= value < math.inf:
        raise typer.BadParameter(f"{value:g} is no length of time; give a number of seconds, at least 0")
    return value


def _tell(text: str) -> None:
    typer.echo(text, err=True)


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="Folder to make; one folder for each party is in it.")],
    config: Annotated[Path | None, typer.Argument(help="Settings of the run as TOML; default: the defaults.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", metavar="SECTION.KEY=VALUE", help="Override one setting; repeatable."),
    ] = None,
    clients: Annotated[
        int | None, typer.Option("--clients", min=1, help="Number of clients; default: as in CONFIG, 3 without it.")
    ] = None,
    host: Annotated[
        list[str] | None, typer.Option("--host", help="Name or address of the server for clients; repeatable.")
    ] = None,
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port that clients connect to.")] = 8443,
    superlink_port: Annotated[
        int, typer.Option(min=1, max=65535, help="With --direct: port of the SuperLink on this machine.")
    ] = 8000,
    helper: Annotated[
        str, typer.Option("--helper", help="Under preamble: address of the second aggregator for the server.")
    ] = "tls://helper:9443",
    as_device: Annotated[
        bool,
        typer.Option("--as-device", help="Limit the containers of clients to devices.preset; measures this host."),
    ] = False,
) -> None:
    """Make certificates, node keys, the protection's keys and settings: one folder for each party."""
    import os

    from fedsim.config import load_config
    from fedsim.deploy.init import initialise
    from fedsim.deploy.limits import measured_limits

    with exits():
        count = 3 if clients is None and config is None else clients
        first = [] if count is None else [f"federation.num_clients={count}"]
        settings = load_config(config, [*first, *(set_ or [])])
        limits = measured_limits(settings, os.cpu_count() or 1) if as_device else {}
        with writing(folder, "FOLDER"):
            made = initialise(folder, settings, host or (), port, superlink_port, helper, limits)
        typer.echo(f"deployment of {settings.federation.num_clients} clients: {made.deployment.root}")
        typer.echo(f"app {made.app_sha256}")
        if made.key_id:
            typer.echo(f"key {made.key_id} of {settings.protection.name}")
        for name, value in limits.items():
            typer.echo(f"{name}={value}")


@app.command()
def up(
    folder: Folder,
    file: File = COMPOSE,
    build: Annotated[bool, typer.Option("--build", help="Build the images first.")] = False,
) -> None:
    """Start the containers and wait until all are healthy."""
    from fedsim.deploy.compose import Compose
    from fedsim.deploy.folder import Deployment

    with exits():
        Compose(Deployment.open(folder), file, _tell).up(None, build)


@app.command()
def down(folder: Folder, file: File = COMPOSE) -> None:
    """Stop and remove the containers; runs and keys stay."""
    from fedsim.deploy.compose import Compose
    from fedsim.deploy.folder import Deployment

    with exits():
        Compose(Deployment.open(folder), file, _tell).down()


@app.command()
def run(
    folder: Folder,
    file: File = COMPOSE,
    direct: Direct = False,
    connection: Annotated[str, typer.Option(hidden=True)] = "direct",
    resume: Annotated[str, typer.Option("--resume", help="Name of the folder of a run that was cut off.")] = "",
    wait: Annotated[float, typer.Option("--wait", callback=_seconds, help="Seconds to wait for the clients.")] = 120.0,
) -> None:
    """Register the clients, start a run, and show it until it has ended; the exit code is the run's."""
    from fedsim.config import load_config
    from fedsim.deploy.compose import Compose
    from fedsim.deploy.control import Control, await_nodes
    from fedsim.deploy.folder import Deployment

    with exits(), stoppable():
        deployment = Deployment.open(folder)
        if not direct:
            more = ["--resume", resume] if resume else []
            inside = ["run", "/run/fedsim", "--direct", "--connection", "compose", "--wait", str(wait), *more]
            raise typer.Exit(Compose(deployment, file, _tell).run(inside))
        control = Control(deployment, connection, _tell)
        control.await_superlink(wait)
        control.register()
        wanted = load_config(deployment.settings).federation.num_clients + deployment.relays
        await_nodes(control, wanted, wait, _tell)
        run_id = control.start(resume)
        control.follow(run_id)
        found = next(iter(deployment.runs.glob(f"*{resume or run_id}")), None)
        typer.echo(f"folder: {found or deployment.runs}")


@app.command(hidden=True)
def register(folder: Folder, connection: Annotated[str, typer.Option()] = "direct") -> None:
    """Let the clients' keys in; a job of docker-compose.yml, and `fedsim deploy server` does it itself."""
    from fedsim.deploy.control import Control
    from fedsim.deploy.folder import Deployment

    with exits():
        control = Control(Deployment.open(folder), connection, _tell)
        control.await_superlink(120.0)
        typer.echo(f"{control.register()} keys of clients registered")


@app.command()
def status(
    folder: Folder,
    file: File = COMPOSE,
    direct: Direct = False,
    connection: Annotated[str, typer.Option(hidden=True)] = "direct",
) -> None:
    """Show services, nodes and runs."""
    from fedsim.deploy.compose import Compose
    from fedsim.deploy.control import Control
    from fedsim.deploy.folder import Deployment

    with exits():
        deployment = Deployment.open(folder)
        if not direct:
            compose = Compose(deployment, file, _tell)
            compose.status()
            raise typer.Exit(compose.run(["status", "/run/fedsim", "--direct", "--connection", "compose"]))
        control = Control(deployment, connection, _tell)
        for node in control.nodes():
            typer.echo(f"node {node['node-id']}  {node['status']}  since {node['online-at']}")
        for each in control.runs():
            typer.echo(f"run {each['run-id']}  {each['status']}")


@app.command()
def server(
    folder: Folder,
    listen: Annotated[str, typer.Option("--listen", help="Address that clients connect to.")] = "0.0.0.0",
) -> None:
    """Run the server on this host without containers: SuperLink, ServerApp runner and nginx, until stopped."""
    from fedsim.deploy.folder import Deployment
    from fedsim.deploy.server import run_server

    with exits():
        _log_to_stderr()
        raise typer.Exit(run_server(Deployment.open(folder), listen))


@app.command()
def node(
    folder: Annotated[Path, typer.Argument(help="A client's own folder, with node.toml.")],
    wait: Annotated[
        float, typer.Option("--wait", callback=_seconds, help="Seconds to wait for the server before giving up.")
    ] = 60.0,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port on this machine for the node's own use; 0: any.")
    ] = 0,
) -> None:
    """Run one client on this host until stopped."""
    from fedsim.deploy.node import run_node

    with exits():
        _log_to_stderr()
        raise typer.Exit(run_node(folder, wait, port, _tell))


@app.command()
def check(folder: Annotated[Path, typer.Argument(help="A client's own folder, with node.toml.")]) -> None:
    """Examine what a client needs: key, certificates, address, TLS, clock, and what the server exposes."""
    import os

    from fedsim.deploy.folder import Node
    from fedsim.deploy.preflight import examine

    with exits():
        checks = examine(Node.read(folder, dict(os.environ)))
    width = max(len(each.name) for each in checks)
    for each in checks:
        remedy = f"\n{'':<{width + 11}}-> {each.remedy}" if each.remedy else ""
        typer.echo(f"{each.status:<9}  {each.name:<{width}}  {each.detail}{remedy}")
    raise typer.Exit(UNAVAILABLE if any(each.status == "failed" for each in checks) else OK)


@app.command()
def traffic(
    run_folder: Annotated[Path, typer.Argument(help="Folder of a run.", metavar="RUN")],
    log: Annotated[Path, typer.Argument(help="What the proxy wrote: state/traffic.log of the deployment.")],
) -> None:
    """Compare a run's ledger with the bytes that went through the proxy; framing is shown apart."""
    from fedsim.deploy.traffic import compare

    with exits():
        found = compare(run_folder, log)
    typer.echo(f"{'bytes':<28}{'upload':>14}{'download':>14}")
    for label, up, down in found.rows():
        typer.echo(f"{label:<28}{up:>14,}{down:>14,}")


def _log_to_stderr() -> None:
    import logging

    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="fedsim: %(message)s")


__all__ = ["app"]
