"""LEFF on a tiny transformer: who trains what, what travels, what is averaged. Numbers are those of docs/leff.md."""

import copy

import numpy as np
import pytest
import torch

from crypto import wire
from strategies._leff_client import LeffClient
from strategies._leff_server import Assignment
from strategies.errors import Incompatible
from strategies.fedavg import FedAvg
from strategies.frozen import HELD
from strategies.leff import LEFF, Capacity, Distillation
from strategies.nodes import Node
from strategies.protection import Plain
from strategies.records import NamedArrays, model_record, read_model
from strategies.state import load_state_arrays, state_arrays
from tests.strategies.leff_world import (
    LAYERS,
    TRAINING,
    client_data,
    make_app,
    make_server,
    model,
    run_leff,
    run_partial,
    sizes,
    token_task,
)

TIERS = (1, 1, 2, 2, 3, 6)


@pytest.fixture(scope="module")
def start():
    return model()


def blocks_of(plan):
    return [int(b) for b in plan.extras["leff-blocks"].split(",")]


def test_1_every_client_trains_its_tier_of_consecutive_blocks_also_when_tiers_change(toy_grid, start):
    seen = []
    run_leff(toy_grid, start, rounds=3, seen=seen, capacity=Capacity(tiers=(*TIERS[:5], 9), redraw=True))
    assert len(seen) == 18
    for server_round, client, _, _, own, plan, _, _ in seen:
        blocks = blocks_of(plan)
        assert len(blocks) == min((*TIERS[:5], 9)[(client + server_round) % 6], LAYERS)
        assert blocks == list(range(blocks[0], blocks[0] + len(blocks))) and 0 <= blocks[0] and blocks[-1] < LAYERS
        trained = {int(n.split(".")[1]) for n, p in own.named_parameters() if p.requires_grad and "blocks" in n}
        assert trained == {int(j) for j in plan.extras["leff-trained"].split(",")} and len(trained) == len(blocks)
        assert len(own.blocks) == plan.extras["leff-count"]


def test_2_what_is_frozen_keeps_its_bits_and_has_no_gradient(toy_grid, start):
    seen = []
    run_leff(toy_grid, start, seen=seen)
    for _, _, _, before, own, _, after, _ in seen:
        frozen = {n for n, p in own.named_parameters() if not p.requires_grad}
        assert any("blocks" in n for n in frozen) or len(frozen) == 2
        for name, parameter in own.named_parameters():
            same = np.array_equal(before.arrays[name], after.arrays[name])
            assert same == (name in frozen) and (name not in frozen or parameter.grad is None), name


