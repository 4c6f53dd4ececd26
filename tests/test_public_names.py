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


#: The faces of the packages. A name that leaves, or comes, is a change for users; docs/stability.md says how.
FACES = {
    "crypto": """
        Adder BackendUnavailable Budget BudgetExceeded CryptoError EmptySum InputError IntegrityError KeyMismatch Layout
        LayoutMismatch Opener ReplayError Sealer SecureSum Segment WireError
    """,
    "strategies": """
        BufferRule ClientHalf DictPFL FedAdam FedAvg FedAvgM FedBuff FedLUAR FedMLHE FedPartial FedProx FedTop
        FederatedStrategy KeyedProtection LEFF Participation Plain PreambleProtection Protection RoundPlan SealedFedLUAR
        StrategyError seal_mod
    """,
    "fedsim": "RunConfig RunResult load_config simulate",
    "fedsim.config": """
        BfvConfig CkksConfig ClockConfig ConfigError DataConfig DevicesConfig DictPflConfig EngineConfig FAMILIES
        FaultsConfig FedAdamConfig FedAvgConfig FedAvgMConfig FedBuffConfig FedLuarConfig FedMlHeConfig FedProxConfig
        FedTopConfig FederationConfig FlwrStrategyConfig Key LeffConfig ModelConfig OpenFheBgvConfig OpenFheCkksConfig
        OpenFheThresholdConfig OutputConfig OwnStrategyConfig PROTECTIONS PartialConfig PlainConfig PreambleConfig
        Problem ProtectionConfig RlweConfig RlweThresholdConfig RunConfig STRATEGIES StrategyConfig TaskConfig
        TrainingConfig config_from_dict from_run_config load_config schema template to_run_config to_toml with_values
    """,
    "fedsim.tasks.data": "Dataset DatasetInfo list_datasets load_dataset register_dataset split_rows",
    "fedsim.tasks.models": "build_model list_models model_options",
    "fedsim.tasks.partition": "Partition Policy everything list_schemes partition scheme_options",
}


@pytest.mark.parametrize("name", FACES)
def test_public_names_are_these(name: str) -> None:
    assert sorted(importlib.import_module(name).__all__) == sorted(FACES[name].split())


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_say_what_they_offer(package: str) -> None:
    assert package in MODULES


def test_every_module_of_strategies_that_the_face_shows_has_the_name() -> None:
    import strategies

    assert set(strategies.__all__) == set(strategies._HOMES)
    assert all(getattr(strategies, name).__module__.startswith("strategies.") for name in strategies.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'FedAv'"):
        strategies.FedAv  # noqa: B018


def test_the_version_is_one_of_semantic_versioning() -> None:
    import re
    import tomllib

    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_what_the_reference_shows_is_listed() -> None:
    import re

    for page in sorted((ROOT / "docs" / "reference").glob("*.md")):
        for shown in re.findall(r"^::: ([\w.]+)", page.read_text(encoding="utf-8"), re.M):
            module, _, name = shown.rpartition(".")
            # A module that is shown as a whole names its members in the page.
            if not name[0].isupper() and (ROOT / (shown.replace(".", "/") + ".py")).exists():
                assert shown in MODULES, shown
            else:
                assert name in importlib.import_module(module).__all__, shown
