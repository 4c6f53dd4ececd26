"""DictPFL's two halves together: what is sent, what is kept back, what the server can see, and what stops a run."""

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, RecordDict
from torch import nn
from torch.nn import functional

from crypto.base import Plan
from crypto.keys import save_keys
from strategies import _prune_history
from strategies._dict_layers import DictOptions
from strategies._prune_history import PruneOptions
from strategies.dictpfl import DictClient, DictPFL
from strategies.errors import Disagreement
from strategies.keyed import KeyedProtection
from strategies.nodes import Participation
from strategies.plan import BufferRule, RoundPlan
from strategies.protection import Plain
from strategies.records import NamedArrays, array_record
from strategies.replica import padded
from strategies.state import buffer_names, load_state_arrays, state_arrays

SECRET = bytes(range(32))


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class KnownSecret(Plain):
    """Plain, with the secret that a keyed run has: both draw the same coordinates."""

    def secret(self, plan):
        return SECRET


class Keyed(KeyedProtection):
    def secret(self, plan):
        return SECRET


class Federation:
    """Clients that train a shaped MLP on data of their own."""

    def __init__(self, clients=3, width=32, **options):
        self.clients, self.width = clients, width
        self.half = DictClient.of({"rank": 2, **options})
        self.model = self.fresh()
        self.half.shape(self.model)
        self.buffers, self.start = buffer_names(self.model), NamedArrays(state_arrays(self.model))
        torch.manual_seed(1)
        self.x = [torch.randn(16, 12) + 0.3 * c for c in range(clients)]
        self.y = [(torch.arange(16) * (c + 1)) % 4 for c in range(clients)]
        self.changes = {c: [] for c in range(clients)}

    def fresh(self):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(12, self.width), nn.ReLU(), nn.Linear(self.width, 16), nn.Linear(16, 4))

    @property
    def length(self):
        return sum(p.numel() for p in self.model.parameters())

    def update(self, client, arrays, server_round):
        load_state_arrays(self.model, arrays)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            functional.cross_entropy(self.model(self.x[client]), self.y[client]).backward()
            optimizer.step()
        after = state_arrays(self.model)
        names = self.half.names
        wide = [(after[n].astype(np.float64) - arrays[n].astype(np.float64)).reshape(-1) for n in names]
        self.changes[client].append(np.concatenate(wide))
        return after

    def run(self, toy_grid, toy_handler, rounds, server=None, clients=None, grid=None, **common):
        server, clients = server or KnownSecret(), clients or KnownSecret()
        app = toy_handler(
            self.update, examples=lambda c: 16, half=self.half, buffer_names=self.buffers, protection=clients
        )
        self.grid = (grid or toy_grid)(self.clients, app)
        strategy = DictPFL(buffers=BufferRule(names=self.buffers), protection=server, **common)
        strategy.start(self.grid, array_record(self.start), num_rounds=rounds)
        return strategy

    def opened(self, strategy, protection=None):
        """Return the state as a client without memory finds it from all totals."""
        memory = RecordDict()
        self.half.receive(strategy.message_content(999), protection or KnownSecret(), self.start, self.buffers, memory)
        return self.half._recall(memory, self.start)[0]

    def own(self, client):
        """Return what a client holds back."""
        return self.half._recall(self.grid.contexts[100 + client].state, self.start)[1]


def keyed(tmp_path, length, scheme="bfv", bound=0.5, clients=3):
    """Return the server's and the clients' protection over fresh keys."""
    entry, options = {
        "bfv": ("crypto.he_seal:BfvSum", (("value_bits", 30),)),
        "ckks": ("crypto.he_tenseal:CkksSum", ()),
    }[scheme]
    made = Keyed(scheme, entry, options, bound)
    slots = made.secure_sum(Plan(length=length, clients=1, bound=bound)).slots
    bundles = made.describe(Plan(length=padded(length, slots), clients=clients, bound=bound)).make_keys()
    for bundle in bundles:
        save_keys(tmp_path / bundle.role, [bundle])
    return [Keyed(scheme, entry, options, bound, keys=str(tmp_path / r), role=r) for r in ("server", "clients")]


