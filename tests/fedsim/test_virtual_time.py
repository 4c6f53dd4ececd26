"""Virtual time of whole runs: equal to the hand's, the same on a busy machine, and cut as the policies say."""

import multiprocessing
from pathlib import Path

import pytest

import fedsim.client_app as client_app
from fedsim.config import load_config, with_values
from fedsim.errors import ConfigError, TooFewReplies
from fedsim.events import NullObserver
from fedsim.measure.ledger import Ledger
from fedsim.measure.metrics import Metrics
from fedsim.runner import run, simulate

SMALL = [
    "task.name=digits",
    "model.name=mlp",
    "model.options.hidden=[256, 128]",
    "data.scheme=iid",
    "output.report=false",
    "engine.name=inline",
]
#: Speeds 1x, 2x, 10x slower; 100, 10, 1 Mbit/s.
SPEEDS, LINKS = (8e9, 4e9, 0.8e9), (100e6, 10e6, 1e6)


def trace(folder: Path, speeds=SPEEDS, links=LINKS) -> str:
    path = folder / "devices.csv"
    rows = [f"{c},{speed:g},{link:g},{link:g},0.02" for c, (speed, link) in enumerate(zip(speeds, links, strict=True))]
    path.write_text("\n".join(["client,flops_per_s,downlink_bit_s,uplink_bit_s,latency_s", *rows]) + "\n")
    return str(path)


def settings(folder, *more, rounds=2, clients=3):
    sizes = [f"federation.num_clients={clients}", f"federation.rounds={rounds}", f"output.folder={folder}"]
    return load_config(None, [*SMALL, "devices.profile=trace", f"devices.trace={trace(folder)}", *sizes, *more])


def virtual(folder) -> list[float]:
    return list(Metrics.read(folder).series("virtual_round_s", "server").values())


def by_hand(client: int, samples: int) -> float:
    """A turn of an MLP 64-256-128-10: products forward, for weights, and for inputs but the first layer's."""
    weights = 64 * 256, 256 * 128, 128 * 10
    flops = samples * 2 * (3 * sum(weights) - weights[0])
    model_bits = 8 * 4 * (sum(weights) + 256 + 128 + 10)
    return 2 * 0.02 + 2 * model_bits / LINKS[client] + flops / SPEEDS[client]


@pytest.mark.report("U63", "three profiles give the round time of a hand calculation within 1 %")
def test_round_time_equals_the_hand_calculation_within_a_percent(tmp_path):
    result = simulate(settings(tmp_path))
    hand = max(by_hand(client, samples) for client, samples in enumerate((480, 479, 479)))
    assert virtual(result.folder) == pytest.approx([hand, hand], rel=0.01)
    rows = Ledger.read(result.folder).table().to_pylist()
    for client in range(3):
        own = sum(r["virtual_s"] for r in rows if (r["round"], r["client"]) == (1, client) and r["phase"] != "add")
        assert own == pytest.approx(by_hand(client, 480), rel=0.01)


def burn(stop) -> None:
    while not stop.is_set():
        sum(range(1000))


def test_a_busy_machine_changes_no_bit_of_virtual_time(tmp_path):
    quiet = simulate(settings(tmp_path, "output.name=quiet"))
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    worker = context.Process(target=burn, args=(stop,))
    worker.start()
    try:
        busy = simulate(settings(tmp_path, "output.name=busy"))
    finally:
        stop.set()
        worker.join()
    columns = ["round", "client", "phase", "virtual_s", "flops", "wire_bytes"]
    quiet_rows, busy_rows = (Ledger.read(r.folder).table().select(columns) for r in (quiet, busy))
    assert virtual(busy.folder) == virtual(quiet.folder)
    assert repr(busy_rows.to_pydict()) == repr(quiet_rows.to_pydict()), "NaN equals itself in text only"


def turns(folder):
    return {(t["round"], t["client"]): (t["outcome"], t["reason"]) for t in Ledger.read(folder).clients().to_pylist()}


@pytest.mark.parametrize("engine", ["inline", "ray"])
def test_a_deadline_leaves_out_the_slow_client_and_names_it(tmp_path, engine):
    more = [f"engine.name={engine}", "clock.policy=deadline", "clock.deadline_s=1.0"]
    result = simulate(settings(tmp_path, *more))
    found = turns(result.folder)
    assert {client for (_, client), (outcome, _) in found.items() if outcome == "late"} == {2}
    assert "virtual s: the deadline is 1 s (clock.deadline_s)" in found[1, 2][1]
    assert virtual(result.folder) == [1.0, 1.0]
    rows = Ledger.read(result.folder).table().to_pylist()
    late = {r["phase"]: r for r in rows if (r["round"], r["client"]) == (1, 2)}
    assert late["train"]["virtual_s"] > 0 and late["upload"]["wire_bytes"] > 200_000, "its work and bytes count"
    assert late["upload"]["outcome"] == "late"