def test_2_and_17_the_optimiser_holds_state_of_window_and_tail_alone(monkeypatch, toy_grid, start):
    made = []
    real = torch.optim.AdamW

    def spy(*args, **kwargs):
        made.append(real(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(torch.optim, "AdamW", spy)
    seen = []
    run_leff(toy_grid, start, seen=seen, rate=1.0, capacity=Capacity(tiers=(1, 6)), clients=2)
    small, full = [
        sum(t.nbytes for s in o.state.values() for k, t in s.items() if k.startswith("exp_avg")) for o in made
    ]
    trained = [sum(p.nbytes for p in own.parameters() if p.requires_grad) for _, _, _, _, own, _, _, _ in seen]
    assert [small, full] == [2 * t for t in trained] and small < full / 3


@pytest.mark.parametrize("name", ["encoder-tiny", "decoder-tiny"])
def test_3_and_4_gradients_flow_through_the_suffix_and_no_graph_below_the_window(name):
    whole = model(name=name)
    half, state = LeffClient(), NamedArrays(state_arrays(model(4, name=name)))
    x, y = client_data(0)
    for trained, count in (("0", 4), ("3", 4)):
        own, _ = half.own_model(whole, plan_of(count, trained), state, (x, y))
        graphs = []
        for block in own.blocks:
            block.register_forward_hook(lambda _, __, out, graphs=graphs: graphs.append(out.requires_grad))
        torch.nn.functional.cross_entropy(own(x), y).backward()
        at = int(trained)
        assert graphs == [False] * at + [True] * (4 - at)
        assert all(p.grad.any() for n, p in own.blocks[at].named_parameters() if n != "attention.key.bias")
        assert all(p.grad is None for j, b in enumerate(own.blocks) if j != at for p in b.parameters())


def plan_of(count, trained, blocks=None, **extras):
    from crypto.base import Plan
    from strategies.plan import RoundPlan

    values = {"leff-count": count, "leff-chosen": 0, "leff-dense": False, "leff-trained": trained}
    return RoundPlan(
        strategy="leff", round=1, rounds=1, names=(), layout_hash=bytes(16), payload="weights", weighting="examples",
        weight_scale=1.0, buffers="average", first_partition=-1, secure=Plan(length=1, clients=1, bound=1.0),
        extras={**values, "leff-blocks": blocks or trained, **extras},
    )  # fmt: skip


def test_frozen_blocks_stay_in_evaluation_mode(toy_grid):
    with_dropout = model(dropout=0.5)
    modes = []

    def note(module, _, __):
        modes.append((any(p.requires_grad for p in module.parameters()), module.training, module.drop.training))

    class Watching(LeffClient):
        def own_model(self, *args):
            own, plan = super().own_model(*args)
            for block in own.blocks:
                block.register_forward_hook(note)
            own.embeddings.register_forward_hook(note)
            return own, plan

    strategy = make_server(with_dropout, capacity=Capacity(tiers=(2,)))
    grid = toy_grid(2, make_app(copy.deepcopy(with_dropout), half=Watching()))
    strategy.start(grid, model_record(NamedArrays(state_arrays(with_dropout))), num_rounds=1)
    assert modes and all(trained == mode == drop for trained, mode, drop in modes)


@pytest.mark.parametrize("rate", [0.5, 1.0])
def test_10_full_windows_are_fedavg_with_frozen_embeddings_to_the_bit(toy_grid, start, rate):
    leff, _ = run_leff(toy_grid, start, rounds=2, rate=rate, capacity=Capacity(tiers=(6,)))
    full = run_partial(toy_grid, start, "blocks", rounds=2)
    assert all(np.array_equal(a, full.state.arrays[n]) for n, a in leff.state.arrays.items())
    assert any(not np.array_equal(a, state_arrays(start)[n]) for n, a in leff.state.arrays.items())


def test_10_without_compression_the_clients_forward_is_the_global_one_to_the_bit(toy_grid, start):
    seen = []
    run_leff(toy_grid, start, seen=seen, rate=1.0)
    x, _ = token_task(8, 3)
    for _, _, _, before, own, _, _, _ in seen:
        twin = copy.deepcopy(own)
        load_state_arrays(twin, before.arrays)
        assert torch.equal(twin.eval()(x), start.eval()(x))


class Fixed(LEFF):
    """Windows as given."""

    windows = ()

    def assignment(self, client, server_round):
        blocks = self.windows[client]
        return Assignment(LAYERS, LAYERS, blocks, blocks)


def test_13_each_block_is_the_mean_over_those_that_trained_it(toy_grid, start, monkeypatch):
    monkeypatch.setattr("tests.strategies.leff_world.sizes", lambda client: (10, 30, 60)[client])
    seen = []
    server = Fixed(model=lambda: copy.deepcopy(start), proxy=lambda: token_task(32, 7), rate=1.0)
    server.windows = ((0, 1), (1, 2), (1,))
    run_leff(toy_grid, start, seen=seen, clients=3, server=server)
    own = {client: after.arrays for _, client, _, _, _, _, after, _ in seen}
    weights = {0: {0: 1.0}, 1: {0: 0.1, 1: 0.3, 2: 0.6}, 2: {1: 1.0}}
    first = state_arrays(start)
    for name, array in server.state.arrays.items():
        block = int(name.split(".")[1]) if name.startswith("blocks.") else None
        if name.startswith("embeddings") or block in (3, 4, 5):
            assert np.array_equal(array, first[name]), name
            continue
        mix = weights[block] if block is not None else weights[1]
        want = sum(w * own[c][name].astype(np.float64) for c, w in mix.items())
        assert np.allclose(array, want, rtol=0, atol=1e-7), name


def test_14_poisoned_students_never_reach_the_global_model_nor_the_wire(toy_grid, start):
    seen = []

    class Poisoned(LeffClient):
        def seal(self, plan, before, after, **rest):
            trained = {int(j) for j in plan.extras["leff-trained"].split(",")}
            for name, array in after.arrays.items():
                if name.startswith("blocks.") and int(name.split(".")[1]) not in trained:
                    array[...] = np.nan
            return super().seal(plan, before, after, **rest)

    strategy = make_server(start)
    app = make_app(copy.deepcopy(start), half=Poisoned(), seen=seen)
    strategy.start(toy_grid(6, app), model_record(NamedArrays(state_arrays(start))), num_rounds=1)
    assert all(np.isfinite(a).all() for a in strategy.state.arrays.values())
    for _, _, _, _, _, plan, _, reply in seen:
        assert set(reply.array_records) == {"sealed.tail", *(f"sealed.block-{b}" for b in blocks_of(plan))}


def test_15_bytes_are_those_of_window_and_tail_up_and_of_students_window_and_tail_down(toy_grid, start):
    seen = []
    strategy, _ = run_leff(toy_grid, start, rounds=2, seen=seen)
    parts = strategy.parts
    nbytes = {n: a.nbytes for n, a in strategy.state.arrays.items()}
    stem, tail, block = (sum(nbytes[n] for n in names) for names in (parts.stem, parts.tail, parts.blocks[0]))
    for server_round, _, message, _, own, plan, _, reply in seen:
        length = len(blocks_of(plan))
        assert sum(p.nbytes for p in own.parameters() if p.requires_grad) == length * block + tail
        parts_bytes = [len(a.data) - wire.HEADER_BYTES for r in reply.array_records.values() for a in r.values()]
        assert sum(parts_bytes) == length * block + tail
        sent = read_model(message.content["model"])
        down = sum(a.nbytes for a in sent.arrays.values())
        assert down == plan.extras["leff-count"] * block + tail + (stem if server_round == 1 else 0)


def test_the_embeddings_come_again_for_a_client_that_lost_them(toy_grid, start):
    strategy = make_server(start)
    app = make_app(copy.deepcopy(start))
    grid = toy_grid(6, app)
    strategy.start(grid, model_record(NamedArrays(state_arrays(start))), num_rounds=1)
    grid.contexts[101].state.clear()
    records = Records()
    strategy.observer = records
    before = dict(strategy.state.arrays)
    for server_round in (2, 3):
        records.round_done(strategy._round(grid, server_round, 3, 60.0, None), strategy)
    assert "does not hold the embeddings" in records[0].delivered[1].error and records[0].accepted == 5
    assert records[1].accepted == 6 and records[1].downloads[1][1] > records[1].downloads[0][1]
    assert any(not np.array_equal(a, before[n]) for n, a in strategy.state.arrays.items())


class Records(list):
    def __bool__(self):
        return True

    def evaluate(self, server_round, state):
        return {}

    def round_done(self, record, strategy):
        self.append(record)


def test_20_what_nobody_trained_keeps_its_bits(toy_grid, start):
    strategy, _ = run_leff(toy_grid, start, clients=2, capacity=Capacity(tiers=(1,)))
    trained = {int(p.split("-")[1]) for a in strategy.assigned.values() for p in a.pieces if p != "tail"}
    assert 1 <= len(trained) <= 2
    first = state_arrays(start)
    for index, names in enumerate(strategy.parts.blocks):
        same = all(np.array_equal(strategy.state.arrays[n], first[n]) for n in names)
        assert same == (index not in trained)
    assert not np.array_equal(strategy.state.arrays["head.weight"], first["head.weight"])


def test_a_block_of_too_few_clients_is_left_as_it_was(toy_grid, start):
    server = Fixed(model=lambda: copy.deepcopy(start), proxy=lambda: token_task(32, 7), rate=1.0, min_layer_clients=2)
    server.windows = ((0, 1), (1, 2), (1,))
    run_leff(toy_grid, start, clients=3, server=server)
    first = state_arrays(start)
    moved = {n.split(".")[1] for n, a in server.state.arrays.items() if "blocks" in n and (a != first[n]).any()}
    assert moved == {"1"}


def test_21_clients_of_one_window_share_a_student_and_each_round_makes_new_ones(start):
    strategy = make_server(start)
    strategy.state = NamedArrays(state_arrays(start))
    calls = []
    real = strategy.compressor.make

    def make(built, assignments, inputs):
        real(built, assignments, inputs)
        calls.append((strategy.compressor.made, {s for a in assignments for s in a.segments}))

    strategy.compressor.make = make
    nodes = [Node(100 + i, i) for i in range(24)]
    for server_round in (1, 2):
        strategy.assign(nodes, server_round)
    for made, segments in calls:
        assert made == len(segments) < 24
    messages = [Assignment(6, 4, (2,), (1,)), Assignment(6, 4, (2,), (1,))]
    assert messages[0] == messages[1] and messages[0].segments == [(0, 2, 1), (3, 6, 2)]


@pytest.mark.parametrize("warm_start", [False, True])
def test_22_equal_seeds_give_equal_models_and_a_resumed_run_too(toy_grid, start, warm_start):
    whole, _ = run_leff(toy_grid, start, rounds=3, warm_start=warm_start)
    shuffled, _ = run_leff(toy_grid, start, rounds=3, warm_start=warm_start, grid_options={"shuffle": 3})
    begun, _ = run_leff(toy_grid, start, rounds=2, warm_start=warm_start)
    resumed = make_server(start, warm_start=warm_start)
    # The new grid's clients remember nothing, as in deployment; so who holds what is not taken over.
    resumed.load_state_dict({k: v.copy() for k, v in begun.state_dict().items() if k != HELD})
    grid = toy_grid(6, make_app(copy.deepcopy(start)))
    resumed.start(grid, model_record(begun.state), num_rounds=3, first_round=3)
    for name, array in whole.state.arrays.items():
        assert np.array_equal(array, shuffled.state.arrays[name])
        assert np.array_equal(array, resumed.state.arrays[name]), name
    assert bool(begun.state_dict().keys() - {HELD}) == warm_start


def test_23_the_full_model_is_evaluated(toy_grid, start):
    counts = []

    class Counting(Records):
        def evaluate(self, server_round, state):
            counts.append(len({n.split(".")[1] for n in state.arrays if n.startswith("blocks.")}))
            return {}

    run_leff(toy_grid, start, rounds=2, observer=Counting())
    assert counts == [LAYERS, LAYERS]


@pytest.mark.parametrize("selector", ["importance", "raw", "random", "round_robin", "uniform", "gradient"])
def test_19_every_selector_runs_and_keeps_to_the_tiers(toy_grid, start, selector):
    seen = []
    strategy, _ = run_leff(toy_grid, start, seen=seen, selector=selector, distillation=Distillation(steps=0))
    for _, client, _, _, own, plan, _, _ in seen:
        assert len(blocks_of(plan)) == TIERS[client]
        assert (len(own.blocks) == LAYERS) == (selector in ("uniform", "gradient") or client == 5)
    assert all(np.isfinite(a).all() for a in strategy.state.arrays.values())


def test_a_client_chooses_the_blocks_of_its_largest_gradients(start):
    x, y = client_data(4)
    state = NamedArrays(state_arrays(start))
    _, plan = LeffClient().own_model(copy.deepcopy(start), plan_of(6, "", "", **{"leff-chosen": 2}), state, (x, y))
    twin = copy.deepcopy(start).eval()
    torch.nn.functional.cross_entropy(twin(x), y).backward()
    norms = [sum(float((p.grad**2).sum()) for p in b.parameters()) for b in twin.blocks]
    assert blocks_of(plan) == sorted(np.argsort(norms)[-2:])


@pytest.mark.parametrize("trained", ["blocks", "tail", "bias"])
def test_baselines_train_their_part_alone(toy_grid, start, trained):
    strategy = run_partial(toy_grid, start, trained)
    first = state_arrays(start)
    moved = {n for n, a in strategy.state.arrays.items() if not np.array_equal(a, first[n])}
    want = {
        "blocks": {n for n in first if not n.startswith("embeddings")},
        "tail": {n for n in first if n.startswith(("norm.", "head."))},
        "bias": {n for n in first if n.endswith(".bias") or n.startswith(("norm.", "head."))},
    }[trained]
    # A key's bias shifts all scores of a query alike: its gradient is zero.
    assert {n for n in want - moved if not n.endswith("attention.key.bias")} == set() and moved <= want


def test_fedlora_trains_adapters_and_is_refused_without_them(toy_grid, start):
    low = model(lora_rank=2)
    strategy = run_partial(toy_grid, low, "lora")
    first = state_arrays(low)
    moved = {n for n, a in strategy.state.arrays.items() if not np.array_equal(a, first[n])}
    assert moved >= {n for n in first if "lora_b" in n} and all(
        "lora_" in n or n[:4] in ("norm", "head") for n in moved
    )
    with pytest.raises(Incompatible, match="trained 'lora': the model's 6 blocks have no such arrays"):
        run_partial(toy_grid, start, "lora")


def test_frozen_arrays_of_the_baselines_travel_once(toy_grid, start):
    records = Records()
    strategy = make_partial("tail", observer=records)
    grid = toy_grid(6, make_app(copy.deepcopy(start), half=partial_client()))
    strategy.start(grid, model_record(NamedArrays(state_arrays(start))), num_rounds=2)
    tail = sum(a.nbytes for n, a in strategy.state.arrays.items() if n.startswith(("norm.", "head.")))
    first, second = ({d[1] for d in r.downloads} for r in records)
    assert max(second) < tail + 1000 < min(first)


def make_partial(trained, **options):
    from strategies.partial import FedPartial

    return FedPartial(stem=lambda: ("embeddings",), trained=trained, **options)


def partial_client():
    from strategies.partial import PartialClient

    return PartialClient()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rate": 0.0}, r"rate 0.0 must lie in \(0, 1\]"),
        ({"temperature": 0.0}, "temperature 0.0"),
        ({"min_layer_clients": 0}, "min_layer_clients 0 must be positive"),
    ],
)
def test_refuses_arguments_out_of_range(start, options, message):
    with pytest.raises(ValueError, match=message):
        make_server(start, **options)