@pytest.mark.parametrize("scheme", ["bfv", "ckks"])
@pytest.mark.parametrize("share", [0.0, 0.7])
def test_an_encrypted_run_equals_the_plain_run_of_the_same_algorithm(toy_grid, toy_handler, tmp_path, scheme, share):
    runs = []
    for protected in (False, True):
        federation = Federation(prune_share=share)
        server, clients = keyed(tmp_path, federation.length, scheme) if protected else (None, None)
        strategy = federation.run(toy_grid, toy_handler, 20, server, clients)
        runs.append((federation, strategy, federation.opened(strategy, clients)))
    (plain, _, one), (_, sealed, two) = runs
    assert np.abs(one["values"] - two["values"]).max() <= 1e-4
    assert np.array_equal(one["quiet"], two["quiet"]) and np.array_equal(one["chance"], two["chance"])
    moved = np.abs(one["values"] - plain.half.first(plain.start)["values"]).max()
    assert moved > 0.01, "something was learned"
    assert len(sealed.heard) == 20


def test_each_round_of_an_encrypted_run_is_within_the_bound_of_the_plain_one(toy_grid, toy_handler, tmp_path):
    """From one state, one round: the fixed point's error and nothing else."""
    federation = Federation(prune_share=0.0)
    server, clients = keyed(tmp_path, federation.length)
    sealed = federation.opened(federation.run(toy_grid, toy_handler, 1, server, clients), clients)
    plain = Federation(prune_share=0.0)
    assert np.abs(sealed["values"] - plain.opened(plain.run(toy_grid, toy_handler, 1))["values"]).max() <= 1e-8


def test_the_table_run_is_fedavg_on_tables(toy_grid, toy_handler):
    """s = 0 against a plain loop: mean of the changes, added to the tables."""
    federation = Federation(prune_share=0.0)
    strategy = federation.run(toy_grid, toy_handler, 6)
    values = federation.half.first(federation.start)["values"]
    for at in range(6):
        values = values + np.mean([federation.changes[c][at] for c in range(3)], axis=0)
    assert np.abs(federation.opened(strategy)["values"] - values).max() < 1e-6


@pytest.mark.parametrize("population", ["all", "transmitted"])
def test_nothing_of_an_update_is_lost(toy_grid, toy_handler, population):
    """All that a client computed was uploaded or is held back; in float64."""
    federation = Federation(population=population)
    rounds, sent = 12, {c: 0.0 for c in range(3)}
    inner = federation.half.vectors

    def counting(state, own, change, plan, secret):
        vectors = inner(state, own, change, plan, secret)
        client = (plan_calls.append(1) or len(plan_calls) - 1) % 3
        full = np.zeros(federation.length)
        full[federation.half.mask(state, plan, secret).index] = vectors[0]
        sent[client] = sent[client] + full
        return vectors

    plan_calls: list[int] = []
    federation.half.vectors = counting
    federation.run(toy_grid, toy_handler, rounds)
    for client in range(3):
        total = np.sum(federation.changes[client], axis=0)
        assert np.abs(total - (sent[client] + federation.own(client)["residual"])).max() <= 1e-9
        assert (federation.own(client)["residual"] != 0).any(), "something is held back"


def test_with_all_reactivated_the_run_is_the_unpruned_one(toy_grid, toy_handler, monkeypatch):
    unpruned = Federation(prune_share=0.0)
    expected = unpruned.opened(unpruned.run(toy_grid, toy_handler, 8))["values"]
    monkeypatch.setattr(_prune_history, "uniforms", lambda secret, at, count: np.zeros(count))
    federation = Federation(prune_share=0.7, patience=1)
    assert np.array_equal(federation.opened(federation.run(toy_grid, toy_handler, 8))["values"], expected)


@pytest.mark.parametrize(("residual", "expected"), [(True, 5.0), (False, 1.0)])
def test_a_reactivated_coordinate_brings_all_that_was_held_back(monkeypatch, residual, expected):
    """A constant change of 1e-6, pruned for 4 rounds and then tried: 5e-6 with the residual, 1e-6 without."""
    half = DictClient(DictOptions(), PruneOptions(prune_share=0.5, patience=1, residual=residual))
    half.names = ("t",)
    known, own = NamedArrays({"t": np.zeros(4, np.float32)}), {}
    state, uploads = half.first(known), []
    change = NamedArrays({"t": np.array([1e-6, 2.0, 3.0, 4.0])})
    for server_round in range(1, 7):
        draw = 0.0 if server_round == 6 else 0.99
        monkeypatch.setattr(_prune_history, "uniforms", lambda s, r, n, draw=draw: np.full(n, draw))
        plan = a_plan(server_round)
        vector = half.vectors(state, own, change, plan, SECRET)[0]
        index = half.mask(state, plan, SECRET).index
        uploads.append(dict(zip(index.tolist(), vector.tolist(), strict=True)).get(0))
        state = half.advance(state, [vector], plan, SECRET)
    assert uploads[0] == pytest.approx(1e-6)
    assert uploads[1:5] == [None] * 4
    assert uploads[5] == pytest.approx(expected * 1e-6)


