"""Workers of unequal size: how many fit, who runs whose clients, and that no bit depends on it."""

import os
import sys

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from fedsim.config import ConfigError, load_config
from fedsim.runner import simulate
from fedsim.simulation.inline import InlineGrid
from fedsim.simulation.ray_grid import RayGrid
from fedsim.simulation.shares import NoRoom, WorkerKind, pack
from fedsim.workers import kinds_of

MB = 2**20


def counts(kinds, cpus=8, gpus=0.0, memory_mb=1000):
    room = {"CPU": float(cpus), "GPU": float(gpus), "memory": float(memory_mb * MB)}
    return [kind.count for kind in pack(kinds, room)]


def test_memory_bounds_the_number_of_workers():
    assert counts([WorkerKind(memory_bytes=300 * MB)]) == [3]
    assert counts([WorkerKind(memory_bytes=100 * MB)]) == [8]
    assert counts([WorkerKind(cpus=0.5)]) == [16]


def test_gpu_shares_bound_it_too():
    assert counts([WorkerKind(gpus=0.25)], gpus=1) == [4]


def test_fixed_counts_come_first_and_the_others_grow_in_turn():
    small, large = WorkerKind("s", 0.5, 0.0, 100 * MB), WorkerKind("l", 2.0, 0.0, 400 * MB, count=1)
    assert counts([small, large], cpus=4) == [4, 1]
    assert counts([small, WorkerKind("m", 1.0)], cpus=6) == [4, 4]


def test_what_does_not_fit_is_named():
    with pytest.raises(NoRoom, match=r"2 workers want 1200 MB of memory: there are 1000; lower engine.workers"):
        counts([WorkerKind(memory_bytes=600 * MB, count=2)])
    with pytest.raises(NoRoom, match="1 workers want 1 GPUs: there are 0"):
        counts([WorkerKind(gpus=1.0)])
    with pytest.raises(ValueError, match="more than 0 CPUs"):
        WorkerKind(cpus=0.0)


kinds_strategy = st.lists(
    st.builds(
        WorkerKind,
        cpus=st.sampled_from([0.25, 0.5, 1.0, 2.0]),
        gpus=st.sampled_from([0.0, 0.25]),
        memory_bytes=st.sampled_from([0, 50 * MB, 300 * MB]),
        count=st.sampled_from([0, 0, 1, 2]),
    ),
    min_size=1,
    max_size=3,
)


@given(kinds_strategy, st.integers(1, 16), st.sampled_from([0.0, 1.0, 2.0]))
def test_memory_and_gpus_are_never_shared_and_nothing_more_fits(kinds, cpus, gpus):
    try:
        found = counts(kinds, cpus, gpus)
    except NoRoom:
        return
    total = {
        name: sum(c * k.needs()[name] for c, k in zip(found, kinds, strict=True)) for name in ("CPU", "GPU", "memory")
    }
    assert total["memory"] <= 1000 * MB and total["GPU"] <= gpus + 1e-9
    assert all(c == k.count if k.count else c >= 1 for c, k in zip(found, kinds, strict=True))
    for kind in (k for k in kinds if not k.count):
        need = kind.needs()
        room = {"CPU": cpus, "GPU": gpus, "memory": 1000 * MB}
        assert any(need[name] and total[name] + need[name] > room[name] for name in room), "one more would fit"


def test_tiers_get_their_kind_and_others_the_rest():
    tiers = "devices.tiers={phone-low = 1, laptop = 1, raspberry-pi-4 = 1}"
    shares = ["engine.shares.phone-low=[0.5, 0, 10, 2]", "engine.shares.laptop=[1, 0, 0, 1]"]
    config = load_config(
        None,
        ["engine.name=ray", "devices.profile=tiers", tiers, *shares, "federation.num_clients=6", "engine.workers=1"],
    )
    kinds, clients = kinds_of(config)
    assert [(k.name, k.count, k.cpus) for k in kinds] == [("phone-low", 2, 0.5), ("laptop", 1, 1.0), ("", 1, 1.0)]
    assert sorted(clients) == [0, 0, 1, 1, 2, 2]
    only = load_config(None, ["engine.name=ray", "engine.shares.laptop=[1, 0, 0, 2]"])
    assert [k.name for k in kinds_of(only)[0]] == ["laptop"], "nobody is left for other workers"


def test_a_tier_that_nobody_is_of_is_refused_and_one_that_is_absent_has_no_workers():
    wrong = load_config(None, ["engine.name=ray", "engine.shares.phone-lo=[1, 0, 0, 2]"])
    with pytest.raises(ConfigError, match="engine.shares = phone-lo: no client is of this tier; the tiers are: laptop"):
        kinds_of(wrong)
    few = ["devices.profile=tiers", "devices.tiers={phone-low = 1, laptop = 99}", "federation.num_clients=2"]
    config = load_config(None, ["engine.name=ray", *few, "engine.shares.phone-low=[1, 0, 0, 2]", "engine.workers=1"])
    kinds, clients = kinds_of(config)
    assert ([k.name for k in kinds], clients) == ([""], [0, 0])


def pid(replies):
    """A reducer: which process it ran in."""
    replies[0].content = RecordDict({"m": MetricRecord({"pid": os.getpid()})})
    return replies[:1]


def test_each_kind_runs_its_own_clients_and_mixed_batches_have_the_same_bits(app_maker, app, message):
    import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    kinds = [WorkerKind("small", 0.5, count=2), WorkerKind("large", 1.0, 0.0, 50 * MB, 1)]
    content = RecordDict({"arrays": ArrayRecord([np.arange(5.0)]), "config": ConfigRecord({})})
    options = {"node_configs": [{}] * 6, "run_config": {}, "seed": 7}
    try:
        with RayGrid(app_maker(), kinds=kinds, client_kinds=[0, 1, 0, 1, 0, 1], store_bytes=2**28, **options) as grid:
            ids = grid.get_node_ids()
            pids = {}
            for number in (0, 1):
                batches = [[message(n, "train", content=content)] for n in ids[number::2] * 3]
                replies = [r for _, part in grid.stream(batches, reducer=pid) for r in part]
                pids[number] = {r.content["m"]["pid"] for r in replies}
            assert not pids[0] & pids[1] and len(pids[1]) == 1 and os.getpid() not in pids[0] | pids[1]
            mixed = grid.send_and_receive([message(n, "train", content=content) for n in ids])
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    with InlineGrid(app, **options) as inline:
        expected = inline.send_and_receive([message(n, "train", content=content) for n in ids])
    assert [dict(r.content) for r in mixed] == [dict(r.content) for r in expected]


@pytest.mark.slow
def test_a_run_with_unequal_workers_has_the_bits_of_inline(tmp_path):
    small = [
        "task.name=digits",
        "model.name=mlp",
        "federation.num_clients=6",
        "federation.rounds=2",
        "output.report=false",
    ]
    tiers = ["devices.profile=tiers", "devices.tiers={phone-low = 1, laptop = 1}", f"output.folder={tmp_path}"]
    plain = simulate(load_config(None, [*small, *tiers, "engine.name=inline"]))
    shares = [
        "engine.name=ray",
        "engine.shares.phone-low=[0.5, 0, 100, 1]",
        "engine.workers=1",
        "engine.worker_memory_mb=200",
    ]
    assert simulate(load_config(None, [*small, *tiers, *shares])).weights_sha256 == plain.weights_sha256
