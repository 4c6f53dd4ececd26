"""Whole runs under each homomorphic protection: as good as plain, blind server, no key left behind, faults named."""

import json
import os
import re
import shutil
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import fedsim.client_app as client_app
import fedsim.runner as runner
import strategies.client as client
from crypto._openfhe.find import find_python
from crypto.base import Tag
from crypto.errors import BackendUnavailable, KeyMismatch
from crypto.he_seal import library
from crypto.keys import KeyBundle, load_key
from fedsim.checkpoint import latest_checkpoint
from fedsim.cli import app
from fedsim.config import load_config, to_run_config
from fedsim.events import NullObserver
from fedsim.measure.ledger import Ledger
from fedsim.measure.metrics import Metrics
from fedsim.protections import KeyRing, write_keys
from fedsim.runner import run, simulate
from fedsim.site import secure_plan, server_site_of, site_of
from fedsim.tasks.training import as_inputs, evaluate
from strategies.plan import RoundPlan
from strategies.state import load_state_arrays

SMALL = ["task.name=digits", "model.name=mlp", "federation.num_clients=6", "federation.rounds=2", "output.report=false"]
# Trained until few images lie near a border: differences of 1e-6 in a round's weights grow a thousandfold in the next.
LEARNING = [
    "federation.rounds=3",
    "training.lr=0.2",
    "training.momentum=0.5",
    "training.epochs=5",
    "data.scheme=iid",
    "engine.name=inline",
]


def reason_without(find) -> str:
    try:
        find()
    except BackendUnavailable as error:
        return f"NOT TESTED HERE: {error}"
    return ""


REQUIRED = bool(os.environ.get("FEDSIM_REQUIRE_OPENFHE"))
NO_SEAL, NO_OPENFHE = reason_without(library), reason_without(find_python)


def needs(reason: str):
    return pytest.mark.skipif(bool(reason) and not REQUIRED, reason=reason)


needs_seal, needs_openfhe = needs(NO_SEAL), needs(NO_OPENFHE)
SEAL = [pytest.param(name, marks=needs_seal) for name in ("bfv", "ckks")]
OPENFHE = [pytest.param(n, marks=needs_openfhe) for n in ("openfhe-ckks", "openfhe-bgv", "openfhe-threshold")]
OURS = ("rlwe", "rlwe-threshold")
each_protection = pytest.mark.parametrize("name", [*SEAL, *OURS, *OPENFHE])


def settings(folder, *more):
    return load_config(None, [*SMALL, f"output.folder={folder}", *more])


@dataclass
class Watched:
    """One run, with what it opened after round 1 and copies of the keys that it made."""

    config: object
    result: object
    keys: KeyRing
    first: dict = field(default_factory=dict)

    def accuracy(self) -> float:
        """Over all 1797 images, so that one image is 0.06 points."""
        site = site_of(to_run_config(self.config))
        load_state_arrays(site.model, self.result.state.arrays)
        x = np.concatenate([site.dataset.train_x, site.dataset.test_x])
        y = np.concatenate([site.dataset.train_y, site.dataset.test_y])
        return evaluate(site.model, as_inputs(x), torch.from_numpy(y.astype(np.int64))).accuracy


def watched(folder: Path, *more: str) -> Watched:
    """Run and keep what a test needs to look at; the run itself removes its keys."""
    config = settings(folder, *more)
    first: dict = {}
    rings: list[KeyRing] = []
    inner_open, inner_keys = client.open_model, runner.fresh_keys

    def opening(content, *rest):
        state = inner_open(content, *rest)
        if RoundPlan.from_record(content.config_records["config"]).round == 2 and not first:
            first.update({k: a.copy() for k, a in state.arrays.items()})
        return state

    @contextmanager
    def copying(protection, plan):
        with inner_keys(protection, plan) as ring:
            rings.append(ring)
            for side in ("server", "clients"):
                if getattr(ring, side):
                    shutil.copytree(getattr(ring, side), folder / "copies" / side)
            yield ring

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "open_model", opening)
        patch.setattr(runner, "fresh_keys", copying)
        result = simulate(config)
    (ring,) = rings
    if ring.server is None:
        return Watched(config, result, ring, first)
    assert not Path(ring.server).exists() and not Path(ring.clients).exists(), "keys outlive their run"
    return Watched(config, result, KeyRing(str(folder / "copies/server"), str(folder / "copies/clients")), first)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return watched(tmp_path_factory.mktemp("plain"), *LEARNING)


