"""FedLUAR under secure sums: recycled layers cost no ciphertexts and no blocks, the model is that of the plain run."""

from dataclasses import replace
from math import ceil

import numpy as np
import pytest

from crypto.base import Plan, Tag
from crypto.errors import BackendUnavailable
from crypto.he_seal import BfvSum
from crypto.keys import save_keys
from fedsim.protections import fresh_keys
from strategies.fedluar import FedLUAR, LuarClient
from strategies.keyed import KeyedProtection
from strategies.preamble import PreambleProtection, run_id
from strategies.records import NamedArrays, model_record

SHAPES = {"a.weight": (200, 100), "a.bias": (100,), "b.weight": (100, 100), "c.weight": (100, 50)}
LENGTH = sum(int(np.prod(s)) for s in SHAPES.values())
CLIENTS, ROUNDS = 3, 5


class Records:
    def __init__(self):
        self.sizes, self.lengths, self.metrics, self.recycled = [], [], [], ()

    def evaluate(self, server_round, state):
        return {}

    def round_done(self, record, strategy):
        self.lengths.append(sum(int(np.prod(s)) for n, s in SHAPES.items() if n not in self.recycled))
        self.sizes.append(sum(d.sealed_bytes for d in record.delivered))
        self.metrics.append(record.metrics)
        self.recycled = strategy.luar.recycled


def move(client, arrays, server_round):
    rng = np.random.default_rng([client, server_round])
    return {n: (a + rng.normal(0.001, 0.01, a.shape)).astype(a.dtype) for n, a in arrays.items()}


def run(toy_grid, toy_handler, client=None, **options):
    initial = NamedArrays({n: np.random.default_rng(1).normal(0, 0.1, s).astype(np.float32) for n, s in SHAPES.items()})
    handler = toy_handler(move, half=LuarClient(), protection=client or options.get("protection"))
    strategy = FedLUAR(delta=1, sampler="round_robin", **options)
    strategy.observer = Records()
    strategy.start(toy_grid(CLIENTS, handler), model_record(initial), num_rounds=ROUNDS, timeout=60)
    return strategy, strategy.observer


def test_ciphertexts_fall_with_the_recycled_share(toy_grid, toy_handler, tmp_path):
    """A sum under BFV that the server may open, so that the scores can be taken."""
    plan = Plan(length=LENGTH, clients=CLIENTS, bound=1.0)
    try:
        scheme = BfvSum(plan)
        save_keys(tmp_path, scheme.make_keys())
    except BackendUnavailable as error:
        pytest.skip(str(error))
    sealed = KeyedProtection("bfv", "crypto.he_seal:BfvSum", (), 1.0, opened="server", keys=str(tmp_path))
    under, watch = run(toy_grid, toy_handler, protection=sealed)
    plain, _ = run(toy_grid, toy_handler)
    for name in SHAPES:
        np.testing.assert_allclose(under.state.arrays[name], plain.state.arrays[name], atol=1e-3)
    whole = ceil(LENGTH / scheme.slots)
    assert len(set(watch.lengths)) == 4 and whole >= 4
    for size, length in zip(watch.sizes, watch.lengths, strict=True):
        assert size / watch.sizes[0] == pytest.approx(ceil(length / scheme.slots) / whole, rel=0.03)


def test_blocks_of_preamble_fall_with_the_recycled_share(toy_grid, toy_handler):
    """Groups as long as their blocks and no noise: the sum is exact, so the model is the plain run's."""
    plan = Plan(length=LENGTH, clients=CLIENTS, bound=4.0)
    about = PreambleProtection(
        run=run_id("luar"), rounds=ROUNDS, epsilon=1.0, delta=1e-5, clip_norm=4.0, block_size=256, blocks=256
    )
    quiet = replace(about, clip_factor=2.0, noisy=False)
    with fresh_keys(quiet, plan) as ring:
        server, client = replace(quiet, keys=ring.server, role="server"), replace(quiet, keys=ring.clients)
        under, watch = run(toy_grid, toy_handler, client, protection=server)
    plain, _ = run(toy_grid, toy_handler)
    for name in SHAPES:
        np.testing.assert_allclose(under.state.arrays[name], plain.state.arrays[name], atol=1e-5)
    blocks = [256 * 2 ** ceil(np.log2(n)) / 65536 for n in watch.lengths]
    assert [m["server_preamble_blocks"] for m in watch.metrics] == blocks == [256, 128, 128, 64, 128]
    for size, count in zip(watch.sizes, blocks, strict=True):
        assert size / watch.sizes[0] == pytest.approx(count / 256, rel=0.01)
    # The accountant's word on each round of such a run: never above the target.
    epsilons = [about.round_facts(plan, Tag(round=1, layout_hash=bytes(16), length=n)) for n in set(watch.lengths)]
    assert max(e["preamble_epsilon"] for e in epsilons) <= 1.0 and len({e["preamble_sigma"] for e in epsilons}) == 3
