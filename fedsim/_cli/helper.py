"""``fedsim helper``: the second aggregator of PREAMBLE as a service, and what its partners check before a run."""

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsim._cli.exits import exits

if TYPE_CHECKING:
    from crypto.base import Plan
    from strategies.preamble import PreambleProtection

helper = typer.Typer(help="The second aggregator of PREAMBLE: run it, or see whether it answers.", no_args_is_help=True)

Listen = Annotated[
    str, typer.Option("--listen", "-l", help="tls://HOST:PORT for other machines, or the path of a Unix socket.")
]
_ALIVE_S = 5.0


@helper.command()
def serve(
    keys: Annotated[Path, typer.Option("--keys", help="Folder that holds helper/, as `fedsim keys` made it.")],
    listen: Listen,
    task: Annotated[
        Path | None, typer.Option("--task", help="What its owner agreed to; default: KEYS/helper/task.json.")
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option("--state", help="Folder that outlives the process, for what was released; default: KEYS/helper."),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option("--group", help="User group that may use the Unix socket as well: that of the relaying node."),
    ] = None,
) -> None:
    """Run the helper until SIGTERM; `ready` on standard output says that it listens."""
    with exits():
        from fedsim.errors import ConfigError, FedsimError, Problem
        from fedsim.helper_daemon import log_to_stderr, run

        log_to_stderr()
        place = _place(listen)
        if group is not None and not isinstance(place, Path):
            rule = "is for a Unix socket only"
            raise ConfigError([Problem("--group", group, rule, "leave it out, or --listen on a socket's path")])
        if state is not None and not state.is_dir():
            # Found out at the first release otherwise, after a round was trained for nothing.
            raise ConfigError([Problem("--state", str(state), "is no folder", "make it, on a disk that stays")])
        try:
            run(keys, listen, task, state, group=group)
        except (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError) as error:
            # Those of our own say what to do; the system's only what is wrong.
            what = f"{error.filename}: {error.strerror}; correct --keys, --task or --state"
            raise FedsimError(what if error.filename else str(error)) from error


def _place(listen: str) -> Path | tuple[str, int]:
    """Return where to listen, or refuse the option."""
    from crypto.errors import InputError
    from fedsim.errors import ConfigError, Problem
    from strategies.helper_link import parse_address

    try:
        return parse_address(listen)
    except InputError as error:
        raise ConfigError([Problem("--listen", listen, str(error), "correct it")]) from None


@helper.command()
def alive(listen: Listen) -> None:
    """Say whether something listens there, for health checks; needs no keys and asks nothing."""
    with exits():
        from fedsim.errors import EngineError

        place = _place(listen)
        try:
            if isinstance(place, Path):
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as plain:
                    plain.settimeout(_ALIVE_S)
                    plain.connect(str(place))
            else:
                socket.create_connection(place, timeout=_ALIVE_S).close()
        except OSError as error:
            raise EngineError(
                f"no helper listens on {listen} ({error}): start it with `fedsim helper serve`"
            ) from error
        typer.echo("alive")


@helper.command()
def check(
    config: Annotated[Path | None, typer.Argument(help="Settings of the run as TOML.")] = None,
    keys: Annotated[Path, typer.Option("--keys", help="The server's folder: holds server/ and helper.address.")] = Path(
        "keys"
    ),
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", metavar="SECTION.KEY=VALUE", help="Override one setting; repeatable."),
    ] = None,
) -> None:
    """Ask the helper, as the leader would, whether it holds the pinned key and agreed to these settings."""
    with exits():
        from fedsim.errors import FedsimError

        protection, plan = _as_server(config, set_ or [], keys)
        try:
            protection.greet(plan)
        except FileNotFoundError as error:
            raise FedsimError(str(error)) from error
        typer.echo("the helper answers, holds the pinned key and agreed to these settings")


def _as_server(config: Path | None, assignments: list[str], keys: Path) -> "tuple[PreambleProtection, Plan]":
    from fedsim.config import load_config, to_run_config
    from fedsim.errors import ConfigError, Problem
    from fedsim.site import secure_plan, server_site_of
    from strategies.preamble import PreambleProtection

    site = server_site_of(to_run_config(load_config(config, assignments)), str(keys))
    protection = site.protection
    if not isinstance(protection, PreambleProtection):
        name = site.config.protection.name
        raise ConfigError([Problem("protection.name", f'"{name}"', "has no helper", "set protection.name = preamble")])
    return protection, secure_plan(site)


__all__ = ["helper"]