@pytest.fixture(scope="module")
def protected(tmp_path_factory):
    made: dict[str, Watched] = {}

    def get(name: str) -> Watched:
        if name not in made:
            more = [*LEARNING, f"protection.name={name}", "output.report=true"]
            made[name] = watched(tmp_path_factory.mktemp(name), *more)
        return made[name]

    return get


@pytest.mark.report("U27", "one setting; the same run under each protection equals plain within its bound")
@each_protection
def test_weights_after_a_round_are_within_the_error_bound_of_plain(protected, plain, name):
    run_ = protected(name)
    record = json.loads((run_.result.folder / "run.json").read_text())
    sizes = site_of(to_run_config(run_.config)).partition.sizes
    weight = sizes.sum() / sizes.max()
    # The sum's bound, over the total weight; and float32 rounding of weights below 1 on both sides.
    allowed = record["protection"]["error_bound"] / weight + 1e-6
    largest = max(float(np.abs(run_.first[k] - plain.first[k]).max()) for k in plain.first)
    assert 0 < allowed < 1e-3 and largest <= allowed
    assert any(not np.array_equal(a, plain.result.state.arrays[k]) for k, a in plain.first.items())


@each_protection
def test_accuracy_equals_plain_within_a_fifth_of_a_point(protected, plain, name):
    reached = plain.accuracy()
    assert reached > 0.9
    assert abs(protected(name).accuracy() - reached) <= 0.002


def secrets(folder: str) -> list[KeyBundle]:
    return [KeyBundle.decode(path.read_bytes()) for path in sorted(Path(folder).rglob("*.key"))]


@pytest.mark.report("U18")
@each_protection
def test_the_server_is_given_no_secret_and_cannot_open(protected, name):
    run_ = protected(name)
    site = server_site_of(to_run_config(run_.config), run_.keys.server)
    bundles = secrets(run_.keys.server)
    assert [b.role for b in bundles] == ["server"] and not any(b.secret for b in bundles)
    assert any(b.secret for b in secrets(run_.keys.clients))
    plan = secure_plan(site)
    scheme = site.protection.secure_sum(plan)
    assert scheme.key_id == bundles[0].key_id, "the server's description is bound to the run's key"
    with pytest.raises((FileNotFoundError, KeyMismatch)):
        site.protection.opener(plan)
    with pytest.raises((FileNotFoundError, KeyMismatch)):
        site.protection.sealer(plan)
    if site.protection.members:
        with pytest.raises((FileNotFoundError, KeyMismatch)):
            site.protection.partial(b"", plan, 0, Tag(round=1, layout_hash=bytes(16), length=plan.length))
        with pytest.raises(KeyMismatch):
            scheme.partial_opener(bundles[0])
    else:
        with pytest.raises(KeyMismatch):
            scheme.opener(bundles[0])


@each_protection
def test_what_the_server_sees_of_a_total_does_not_open_with_its_own_key(protected, name):
    """Not even if its public bundle is passed off as the clients'."""
    run_ = protected(name)
    site = server_site_of(to_run_config(run_.config), run_.keys.server)
    plan = secure_plan(site)
    (own,) = secrets(run_.keys.server)
    renamed = KeyBundle(
        role="committee-0" if site.protection.members else "clients",
        scheme=own.scheme,
        params_hash=own.params_hash,
        key_id=own.key_id,
        public=own.public,
    )
    scheme = site.protection.secure_sum(plan)
    make = scheme.partial_opener if site.protection.members else scheme.opener
    with pytest.raises(KeyMismatch):
        make(renamed)


