"""Every strategy under {plain, bfv, preamble} and a kill -9 in its middle: what is the same afterwards.

Under plain and bfv every bit is. PREAMBLE draws blocks and noise anew, so the bits of a round that is done again differ
by design; with its draws made alike, they do not. A round whose sum was opened is never done again.
"""

import json
import shutil
from contextlib import contextmanager

import numpy as np
import pytest

import fedsim.runner as runner
from fedsim._config.strategies import FAMILIES, STRATEGIES
from fedsim.checkpoint import load_checkpoint
from fedsim.errors import ConfigError
from fedsim.keystore import kept_at
from fedsim.measure.ledger import Ledger
from fedsim.protections import KeyRing
from fedsim.runner import simulate
from tests.fedsim.killing import cut, draw_alike, forkserver, needs_seal, same_run, settings

slow = pytest.mark.slow
TWO_LAYERS = ["model.options.hidden=[16, 16]"]
BLOCKS = ["model.name=vit-tiny", "model.options={dim=16, depth=3}", "training.max_steps=1", "training.optimizer=adamw"]
LEFF = ["strategy.distil_steps=1", "strategy.proxy_batch=16", "strategy.proxy_batches=1", "strategy.tiers=[1, 2]"]
#: What a strategy needs beside its name, of a run of four clients.
NEEDS = {
    "fedbuff": ["strategy.buffer_size=2"],
    "fedluar": ["strategy.delta=1", *TWO_LAYERS],
    "dictpfl": TWO_LAYERS,
    "fedtop": ["strategy.layers=1"],
    "leff": [*BLOCKS, *LEFF, "data.proxy_examples=64", "training.lr=0.003"],
    "partial": BLOCKS,
}
PROTECTIONS = {
    "plain": [],
    "bfv": ["protection.name=bfv", "protection.rounding=nearest"],
    "rlwe": ["protection.name=rlwe", "protection.rounding=nearest"],
    "preamble": [
        "protection.name=preamble",
        "protection.epsilon=50",
        "protection.block_size=256",
        "protection.blocks=1",
    ],
}
OURS = [name for name in STRATEGIES if name not in FAMILIES]
#: Servers that read the sum have no place where only clients can, nor clients that hold the model where a server opens.
REFUSED = {(name, protection) for name in ("fedavgm", "fedadam", "fedbuff", "leff") for protection in ("bfv", "rlwe")}
REFUSED |= {("dictpfl", "preamble"), ("fedml-he", "preamble")}
#: Those that every run of the tests has; the others take long together.
QUICK = {("fedadam", "plain"), ("fedluar", "bfv"), ("fedavg", "preamble")}
CELLS = [
    pytest.param(name, protection, marks=[] if (name, protection) in QUICK else slow)
    for name in OURS
    for protection in PROTECTIONS
    if (name, protection) not in REFUSED
]


@pytest.fixture(scope="module")
def processes():
    return forkserver()


def settings_of(strategy, protection):
    return [f"strategy.name={strategy}", *NEEDS.get(strategy, []), *PROTECTIONS[protection]]


def share_keys(folder, monkeypatch):
    """Let later runs have the keys of ``cut``: clients that hold the model draw from their common key."""
    shutil.copytree(kept_at(folder / "cut"), folder / "same")

    @contextmanager
    def same_keys(*_):
        shutil.copytree(folder / "same", folder / "again", dirs_exist_ok=True)
        yield KeyRing(*(str(folder / "again" / side) for side in ("server", "clients")))

    monkeypatch.setattr(runner, "fresh_keys", same_keys)


@pytest.mark.parametrize(("strategy", "protection"), sorted(REFUSED))
def test_cells_that_are_missing_are_refused_at_start(tmp_path, strategy, protection):
    with pytest.raises(ConfigError):
        settings(tmp_path, *settings_of(strategy, protection))


@needs_seal
@pytest.mark.timeout(1200)
@pytest.mark.report("U65")
@pytest.mark.parametrize(("strategy", "protection"), CELLS)
def test_every_strategy_resumes_to_the_same_bits(processes, tmp_path, monkeypatch, strategy, protection):
    more = settings_of(strategy, protection)
    private = protection == "preamble"
    if private:
        draw_alike(monkeypatch.setattr)
        more.append("protection.noise=off-not-private")
    cut(processes, tmp_path, more, "training", 3, drawn_alike=private)
    if protection in ("bfv", "rlwe"):
        share_keys(tmp_path, monkeypatch)
    whole, resumed = same_run(tmp_path, more)
    if private:
        released = (resumed.folder / "releases.csv").read_text()
        assert released == (whole.folder / "releases.csv").read_text() == "1,asked\n2,asked\n3,asked\n4,asked\n"


def rows(folder, *columns):
    return Ledger.read(folder).table().select(columns).to_pylist()


@pytest.mark.report("U65", "under preamble no round that was opened is done again, and the account of privacy goes on")
@pytest.mark.parametrize(
    ("moment", "at", "kept", "done"),
    [
        ("training", 3, 2, [1, 2, 3, 4]),
        # Round 2 was opened, and its model is lost: its privacy is spent, so it is left out.
        pytest.param("before the checkpoint", 2, 1, [1, 3, 4], marks=slow),
        pytest.param("after the checkpoint", 2, 2, [1, 2, 3, 4], marks=slow),
    ],
)
def test_what_is_the_same_where_draws_are_made_anew(processes, tmp_path, moment, at, kept, done):
    more = [*settings_of("fedavg", "preamble"), "output.keep=9"]
    cut(processes, tmp_path, more, moment, at)
    point = tmp_path / "cut" / "checkpoints" / f"round-{kept:06d}.ckpt"
    before, model = point.read_bytes(), load_checkpoint(point).state
    resumed = simulate(settings(tmp_path, "output.name=cut", *more), resume=True)
    whole = simulate(settings(tmp_path, "output.name=whole", *more))
    assert point.read_bytes() == before, "what was kept is not touched"
    later = load_checkpoint(tmp_path / "cut" / "checkpoints" / "round-000003.ckpt").state
    assert any(not np.array_equal(later.arrays[name], array) for name, array in model.arrays.items())
    # Once each, however often the process died: what the noise was spent on.
    assert (resumed.folder / "releases.csv").read_text() == "".join(f"{number},asked\n" for number in (1, 2, 3, 4))
    accounts = [json.loads((run.folder / "run.json").read_text())["protection"] for run in (whole, resumed)]
    assert accounts[0] == accounts[1] and accounts[0]["private"] and accounts[0]["rounds"] == 4
    # Who took part, how it ended and every byte; the values alone differ.
    columns = ("round", "client", "phase", "outcome", "reason", "logical_bytes", "wire_bytes")
    expected = [row for row in rows(whole.folder, *columns) if row["round"] in done]
    assert rows(resumed.folder, *columns) == expected
    assert whole.weights_sha256 != resumed.weights_sha256
