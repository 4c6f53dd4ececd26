"""Every drill under every protection: the documented outcome, the right aggregate, and nothing hangs."""

import os
import re

import numpy as np
import pytest

from crypto._openfhe.find import find_python
from crypto.errors import BackendUnavailable
from crypto.he_seal import library
from fedsim.config import load_config
from fedsim.errors import TooFewReplies
from fedsim.measure.ledger import Ledger
from fedsim.runner import simulate

SMALL = [
    "task.name=digits",
    "model.name=logistic",
    "data.scheme=iid",
    "federation.num_clients=12",
    "federation.rounds=2",
    "output.report=false",
    "engine.name=inline",
]
PREAMBLE = ["protection.name=preamble", "protection.dense=true", "protection.noise=off-not-private"]


def reason_without(find):
    try:
        find()
    except BackendUnavailable as error:
        return f"NOT TESTED HERE: {error}"
    return ""


def needs(find):
    reason = reason_without(find)
    return pytest.mark.skipif(bool(reason) and not os.environ.get("FEDSIM_REQUIRE_OPENFHE"), reason=reason)


PROTECTIONS = {
    "plain": ["protection.name=plain"],
    "bfv": ["protection.name=bfv"],
    "openfhe-threshold": ["protection.name=openfhe-threshold"],
    "preamble": PREAMBLE,
}
each_protection = pytest.mark.parametrize(
    "name",
    [
        "plain",
        pytest.param("bfv", marks=needs(library)),
        pytest.param("openfhe-threshold", marks=needs(find_python)),
        "preamble",
    ],
)

#: Client -> drill, all in round 2; clients 0 to 2 are honest (and the committee).
DRILLS = {
    3: "drop_before",
    4: "drop_during",
    5: "slow",
    6: "duplicate",
    7: "stale",
    8: "corrupt",
    9: "nan",
    10: "wrong_key",
}
#: Drill -> (outcome, words of the reason), under each protection unless the table below says otherwise.
EXPECTED = {
    "drop_before": ("dropped", "lost before training"),
    "drop_during": ("dropped", "the connection broke"),
    "slow": ("ok", ""),
    "duplicate": ("ok", ""),
    "stale": ("rejected", "round"),
    "corrupt": ("rejected", "checksum"),
    "nan": ("dropped", "nan|finite"),
    "wrong_key": ("rejected", "key"),
}


def settings(folder, name, *more):
    return load_config(None, [*SMALL, *PROTECTIONS[name], f"output.folder={folder}", *more])


def drilled(name):
    """Return the settings of all drills that make sense under a protection."""
    found = {client: drill for client, drill in DRILLS.items() if (name, drill) != ("plain", "wrong_key")}
    return found, ["faults.rounds=[2]", *(f"faults.{drill}=[{client}]" for client, drill in found.items())]


@pytest.mark.report("D1", "it is named in the ledger and left out; the sum is that of the others")
@pytest.mark.report("D2", "it is named and left out")
@pytest.mark.report("D5", "it counts once")
@pytest.mark.report("D6", "refused by the round in the frame")
@pytest.mark.report("D7", "refused by the checksum")
@pytest.mark.report("D8", "the client itself refuses, with array and index")
@pytest.mark.report("D9", "refused by the key's id")
@each_protection
def test_every_drill_ends_as_documented_and_the_sum_is_that_of_the_others(tmp_path, name):
    found, sets = drilled(name)
    result = simulate(settings(tmp_path, name, *sets, "federation.min_replies=4", "output.name=drilled"))
    turns = {t["client"]: t for t in Ledger.read(result.folder).clients().to_pylist() if t["round"] == 2}
    for client in range(12):
        outcome, words = EXPECTED[found[client]] if client in found else ("ok", "")
        assert turns[client]["outcome"] == outcome, (found.get(client), turns[client])
        assert re.search(words, turns[client]["reason"]), (found.get(client), turns[client]["reason"])
    out = [client for client, turn in turns.items() if turn["outcome"] != "ok"]
    reference = simulate(
        settings(tmp_path, name, "faults.rounds=[2]", f"faults.drop_before={out}", "output.name=others")
    )
    compare(name, result, reference)