def test_the_sum_is_that_of_those_in_time(tmp_path, monkeypatch):
    """Bit for bit that of a run in which the late client failed."""
    late = simulate(settings(tmp_path, "clock.policy=deadline", "clock.deadline_s=1.0", "output.name=late"))
    inner = client_app.app._registered_funcs["train.default"]

    def failing(message, context):
        if context.node_config["partition-id"] == 2:
            raise RuntimeError("down")
        return inner(message, context)

    monkeypatch.setitem(client_app.app._registered_funcs, "train.default", failing)
    assert simulate(settings(tmp_path, "output.name=failed")).weights_sha256 == late.weights_sha256


def test_over_selection_takes_the_first_and_ends_with_them(tmp_path):
    more = ["federation.clients_per_round=2", "clock.policy=first-k", "clock.over_selection=1.5"]
    result = simulate(settings(tmp_path, *more))
    found = turns(result.folder)
    assert len(found) == 6 and {key for key, (outcome, _) in found.items() if outcome == "late"} == {(1, 2), (2, 2)}
    assert "the first 2 replies were in after" in found[1, 2][1]
    assert virtual(result.folder) == pytest.approx([by_hand(1, 479)] * 2, rel=0.01)


def test_too_tight_a_deadline_stops_the_run_with_the_reason(tmp_path):
    with pytest.raises(TooFewReplies, match="1 of 3 clients delivered, min_replies is 2"):
        simulate(settings(tmp_path, "clock.policy=deadline", "clock.deadline_s=0.1"))


def test_flowers_strategies_are_timed_and_cut_too(tmp_path):
    more = ["strategy.name=flwr:FedAvg", "clock.policy=deadline", "clock.deadline_s=1.0"]
    result = simulate(settings(tmp_path, *more))
    assert {client for (_, client), (outcome, _) in turns(result.folder).items() if outcome == "late"} == {2}
    assert virtual(result.folder) == [1.0, 1.0]


def test_clients_that_are_away_are_not_asked(tmp_path):
    more = ["devices.availability=0.5", "federation.min_replies=1"]
    result = simulate(settings(tmp_path, *more, rounds=6))
    asked = [sum(key[0] == round for key in turns(result.folder)) for round in range(1, 7)]
    assert min(asked) >= 1 and len(set(asked)) > 1


class Interrupting(NullObserver):
    def round_end(self, event):
        if event.round == 2:
            raise KeyboardInterrupt


def test_a_client_that_goes_away_is_dropped_and_a_resumed_run_has_the_same_times(tmp_path):
    there = tmp_path / "there.csv"
    there.write_text("client,start_s,end_s,period_s\n1,0,0.1,60\n1,3,60,60\n2,0.2,60,60\n0,0,60,60\n")
    config = settings(
        tmp_path, f"devices.availability_trace={there}", "federation.min_replies=1", "output.name=whole", rounds=4
    )
    whole = simulate(config)
    found = turns(whole.folder)
    assert found[1, 1][0] == "dropped" and "went away after 0.1 of" in found[1, 1][1]
    assert (1, 2) not in found and found[4, 2][0] == "ok"
    config = with_values(config, {"output.name": "cut"})
    with pytest.raises(KeyboardInterrupt):
        run(config, Interrupting())
    resumed = simulate(config, resume=True)
    assert virtual(resumed.folder) == virtual(whole.folder)
    assert turns(resumed.folder) == found


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("devices.preset=toaster", "there is no such device; the presets are: phone-low"),
        ("devices.network=avian", "there is no such network; the networks are: 3g"),
        ("clock.server=toaster", "there is no such device"),
        ("devices.profile=tiers", "goes with devices.profile = tiers"),
        ("devices.profile=trace", "goes with devices.profile = trace"),
        ("devices.tiers.phone-low=0.5", "goes with devices.profile = tiers, which is uniform"),
        ("clock.policy=deadline", "goes with clock.policy = deadline"),
        ("clock.deadline_s=3", "goes with clock.policy = deadline, which is all"),
        ("clock.over_selection=1.3", "must not ask more than it wants"),
        ("clock.policy=first-k", "asks 20 of 20 clients and wants as many"),
    ],
)
def test_settings_that_make_no_sense_are_refused(override, words):
    with pytest.raises(ConfigError, match=words):
        load_config(None, [override])


def test_shares_of_tiers_are_checked():
    with pytest.raises(ConfigError, match="each tier must be a preset with a share above 0"):
        load_config(None, ["devices.profile=tiers", "devices.tiers.phone-low=0"])
    with pytest.raises(ConfigError, match="each tier must be a preset"):
        load_config(None, ["devices.profile=tiers", "devices.tiers.phone=1"])
