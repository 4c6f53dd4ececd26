"""The helper on its own and in whole runs: what it refuses, what it remembers, and that nothing hangs without it."""

import io
import json
import os
import signal
import socket
import stat
import time
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from crypto import InputError, KeyMismatch, WireError
from crypto.base import Plan, Tag
from crypto.keys import KeyBundle
from crypto.preamble.noise import NoNoiseForTests
from crypto.preamble.scheme import Parameters, PreambleSum
from fedsim import errors, protections, server_app
from fedsim.config import load_config
from fedsim.events import NullObserver
from fedsim.helper import Helper, Task
from fedsim.helper_daemon import helper_process
from fedsim.measure.ledger import HELPER, Ledger
from fedsim.recorder import Recorder
from fedsim.runner import run, simulate
from strategies.errors import HelperLost
from strategies.helper_link import HelperLink, HelperRefused, Transport, connect, read_frame
from strategies.verified_fold import Journal

PLAN = Plan(length=64, clients=4, bound=1.0)
PARAMETERS = Parameters(norm_bound=1.0, block_size=16, groups=2, sigma=0.0, fraction_bits=20)
TASK = Task(run=bytes(16), plan=PLAN, parameters=PARAMETERS, rounds=2)
KEY = X25519PrivateKey.generate()
SUM = PreambleSum(PLAN, PARAMETERS, helper_key=KEY.public_key().public_bytes_raw(), run=bytes(16))


def tag(server_round, length=64):
    return Tag(round=server_round, layout_hash=bytes(16), length=length)


class Here(Transport):
    """A helper in this process."""

    def __init__(self, helper):
        self.helper = helper

    def request(self, body):
        return self.helper.handle(body)


@pytest.fixture
def link(tmp_path):
    def make(task=TASK, params_hash=None, key_id=None):
        header = SUM.header(tag(1))
        helper = Helper(task, KEY, tmp_path / "released.json")
        return HelperLink(Here(helper), key_id or header.key_id, params_hash or header.params_hash)

    return make


def one_round(link, number, clients=2):
    verify_key = link.open(tag(number))
    leader = SUM.leader(tag(number), NoNoiseForTests())
    reports = [leader.add_and_relay(*SUM.sealer().seal(np.full(64, 0.1), tag(number))) for _ in range(clients)]
    batch = link.add_and_settle(reports, leader.verify_init())
    assert not batch.refused
    leader.settle(batch.proofs)
    assert len(verify_key) == 16
    return leader, link.total()


def test_a_round_adds_up(link):
    leader, total = one_round(link(), 1)
    vector = SUM.opener().open([leader.total(), total], tag(1))
    assert vector.shape == (64,) and np.isfinite(vector).all()


def test_refuses_another_key_or_other_parameters(link):
    with pytest.raises(HelperLost, match="pin the key of this helper"):
        link(key_id=b"12345678")
    with pytest.raises(HelperLost, match="must run the same settings"):
        link(params_hash=b"1234567812345678")


def test_a_round_is_released_once_even_by_a_new_process(link):
    _, total = one_round(link(), 1)
    again = link()
    with pytest.raises(HelperLost, match="round 1: round 1 was released already"):
        again.open(tag(1))
    one_round(again, 2)
    with pytest.raises(HelperLost, match="2 totals were released"):
        link().open(tag(3))


def test_a_round_that_was_not_released_may_begin_anew(link):
    first = link()
    first.open(tag(1))
    one_round(link(), 1)


def test_the_same_total_is_handed_out_again_but_nothing_is_added_to_it(link):
    side = link()
    leader, total = one_round(side, 1)
    assert side.total() == total
    with pytest.raises(HelperLost, match="released"):
        side.add_and_settle([b"x" * 100], b"")


def test_refuses_a_longer_round_and_a_small_cohort_and_work_without_a_round(link):
    side = link()
    with pytest.raises(HelperLost, match="no round is open"):
        side.add_and_settle([b""], b"")
    with pytest.raises(HelperLost, match="a round of 65 coordinates: the plan's longest round has 64"):
        side.open(tag(1, 65))
    with pytest.raises(HelperRefused, match="fewer than 2"):
        one_round(side, 1, clients=1)


@given(st.binary(min_size=1, max_size=200))
def test_no_bytes_make_it_fall(data):
    helper = Helper(TASK, KEY, Path("/nonexistent/released.json"))
    helper.handle(b"\x02" + (1).to_bytes(4, "little") + bytes(16) + (64).to_bytes(8, "little"))
    answer = helper.handle(data)
    assert answer[0] in (0, 1)


def test_a_task_survives_its_file_and_a_damaged_one_is_refused(tmp_path):
    path = tmp_path / "task.json"
    TASK.write(path)
    assert Task.read(path) == TASK
    values = json.loads(path.read_text())
    for spoil in ({"parameters": values["parameters"] | {"sigm": 1}}, {"run": "xyz"}, {"plan": {}}):
        path.write_text(json.dumps(values | spoil))
        with pytest.raises(InputError, match="no helper task"):
            Task.read(path)


