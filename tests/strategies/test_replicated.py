"""Clients that hold the model: totals are handed on, missed ones replayed, and different states stop the run."""

import numpy as np
import pytest
from flwr.app import RecordDict

from crypto.base import Plan
from crypto.he_seal import BfvSum
from strategies.agreement import Agreement
from strategies.client import ClientHalf
from strategies.errors import Disagreement, Incompatible
from strategies.keyed import KeyedProtection
from strategies.nodes import Participation
from strategies.plan import BufferRule
from strategies.protection import Plain
from strategies.records import NamedArrays, array_record
from strategies.replicated import ReplicatedHalf, ReplicatedStrategy

START = {"w": np.linspace(-1, 1, 7, dtype=np.float32), "frozen": np.ones(3, np.float32)}
FROZEN = frozenset({"frozen"})


class Server(ReplicatedStrategy):
    name = "shift"


class Half(ReplicatedHalf):
    """Moves by the mean change; sends every coordinate on even rounds, the first half on odd ones, keeps the rest."""

    name = "shift"

    def first(self, known):
        return {"w": known.arrays["w"].astype(np.float64), "rounds": np.zeros(1, np.int64)}

    def count(self, state):
        return 7 if state["rounds"][0] % 2 == 0 else 3

    def advance(self, state, means, plan, secret):
        moved, n = state["w"].copy(), self.count(state)
        moved[:n] += means[0][:n]
        return {"w": moved, "rounds": state["rounds"] + 1}

    def model(self, state, known):
        return NamedArrays({**known.arrays, "w": state["w"].astype(np.float32)})

    def vectors(self, state, own, change, plan, secret):
        kept = own.get("kept", np.zeros(7)) + change.arrays["w"].reshape(-1)
        n = self.count(state)
        own["sent"] = np.where(np.arange(7) < n, kept, 0.0)
        own["kept"] = kept - own["sent"]
        return [kept[:n].copy()]

    def returned(self, own):
        own["kept"] = own["kept"] + own.pop("sent")


def step(client, arrays, server_round):
    return arrays | {"w": arrays["w"] + np.float32(0.01 * (client + 1) * server_round)}


def run(toy_grid, toy_handler, rounds=4, clients=3, half=None, update=step, grid=None, **common):
    app = toy_handler(update, half=half or Half(), buffer_names=FROZEN, protection=common.get("protection"))
    grid = grid or toy_grid(clients, app)
    strategy = Server(buffers=BufferRule(names=FROZEN), **common)
    strategy.start(grid, array_record(NamedArrays(dict(START))), num_rounds=rounds)
    return strategy, grid


def opened(strategy, half=None, protection=None):
    """Return the model as a client without any memory makes it of all totals."""
    return (
        (half or Half())
        .receive(strategy.message_content(99), protection or Plain(), None, FROZEN, RecordDict())
        .arrays["w"]
    )


def reference(rounds, clients=3):
    w, kept = START["w"].astype(np.float64), np.zeros((clients, 7))
    examples = np.arange(1, clients + 1)
    for r in range(1, rounds + 1):
        n = 7 if r % 2 else 3
        before = w.astype(np.float32)
        for c in range(clients):
            kept[c] += (before + np.float32(0.01 * (c + 1) * r)).astype(np.float64) - before
        w[:n] += (examples @ kept[:, :n].astype(np.float32)) / examples.sum()
        kept[:, :n] = 0
    return w


def test_totals_are_applied_by_the_clients_alone(toy_grid, toy_handler):
    strategy, _ = run(toy_grid, toy_handler)
    assert np.array_equal(strategy.state.arrays["w"], START["w"]), "the server's copy stays the public start"
    assert opened(strategy) == pytest.approx(reference(4), abs=1e-6)


def test_a_client_is_sent_each_total_once(toy_grid, toy_handler):
    strategy, grid = run(toy_grid, toy_handler, evaluate_fraction=1.0)
    seen = {}
    for message in grid.pushed:
        if message.has_content() and message.metadata.message_type in ("train", "evaluate"):
            names = [n for n in message.content.array_records if n.startswith("total.")]
            seen.setdefault(message.metadata.dst_node_id, []).extend(names)
    assert all(sorted(names) == [f"total.{r}" for r in (1, 2, 3, 4)] for names in seen.values())


