import math
import os
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.measure.errors import LedgerError
from fedsim.measure.ledger import HELPER, OUTCOMES, PHASES, SERVER, ClientRound, Entry, Ledger, party, unaccounted

COUNT = st.integers(0, 2**62)
SECONDS = st.floats(0, 1e9)
ENTRY = st.builds(
    Entry,
    round=st.integers(0, 3),
    client=st.integers(HELPER, 3),
    phase=st.sampled_from(PHASES),
    logical_bytes=st.integers(0, 2**40),
    wire_bytes=st.integers(0, 2**40),
    measured_s=SECONDS,
    virtual_s=st.one_of(st.just(math.nan), SECONDS),
    flops=st.integers(0, 2**40),
    peak_memory_bytes=COUNT,
    outcome=st.sampled_from(OUTCOMES),
    reason=st.text(
        st.characters(blacklist_categories=("Cs",), blacklist_characters="\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029")
    ),
)


def rows(ledger: Ledger) -> list[tuple[object, ...]]:
    """Rows with NaN as a word, so that equal rows compare equal."""
    return [
        tuple("nan" if isinstance(value, float) and math.isnan(value) else value for value in row.values())
        for row in ledger.table().to_pylist()
    ]


def expected_rows(entries: list[Entry]) -> list[tuple[object, ...]]:
    plain = []
    for entry in entries:
        values = [getattr(entry, name) for name in Entry.__slots__]
        plain.append(tuple("nan" if isinstance(v, float) and math.isnan(v) else v for v in values))
    return plain


@settings(max_examples=30, deadline=None)
@given(entries=st.lists(ENTRY, max_size=12), flush_rows=st.integers(1, 5))
def test_files_give_back_every_entry(
    tmp_path_factory: pytest.TempPathFactory, entries: list[Entry], flush_rows: int
) -> None:
    folder = tmp_path_factory.mktemp("run")
    streamed = Ledger(folder, flush_rows=flush_rows)
    streamed.extend(entries)
    streamed.write()
    memory = Ledger()
    memory.extend(entries)
    memory.write(folder / "copy")
    want = expected_rows(entries)
    assert rows(streamed) == rows(memory) == want
    assert rows(Ledger.read(folder)) == rows(Ledger.read(folder / "copy")) == want
    (folder / "ledger.parquet").unlink()
    assert rows(Ledger.read(folder)) == want


@settings(max_examples=30, deadline=None)
@given(entries=st.lists(ENTRY, max_size=20))
def test_totals_equal_a_plain_loop(tmp_path_factory: pytest.TempPathFactory, entries: list[Entry]) -> None:
    folder = tmp_path_factory.mktemp("run")
    ledger = Ledger()
    ledger.extend(entries)
    ledger.write(folder)
    for book in (ledger, Ledger.read(folder)):
        for round in (None, 0, 1):
            mine = [e for e in entries if round is None or e.round == round]
            up = [e for e in mine if e.phase == "upload" and e.client >= 0]
            down = [e for e in mine if e.phase == "download" and e.client >= 0]
            assert book.upload_bytes(round) == sum(e.wire_bytes for e in up)
            assert book.upload_bytes(round, logical=True) == sum(e.logical_bytes for e in up)
            assert book.download_bytes(round) == sum(e.wire_bytes for e in down)
            helper = sum(e.wire_bytes for e in mine if e.client == HELPER)
            assert book.total("wire_bytes", round=round, party="helper") == helper
            for phase in PHASES:
                spent = [e for e in mine if e.phase == phase]
                assert book.phase_s(phase, round) == pytest.approx(sum(e.measured_s for e in spent))
                virtual = sum(e.virtual_s for e in spent if not math.isnan(e.virtual_s))
                assert book.phase_s(phase, round, virtual=True) == pytest.approx(virtual)
        assert book.rounds() == sorted({e.round for e in entries})


