"""`fedsim new`: a small project of one's own to begin with."""

import keyword
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from fedsim._cli.exits import exits
from fedsim.errors import ConfigError, Problem

__all__ = ["new", "write_project"]

_TEMPLATES = Path(__file__).parents[1] / "project"
#: Template -> where it goes; ``{}`` is the project's name.
_FILES = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    "task.py": "{}/task.py",
    "strategy.py": "{}/strategy.py",
    "client_app.py": "{}/client_app.py",
    "server_app.py": "{}/server_app.py",
    "test_project.py": "tests/test_{}.py",
}


def new(
    name: Annotated[str, typer.Argument(help="Name of the project: a Python name, and the folder that is made.")],
) -> None:
    """Write a small Flower app with a strategy, data, model, settings and a test of its own."""
    with exits():
        folder = write_project(Path.cwd(), name)
        typer.echo(f"{folder.name}/: next, in it: fedsim run pyproject.toml; flwr run . local-simulation; pytest")


def write_project(place: Path, name: str) -> Path:
    """Write a project's folder.

    Args:
        place: where the folder is made.
        name: of the folder and its Python package.

    Returns:
        The folder.

    Raises:
        ConfigError: the name is no Python name, or there is something of that name.
    """
    if not name.isidentifier() or keyword.iskeyword(name) or name != name.lower():
        rule = "must be a Python name of small letters, digits and _, not beginning with a digit"
        raise ConfigError([Problem("name", f'"{name}"', rule, "such as my_project")])
    folder = place / name
    if folder.exists():
        raise ConfigError(
            [Problem("name", f'"{name}"', "is there already, and nothing is overwritten", "take another")]
        )
    values = {"name": name, "dashed": name.replace("_", "-").strip("-")}
    for template, target in _FILES.items():
        path = folder / target.format(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = (_TEMPLATES / f"{template}.txt").read_text(encoding="utf-8")
        path.write_text(Template(text).substitute(values), encoding="utf-8")
    (folder / name / "__init__.py").write_text('"""A federation with fedsim."""\n', encoding="utf-8")
    return folder