def compare(name, result, reference):
    if name == "plain":
        assert result.weights_sha256 == reference.weights_sha256
        return
    # They round to a fixed point, stochastically.
    for key, array in reference.state.arrays.items():
        assert np.abs(result.state.arrays[key] - array).max() < 1e-3, key


@pytest.mark.parametrize("strategy", ["dictpfl", "fedluar", pytest.param("fedml-he", marks=pytest.mark.slow)])
def test_clients_that_hold_the_model_are_left_out_by_their_frame_and_take_part_again(tmp_path, strategy):
    """Frames are looked at before states are compared, so an old or foreign one does not end the run."""
    own = ["protection.name=rlwe", "model.name=mlp", "federation.num_clients=6", "federation.rounds=3"]
    more = [*own, f"strategy.name={strategy}", "faults.rounds=[2]", "federation.min_replies=2"]
    bad = {"stale": (2, "round 1: this is round 2"), "corrupt": (3, "checksum"), "wrong_key": (4, "key")}
    result = simulate(settings(tmp_path, "plain", *more, *(f"faults.{d}=[{c}]" for d, (c, _) in bad.items())))
    turns = {(t["round"], t["client"]): t for t in Ledger.read(result.folder).clients().to_pylist()}
    for client, words in bad.values():
        turn = turns.pop((2, client))
        assert turn["outcome"] == "rejected" and words in turn["reason"], turn
    assert len(turns) == 15 and {t["outcome"] for t in turns.values()} == {"ok"}
    assert result.metrics["client_accuracy"] > 0.2


def test_first_rounds_are_honest(tmp_path):
    """A stale client has nothing old to send in its first round; drills stay out of rounds that are not theirs."""
    _, sets = drilled("plain")
    result = simulate(settings(tmp_path, "plain", *sets, "federation.min_replies=4"))
    turns = Ledger.read(result.folder).clients().to_pylist()
    assert {t["outcome"] for t in turns if t["round"] == 1} == {"ok"}


@pytest.mark.report("D4", "it counts, or is late at the deadline")
def test_a_slow_client_is_slow_in_virtual_time_alone(tmp_path):
    result = simulate(settings(tmp_path, "plain", "faults.slow=[5]", "faults.slow_factor=50"))
    rows = Ledger.read(result.folder).table().to_pylist()
    train = {r["client"]: r["virtual_s"] for r in rows if r["phase"] == "train" and r["round"] == 1}
    assert train[5] / train[6] == pytest.approx(50, rel=0.02)


@pytest.mark.report("D4")
def test_a_slow_client_misses_a_deadline(tmp_path):
    more = ["faults.slow=[5]", "faults.slow_factor=1e6", "clock.policy=deadline", "clock.deadline_s=1"]
    result = simulate(settings(tmp_path, "plain", *more))
    late = {t["client"] for t in Ledger.read(result.folder).clients().to_pylist() if t["outcome"] == "late"}
    assert late == {5}


@pytest.mark.report(
    "D10",
    "it counts as told under `weighting = examples`, and not at all under `uniform`; the ledger shows what was told",
)
@each_protection
def test_a_lie_counts_as_told_where_examples_are_weights_and_not_at_all_where_all_are_equal(tmp_path, name):
    lied = simulate(
        settings(tmp_path, name, "faults.lie=[4]", "faults.lie_factor=3", "federation.rounds=1", "output.name=lie")
    )
    honest = simulate(settings(tmp_path, name, "federation.rounds=1", "output.name=honest"))
    turns = {t["client"]: t for t in Ledger.read(lied.folder).clients().to_pylist()}
    assert turns[4]["outcome"] == "ok" and turns[4]["num_examples"] == 3 * turns_examples(honest)[4]
    if name == "preamble":
        compare(name, lied, honest)
        return
    # (sum_i n_i x_i + 2 n_4 x_4) / (sum_i n_i + 2 n_4), x_4 being what client 4 alone makes of the start.
    alone = [f"faults.drop_before={[c for c in range(12) if c != 4]}", "federation.min_replies=1"]
    own = simulate(settings(tmp_path, "plain", *alone, "federation.rounds=1", "output.name=own"))
    sizes = turns_examples(honest)
    total, extra = sum(sizes.values()), 2 * sizes[4]
    for key, array in honest.state.arrays.items():
        expected = (total * array.astype(float) + extra * own.state.arrays[key]) / (total + extra)
        assert np.abs(lied.state.arrays[key] - expected).max() < 1e-3, key


