"""Devices are dealt as the laws say, files are read back, and what is wrong in them is named by row."""

import numpy as np
import pytest

from fedsim.simulation.devices import CORE_FLOP_S, NETWORKS, PRESETS, SOURCES, deal, read_devices, write_devices
from fedsim.simulation.errors import BadTrace


def test_every_preset_has_a_source_and_a_known_network():
    links = {(n.downlink_bit_s, n.uplink_bit_s, n.latency_s) for n in NETWORKS.values()}
    for name, (device, source) in SOURCES.items():
        assert device.tier == name and source
        assert (device.downlink_bit_s, device.uplink_bit_s, device.latency_s) in links
    assert all(network.source for network in NETWORKS.values())


def test_uniform_gives_all_clients_the_preset():
    assert deal(3, 1, preset="raspberry-pi-4") == [PRESETS["raspberry-pi-4"]] * 3


@pytest.mark.parametrize("profile", ["tiers", "log-normal", "zipf"])
def test_the_seed_alone_decides(profile):
    options = {"tiers": {"phone-low": 1, "phone-high": 1}}
    assert deal(20, 5, profile, **options) == deal(20, 5, profile, **options)
    assert deal(20, 5, profile, **options) != deal(20, 6, profile, **options)


def test_tiers_come_in_their_shares():
    tiers = [d.tier for d in deal(10, 1, "tiers", tiers={"phone-low": 0.5, "phone-mid": 0.3, "phone-high": 0.2})]
    assert {name: tiers.count(name) for name in set(tiers)} == {"phone-low": 5, "phone-mid": 3, "phone-high": 2}


def test_log_normal_has_the_spread_that_was_asked_for():
    devices = deal(4000, 1, "log-normal", sigma=0.5, network_sigma=0.2)
    base = PRESETS["laptop"]
    speed = np.log([d.flops_per_s / base.flops_per_s for d in devices])
    link = np.log([d.uplink_bit_s / base.uplink_bit_s for d in devices])
    assert abs(speed.mean()) < 0.03 and speed.std() == pytest.approx(0.5, abs=0.03)
    assert link.std() == pytest.approx(0.2, abs=0.02)
    assert all(d.downlink_bit_s / d.uplink_bit_s == pytest.approx(2.5) for d in devices)


def test_zipf_slows_by_rank():
    base = PRESETS["laptop"].flops_per_s
    found = sorted((d.flops_per_s / base for d in deal(5, 1, "zipf", exponent=2.0)), reverse=True)
    assert found == pytest.approx([1, 1 / 4, 1 / 9, 1 / 16, 1 / 25])


def test_a_network_replaces_the_presets_own():
    (device,) = deal(1, 1, preset="phone-low", network="lan")
    assert device.uplink_bit_s == 1e9 and device.flops_per_s == PRESETS["phone-low"].flops_per_s


def test_a_core_of_a_device_has_its_share_unless_told():
    assert PRESETS["raspberry-pi-4"].core_speed == pytest.approx(11.889e9 / 4 / CORE_FLOP_S)
    assert PRESETS["jetson-nano"].core_speed == 0.15


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_file_is_read_back(tmp_path, suffix):
    devices = deal(6, 3, "log-normal")
    write_devices(devices, tmp_path / f"devices.{suffix}")
    clients, again = read_devices(tmp_path / f"devices.{suffix}")
    assert clients == list(range(6)) and again == devices
    assert deal(6, 9, "trace", trace=tmp_path / f"devices.{suffix}") == devices


def test_rows_without_client_are_dealt_from_the_seed(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("flops_per_s,downlink_bit_s,uplink_bit_s\n" + "".join(f"{n}e9,1e6,1e6\n" for n in range(1, 6)))
    few, many = deal(3, 1, "trace", trace=path), deal(50, 1, "trace", trace=path)
    assert len({d.flops_per_s for d in few}) == 3
    assert {d.flops_per_s for d in many} == {n * 1e9 for n in range(1, 6)}
    assert few == deal(3, 1, "trace", trace=path) and few != deal(3, 2, "trace", trace=path)


HEAD = "client,flops_per_s,downlink_bit_s,uplink_bit_s\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("flops_per_s,downlink_bit_s\n1,1\n", "needs flops_per_s, downlink_bit_s, uplink_bit_s"),
        ("flops_per_s,downlink_bit_s,uplink_bit_s,mbit\n1,1,1,1\n", "may have availability"),
        (HEAD, "in 0 rows"),
        (HEAD + "0,1e9,0,1e6\n", "row 1: .*downlink_bit_s is 0.* must be above 0"),
        (HEAD + "0,1e9,1e6,1e6\n1,nan,1e6,1e6\n", "row 2"),
        (HEAD + "0,fast,1e6,1e6\n", "row 1: flops_per_s is .fast.; it must be a number"),
        (HEAD + "0,1e9,1e6,1e6\n2,1e9,1e6,1e6\n", "no row for client 1"),
        (HEAD + "0,1e9,1e6,1e6\n0,1e9,1e6,1e6\n1,1e9,1e6,1e6\n", "two rows for one client"),
        ("", "cannot be read as CSV or Parquet"),
    ],
)
def test_a_bad_file_is_named_with_row_and_rule(tmp_path, text, words):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(BadTrace, match=words):
        deal(2, 1, "trace", trace=path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(BadTrace, match="none.parquet cannot be read"):
        deal(2, 1, "trace", trace=tmp_path / "none.parquet")


ROW = "1e9,1e6,1e6"
HEAD = "flops_per_s,downlink_bit_s,uplink_bit_s"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"client,{HEAD}\nfoo,{ROW}\n", r"row 1: client is 'foo'.*whole number"),
        (f"client,{HEAD}\n0,{ROW}\n,{ROW}\n", r"row 2: client is None.*whole number"),
        (f"client,{HEAD}\n0.5,{ROW}\n", r"row 1: client is 0.5.*whole number"),
        (f"client,{HEAD}\ninf,{ROW}\n", r"row 1: client is inf.*whole number"),
        (f"{HEAD},cores\n{ROW},inf\n", r"row 1: cores is inf.*number"),
        (f"{HEAD},cores\n{ROW},2024-01-01\n", r"row 1: cores is .*number"),
        (f"{HEAD},tier\n{ROW},\n", r"row 1: tier is empty.*text"),
        (f"{HEAD}\n,1,1\n", r"row 1: flops_per_s is empty.*number"),
    ],
)
def test_a_cell_that_is_no_number_is_named_with_its_row(tmp_path, text, message):
    (tmp_path / "d.csv").write_text(text)
    with pytest.raises(BadTrace, match=message):
        read_devices(tmp_path / "d.csv")


def test_shares_of_any_size_deal_as_their_ratios():
    huge = deal(10, 1, "tiers", tiers={"phone-low": 1e308, "phone-mid": 1e308})
    assert huge == deal(10, 1, "tiers", tiers={"phone-low": 1, "phone-mid": 1})


@pytest.mark.parametrize(
    ("profile", "options", "named"),
    [
        ("log-normal", {"sigma": 1e9}, "devices.sigma = 1e.09"),
        ("log-normal", {"network_sigma": 1e5}, "network_sigma = 100000"),
        ("zipf", {"exponent": 1e9}, "devices.exponent = 1e.09"),
    ],
)
def test_a_law_that_leaves_the_range_of_numbers_is_named(profile, options, named):
    with pytest.raises(BadTrace, match=named + ".*too wide a law.*lower it"):
        deal(20, 1, profile, **options)