def a_plan(server_round):
    return RoundPlan(
        strategy="dictpfl",
        round=server_round,
        rounds=9,
        names=("dictpfl",),
        layout_hash=bytes(16),
        payload="delta",
        weighting="examples",
        weight_scale=1.0,
        buffers="average",
        first_partition=-1,
        secure=Plan(length=8, clients=3, bound=1.0),
        extras={"mask-nonce": 0},
    )


def test_masks_are_the_same_at_every_client_in_each_of_30_rounds(toy_grid, toy_handler):
    """Each client has a half and a memory of its own; data differ."""
    federation, seen = Federation(), {}
    inner = federation.half.mask

    def watching(state, plan, secret):
        mask = inner(state, plan, secret)
        digest = (mask.active.tobytes(), state["chance"].tobytes(), state["quiet"].tobytes(), state["values"].tobytes())
        seen.setdefault(plan.round, []).append(hash(digest))
        return mask

    federation.half.mask = watching
    strategy = federation.run(toy_grid, toy_handler, 30)
    assert sorted(seen) == list(range(1, 31)) and all(len(set(found)) == 1 for found in seen.values())
    assert all(len(found) >= 3 for found in seen.values())
    lengths = [h.lengths[0] for h in strategy.heard.values()]
    assert lengths[:3] == [federation.length] * 3 and max(lengths[3:]) < federation.length


