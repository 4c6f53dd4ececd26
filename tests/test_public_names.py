"""What a module offers is what it lists, sorted, and every listed name is there."""

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("crypto", "strategies", "fedsim")


def listed(source: str) -> list[str] | None:
    """Return a source's `__all__`, or None if it has none."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return None


def modules_with_a_list() -> list[str]:
    found = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if listed(path.read_text(encoding="utf-8")) is not None:
                parts = path.relative_to(ROOT).with_suffix("").parts
                found.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return found


MODULES = modules_with_a_list()


def in_order(names: list[str]) -> list[str]:
    """Sort as ruff does: CONSTANTS, then Classes, then functions."""
    return sorted(names, key=lambda name: (0 if name.isupper() else 1 if name[0].isupper() else 2, name))


def test_the_contract_of_secure_sums_is_listed() -> None:
    assert {"crypto", "fedsim.config"} <= set(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_listed_names_are_sorted_and_there(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__all__ in (sorted(module.__all__), in_order(module.__all__))
    assert len(set(module.__all__)) == len(module.__all__)
    assert [public for public in module.__all__ if not hasattr(module, public)] == []


def test_crypto_lists_all_that_it_shows() -> None:
    import crypto

    shown = {name for name, value in vars(crypto).items() if isinstance(value, type) and not name.startswith("_")}
    assert shown == set(crypto.__all__)
