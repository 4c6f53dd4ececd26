"""A package imports only what stands above it in the house; the offending line is named."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

#: From the ground up; a room may import itself and the rooms before it.
ROOMS = ("crypto", "strategies", "fedsim", "experiments")

#: Libraries that a room must not know, because they belong to a room above.
FOREIGN = {
    "crypto": {"torch", "torchvision", "flwr", "flwr_datasets", "ray", "pydantic", "typer", "rich"},
    "strategies": {"ray", "typer", "rich"},
    "fedsim": set[str](),
    "experiments": set[str](),
}

#: Libraries that only the named modules may import, so that everything else works without them.
ONLY_IN = {
    "tenseal": ("crypto/he_", "experiments/bench/"),
    "openfhe": ("crypto/he_", "crypto/_openfhe/"),
    "dp_accounting": ("crypto/preamble/", "fedsim/", "experiments/"),
}


@dataclass(frozen=True)
class Import:
    """One imported module and the line that imports it."""

    module: str
    line: int


def imports(source: str) -> Iterator[Import]:
    """Yield everything that a source imports, inside functions too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield Import(node.module or "", node.lineno)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("importlib.import_module", "__import__"):
            if node.args and isinstance(node.args[0], ast.Constant):
                yield Import(str(node.args[0].value), node.lineno)


def violations(path: str, source: str) -> list[str]:
    """Return the offending lines of one file.

    Args:
        path: relative to the repository, with slashes.
        source: its text.
    """
    room = path.split("/")[0]
    above = set(ROOMS[ROOMS.index(room) + 1 :])
    found = []
    for item in imports(source):
        top = item.module.split(".")[0]
        if top in above or top in FOREIGN[room]:
            found.append(f"{path}:{item.line}: {room} must not import {item.module}")
        elif top in ONLY_IN and not path.startswith(ONLY_IN[top]):
            found.append(f"{path}:{item.line}: {top} may only be imported in {', '.join(ONLY_IN[top])}")
    return found


def sources(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py"))


@pytest.mark.parametrize("room", ROOMS)
def test_room_imports_only_what_stands_above_it(room: str) -> None:
    files = sources(room)
    assert files, f"{room} has no sources: the test looks in the wrong place"
    found = [
        line
        for path in files
        for line in violations(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("path", "source", "message"),
    [
        ("crypto/bad.py", "import numpy\nimport torch\n", "crypto/bad.py:2: crypto must not import torch"),
        ("crypto/bad.py", "def f():\n    from torch.nn import Linear\n", "crypto must not import torch.nn"),
        ("crypto/bad.py", "from strategies.base import X\n", "crypto must not import strategies.base"),
        ("crypto/bad.py", "import importlib\nimportlib.import_module('ray')\n", "crypto must not import ray"),
        ("crypto/plain.py", "import tenseal as ts\n", "tenseal may only be imported in crypto/he_"),
        ("strategies/bad.py", "import numpy as np, ray\n", "strategies must not import ray"),
        ("strategies/bad.py", "from fedsim.config import RunConfig\n", "strategies must not import fedsim.config"),
        ("fedsim/bad.py", "import experiments.sweep\n", "fedsim must not import experiments.sweep"),
    ],
)
def test_a_planted_import_is_found(path: str, source: str, message: str) -> None:
    (found,) = violations(path, source)
    assert message in found


def test_allowed_imports_are_left_alone() -> None:
    source = "import torch\nimport flwr.app\nfrom crypto import wire\nfrom . import x\nimport raygun\n"
    assert violations("strategies/good.py", source) == []
    assert violations("crypto/he_tenseal.py", "import tenseal.sealapi\n") == []
    assert violations("experiments/good.py", "import fedsim, strategies, crypto, ray, torch\n") == []


@pytest.mark.report("T11", "both import")
def test_our_crypto_does_not_collide_with_pycryptodome() -> None:
    import Crypto.Cipher

    import crypto

    assert Path(crypto.__file__).parent == ROOT / "crypto" or "site-packages" in crypto.__file__
    assert Path(Crypto.__file__).parent != Path(crypto.__file__).parent