def test_a_killed_run_leaves_what_was_flushed(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.add(Entry(1, 0, "upload", wire_bytes=10))
    ledger.flush()
    ledger.add(Entry(2, 0, "upload", wire_bytes=20))
    del ledger
    assert not (tmp_path / "ledger.parquet").exists()
    assert Ledger.read(tmp_path).upload_bytes() == 10


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_torn_last_line_is_dropped(tmp_path: Path, cut: int) -> None:
    ledger = Ledger(tmp_path)
    ledger.extend(
        Entry(round, 0, "upload", wire_bytes=round, outcome="late", reason='a "quoted", reason') for round in (1, 2)
    )
    ledger.flush()
    path = tmp_path / "ledger.csv"
    os.truncate(path, path.stat().st_size - cut)
    assert Ledger.read(tmp_path).upload_bytes() == 1
    resumed = Ledger(tmp_path)
    resumed.add(Entry(2, 0, "upload", wire_bytes=7))
    resumed.write()
    assert Ledger.read(tmp_path).table()["wire_bytes"].to_pylist() == [1, 7]


def test_a_resumed_ledger_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    def record(ledger: Ledger, rounds: range) -> None:
        for round in rounds:
            ledger.extend(Entry(round, client, phase, wire_bytes=round * 7) for client in range(3) for phase in PHASES)
            ledger.add_client(ClientRound(round, 0, 1.5, 10))
            ledger.flush()

    whole, broken = tmp_path / "whole", tmp_path / "broken"
    straight = Ledger(whole)
    record(straight, range(1, 6))
    straight.write()
    record(Ledger(broken), range(1, 4))
    resumed = Ledger(broken, keep_rounds=2)
    assert resumed.rounds() == [1, 2]
    record(resumed, range(3, 6))
    resumed.write()
    for name in ("ledger.csv", "clients.csv"):
        assert (whole / name).read_bytes() == (broken / name).read_bytes()
    assert (whole / "ledger.parquet").read_bytes() == (broken / "ledger.parquet").read_bytes()
    assert resumed.upload_bytes() == straight.upload_bytes() == 3 * 7 * 15


def test_a_finished_ledger_can_be_continued(tmp_path: Path) -> None:
    first = Ledger(tmp_path)
    first.add(Entry(1, 0, "upload", wire_bytes=1))
    first.write()
    (tmp_path / "ledger.csv").unlink()
    second = Ledger(tmp_path)
    assert not (tmp_path / "ledger.parquet").exists(), "a stale Parquet file would hide later rounds"
    second.add(Entry(2, 0, "upload", wire_bytes=2))
    second.flush()
    assert Ledger.read(tmp_path).upload_bytes() == 3


def test_reasons_keep_their_words_on_one_line(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.add(Entry(1, 0, "train", outcome="rejected", reason='NaN in "w"\n  at line 3\r\n<b>\udc80'))
    ledger.write()
    (reason,) = Ledger.read(tmp_path).table()["reason"].to_pylist()
    assert reason == 'NaN in "w" /   at line 3 / <b>\\udc80'
    assert (tmp_path / "ledger.csv").read_bytes().count(b"\n") == 2


@pytest.mark.report("D17", "what was written stays readable; the error names the place")
def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(tmp_path)
    ledger.add(Entry(1, 0, "upload", wire_bytes=5))
    ledger.flush()
    before = (tmp_path / "ledger.csv").read_bytes()
    ledger.add(Entry(2, 0, "upload", wire_bytes=6))
    real_open = Path.open

    class Full:
        def __init__(self, file: object) -> None:
            self._file = file

        def __enter__(self) -> "Full":
            return self

        def __exit__(self, *_: object) -> None:
            self._file.close()  # type: ignore[attr-defined]

        def write(self, data: bytes) -> int:
            self._file.write(data[: len(data) // 2])  # type: ignore[attr-defined]
            self._file.flush()  # type: ignore[attr-defined]
            raise OSError(28, "No space left on device")

        def truncate(self, size: int) -> None:
            self._file.truncate(size)  # type: ignore[attr-defined]

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", lambda self, mode: Full(real_open(self, mode)))
        with pytest.raises(OSError, match="No space"):
            ledger.flush()
    assert (tmp_path / "ledger.csv").read_bytes() == before
    ledger.flush()
    assert Ledger.read(tmp_path).upload_bytes() == 11


def test_memory_holds_only_what_is_not_flushed(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, flush_rows=100)
    most = 0
    for index in range(1050):
        ledger.add(Entry(1, index, "train"))
        most = max(most, ledger._entries._held)
    assert most < 100 and ledger._entries._held == 50
    assert ledger.table().num_rows == 1050


def test_totals_of_old_rounds_are_read_back(tmp_path: Path) -> None:
    """However many rounds a run has, its ledger holds those of two."""
    running, memory = Ledger(tmp_path), Ledger()
    for number in range(1, 41):
        for ledger in (running, memory):
            ledger.extend(Entry(number, c, "upload", wire_bytes=number + c, measured_s=0.5) for c in (0, 1, SERVER))
            ledger.flush()
    assert len(running._totals) == 2
    assert running.upload_bytes(40) == memory.upload_bytes(40) == 81
    assert running.upload_bytes(3) == 7 and running.upload_bytes() == memory.upload_bytes()
    assert running.rounds() == memory.rounds() and running.phase_s("upload") == memory.phase_s("upload")
    assert running.per_round("wire_bytes") == memory.per_round("wire_bytes")
    assert running.total("wire_bytes", round=99) == 0
    assert len(running._totals) == 2


def test_phases_explain_the_clients_round_time() -> None:
    ledger = Ledger()
    rng = np.random.default_rng(0)
    for round in (1, 2):
        for client in range(4):
            seconds = rng.random(5)
            for phase, measured_s in zip(("download", "open", "train", "seal", "upload"), seconds, strict=True):
                ledger.add(Entry(round, client, phase, measured_s=float(measured_s)))
            ledger.add(Entry(round, client, "add", measured_s=99.0))
            ledger.add_client(ClientRound(round, client, float(seconds.sum()), 10))
    ledger.add(Entry(1, SERVER, "add", measured_s=50.0))
    gaps = unaccounted(ledger.table(), ledger.clients())
    assert gaps.num_rows == 8
    assert max(gaps["share"].to_pylist()) < 1e-12


def test_unexplained_time_shows() -> None:
    ledger = Ledger()
    ledger.add(Entry(1, 0, "train", measured_s=0.9))
    ledger.add_client(ClientRound(1, 0, 1.0))
    ledger.add_client(ClientRound(1, 1, 2.0, outcome="dropped", reason="left"))
    ledger.add_client(ClientRound(1, 2, 0.0, outcome="dropped", reason="never began"))
    gaps = unaccounted(ledger.table(), ledger.clients())
    assert gaps["share"].to_pylist() == pytest.approx([0.1, 1.0, 0.0])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"phase": "upstream"}, "'upstream' is unknown; a phase is one of download"),
        ({"outcome": "fine"}, "'fine' is unknown; an outcome is one of ok, dropped, late, rejected"),
        ({"wire_bytes": -1}, "less than nothing"),
        ({"measured_s": math.nan}, "impossible time"),
        ({"measured_s": -0.1}, "impossible time"),
        ({"virtual_s": math.inf}, "impossible time"),
        ({"round": -1}, "rounds start at 0"),
        ({"client": -3}, "clients at -2"),
    ],
)
def test_refuses_an_entry_that_cannot_be_true(fields: dict[str, object], words: str) -> None:
    with pytest.raises(LedgerError, match=words):
        Entry(**{"round": 1, "client": 0, "phase": "train"} | fields)  # type: ignore[arg-type]


