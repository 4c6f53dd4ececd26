"""federation.evaluate_received: training and evaluation in one message."""

import pytest

from fedsim.config import load_config
from fedsim.measure.ledger import Ledger, unaccounted
from fedsim.measure.metrics import Metrics
from fedsim.runner import simulate

SMALL = ("task.name=digits", "model.name=mlp", "federation.rounds=2", "output.report=false", "engine.name=inline")
#: Equal parts, so that weights by training examples are those by test examples but for a sample.
EVEN = ("federation.num_clients=6", "data.scheme=iid")


def run(folder, *more):
    return simulate(load_config(None, [*SMALL, *EVEN, f"output.folder={folder}", *more]))


def metric(result, name, side):
    return {
        r["round"]: r["value"]
        for r in Metrics.read(result.folder).table().to_pylist()
        if (r["side"], r["name"]) == (side, name)
    }


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    return run(tmp_path_factory.mktemp("asked"), "federation.evaluate_received=true")


def test_what_clients_find_is_of_the_model_that_the_round_began_with(asked):
    received, server = metric(asked, "train_received_accuracy", "client"), metric(asked, "accuracy", "server")
    assert received.keys() == {1, 2} and received[2] == pytest.approx(server[1], abs=0.005)
    assert received[1] < server[1] - 0.05
    losses = metric(asked, "train_received_loss", "client")[2], metric(asked, "loss", "server")[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.01)


def test_with_one_client_it_is_the_servers_own_result(tmp_path):
    alone = run(tmp_path, "federation.evaluate_received=true", "federation.num_clients=1")
    assert metric(alone, "train_received_accuracy", "client")[2] == metric(alone, "accuracy", "server")[1]


@pytest.mark.parametrize("more", [[], ["engine.cohort=on"]])
def test_training_is_untouched(tmp_path, more):
    without, with_it = run(tmp_path, *more), run(tmp_path, "federation.evaluate_received=true", *more)
    assert with_it.weights_sha256 == without.weights_sha256
    assert not metric(without, "train_received_accuracy", "client")


def test_it_costs_no_message_and_no_download(tmp_path, asked):
    apart = run(tmp_path, "federation.client_evaluation_fraction=1.0")
    one, two = (Ledger.read(result.folder) for result in (asked, apart))
    assert one.download_bytes() < 0.51 * two.download_bytes()
    counts = [sum(e["phase"] == "download" for e in ledger.table().to_pylist()) for ledger in (one, two)]
    assert counts == [12, 24]


def test_the_ledger_and_the_virtual_clock_have_its_work(tmp_path, asked):
    without = run(tmp_path)
    ledger = Ledger.read(asked.folder)
    entries = [e for e in ledger.table().to_pylist() if e["phase"] == "evaluate" and e["client"] >= 0]
    assert len(entries) == 12 and all(e["flops"] > 0 and e["virtual_s"] > 0 for e in entries)
    longest_s = max(e["virtual_s"] for e in entries if e["round"] == 2)
    rounds = [metric(result, "virtual_round_s", "server")[2] for result in (asked, without)]
    assert rounds[0] == pytest.approx(rounds[1] + longest_s, rel=0.02)
    gaps = unaccounted(ledger.table(), ledger.clients()).to_pylist()
    assert max(row["share"] for row in gaps) < 0.01


def test_flowers_own_strategies_have_it_too(tmp_path):
    stock = run(tmp_path, "federation.evaluate_received=true", "strategy.name=flwr:FedAvg")
    received, server = metric(stock, "train_received_accuracy", "client"), metric(stock, "accuracy", "server")
    assert received[2] == pytest.approx(server[1], abs=0.005)