def test_frames_are_bounded():
    with pytest.raises(WireError, match="frame of 0 bytes"):
        read_frame(io.BytesIO(bytes(4)))
    with pytest.raises(WireError, match="4294967295 bytes"):
        read_frame(io.BytesIO(b"\xff" * 8))
    with pytest.raises(EOFError, match="after 2 of 3"):
        read_frame(io.BytesIO(b"\x03\0\0\0ab"))


def test_a_helper_that_cannot_start_says_why(tmp_path):
    with (
        pytest.raises(errors.EngineError, match="no key at"),
        helper_process(tmp_path / "task", tmp_path, str(tmp_path / "s"), tmp_path / "log"),
    ):
        pass


@pytest.mark.report("D12")
def test_a_silent_helper_is_given_up(tmp_path):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s"))
    listener.listen(1)
    transport = connect(str(tmp_path / "s"), tmp_path, timeout_s=0.2)
    with pytest.raises(HelperLost, match="gave no answer in 0.2 s"):
        transport.request(b"\x01")
    transport.close()
    listener.close()


# ------------------------------------------------------------------------------------------------- whole runs

SMALL = [
    "task.name=digits", "model.name=logistic", "federation.num_clients=4", "federation.rounds=2", "data.scheme=iid",
    "protection.name=preamble", "engine.name=inline", "output.report=false", "protection.epsilon=4",
    "protection.block_size=256", "protection.blocks=1",
]  # fmt: skip


def settings_of(folder, *more):
    return load_config(None, [*SMALL, f"output.folder={folder}", *more])


def test_a_run_is_private_says_so_and_books_both_aggregators(tmp_path):
    result = simulate(settings_of(tmp_path, "output.report=true"))
    assert all(np.isfinite(a).all() for a in result.state.arrays.values())
    record = json.loads((result.folder / "run.json").read_text())["protection"]
    assert record["private"] and 3.9 < record["epsilon_round"] <= 4.0 < record["epsilon_run"]
    assert record["block_size"] == 256 and record["sigma_each_aggregator"] > 0
    report = (result.folder / "report.html").read_text()
    assert "protection.epsilon_round" in report and "protection.sigma_each_aggregator" in report
    ledger = Ledger.read(result.folder).table()
    helper = ledger.filter(pc.equal(ledger["client"], HELPER))
    assert set(helper["phase"].to_pylist()) == {"download", "add", "upload"}
    assert pc.sum(helper["wire_bytes"]).as_py() > 0 and pc.sum(helper["measured_s"]).as_py() > 0
    uploads = ledger.filter(pc.and_(pc.greater_equal(ledger["client"], 0), pc.equal(ledger["phase"], "upload")))
    assert set(uploads["logical_bytes"].to_pylist()) == {record["leader_part_bytes"] + record["helper_part_bytes"]}
    metrics = (result.folder / "metrics.csv").read_text()
    assert "train_clip_factor" in metrics and "train_clipped_clients" in metrics


def test_a_run_through_a_node_of_the_helpers_is_the_same_run(tmp_path):
    """Without noise and choice of blocks the two ways differ by the rounding of sealed values alone."""
    whole = ["protection.noise=off-not-private", "protection.block_size=1024", "protection.clip_norm=100"]
    got = {
        way: simulate(settings_of(tmp_path, *whole, f"protection.transport={way}", f"output.name={way}"))
        for way in ("direct", "relay")
    }
    for name, array in got["direct"].state.arrays.items():
        np.testing.assert_allclose(got["relay"].state.arrays[name], array, atol=1e-5)
    assert json.loads((got["relay"].folder / "run.json").read_text())["protection"]["transport"] == "relay"
    ledger = {way: Ledger.read(result.folder) for way, result in got.items()}
    assert ledger["relay"].upload_bytes() == ledger["direct"].upload_bytes()
    sent = {way: found.total("wire_bytes", phase="download", party="helper") for way, found in ledger.items()}
    assert sent["direct"] < sent["relay"] < sent["direct"] + 2 * 6 * 1200


def test_flowers_simulation_cannot_designate_a_node(tmp_path):
    with pytest.raises(errors.ConfigError, match=r"transport.*Flower's simulation gives all nodes the same"):
        settings_of(tmp_path, "protection.transport=relay", "engine.name=flower")


def test_only_the_helper_has_its_key_and_it_ends_with_the_run(tmp_path, monkeypatch):
    seen = {}
    real = protections.helper_process

    def watched(task, keys, address, log):
        context = real(task, keys, address, log)

        class Watched:
            def __enter__(self):
                seen["process"] = context.__enter__()
                root = keys.parent
                seen["secret"] = {p: len(open_key(p)) for p in root.rglob("preamble.key")}
                seen["mode"] = stat.S_IMODE(Path(address).stat().st_mode)
                seen["root"] = root
                return seen["process"]

            def __exit__(self, *error):
                return context.__exit__(*error)

        return Watched()

    monkeypatch.setattr(protections, "helper_process", watched)
    simulate(settings_of(tmp_path))
    assert {p.parent.name: size for p, size in seen["secret"].items()} == {"server": 0, "clients": 0, "helper": 32}
    assert seen["mode"] == 0o600
    assert seen["process"].pid != os.getpid() and seen["process"].poll() is not None
    assert not seen["root"].exists()