def test_refuses_a_model_without_blocks(toy_grid):
    from fedsim.tasks.models import build_model

    plain = build_model("mlp", input_shape=(8,), num_classes=3, seed=0)
    with pytest.raises(Incompatible, match="model Sequential is no stack of blocks"):
        make_server(plain).start(toy_grid(1, None), model_record(NamedArrays(state_arrays(plain))), num_rounds=1)


def test_a_client_that_sends_other_pieces_is_rejected_and_the_round_goes_on(toy_grid, start):
    class Wrong(LeffClient):
        def pieces(self, before, after, plan):
            found = super().pieces(before, after, plan)
            if blocks_of(plan) != list(range(LAYERS)):
                found.pop("tail")
            return found

    strategy = make_server(start, observer=(records := Records()))
    grid = toy_grid(6, make_app(copy.deepcopy(start), half=Wrong()))
    strategy.start(grid, model_record(NamedArrays(state_arrays(start))), num_rounds=1)
    (record,) = records
    assert record.accepted == 1 and all("more were asked for" in d.error for d in record.delivered if d.error)


def test_plain_fedavg_and_its_sum_are_what_they_were(toy_grid, toy_handler):
    """The hooks of this strategy leave others alone."""
    arrays = NamedArrays({"w": np.zeros(3, np.float32)})
    grid = toy_grid(3, toy_handler(lambda client, own, _: {"w": own["w"] + client}))
    strategy = FedAvg()
    strategy.start(grid, model_record(arrays), num_rounds=1)
    assert np.allclose(strategy.state.arrays["w"], (0 * 1 + 1 * 2 + 2 * 3) / 6)