def turns_examples(result):
    return {t["client"]: t["num_examples"] for t in Ledger.read(result.folder).clients().to_pylist()}


@pytest.mark.report("D3", "its update counts; a committee member that is gone stops the run by name")
@pytest.mark.parametrize("name", ["plain", pytest.param("bfv", marks=needs(library)), "preamble"])
def test_who_is_gone_after_its_update_still_counts(tmp_path, name):
    more = ["faults.drop_after=[4]", "federation.client_evaluation_fraction=1.0"]
    result = simulate(settings(tmp_path, name, *more))
    turns = [t for t in Ledger.read(result.folder).clients().to_pylist() if t["client"] == 4]
    assert {t["outcome"] for t in turns} == {"ok"}
    rows = [r for r in Ledger.read(result.folder).table().to_pylist() if r["client"] == 4 and r["phase"] == "evaluate"]
    assert {(r["outcome"], "gone after" in r["reason"]) for r in rows} == {("dropped", True)}


@pytest.mark.report("D3")
@needs(find_python)
def test_a_committee_member_that_is_gone_ends_the_run_and_is_named(tmp_path):
    with pytest.raises(TooFewReplies, match="(?s)client 1.*gone after"):
        simulate(settings(tmp_path, "openfhe-threshold", "faults.drop_after=[1]", "faults.rounds=[2]"))


@needs(find_python)
def test_a_client_outside_of_the_committee_may_go(tmp_path):
    result = simulate(settings(tmp_path, "openfhe-threshold", "faults.drop_after=[4]"))
    assert {t["outcome"] for t in Ledger.read(result.folder).clients().to_pylist()} == {"ok"}


ON_RAY = pytest.param("ray", marks=pytest.mark.slow)


@pytest.mark.report("D1")
@pytest.mark.parametrize("engine", ["inline", ON_RAY])
def test_dropouts_are_drawn_from_the_seed_whatever_the_engine(tmp_path, engine):
    result = simulate(
        settings(tmp_path, "plain", "faults.dropout=0.4", "federation.min_replies=1", f"engine.name={engine}")
    )
    turns = Ledger.read(result.folder).clients().to_pylist()
    lost = [(t["round"], t["client"]) for t in turns if t["outcome"] == "dropped"]
    expected = [
        (r, c) for r in (1, 2) for c in range(12) if np.random.default_rng([0x64726F70, 1, r, c]).random() < 0.4
    ]
    assert lost == expected and 4 <= len(lost) <= 16


def test_flowers_strategies_lose_clients_by_dropout_too(tmp_path):
    more = ["strategy.name=flwr:FedAvg", "faults.dropout=0.4", "federation.min_replies=1"]
    result = simulate(settings(tmp_path, "plain", *more))
    assert "dropped" in {t["outcome"] for t in Ledger.read(result.folder).clients().to_pylist()}


@pytest.mark.report("D5")
@pytest.mark.parametrize("engine", ["inline", ON_RAY])
def test_a_duplicate_is_counted_once_on_every_engine(tmp_path, engine):
    honest = simulate(settings(tmp_path, "plain", "output.name=honest"))
    more = [f"engine.name={engine}", "faults.duplicate=[0, 5, 11]", f"output.name={engine}"]
    assert simulate(settings(tmp_path, "plain", *more)).weights_sha256 == honest.weights_sha256