def test_the_start_weights_are_sent_to_a_client_once(toy_grid, toy_handler):
    _, grid = run(toy_grid, toy_handler, rounds=3)
    sent = [m.metadata.dst_node_id for m in grid.pushed if m.has_content() and "model" in m.content.array_records]
    assert sorted(sent) == [100, 101, 102]


def test_a_client_that_was_away_replays_what_it_missed(toy_grid, toy_handler):
    half = Half()
    app = toy_handler(step, half=half, buffer_names=FROZEN)
    grid = toy_grid(4, app)
    strategy = Server(buffers=BufferRule(names=FROZEN), participation=Participation(clients=2), seed=5)
    strategy.start(grid, array_record(NamedArrays(dict(START))), num_rounds=8)
    sent = [
        len([n for n in m.content.array_records if n.startswith("total.")])
        for m in grid.pushed
        if m.metadata.message_type == "train"
    ]
    assert max(sent) > 1, "somebody missed a round"
    assert sorted(strategy.heard) == list(range(1, 9))


def test_an_update_that_did_not_count_is_sent_again(toy_grid, toy_handler):
    """The reply of round 1 is lost on its way: what it held arrives with round 2's."""
    app = toy_handler(step, examples=lambda client: 1, half=Half(), buffer_names=FROZEN)

    def losing(message, context):
        reply = app(message, context)
        if message.metadata.message_type == "train" and message.content["config"]["server-round"] == 1:
            if context.node_config["partition-id"] == 0:
                reply.content.pop("sealed")
        return reply

    strategy, _ = run(toy_grid, toy_handler, rounds=2, grid=toy_grid(2, losing))
    w = START["w"].astype(np.float64)
    w += 0.02
    w[:3] += (0.01 + 0.02 + 0.04) / 2
    assert opened(strategy) == pytest.approx(w, abs=1e-6)


@pytest.mark.parametrize("rounds", [1, 3])
def test_different_states_stop_the_run(toy_grid, toy_handler, rounds):
    """One client's state is changed behind its back: no total with it in is ever applied."""
    app = toy_handler(step, half=Half(), buffer_names=FROZEN)

    class Other(Half):
        def first(self, known):
            state = super().first(known)
            state["w"][0] += 1e-9
            return state

    other = toy_handler(step, half=Other(), buffer_names=FROZEN)

    def mixed(message, context):
        late = message.metadata.message_type == "train" and message.content["config"]["server-round"] >= rounds
        if late:
            context.state.pop("replica-mark", None)
        return (other if late and context.node_config["partition-id"] == 1 else app)(message, context)

    class Whole(Server):
        def contents(self, content, nodes, server_round):
            return [self._catch_up(content, -1, 0)] * len(nodes)

    strategy = Whole(buffers=BufferRule(names=FROZEN))
    with pytest.raises(Disagreement, match=f"round {rounds}: nodes 10. and 10. hold different states"):
        strategy.start(toy_grid(3, mixed), array_record(NamedArrays(dict(START))), num_rounds=4)
    assert sorted(strategy.heard) == list(range(1, rounds))


