"""Secrets are compared in constant time, and are in no process's arguments or environment, no log and no repr."""

import ast
import re
from pathlib import Path

import psutil
import pytest

from crypto.keys import KeyBundle
from fedsim import protections
from fedsim.config import load_config
from fedsim.events import NullObserver
from fedsim.runner import run

ROOT = Path(__file__).parents[1]
#: Names of values that an attacker must not learn bit by bit from the time of a comparison.
_SECRET = re.compile(r"(^|_)(mac|proof|secret|token|verify_key|seed)$")


def comparisons(source: str) -> list[int]:
    """Return the lines where == or != has such a value on a side."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare) and any(isinstance(op, ast.Eq | ast.NotEq) for op in node.ops):
            sides = [node.left, *node.comparators]
            # An empty one, or a length, tells nothing.
            if not any(isinstance(side, ast.Constant) for side in sides) and any(map(_secret, sides)):
                found.append(node.lineno)
    return found


def _secret(node: ast.expr) -> bool:
    while isinstance(node, ast.Subscript):
        node = node.value
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return bool(_SECRET.search(name))


@pytest.mark.parametrize("room", ["crypto", "strategies", "fedsim"])
def test_tags_and_secrets_are_compared_in_constant_time(room):
    places = [f"{p}:{line}" for p in sorted((ROOT / room).rglob("*.py")) for line in comparisons(p.read_text())]
    assert places == [], "use hmac.compare_digest"


def test_a_planted_comparison_is_found():
    assert comparisons("if mine.proof[:32] != theirs:\n    pass\nif secret == b'':\n    pass\n") == [1]
    aggregator = (ROOT / "crypto" / "preamble" / "aggregator.py").read_text()
    assert "hmac.compare_digest" in aggregator


class Snooping(NullObserver):
    """Reads what any user of the machine may read of the processes of a run."""

    def __init__(self):
        self.seen, self.keys = [], []

    def round_end(self, event):
        me = psutil.Process()
        for process in [me, *me.children(recursive=True)]:
            for name in ("cmdline", "environ"):
                try:
                    self.seen.append(Path(f"/proc/{process.pid}/{name}").read_bytes())
                except OSError:
                    continue


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="reads Linux's /proc")
@pytest.mark.parametrize("protection", ["bfv", "preamble"])
def test_no_key_is_in_arguments_or_environment_of_a_process(tmp_path, monkeypatch, protection):
    if protection == "bfv":
        pytest.importorskip("tenseal", reason="tenseal is not installed: pip install 'fedsim[tenseal]'")
    bundles: list[KeyBundle] = []
    save = protections.save_keys
    monkeypatch.setattr(protections, "save_keys", lambda root, made: bundles.extend(made) or save(root, made))
    more = ["protection.noise=off-not-private", "protection.dense=true"] if protection == "preamble" else []
    words = ["task.name=digits", "model.name=logistic", "federation.num_clients=3", "federation.rounds=1"]
    words += ["engine.name=inline", "output.report=false", f"output.folder={tmp_path}", f"protection.name={protection}"]
    watch = Snooping()
    run(load_config(None, [*words, *more]), watch)
    secrets = [bundle.secret for bundle in bundles if bundle.secret]
    assert secrets and len(watch.seen) >= (4 if protection == "preamble" else 2)
    for seen in watch.seen:
        for secret in secrets:
            needle = secret[16:32]
            assert needle not in seen and needle.hex().encode() not in seen.lower()
    assert all(s[16:32].hex() not in repr(bundles) for s in secrets)