def test_refuses_a_client_turn_that_cannot_be_true() -> None:
    with pytest.raises(LedgerError, match="finite and >= 0"):
        ClientRound(1, 0, math.inf)


def test_refuses_to_read_a_folder_without_ledger(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="holds no ledger.csv"):
        Ledger.read(tmp_path)


def test_a_ledger_in_memory_says_it_needs_a_folder() -> None:
    with pytest.raises(ValueError, match="needs a folder"):
        Ledger().write()


def test_an_empty_ledger_writes_readable_files(tmp_path: Path) -> None:
    Ledger(tmp_path).write()
    assert Ledger.read(tmp_path).table().num_rows == 0
    assert pq.read_table(tmp_path / "clients.parquet").num_rows == 0


def test_parties_are_told_apart() -> None:
    assert [party(client) for client in (0, 7, SERVER, HELPER)] == ["clients", "clients", "server", "helper"]


@settings(max_examples=30, deadline=None)
@given(st.lists(ENTRY, max_size=12))
def test_rows_at_once_are_as_one_by_one(entries: list[Entry]) -> None:
    singly, at_once = Ledger(), Ledger()
    singly.extend(entries)
    at_once.add_rows([tuple(getattr(e, name) for name in Entry.__slots__) for e in entries])  # type: ignore[misc]
    assert rows(at_once) == rows(singly)
    for round in range(4):
        assert at_once.total("measured_s", round=round) == singly.total("measured_s", round=round)
        assert at_once.upload_bytes(round) == singly.upload_bytes(round)


def test_one_wrong_row_keeps_all_out() -> None:
    ledger = Ledger()
    good = (1, 0, "train", 0, 0, 1.0, math.nan, 0, 0, "ok", "")
    with pytest.raises(LedgerError, match="impossible time"):
        ledger.add_rows([good, (1, 1, "train", 0, 0, -1.0, math.nan, 0, 0, "ok", "")])
    assert not ledger.table().num_rows and not ledger.rounds()