def test_sizes_of_the_world_differ():
    assert len({sizes(c) for c in range(6)}) == 6 and TRAINING.weight_decay > 0


class OneSum(Plain):
    """A plain sum that asks for what the strict protections ask for: one vector a client, of changes."""

    bounded = True
    payload = "delta"
    one_sum = True


@pytest.mark.parametrize("least", [1, 2])
def test_one_vector_a_client_gives_the_model_of_a_sum_for_each_block(toy_grid, start, least):
    apart, _ = run_leff(toy_grid, start, min_layer_clients=least)
    seen = []
    together, _ = run_leff(toy_grid, start, min_layer_clients=least, protection=OneSum(), seen=seen)
    for name, array in apart.state.arrays.items():
        assert np.allclose(together.state.arrays[name], array, atol=2e-6), name
    first = state_arrays(start)
    assert any(not np.allclose(a, first[n]) for n, a in together.state.arrays.items() if "blocks" in n)
    lengths = {len(reply.array_records["sealed"]["0"].data) for *_, reply in seen}
    assert lengths == {wire.HEADER_BYTES + 4 * sum(first[n].size for n in together.parts.trained)}


def test_one_vector_holds_zeros_where_a_client_sends_nothing(toy_grid, start):
    seen = []
    run_leff(toy_grid, start, seen=seen, protection=OneSum())
    for *_, plan, after, reply in seen:
        part = reply.array_records["sealed"]["0"].data[wire.HEADER_BYTES :]
        vector, at = np.frombuffer(part, "<f4"), 0
        sent = set(blocks_of(plan)) - {int(b) for b in plan.extras["leff-withheld"].split(",") if b}
        for name in plan.names:
            here = name if not name.startswith("blocks.") else ".".join(["blocks", "0", *name.split(".")[2:]])
            size = after.arrays[here].size
            block = int(name.split(".")[1]) if name.startswith("blocks.") else None
            assert vector[at : at + size].any() == (block is None or block in sent) or "key.bias" in name, name
            at += size
        assert at == len(vector)


