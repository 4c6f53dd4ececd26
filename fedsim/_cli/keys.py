"""``fedsim keys``: makes the key set of a run's protection, one folder for each role."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from fedsim._cli.exits import exits, writing

ConfigFile = Annotated[Path | None, typer.Argument(help="Settings of the run as TOML; without one, the defaults.")]
Sets = Annotated[
    list[str] | None, typer.Option("--set", "-s", metavar="SECTION.KEY=VALUE", help="Override one setting; repeatable.")
]


def keys(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to make, with one folder for each role.")],
    config: ConfigFile = None,
    set_: Sets = None,
    protection: Annotated[str | None, typer.Option("--protection", help="Short for --set protection.name=...")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON for programs, on standard output.")] = False,
) -> None:
    """Make the keys of a run's protection: one folder for each role, never overwritten, never shown."""
    with exits():
        short = [f"protection.name={protection}"] if protection else []
        made = make(out, config, [*short, *(set_ or [])])
        typer.echo(json.dumps(made) if as_json else _text(made))


def make(out: Path, config: Path | None, assignments: list[str]) -> dict[str, Any]:
    """Make the keys that the settings need and return what is known of them in public.

    Args:
        out: holds one folder for each role afterwards.
        config, assignments: the settings, as :func:`fedsim.config.load_config` takes them.

    Raises:
        ConfigError: the settings are wrong, their protection has no keys, or `out` holds keys already.
        BudgetExceeded: the protection does not carry the run.
    """
    from crypto.keys import HELPER, SERVER, key_path, save_keys
    from fedsim.config import load_config, to_run_config
    from fedsim.errors import ConfigError, Problem
    from fedsim.helper_daemon import TASK_FILE
    from fedsim.protections import helper_task, with_interpreter
    from fedsim.site import secure_plan, site_of
    from strategies import preamble
    from strategies.helper_tls import write_identities
    from strategies.keyed import KeyedProtection

    settings = load_config(config, assignments)
    name = settings.protection.name
    if name == "plain":
        raise ConfigError([Problem("protection.name", '"plain"', "has no keys", "choose another protection")])
    site = site_of(to_run_config(with_interpreter(settings)))
    protection, plan = site.protection, secure_plan(site)
    if isinstance(protection, preamble.PreambleProtection):
        # Sized first: what does not fit is refused before a key exists.
        task, scheme, bundles = helper_task(protection, plan), preamble.SCHEME, preamble.make_keys()
    else:
        assert isinstance(protection, KeyedProtection)
        described = protection.describe(plan)
        task, scheme, bundles = None, described.scheme, described.make_keys()
    there = [str(path) for b in bundles if (path := key_path(out, b.role, b.scheme)).exists()]
    if there:
        remedy = "name a new folder, or remove the old keys first"
        raise ConfigError([Problem("--out", str(out), f"holds {', '.join(there)}: keys are never overwritten", remedy)])
    with writing(out):
        paths = save_keys(out, bundles)
        if task is not None:
            task.write(out / HELPER / TASK_FILE)
            write_identities(out / HELPER, out / SERVER)
    return {
        "protection": name,
        "scheme": scheme,
        "key_id": bundles[0].key_id.hex(),
        "files": [
            {"role": b.role, "path": str(path), "secret": bool(b.secret)}
            for b, path in zip(bundles, paths, strict=True)
        ],
    }


def _text(made: dict[str, Any]) -> str:
    lines = [f"key {made['key_id']} of {made['protection']}"]
    files = made["files"]
    assert isinstance(files, list)
    for file in files:
        assert isinstance(file, dict)
        lines.append(f"  {file['role']!s:<12}  {'secret' if file['secret'] else 'public'}  {file['path']}")
    return "\n".join([*lines, "Give each role its own folder and no other; the server needs only 'server'."])


__all__ = ["keys", "make"]
