"""Who is there when: shares of rounds, times of a trace that repeats, and broken traces."""

import pytest

from fedsim.simulation.devices import Device
from fedsim.simulation.errors import BadTrace
from fedsim.simulation.presence import InRounds, Traced, read_presence


def devices(*shares):
    return [
        Device(tier="t", flops_per_s=1.0, downlink_bit_s=1.0, uplink_bit_s=1.0, availability=share) for share in shares
    ]


def test_a_share_of_the_rounds_is_kept_and_drawn_from_the_seed():
    presence, clients = InRounds(devices(0.3, 1.0), seed=1), [0, 1]
    rounds = [set(presence.there(r, 0.0, clients)) for r in range(1, 2001)]
    assert all(1 in there for there in rounds)
    assert sum(0 in there for there in rounds) / 2000 == pytest.approx(0.3, abs=0.03)
    assert rounds == [set(InRounds(devices(0.3, 1.0), seed=1).there(r, 9.0, clients)) for r in range(1, 2001)]
    assert rounds != [set(InRounds(devices(0.3, 1.0), seed=2).there(r, 0.0, clients)) for r in range(1, 2001)]


def test_somebody_is_always_there():
    presence = InRounds(devices(1e-9, 1e-9, 1e-9), seed=1)
    assert {len(presence.there(r, 0.0, [0, 1, 2])) for r in range(50)} == {1}


TRACE = Traced({0: [(10.0, 20.0), (80.0, 100.0)], 1: [(0.0, 5.0), (90.0, 100.0)], 2: [(0.0, 100.0)]}, 100.0)


def test_a_trace_says_who_is_there_and_repeats():
    assert TRACE.there(1, 15.0, [0, 1]) == {0}
    assert TRACE.there(1, 20.0, [0, 1]) == set(), "an interval ends before its end"
    assert TRACE.there(1, 1015.0, [0, 1]) == {0}
    assert TRACE.there(1, 15.0, [0, 7]) == {0, 7}, "who is not in the trace is always there"


def test_waiting_is_until_the_first_comes():
    assert TRACE.wait_s(15.0, [0, 1]) == 0.0
    assert TRACE.wait_s(30.0, [0, 1]) == 50.0
    assert TRACE.wait_s(30.0, [1]) == 60.0
    assert Traced({0: [(10.0, 20.0)]}, 100.0).wait_s(50.0, [0]) == 60.0


def test_who_leaves_within_its_turn_is_gone():
    assert TRACE.gone(0, 12.0, 8.0) == ""
    assert "after 8 of 8.5" in TRACE.gone(0, 12.0, 8.5)
    assert TRACE.gone(1, 95.0, 10.0) == "", "a stay goes on over the end of the period"
    assert TRACE.gone(1, 95.0, 10.5) != ""
    assert TRACE.gone(2, 95.0, 1e6) == ""


HEAD = "client,start_s,end_s\n"


def test_a_file_is_read_and_rows_of_others_are_left_out(tmp_path):
    path = tmp_path / "there.csv"
    path.write_text("client,start_s,end_s,period_s\n0,0,5,50\n9,0,50,50\n1,10,20,50\n")
    presence = read_presence(path, 2)
    assert presence.there(1, 12.0, [0, 1]) == {1} and presence.there(1, 52.0, [0, 1]) == {0}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("client,from,to\n0,1,2\n", "needs client, start_s, end_s"),
        (HEAD + "0,5,5\n", "from 5 to 5 s: intervals must have start < end"),
        (HEAD + "0,0,5\n0,4,6\n", "not overlap"),
        (HEAD + "0,-1,5\n", "from -1"),
        (HEAD + "0,x,5\n", "could not convert"),
    ],
)
def test_a_bad_file_is_refused(tmp_path, text, words):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(BadTrace, match=words):
        read_presence(path, 1)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("foo,1,2", "row 1: client is 'foo'"),
        ("0.5,1,2", "row 1: client is 0.5"),
        ("inf,1,2", "row 1: client is inf"),
        (",1,2", "row 1: client is None"),
        ("0,,2", "start_s, end_s and period_s must be numbers"),
    ],
)
def test_a_cell_that_is_no_number_is_refused(tmp_path, row, message):
    (tmp_path / "t.csv").write_text(f"client,start_s,end_s\n{row}\n")
    with pytest.raises(BadTrace, match=message):
        read_presence(tmp_path / "t.csv", 2)
