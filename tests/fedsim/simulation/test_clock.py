"""Virtual time by hand: turns, when a round ends, and who is late."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsim.simulation.clock import Policy, Turn, VirtualClock, Work, close, server_end_s, turn
from fedsim.simulation.crypto_costs import CryptoCosts
from fedsim.simulation.devices import Device
from fedsim.simulation.presence import Traced


def device(flops_per_s=1e9, down=8e6, up=8e6, latency_s=0.0, **more):
    return Device(tier="t", flops_per_s=flops_per_s, downlink_bit_s=down, uplink_bit_s=up, latency_s=latency_s, **more)


def taking(client, seconds):
    return Turn(client, Work(), {"train": seconds})


def test_a_turn_is_the_sum_of_its_phases_by_hand():
    costs = CryptoCosts(seal_s=2.0, open_s=1.0)
    phone = device(2e9, down=4e6, up=1e6, latency_s=0.25, crypto_speed=0.5, compute_w=3.0, radio_w=2.0)
    found = turn(7, Work(download_bytes=1_000_000, upload_bytes=500_000, flops=6_000_000_000), phone, costs)
    # 8e6 bits / 4e6 + 0.25; 1 / 0.5; 6e9 / 2e9; 2 / 0.5; 4e6 bits / 1e6 + 0.25
    assert found.seconds == {"download": 2.25, "open": 2.0, "train": 3.0, "seal": 4.0, "upload": 4.25}
    assert found.total_s == 15.5
    assert found.energy_j == 3.0 * 9.0 + 2.0 * 6.5


def test_a_slow_client_trains_longer_and_sends_as_fast():
    work = Work(download_bytes=1000, upload_bytes=1000, flops=10**9, slowness=10.0)
    fast, slow = (turn(0, w, device()) for w in (Work(1000, 1000, 10**9), work))
    assert slow.seconds["train"] == 10 * fast.seconds["train"]
    assert slow.seconds["upload"] == fast.seconds["upload"]


TURNS = [taking(0, 5.0), taking(1, 1.0), taking(2, 9.0), taking(3, 3.0)]


def test_waiting_for_all_ends_with_the_slowest():
    ended = close(TURNS, Policy("all", 4))
    assert (ended.at_s, ended.counted, ended.late) == (9.0, (1, 3, 0, 2), {})


def test_a_deadline_drops_exactly_the_late_ones():
    ended = close(TURNS, Policy("deadline", 4, deadline_s=5.0))
    assert (ended.at_s, ended.counted) == (5.0, (1, 3, 0))
    assert ended.late == {2: "needed 9 virtual s: the deadline is 5 s (clock.deadline_s)"}


def test_a_deadline_that_all_keep_is_not_waited_for():
    assert close(TURNS, Policy("deadline", 4, deadline_s=60.0)).at_s == 9.0


def test_a_deadline_is_waited_for_where_somebody_never_answers():
    assert close(TURNS, Policy("deadline", 5, deadline_s=60.0), lost=1).at_s == 60.0


def test_over_selection_counts_the_first_wanted_and_names_the_others():
    ended = close(TURNS, Policy("deadline", 2, deadline_s=5.0))
    assert (ended.at_s, ended.counted) == (3.0, (1, 3))
    assert ended.late[0] == "needed 5 virtual s: the first 2 replies were in after 3 s"
    assert "the deadline is 5 s" in ended.late[2]


def test_the_first_k_end_a_round():
    ended = close(TURNS, Policy("first-k", 3))
    assert (ended.at_s, ended.counted, set(ended.late)) == (5.0, (1, 3, 0), {2})


def test_equal_times_count_in_the_order_of_the_clients():
    assert close([taking(c, 1.0) for c in (3, 1, 2)], Policy("first-k", 2)).counted == (1, 2)


def test_a_round_without_replies_ends_at_once_or_at_its_deadline():
    assert close([], Policy("all", 3), lost=3).at_s == 0.0
    assert close([], Policy("deadline", 3, deadline_s=4.0), lost=3).at_s == 4.0


@given(
    st.lists(st.floats(0, 100), max_size=12),
    st.integers(1, 12),
    st.floats(0.1, 100),
    st.sampled_from(["all", "deadline", "first-k"]),
)
def test_everybody_counts_or_is_late_and_nobody_late_was_earlier(seconds, wanted, deadline_s, name):
    turns = [taking(client, s) for client, s in enumerate(seconds)]
    ended = close(turns, Policy(name, wanted, deadline_s if name == "deadline" else None))
    assert sorted([*ended.counted, *ended.late]) == list(range(len(seconds)))
    counted = [seconds[c] for c in ended.counted]
    assert counted == sorted(counted) and all(s <= ended.at_s for s in counted)
    assert all(seconds[c] >= max(counted, default=0.0) or seconds[c] > deadline_s for c in ended.late)


def test_the_server_adds_what_is_there_while_it_waits():
    # Adds take 2 s: arrivals 1, 2, 10 are added by 3, 5, 12.
    assert server_end_s([10.0, 1.0, 2.0], 10.0, 2.0) == 12.0
    assert server_end_s([1.0], 7.0, 2.0) == 7.0


def test_a_round_adds_the_servers_and_the_committees_time():
    costs = CryptoCosts(add_s=2.0, server_open_s=3.0)
    clock = VirtualClock([device(), device()], device(crypto_speed=2.0), costs)
    clock.ask(1, [0, 1])
    clock.settle({0: taking(0, 4.0), 1: taking(1, 6.0)})
    # Adds of 1 s end at 7 s; opening takes 1.5 s.
    assert clock.end_round(committee_s=0.5) == 9.0
    assert clock.now_s == 9.0


def test_a_client_that_goes_away_is_lost_and_the_round_waits_for_nobody():
    clock = VirtualClock([device(), device()], device(), presence=Traced({0: [(0.0, 5.0)]}, 20.0))
    assert set(clock.ask(1, [0, 1])) == {0, 1}
    left_out = clock.settle({0: taking(0, 6.0), 1: taking(1, 4.0)})
    assert left_out == {0: "went away after 5 of 6 virtual s (devices.availability_trace)"}
    assert clock.end_round() == 4.0


def test_time_goes_on_until_somebody_is_there():
    clock = VirtualClock([device()], device(), presence=Traced({0: [(30.0, 50.0)]}, 100.0))
    assert set(clock.ask(1, [0])) == {0}
    clock.settle({0: taking(0, 4.0)})
    assert clock.end_round() == 34.0
    assert not math.isnan(clock.now_s) and clock.now_s == 34.0


@pytest.mark.parametrize("policy", [Policy("deadline", 1, 5.0), Policy("first-k", 1)])
def test_only_policies_that_cut_must_see_replies_first(policy):
    assert VirtualClock([device()], device(), policy=policy).cuts
    assert not VirtualClock([device()], device()).cuts


def test_more_clients_than_devices_share_them():
    clock = VirtualClock([device(1e9), device(2e9)], device())
    assert [clock.turn(c, Work(flops=10**9)).seconds["train"] for c in range(4)] == [1.0, 0.5, 1.0, 0.5]