def open_key(path):
    return KeyBundle.decode(path.read_bytes()).secret


@pytest.mark.report("D12", "the run stops, and its last good model is saved")
@pytest.mark.parametrize("way", ["direct", "relay"])
def test_a_helper_that_dies_stops_the_run_with_the_last_good_model(tmp_path, monkeypatch, way):
    seen = {}
    real = protections.helper_process

    def watched(*places):
        context = real(*places)

        class Watched:
            def __enter__(self):
                seen["process"] = context.__enter__()
                return seen["process"]

            def __exit__(self, *error):
                return context.__exit__(*error)

        return Watched()

    class Killer(NullObserver):
        def round_end(self, event):
            os.kill(seen["process"].pid, signal.SIGKILL)
            seen["process"].wait()

    monkeypatch.setattr(protections, "helper_process", watched)
    started = time.monotonic()
    with pytest.raises(errors.FedsimError, match="helper"):
        run(settings_of(tmp_path, "output.name=cut", f"protection.transport={way}"), Killer())
    assert time.monotonic() - started < 120
    record = json.loads((tmp_path / "cut" / "run.json").read_text())
    assert record["status"] == "failed" and "helper" in record["exit_reason"]
    assert list((tmp_path / "cut" / "checkpoints").iterdir())


def test_without_noise_a_run_is_fedavg_on_clipped_changes(tmp_path):
    whole = ["protection.noise=off-not-private", "protection.block_size=1024", "federation.rounds=1"]
    got = simulate(settings_of(tmp_path, *whole, "protection.clip_norm=1000", "output.name=preamble"))
    plain = ["protection.name=plain", "federation.weighting=uniform"]
    base = [s for s in SMALL if not s.startswith("protection.")]
    want = simulate(load_config(None, [*base, *plain, f"output.folder={tmp_path}", "output.name=plain", whole[2]]))
    for name, array in want.state.arrays.items():
        np.testing.assert_allclose(got.state.arrays[name], array, atol=1e-4)
    assert json.loads((got.folder / "run.json").read_text())["protection"]["epsilon_round"] == "none"


def test_a_resumed_run_repeats_no_round_that_was_opened(tmp_path, monkeypatch):
    """The run dies when round 2 was opened and before its checkpoint; the noise of round 2 is spent."""
    config = settings_of(tmp_path, "output.name=cut", "federation.rounds=3", "output.checkpoint_every=0")
    checkpoint = Recorder._checkpoint

    def dying(self, record, strategy):
        if record.round == 2:
            raise KeyboardInterrupt
        checkpoint(self, record, strategy)

    monkeypatch.setattr(Recorder, "_checkpoint", dying)
    monkeypatch.setattr(server_app, "_save_last_good", lambda *arguments: None)
    with pytest.raises(KeyboardInterrupt):
        simulate(config)
    monkeypatch.undo()
    journal = tmp_path / "cut" / "releases.csv"
    assert journal.read_text() == "1,asked\n2,asked\n"
    assert [p.name for p in (tmp_path / "cut" / "checkpoints").iterdir()] == ["round-000001.ckpt"]
    said = []

    class Watch(NullObserver):
        def note(self, text):
            said.append(text)

    result = run(config, Watch(), resume=True)
    assert journal.read_text() == "1,asked\n2,asked\n3,asked\n"
    assert any("rounds 2 to 2 were opened" in text for text in said)
    rounds = {line.split(",")[0] for line in (result.folder / "metrics.csv").read_text().splitlines()[1:]}
    assert rounds == {"1", "3"}
    record = json.loads((result.folder / "run.json").read_text())
    assert record["status"] == "finished" and record["protection"]["rounds"] == 3


def test_a_refused_total_is_no_release_and_a_damaged_journal_is_no_journal(tmp_path):
    journal = Journal(tmp_path / "releases.csv")
    assert journal.last_released() == 0
    for line in ((1, "asked"), (2, "asked"), (2, "refused")):
        journal.note(*line)
    assert journal.last_released() == 1
    journal.note(2, "asked")
    assert journal.last_released() == 2
    (tmp_path / "releases.csv").write_text("1,asked\nx\n")
    with pytest.raises(WireError, match="has the line 'x'"):
        journal.last_released()


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "way"), [("ray", "direct"), ("ray", "relay"), ("flower", "direct")])
def test_other_engines_find_keys_and_helper(tmp_path, engine, way):
    result = simulate(settings_of(tmp_path, f"engine.name={engine}", f"protection.transport={way}"))
    assert json.loads((result.folder / "run.json").read_text())["protection"]["private"]


def test_wrong_private_key_is_refused(tmp_path):
    other = X25519PrivateKey.generate()
    helper = Helper(TASK, other, tmp_path / "released.json")
    header = SUM.header(tag(1))
    with pytest.raises(HelperLost, match="pin the key"):
        HelperLink(Here(helper), header.key_id, header.params_hash)
    with pytest.raises(KeyMismatch):
        SUM.helper(tag(1), other, NoNoiseForTests())