def test_each_round_costs_exactly_the_ciphertexts_of_its_active_coordinates(toy_grid, toy_handler, tmp_path):
    """P = 41,348 over 2,048 slots: 21 ciphertexts, and after three rounds those of what is active, up and down."""
    federation, active = Federation(width=10312, ranks=("0=1", "2=2")), {}
    assert federation.length > 8 * 2048
    inner = federation.half.mask

    def watching(state, plan, secret):
        mask = inner(state, plan, secret)
        active[plan.round] = int(mask.active.sum())
        return mask

    federation.half.mask = watching
    server, clients = keyed(tmp_path, federation.length)
    slots = server.secure_sum(Plan(length=federation.length, clients=3, bound=0.5)).slots
    strategy = federation.run(toy_grid, toy_handler, 7, server, clients)
    for at, heard in strategy.heard.items():
        count = -(-active[at] // slots)
        assert heard.lengths == (count * slots,)
        one = len(heard.totals[0]) / count
        assert one == pytest.approx(len(strategy.heard[1].totals[0]) / -(-active[1] // slots), rel=0.01)
    assert active[1] == federation.length and active[7] <= 0.6 * federation.length


def test_the_server_gets_ciphertexts_counts_and_a_keyed_hash(toy_grid, toy_handler, tmp_path):
    federation = Federation()
    server, clients = keyed(tmp_path, federation.length)
    replies, inner = [], federation.update

    def recording(clients_, app):
        def handler(message, context):
            reply = app(message, context)
            if message.metadata.message_type == "train":
                replies.append(RecordDict(dict(reply.content)))
            return reply

        return toy_grid(clients_, handler)

    strategy = federation.run(toy_grid, toy_handler, 5, server, clients, grid=recording)
    assert inner is not None and len(replies) == 15
    slots = server.secure_sum(Plan(length=federation.length, clients=3, bound=0.5)).slots
    for content in replies:
        assert set(content) <= {"sealed", "agreement", "metrics", "partial", "folded"}
        assert set(content["agreement"]) == {"lengths", "proof"}
        assert all(length % slots == 0 for length in content["agreement"]["lengths"])
    assert np.array_equal(strategy.state.arrays["0.table"], np.zeros((2, 12))), "the public start, nothing since"
    plan = Plan(length=padded(federation.length, slots), clients=3, bound=0.5)
    with pytest.raises((ValueError, OSError)):
        server.opener(plan)


def test_equal_numbers_of_active_coordinates_make_messages_of_one_size(toy_grid, toy_handler, tmp_path):
    """Two masks with one count: nothing else about them shows in the lengths."""
    sizes = []
    for secret in (SECRET, bytes(32)):
        federation = Federation(prune_share=0.5, patience=1, p_init=0.0)
        server, clients = keyed(tmp_path / secret.hex(), federation.length)
        object.__setattr__(clients, "secret", lambda plan, secret=secret: secret)
        strategy = federation.run(toy_grid, toy_handler, 3, server, clients)
        sizes.append([h.lengths for h in strategy.heard.values()])
    assert sizes[0] == sizes[1]


def test_a_client_with_another_secret_stops_the_run_in_its_first_round(toy_grid, toy_handler):
    federation = Federation()

    class Other(Plain):
        def secret(self, plan):
            return bytes(32)

    def build(clients, app):
        other = toy_handler(
            federation.update,
            examples=lambda c: 16,
            half=federation.half,
            buffer_names=federation.buffers,
            protection=Other(),
        )
        return toy_grid(clients, lambda m, c: (other if c.node_config["partition-id"] == 2 else app)(m, c))

    with pytest.raises(Disagreement, match="round 1: nodes 102 and 100 hold different states"):
        federation.run(toy_grid, toy_handler, 5, grid=build)


def test_another_mask_alone_stops_the_run(toy_grid, toy_handler):
    """The same secret, but one client's history was touched: round 4 is the first with a mask, and the last."""
    federation = Federation()

    def build(clients, app):
        def handler(message, context):
            at = (
                message.content["config"]["server-round"]
                if message.has_content() and "config" in message.content
                else 0
            )
            if at == 4 and context.node_config["partition-id"] == 1:
                shared, own, mark = federation.half._recall(context.state, federation.start)
                shared["chance"] = shared["chance"] + 1e-12
                from strategies.replica import _keep

                _keep(context.state, shared, own, mark)
            return app(message, context)

        return toy_grid(clients, handler)

    with pytest.raises(Disagreement, match="round 4: nodes 10. and 10. hold"):
        federation.run(toy_grid, toy_handler, 6, grid=build)


def test_a_client_that_was_away_ends_with_the_same_state(toy_grid, toy_handler):
    federation = Federation(clients=4)
    strategy = federation.run(toy_grid, toy_handler, 9, participation=Participation(clients=2), seed=5)
    final = federation.opened(strategy)
    for context in federation.grid.contexts.values():
        content = strategy.message_content(9)
        federation.half.receive(content, KnownSecret(), federation.start, federation.buffers, context.state)
        shared = federation.half._recall(context.state, federation.start)[0]
        assert all(np.array_equal(shared[n], final[n]) for n in final)


def test_unequal_clients_count_by_their_examples(toy_grid, toy_handler):
    federation = Federation(prune_share=0.0)
    app = toy_handler(
        federation.update,
        examples=lambda c: 16 * (c + 1),
        half=federation.half,
        buffer_names=federation.buffers,
        protection=KnownSecret(),
    )
    strategy = DictPFL(buffers=BufferRule(names=federation.buffers), protection=KnownSecret())
    strategy.start(toy_grid(3, app), array_record(federation.start), num_rounds=1)
    changes = np.array([federation.changes[c][0] for c in range(3)])
    expected = federation.half.first(federation.start)["values"] + np.average(changes, axis=0, weights=[1, 2, 3])
    assert np.abs(federation.opened(strategy)["values"] - expected).max() < 1e-6


def test_settings_reach_both_options():
    half = DictClient.of({"rank": 7, "ranks": ("a=2",), "prune_share": 0.1, "beta": 0.3, "residual": False})
    assert (half.layers.rank, half.layers.by_layer()) == (7, {"a": 2})
    assert (half.pruning.prune_share, half.pruning.beta, half.pruning.residual) == (0.1, 0.3, False)


def test_an_unshaped_model_is_refused():
    with pytest.raises(ValueError, match="was not shaped"):
        DictClient().first(NamedArrays({"w": np.zeros(3, np.float32)}))


def test_a_start_other_than_the_servers_is_refused():
    federation = Federation()
    content = RecordDict({"config": a_plan(1).record(), "replica": ConfigRecord({"base": 0, "last": 0, "counted": 0})})
    other = dict(federation.start.arrays)
    other["0.base"] = other["0.base"] + np.float32(1e-3)
    from strategies.records import model_record

    content["model"] = model_record(NamedArrays(other))
    with pytest.raises(ValueError, match="start weights are not this client's"):
        federation.half.receive(content, KnownSecret(), federation.start, federation.buffers, RecordDict())