def test_other_start_weights_stop_the_run_before_round_1(toy_grid, toy_handler):
    app = toy_handler(step, half=Half(), buffer_names=FROZEN)

    @app.query("setup")
    def setup(message, context):
        from flwr.app import ConfigRecord, Message

        digest = bytes([context.node_config["partition-id"] // 2]) * 32
        return Message(RecordDict({"setup": ConfigRecord({"digest": digest})}), reply_to=message)

    with pytest.raises(Disagreement, match="begin with different start weights"):
        run(toy_grid, toy_handler, grid=toy_grid(3, app))


def test_a_missing_total_is_an_error_not_a_guess(toy_grid, toy_handler):
    strategy, _ = run(toy_grid, toy_handler)
    content = strategy.message_content(4)
    content.pop("total.2")
    with pytest.raises(ValueError, match="total of round 2 is missing"):
        Half().receive(content, Plain(), None, FROZEN, RecordDict())


def bfv(tmp_path, length=7):
    protection = KeyedProtection("bfv", "crypto.he_seal:BfvSum", (), 1.0)
    slots = BfvSum(Plan(length=length, clients=3, bound=1.0)).slots
    from crypto.keys import save_keys

    bundles = protection.describe(Plan(length=slots, clients=3, bound=1.0)).make_keys()
    folders = {b.role: tmp_path / b.role for b in bundles}
    for bundle in bundles:
        save_keys(folders[bundle.role], [bundle])
    return [KeyedProtection("bfv", "crypto.he_seal:BfvSum", (), 1.0, keys=str(folders[r]), role=r) for r in folders]


def test_under_bfv_the_server_gets_whole_ciphertexts_and_no_secret(toy_grid, toy_handler, tmp_path):
    server, clients = bfv(tmp_path)
    app = toy_handler(step, half=Half(), buffer_names=FROZEN, protection=clients)
    grid = toy_grid(3, app)
    strategy = Server(buffers=BufferRule(names=FROZEN), protection=server)
    strategy.start(grid, array_record(NamedArrays(dict(START))), num_rounds=4)
    plan = Plan(length=2048, clients=3, bound=1.0)
    assert opened(strategy, protection=clients) == pytest.approx(reference(4), abs=1e-5)
    assert {h.lengths for h in strategy.heard.values()} == {(2048,)}, "seven values or three: one ciphertext"
    assert clients.secret(plan) != bytes(32)
    with pytest.raises((ValueError, OSError)):
        server.secret(plan)
    with pytest.raises((ValueError, OSError)):
        server.opener(plan)


def away(toy_grid, toy_handler, every):
    """Two of four clients a round, nine rounds."""
    grid = toy_grid(4, toy_handler(step, half=Half(), buffer_names=FROZEN))
    strategy = Server(
        buffers=BufferRule(names=FROZEN), participation=Participation(clients=2), seed=5, snapshot_every=every
    )
    strategy.start(grid, array_record(NamedArrays(dict(START))), num_rounds=9)
    return strategy, grid


def test_a_snapshot_stands_for_all_older_totals(toy_grid, toy_handler):
    whole, _ = away(toy_grid, toy_handler, 0)
    short, grid = away(toy_grid, toy_handler, 3)
    assert sorted(whole.heard) == list(range(1, 10)) and sorted(short.heard) == [7, 8, 9]
    assert np.array_equal(opened(short), opened(whole))
    asked = [m for m in grid.pushed if m.has_content() and m.content.config_records.get("replica", {}).get("snapshot")]
    assert len(asked) == 2, "one client after each third round"
    given = [m for m in grid.pushed if m.has_content() and "snapshot" in m.content.config_records]
    assert given, "somebody who was away was helped by it"


def test_a_snapshot_of_another_key_is_refused(toy_grid, toy_handler):
    strategy, _ = away(toy_grid, toy_handler, 3)

    class Other(Plain):
        def secret(self, plan):
            return bytes([1]) * 32

    with pytest.raises(ValueError, match="not sealed under this client's key"):
        opened(strategy, protection=Other())
    strategy.snapshot["round"] = 8
    with pytest.raises(ValueError, match="not sealed under this client's key"):
        opened(strategy)


def test_snapshots_are_part_of_a_checkpoint(toy_grid, toy_handler):
    strategy, _ = away(toy_grid, toy_handler, 3)
    twin = Server(buffers=BufferRule(names=FROZEN))
    twin.load_state_dict(strategy.state_dict())
    twin.begin(toy_grid(4, toy_handler(step, half=Half(), buffer_names=FROZEN)), array_record(NamedArrays(dict(START))))
    assert sorted(twin.heard) == sorted(strategy.heard)
    assert np.array_equal(opened(twin), opened(strategy))
    assert twin._held == strategy._held and twin._counted == strategy._counted


def test_refuses_sums_that_the_server_opens_or_that_do_not_repeat():
    with pytest.raises(Incompatible, match="which goes to the server"):
        Server(protection=KeyedProtection("t", "x:y", (), 1.0, opened="committee", members=2))
    with pytest.raises(Incompatible, match="same bits"):
        Server(protection=KeyedProtection("t", "x:y", (), 1.0, repeatable=False))


@pytest.mark.parametrize("lengths", [[], [0], [-1], ["a"], None])
def test_refuses_an_agreement_of_another_form(lengths):
    from flwr.app import ConfigRecord

    record = ConfigRecord({"proof": bytes(32)} | ({"lengths": lengths} if lengths is not None else {}))
    with pytest.raises(ValueError, match="lengths"):
        Agreement.of(RecordDict({"agreement": record}))


def test_halves_without_options_are_made_from_any_settings():
    assert isinstance(ClientHalf.of({"mu": 1.0}), ClientHalf)
