"""`fedsim keys`: one folder for each role, no key byte on the screen, nothing overwritten."""

import json
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from crypto.keys import load_key
from fedsim.cli import app
from fedsim.helper import Task

SMALL = ["--set", "task.name=digits", "--set", "model.name=mlp", "--protection", "bfv"]


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["keys", *arguments])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    pytest.importorskip("tenseal")
    out = tmp_path_factory.mktemp("keys") / "set"
    return out, call(*SMALL, "--out", str(out), "--json")


def test_each_role_gets_a_private_folder(made: tuple[Path, Result]) -> None:
    out, result = made
    assert result.exit_code == 0, result.output
    shown = json.loads(result.output)
    assert [(f["role"], f["secret"]) for f in shown["files"]] == [("server", False), ("clients", True)]
    for file in shown["files"]:
        bundle = load_key(out, file["role"], shown["scheme"])
        assert bundle.key_id.hex() == shown["key_id"] and bool(bundle.secret) == file["secret"]
        assert stat.S_IMODE(Path(file["path"]).stat().st_mode) == 0o600
        assert stat.S_IMODE(Path(file["path"]).parent.stat().st_mode) == 0o700


def test_no_key_byte_is_shown(made: tuple[Path, Result]) -> None:
    out, result = made
    secret = load_key(out, "clients", "bfv").secret
    assert len(secret) > 256
    for at in range(0, len(secret) - 8, 8):
        assert secret[at : at + 8].hex() not in result.output


def test_keys_are_never_overwritten(made: tuple[Path, Result]) -> None:
    out, _ = made
    before = (out / "clients" / "bfv.key").read_bytes()
    again = call(*SMALL, "--out", str(out))
    assert again.exit_code == 2 and "keys are never overwritten" in again.output
    assert (out / "clients" / "bfv.key").read_bytes() == before


def test_our_rlwe_needs_no_library_and_gives_each_member_a_share(tmp_path: Path) -> None:
    for name, members in (("rlwe", 0), ("rlwe-threshold", 3)):
        out = tmp_path / name
        result = call(*SMALL[:4], "--protection", name, "--out", str(out), "--json")
        assert result.exit_code == 0, result.output
        shown = json.loads(result.output)
        roles = [("server", False), ("clients", not members), *((f"committee-{m}", True) for m in range(members))]
        assert [(f["role"], f["secret"]) for f in shown["files"]] == roles
        for role, secret in roles:
            bundle = load_key(out, role, shown["scheme"])
            assert bundle.key_id.hex() == shown["key_id"] and len(bundle.secret) == 16 * secret
            assert not secret or bundle.secret.hex() not in result.output


def test_a_protection_without_keys_is_refused(tmp_path: Path) -> None:
    result = call("--protection", "plain", "--out", str(tmp_path / "keys"))
    assert result.exit_code == 2 and 'protection.name = "plain"' in result.output
    assert not (tmp_path / "keys").exists()


def test_preamble_gives_the_helper_its_key_and_its_task_and_the_others_the_public_key(tmp_path: Path) -> None:
    sets = ["--set", "task.name=digits", "--set", "model.name=logistic", "--set", "protection.block_size=256"]
    out = tmp_path / "keys"
    result = call("--protection", "preamble", *sets, "--set", "protection.blocks=1", "--out", str(out), "--json")
    assert result.exit_code == 0, result.output
    made = json.loads(result.stdout)
    assert {f["role"]: f["secret"] for f in made["files"]} == {"server": False, "clients": False, "helper": True}
    assert Task.read(out / "helper" / "task.json").parameters.block_size == 256


def test_a_plan_that_does_not_fit_makes_no_keys(tmp_path: Path) -> None:
    pytest.importorskip("tenseal")
    chain = [
        "protection.chain=[40,40]",
        "protection.scale_bits=30",
        "protection.bound=100.0",
        "federation.num_clients=16",
    ]
    sets = [word for setting in chain for word in ("--set", setting)]
    result = call(*SMALL[:4], "--protection", "ckks", *sets, "--out", str(tmp_path / "keys"))
    assert result.exit_code == 2 and "wraps silently" in result.output
    assert not (tmp_path / "keys").exists()
