"""`fedsim devices` and `fedsim partition`: what they print, write and refuse."""

import json
import pickle
import time

import numpy as np
import pytest
from typer.testing import CliRunner

from fedsim.cli import app
from fedsim.clocks import clock_of, devices_of
from fedsim.config import load_config
from fedsim.simulation.devices import read_devices
from fedsim.simulation.presence import read_presence


def cli(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


def test_presets_are_listed_with_their_sources():
    shown = cli("devices").stdout
    assert "raspberry-pi-4" in shown and "Linpack list: Raspberry Pi 4" in shown and "WebPageTest" in shown
    rows = json.loads(cli("devices", "--json").stdout)
    assert {"tier", "flops_per_s", "source"} <= set(rows[0])


def test_the_devices_of_a_run_are_shown_and_written_for_it_to_read_back(tmp_path):
    path = tmp_path / "d.csv"
    more = ["--set", "devices.profile=tiers", "--set", "devices.tiers={phone-low=1, laptop=1}"]
    done = cli("devices", *more, "--set", "federation.num_clients=4", "--out", path)
    assert done.exit_code == 0 and "2 x phone-low" in done.stdout
    again = load_config(None, ["federation.num_clients=4", "devices.profile=trace", f"devices.trace={path}"])
    assert devices_of(again) == read_devices(path)[1]


def trace(path, content):
    path.write_bytes(pickle.dumps(content))
    return path


def test_fedscales_traces_are_imported(tmp_path):
    speeds = trace(
        tmp_path / "speed",
        {2: {"computation": 120.0, "communication": 8000}, 1: {"computation": 60, "communication": 1}},
    )
    times = trace(
        tmp_path / "times",
        {
            5: {"active": [0, 50, 90], "inactive": [10, 60, 40], "finish_time": 100, "model": "x", "duration": 1},
            3: {"active": [0, 5], "inactive": [10, 20], "finish_time": 90},
        },
    )
    assert cli("devices", "--fedscale", speeds, "--out", tmp_path / "d.csv").exit_code == 0
    clients, devices = read_devices(tmp_path / "d.csv")
    # 0.6 GFLOP in 60 ms and in 120 ms; kbit/s.
    assert clients is None and [d.flops_per_s for d in devices] == [1e10, 5e9]
    assert [d.uplink_bit_s for d in devices] == [1e3, 8e6]
    assert cli("devices", "--behaviour", times, "--out", tmp_path / "t.csv").exit_code == 0
    presence = read_presence(tmp_path / "t.csv", 2)
    assert presence.there(1, 15.0, [0, 1]) == {0} and presence.there(1, 55.0, [0, 1]) == {1}


class Evil:
    def __reduce__(self):
        return print, ("ran",)


@pytest.mark.parametrize("content", [Evil(), [1], {1: 2}, {1: {"computation": 0, "communication": 1}}, {1: {}}])
def test_what_is_no_trace_of_fedscales_is_refused_and_never_run(tmp_path, capsys, content):
    done = cli("devices", "--fedscale", trace(tmp_path / "bad", content), "--out", tmp_path / "d.csv")
    assert done.exit_code == 2 and "bad" in done.output
    assert "ran\n" not in capsys.readouterr().out + done.stdout


def test_a_thousand_clients_at_alpha_a_hundredth_are_dealt_in_seconds_and_the_empty_ones_listed():
    more = ["federation.num_clients=1000", "data.alpha=0.01", "data.policy=allow-empty"]
    sets = [word for setting in more for word in ("--set", setting)]
    started = time.process_time()
    view = json.loads(cli("partition", *sets, "--json").stdout)
    assert time.process_time() - started < 5
    assert len(view["sizes"]) == 1000 and sum(view["sizes"]) == 5000
    assert view["empty"] == [c for c, size in enumerate(view["sizes"]) if size == 0] and len(view["empty"]) > 400
    shown = cli("partition", *sets).stdout
    assert f"empty: {len(view['empty'])}: {view['empty'][0]}, " in shown and "and 960 more" in shown


def test_a_partition_is_printed_and_drawn(tmp_path):
    done = cli("partition", "--set", "federation.num_clients=5", "--out", tmp_path)
    assert done.exit_code == 0 and "skew: label EMD" in done.stdout
    assert all((tmp_path / f"{name}.png").stat().st_size > 10_000 for name in ("label_histogram", "similarity"))
    view = json.loads(cli("partition", "--set", "federation.num_clients=5", "--json").stdout)
    counts = np.array(view["histogram"], float)
    expected = [[float(a @ b / np.sqrt((a @ a) * (b @ b))) for b in counts] for a in counts]
    assert np.allclose(view["similarity"], expected)


def test_policies_fill_or_list_the_empty(tmp_path):
    steal = json.loads(
        cli("partition", "--set", "federation.num_clients=100", "--set", "data.alpha=0.01", "--json").stdout
    )
    assert steal["empty"] == [] and min(steal["sizes"]) >= 10 and steal["moved"] > 0


def test_a_broken_trace_ends_with_usage(tmp_path):
    done = cli(
        "run", "--set", "devices.profile=trace", "--set", "devices.trace=none.csv", "--set", f"output.folder={tmp_path}"
    )
    assert done.exit_code == 2 and "none.csv cannot be read" in done.output


@pytest.mark.parametrize("name", ["bfv", "ckks", "rlwe", "openfhe-ckks", "openfhe-bgv", "preamble"])
def test_every_protection_costs_virtual_time(name):
    from fedsim.config import to_run_config
    from fedsim.simulation.clock import Work
    from fedsim.site import site_of

    config = load_config(None, [f"protection.name={name}", "task.name=digits", "model.name=mlp"])
    clock = clock_of(site_of(to_run_config(config)))
    assert clock.turn(0, Work()).seconds["seal"] > 0 and clock.add_s() > 0
    assert (clock.costs.open_s > 0) == (config.protection.opened_by == "clients")


@pytest.mark.parametrize("command", [("devices",), ("partition", "--set", "task.name=digits")])
def test_a_path_that_cannot_be_written_is_refused_by_name(tmp_path, command):
    (tmp_path / "file").write_text("x")
    done = cli(*command, "--out", tmp_path / "file" / "d")
    assert done.exit_code == 2 and "--out" in done.stderr and "cannot be written" in done.stderr


def test_clients_that_are_numbered_and_named_are_refused(tmp_path):
    row = {"computation": 1, "communication": 1}
    done = cli("devices", "--fedscale", trace(tmp_path / "t", {1: row, "x": row}), "--out", tmp_path / "d.csv")
    assert done.exit_code == 2 and "must do one" in done.stderr


def test_a_damaged_trace_is_refused_whatever_its_opcodes_meet(tmp_path):
    rng = np.random.default_rng(1)
    good = pickle.dumps({n: {"computation": 1.5, "communication": 2} for n in range(3)})
    for _ in range(300):
        data = bytearray(good)
        for at in rng.integers(len(data), size=2):
            data[at] = rng.integers(256)
        (tmp_path / "t").write_bytes(data)
        assert cli("devices", "--fedscale", tmp_path / "t", "--out", tmp_path / "d.csv").exit_code in (0, 2)
