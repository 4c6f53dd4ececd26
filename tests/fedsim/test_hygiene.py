"""Keys and plain models are found wherever they lie, and clean artefacts are called clean."""

import gzip
import io
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from crypto.keys import CLIENTS, SERVER, KeyBundle, save_keys
from fedsim.checkpoint import Checkpoint, save_checkpoint
from fedsim.cli import app
from fedsim.config import load_config
from fedsim.errors import ConfigError
from fedsim.events import NullObserver
from fedsim.hygiene import scan
from fedsim.keystore import kept_at
from fedsim.runner import run, simulate
from strategies.records import NamedArrays

ROOT = Path(__file__).parents[2]
SECRET = bytes(np.random.default_rng(1).integers(0, 256, 5000, dtype=np.uint8))
FULL = KeyBundle(role=CLIENTS, scheme="bfv", params_hash=bytes(16), key_id=b"k" * 8, public=b"p" * 50, secret=SECRET)
PUBLIC = KeyBundle(role=SERVER, scheme="bfv", params_hash=bytes(16), key_id=b"k" * 8, public=b"p" * 50, secret=b"")
PEM = b"-----BEGIN " + b"EC PRIVATE KEY-----\nMHc\n"
SMALL = ["task.name=digits", "model.name=mlp", "federation.num_clients=3", "federation.rounds=2", "engine.name=inline"]


def failed(path, keys=None):
    return [f"{check.name}: {check.detail}" for check in scan(path, keys) if check.status == "failed"]


def tar(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def zipped(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return out.getvalue()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (FULL.encode(), "secret key of 5000 bytes at byte 0"),
        (b"x" * 77 + FULL.encode() + b"tail", "secret key of 5000 bytes at byte 77"),
        (b"x" + SECRET[160:4000] + b"y", "windows of this run's secrets"),
        (b'{"key": "' + SECRET[:2000].hex().encode() + b'"}', "windows of this run's secrets"),
        (PEM, "private key in PEM form"),
        (PUBLIC.encode(), None),
        (b"nothing here FSKY\1 at all", None),
    ],
)
@pytest.mark.parametrize("wrap", ["file", "wheel", "image"])
def test_keys_are_found_in_files_wheels_and_layers(tmp_path, content, words, wrap):
    save_keys(tmp_path / "keys", [FULL])
    place = tmp_path / "it"
    place.mkdir()
    if wrap == "file":
        (place / "log.txt").write_bytes(content)
    elif wrap == "wheel":
        place = tmp_path / "x.whl"
        place.write_bytes(zipped({"fedsim/a.py": b"print()", "fedsim/data.bin": content}))
    else:
        place = tmp_path / "image.tar"
        layer = gzip.compress(tar({"srv/app/context": content}))
        place.write_bytes(tar({"blobs/sha256/abc": layer, "manifest.json": b"[]"}))
    found = failed(place, tmp_path / "keys")
    assert any(words in line for line in found) if words else found == []


@pytest.mark.report("U19", "`fedsim doctor --run` finds keys in folders, wheels and images; the repository holds none")
def test_what_the_repository_ships_holds_no_key():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False).stdout.split(b"\0")
    files = [ROOT / name.decode() for name in listed if name and (ROOT / name.decode()).is_file()]
    if not files:
        pytest.skip("no git repository here")
    bad = [p for p in files if p.suffix in (".tenseal", ".pickle", ".pkl", ".key", ".pem", ".p12", ".pt")]
    assert bad == []
    for path in files:
        if path.suffix in (".json", ".toml", ".py", ".md", ".txt", ".yml", ".sh", ""):
            assert b"-----BEGIN " + b"PRIVATE KEY-----" not in path.read_bytes(), path


@pytest.fixture(scope="module")
def sealed(tmp_path_factory):
    pytest.importorskip("tenseal", reason="tenseal is not installed: pip install 'fedsim[tenseal]'")
    folder = tmp_path_factory.mktemp("runs")
    more = [*SMALL, "protection.name=bfv", f"output.folder={folder}"]

    class Interrupting(NullObserver):
        def round_end(self, event):
            raise KeyboardInterrupt

    simulate(load_config(None, [*more, "output.name=done", "output.report=false"]))
    with pytest.raises(KeyboardInterrupt):
        run(load_config(None, [*more, "output.name=cut", "output.report=false"]), Interrupting())
    return folder


def test_a_finished_run_is_clean(sealed):
    assert failed(sealed / "done") == []
    done = CliRunner().invoke(app, ["doctor", "--run", str(sealed / "done")])
    assert done.exit_code == 0 and "windows of known secrets" in done.output


def test_an_unfinished_run_is_clean_and_its_keys_are_named(sealed):
    checks = scan(sealed / "cut")
    assert [c.status for c in checks if c.status != "ok"] == ["warning"]
    assert "kept here, so that it can resume" in next(c.detail for c in checks if c.status == "warning")
    assert int(checks[-1].detail.split()[2]) > 30, "the kept keys' bytes were looked for"
    kept_at(sealed / "cut").chmod(0o755)
    assert any("may be read by others (mode 755)" in line for line in failed(sealed / "cut"))
    kept_at(sealed / "cut").chmod(0o700)


@pytest.mark.parametrize("leak", ["model", "checkpoint", "key"])
def test_what_leaks_out_of_a_sealed_run_is_found(sealed, tmp_path, leak):
    place = tmp_path / "leaky"
    shutil.copytree(sealed / "cut", place)
    state = NamedArrays({"w": np.ones(3, np.float32)})
    if leak == "model":
        (place / "model.safetensors").write_bytes(b"x")
    elif leak == "checkpoint":
        save_checkpoint(place / "checkpoints", Checkpoint(2, state), keep=9)
    else:
        secret = next(kept_at(sealed / "cut").rglob("clients/*.key")).read_bytes()
        (place / "notes.txt").write_bytes(b"see: " + secret[500:900])
    found = failed(place, kept_at(sealed / "cut"))
    assert len(found) == 1 and ("only" in found[0] or "windows" in found[0])
    done = CliRunner().invoke(app, ["doctor", "--run", str(place), "--keys", str(kept_at(sealed / "cut"))])
    assert done.exit_code == 1


def test_nothing_to_look_at_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="does not exist; name a run's folder"):
        scan(tmp_path / "none")