def windows(secret: bytes, most: int = 64) -> list[bytes]:
    """Return 16-byte windows spread over a secret, those of few distinct bytes (zeros, small numbers) left out.

    The first is left out too: SEAL's header there says no more than a length, which a ciphertext may share. A secret of
    16 bytes has no header.
    """
    found = [secret[at : at + 16] for at in range(16 if len(secret) > 16 else 0, len(secret) - 15, 16)]
    telling = [w for w in found if len(set(w)) >= 8]
    return telling[:: max(1, len(telling) // most)]


@pytest.mark.report("U18")
@each_protection
def test_artefacts_hold_no_key_bytes(protected, name):
    run_ = protected(name)
    needles = [w for bundle in secrets(run_.keys.clients) if bundle.secret for w in windows(bundle.secret)]
    # Keys of ours are seeds of 16 bytes, one window each.
    assert len(needles) >= (1 if name in OURS else 32)
    files = [path for path in run_.result.folder.rglob("*") if path.is_file()]
    names = {path.name for path in files}
    assert {"config.toml", "run.json", "report.html", "ledger.parquet", "model.safetensors"} <= names
    for path in files:
        data = path.read_bytes()
        hits = [w for w in needles if w in data or w.hex().encode() in data]
        assert not hits, path


def test_a_planted_key_is_found(tmp_path):
    secret = bytes(range(256)) * 8
    data = b"x" * 1000 + secret[160:192] + b"y"
    assert any(w in data for w in windows(secret, 1000))


@pytest.mark.report("U18")
@each_protection
def test_logs_hold_no_key_bytes(tmp_path, caplog, name):
    with caplog.at_level("DEBUG"):
        run_ = watched(tmp_path, "federation.rounds=1", "engine.name=inline", f"protection.name={name}")
    assert caplog.text
    shown = caplog.text + repr(site_of(to_run_config(run_.config), {"keys": run_.keys.clients}).protection)
    for bundle in secrets(run_.keys.clients):
        for window in windows(bundle.secret, 200):
            assert window.hex() not in shown and repr(window)[2:-1] not in shown


# ----------------------------------------------------------------- faults


def break_client(patch, fault, rounds, client=3, kind="train.default"):
    inner = client_app.app._registered_funcs[kind]

    def broken(message, context):
        hit = context.node_config["partition-id"] == client and int(message.metadata.group_id) in rounds
        return fault(inner, message, context) if hit else inner(message, context)

    patch.setitem(client_app.app._registered_funcs, kind, broken)


def raises(inner, message, context):
    raise KeyError("x")


def altering(change):
    def fault(inner, message, context):
        reply = inner(message, context)
        array = reply.content["sealed"]["0"]
        array.data = change(bytes(array.data))
        return reply

    return fault


truncated = altering(lambda data: data[:-7])
empty = altering(lambda data: b"")
oversize = altering(lambda data: data + bytes(1 << 20))
bit_flipped = altering(
    lambda data: data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 4]) + data[len(data) // 2 + 1 :]
)


class Replayed:
    """Sends its message of round 1 again."""

    def __init__(self):
        self.old = b""

    def __call__(self, inner, message, context):
        reply = inner(message, context)
        array = reply.content["sealed"]["0"]
        if message.metadata.group_id == "1":
            self.old = bytes(array.data)
        else:
            array.data = self.old
        return reply


def sealing_with(keys=None, layout=None):
    """Seal as an honest client does, with keys of another set or for another layout."""

    def fault(inner, message, context):
        reply = inner(message, context)
        plan = RoundPlan.from_record(message.content.config_records["config"])
        site = site_of(context.run_config, {"keys": keys or context.node_config["keys"]})
        length = secure_plan(site).length
        tag = plan.tag(length)
        tag = Tag(round=tag.round, layout_hash=layout or tag.layout_hash, length=length)
        (part,) = site.protection.sealer(plan.secure).seal(np.zeros(length, np.float32), tag)
        reply.content["sealed"]["0"].data = part
        return reply

    return fault


def other_keys(config, folder: Path) -> str:
    site = site_of(to_run_config(config))
    write_keys(site.protection.describe(secure_plan(site)), folder / "server", folder / "clients")
    return str(folder / "clients")


FAULTS = {
    "truncated": (lambda config, folder: truncated, r"bytes"),
    "empty": (lambda config, folder: empty, r"0 bytes"),
    "oversize": (lambda config, folder: oversize, r"bytes"),
    "bit-flipped": (lambda config, folder: bit_flipped, r"checksum"),
    "replayed": (lambda config, folder: Replayed(), r"round 1"),
    "wrong key": (lambda config, folder: sealing_with(keys=other_keys(config, folder / "other")), r"key"),
    "wrong layout": (lambda config, folder: sealing_with(layout=bytes(range(16))), r"layout"),
}


def with_fault(folder, name, fault, *more):
    config = settings(folder, "engine.name=inline", f"protection.name={name}", *more)
    with pytest.MonkeyPatch.context() as patch:
        break_client(patch, fault(config, folder), rounds=(1, 2))
        return simulate(config)


@pytest.fixture(scope="module")
def without_client(tmp_path_factory):
    """The exact result of a run that client 3 takes no part in."""
    folder = tmp_path_factory.mktemp("without")
    return with_fault(folder, "bfv", lambda config, place: raises, "protection.rounding=nearest")


@pytest.mark.report("U17")
@needs_seal
@pytest.mark.parametrize("fault", [f for f in FAULTS if f != "replayed"])
def test_a_bad_message_is_named_and_the_rounds_complete_without_it(tmp_path, without_client, fault):
    make, words = FAULTS[fault]
    result = with_fault(tmp_path, "bfv", make, "protection.rounding=nearest")
    bad = [t for t in Ledger.read(result.folder).clients().to_pylist() if t["outcome"] != "ok"]
    assert [(t["round"], t["client"], t["outcome"]) for t in bad] == [(1, 3, "rejected"), (2, 3, "rejected")]
    assert all(re.search(words, t["reason"]) for t in bad), bad[0]["reason"]
    assert result.weights_sha256 == without_client.weights_sha256, "the others' sum, exactly"


@pytest.mark.report("D6")
@needs_seal
def test_a_replayed_message_is_named_and_left_out(tmp_path):
    make, words = FAULTS["replayed"]
    result = with_fault(tmp_path, "bfv", make)
    bad = [t for t in Ledger.read(result.folder).clients().to_pylist() if t["outcome"] != "ok"]
    assert [(t["round"], t["client"], t["outcome"]) for t in bad] == [(2, 3, "rejected")]
    assert re.search(words, bad[0]["reason"])


@pytest.mark.parametrize("name", [SEAL[1], *OPENFHE])
@pytest.mark.parametrize("fault", ["bit-flipped", "wrong key"])
def test_every_protection_leaves_bad_messages_out(tmp_path, name, fault):
    result = with_fault(tmp_path, name, FAULTS[fault][0], "federation.rounds=1")
    bad = [t for t in Ledger.read(result.folder).clients().to_pylist() if t["outcome"] != "ok"]
    assert [(t["client"], t["outcome"]) for t in bad] == [(3, "rejected")]
    assert re.search(FAULTS[fault][1], bad[0]["reason"]) and result.weights_sha256


@pytest.mark.report("D13", "the run stops with code 3, names the member and keeps the last good model")
@needs_openfhe
def test_a_silent_committee_member_is_named_and_the_last_good_model_kept(tmp_path, protected, plain, monkeypatch):
    break_client(monkeypatch, raises, rounds=(2,), client=1, kind="query.partial")
    words = [
        w for setting in [*SMALL, *LEARNING, f"output.folder={tmp_path}", "output.name=cut"] for w in ("--set", setting)
    ]
    done = CliRunner().invoke(app, ["run", "--quiet", "--protection", "openfhe-threshold", *words])
    assert done.exit_code == 3, done.output
    assert "1 of 3 committee members did not answer" in done.output and "member 1" in done.output
    point = latest_checkpoint(tmp_path / "cut" / "checkpoints")
    assert point.round == 1
    for key, array in plain.first.items():
        np.testing.assert_allclose(point.state.arrays[key], array, atol=1e-4)
    record = json.loads((tmp_path / "cut" / "run.json").read_text())
    assert record["status"] == "failed" and "member 1" in record["exit_reason"]


@needs_seal
def test_ray_gives_the_same_bits_and_the_same_accepted_clients(tmp_path):
    more = ["protection.name=bfv", "protection.rounding=nearest"]
    inline = simulate(settings(tmp_path, "engine.name=inline", *more))
    ray = simulate(settings(tmp_path, "engine.name=ray", "engine.workers=2", *more))
    turns = [
        [(t["round"], t["client"], t["outcome"]) for t in Ledger.read(r.folder).clients().to_pylist()]
        for r in (inline, ray)
    ]
    assert sorted(turns[0]) == sorted(turns[1]) and len(turns[0]) == 12
    assert ray.weights_sha256 == inline.weights_sha256


# ----------------------------------------------------------------- before round 1, and clipping


@pytest.mark.report("T5")
@needs_seal
def test_an_overflow_is_refused_before_round_1_with_the_bound(tmp_path):
    more = [
        "protection.chain=[40,40]",
        "protection.scale_bits=30",
        "protection.bound=100.0",
        f"output.folder={tmp_path}",
    ]
    words = [w for setting in [*SMALL, "federation.num_clients=16", *more] for w in ("--set", setting)]
    done = CliRunner().invoke(app, ["run", "--protection", "ckks", *words])
    assert done.exit_code == 2
    assert "16 clients at 100 can reach 1600" in done.output and "below the bound 512" in done.output
    assert not list(tmp_path.iterdir())


class Notes(NullObserver):
    def __init__(self):
        self.said = []

    def note(self, text):
        self.said.append(text)


def clipped(folder: Path) -> dict[int, float]:
    rows = Metrics.read(folder).table().to_pylist()
    return {r["round"]: r["value"] for r in rows if r["name"] == "clipped_share"}


@pytest.mark.report("U29", "clipped values are counted; above 1 % the round says so")
@needs_seal
def test_clipping_is_measured_and_said_above_one_percent(tmp_path):
    notes = Notes()
    result = run(settings(tmp_path, "engine.name=inline", "protection.name=bfv", "protection.clip=0.05"), notes)
    shares = clipped(result.folder)
    assert set(shares) == {1, 2} and all(share > 0.01 for share in shares.values())
    warnings = [text for text in notes.said if "were clipped" in text]
    assert [re.match(r"round (\d)", text)[1] for text in warnings] == ["1", "2"]
    assert "outside the bound 0.05" in warnings[0] and "raise protection.clip" in warnings[0]


@needs_seal
def test_without_clipping_nothing_is_said(protected, plain):
    assert clipped(protected("bfv").result.folder) == {1: 0.0, 2: 0.0, 3: 0.0}
    assert clipped(plain.result.folder) == {}


@needs_openfhe
def test_the_interpreter_is_searched_once_and_is_not_part_of_the_settings(tmp_path, monkeypatch):
    found = find_python()
    searched = []
    monkeypatch.setattr("crypto._openfhe.find.find_python", lambda named=None: searched.append(named) or found)
    result = simulate(settings(tmp_path, "engine.name=inline", "protection.name=openfhe-bgv"))
    assert searched == [None]
    assert found not in (result.folder / "config.toml").read_text()


@pytest.mark.report("U19", "each run makes its own keys, in folders that are closed to others")
def test_each_run_has_keys_of_its_own(tmp_path):
    if NO_SEAL and not REQUIRED:
        pytest.skip(NO_SEAL)
    more = ["federation.rounds=1", "engine.name=inline", "protection.name=bfv"]
    rings = [watched(tmp_path / str(i), *more).keys for i in range(2)]
    first, second = (load_key(Path(ring.clients), "clients", "bfv") for ring in rings)
    assert first.key_id != second.key_id and first.secret != second.secret


@pytest.mark.slow
@pytest.mark.timeout(3600)
@needs_seal
def test_the_default_task_reaches_plains_accuracy_under_bfv(tmp_path):
    """Training amplifies any rounding of the sums, so the comparison takes the finest step that costs no more bytes."""
    reached = {}
    fine = ["protection.rounding=nearest", "protection.clip=2.0", "protection.value_bits=30"]
    for name, more in (("plain", []), ("bfv", fine)):
        given = [f"protection.name={name}", *more, f"output.folder={tmp_path}", "output.report=false"]
        config = load_config(None, given)
        result = simulate(config)
        site = site_of(to_run_config(config))
        load_state_arrays(site.model, result.state.arrays)
        reached[name] = evaluate(site.model, *site.test_set).accuracy
    assert reached["plain"] > 0.6 and abs(reached["bfv"] - reached["plain"]) <= 0.002, reached