def test_choosing_clients_are_refused_where_a_round_has_one_sum(start):
    with pytest.raises(Incompatible, match="selector 'gradient' with protection 'plain'"):
        make_server(start, selector="gradient", protection=OneSum())


def test_a_client_that_states_its_capacity_is_believed_from_then_on(start):
    strategy = make_server(start, selector="random", rate=1.0)
    strategy.state = NamedArrays(state_arrays(start))
    strategy.assign([Node(100, 0, 10, 4), Node(101, 1, 10, 99), Node(102, 2)], 1)
    assert [len(strategy.assigned[n].blocks) for n in (100, 101, 102)] == [4, LAYERS, 2]
    strategy.stated[0] = 3
    strategy.assign([Node(100, 0, 10, 4)], 2)
    assert len(strategy.assigned[100].blocks) == 3


@pytest.mark.parametrize(("stated", "want"), [(5, [5, 5]), (-3, [1, 1]), (float("nan"), [1, 1]), (1e9, [6, 6])])
def test_a_stated_capacity_comes_with_the_replies_and_nonsense_is_ignored(toy_grid, start, stated, want):
    app = make_app(copy.deepcopy(start))
    inner = app._registered_funcs["train.default"]

    def stating(message, context):
        reply = inner(message, context)
        reply.content["metrics"]["capacity"] = stated
        return reply

    app._registered_funcs["train.default"] = stating
    strategy = make_server(start)
    strategy.start(toy_grid(2, app), model_record(NamedArrays(state_arrays(start))), num_rounds=2)
    assert [len(a.blocks) for a in strategy.assigned.values()] == want
    resumed = make_server(start)
    resumed.load_state_dict(strategy.state_dict())
    assert resumed.stated == strategy.stated
