"""LEFF and its baselines on real digits: bytes and memory in the ledger, resuming, and runs under protections."""

import numpy as np
import pyarrow.compute as pc
import pytest

from crypto._openfhe.find import find_python
from crypto.errors import BackendUnavailable
from fedsim.config import load_config
from fedsim.events import NullObserver
from fedsim.measure.ledger import Ledger
from fedsim.proxy import proxy_data, proxy_examples, split_proxy
from fedsim.runner import run, simulate
from fedsim.site import Site
from fedsim.tasks.errors import BadOption
from strategies._leff_cost import batch_cost
from tests.text_packages import FILMS, MINILM, needs

BASE = ["task.name=digits", "model.name=vit-tiny", "model.options.dim=16", "model.options.depth=6"]
BASE += ["federation.num_clients=6", "federation.rounds=2", "training.optimizer=adamw", "training.lr=0.003"]
BASE += ["training.max_steps=2", "output.report=false", "engine.name=inline", "data.proxy_examples=64"]
LEFF = ["strategy.name=leff", "strategy.distil_steps=2", "strategy.proxy_batch=16", "strategy.proxy_batches=1"]
TURNS = [*LEFF, "strategy.selector=round_robin"]


def settings(folder, *more):
    return load_config(None, [*BASE, f"output.folder={folder}", *more])


def column(ledger, phase, name, server_round):
    table = ledger.table()
    keep = pc.and_(pc.equal(table["phase"], phase), pc.equal(table["round"], server_round))
    rows = table.filter(pc.and_(keep, pc.greater_equal(table["client"], 0))).sort_by("client")
    return rows[name].to_pylist()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of two rounds that nothing disturbed."""
    return simulate(settings(tmp_path_factory.mktemp("leff"), *TURNS, "output.name=whole"))


def test_bytes_work_and_memory_of_each_client_follow_its_tier(whole, tmp_path):
    result, full = whole, simulate(settings(tmp_path, "strategy.name=partial", "output.name=full"))
    nbytes = {n: a.nbytes for n, a in result.state.arrays.items()}
    block = sum(b for n, b in nbytes.items() if n.startswith("blocks.0."))
    tail = sum(b for n, b in nbytes.items() if n.startswith(("norm.", "head.")))
    tiers, ledger = (1, 1, 2, 2, 3, 6), Ledger.read(result.folder)
    up = column(ledger, "upload", "logical_bytes", 2)
    assert up == [t * block + tail + 80 * (t + 1) for t in tiers]
    memory = column(ledger, "train", "peak_memory_bytes", 2)
    whole = column(Ledger.read(full.folder), "train", "peak_memory_bytes", 2)
    assert memory[0] <= 0.6 * whole[0] and memory[0] < memory[4] < memory[5] and len(set(whole)) == 1
    # Of the matrix products alone, which torch counts, work is in proportion to the passes of blocks.
    flops, full_flops = (column(each, "train", "flops", 2) for each in (ledger, Ledger.read(full.folder)))
    assert flops[5] == full_flops[5]
    assert flops[0] / full_flops[0] == pytest.approx(batch_cost(1, 1, 2).units / 18, rel=0.1)
    assert ledger.total("measured_s", phase="train", party="server") > 0
    assert result.metrics["server_leff_trained_blocks"] == 6


class Interrupting(NullObserver):
    def round_end(self, event):
        if event.round == 1:
            raise KeyboardInterrupt


def test_an_interrupted_run_resumes_to_the_same_bits(whole, tmp_path):
    """Check 22, end to end: students of the last round are in the checkpoint."""
    with pytest.raises(KeyboardInterrupt):
        run(settings(tmp_path, *TURNS, "output.name=cut"), Interrupting())
    resumed = simulate(settings(tmp_path, *TURNS, "output.name=cut"), resume=True)
    assert resumed.weights_sha256 == whole.weights_sha256


@pytest.mark.parametrize("more", [["strategy.trained=tail"], ["strategy.trained=lora", "model.options.lora_rank=2"]])
def test_baselines_run(tmp_path, more):
    result = simulate(settings(tmp_path, "strategy.name=partial", *more, "federation.rounds=1"))
    assert np.isfinite(result.metrics["server_loss"])


def test_token_models_run(tmp_path):
    more = ["task.options.tokens=true", "model.name=decoder-tiny", "model.options.vocab=18", "federation.rounds=1"]
    more += ["training.max_steps=1", "training.batch_size=8", "data.proxy_examples=16", "strategy.proxy_batch=8"]
    result = simulate(settings(tmp_path, *LEFF, *more))
    assert np.isfinite(result.metrics["server_loss"])


def test_clients_never_hold_the_servers_proxy_rows(tmp_path):
    site = Site(settings(tmp_path, *LEFF))
    shared, kept = split_proxy(site.dataset.train_y, 64, site.config.seed)
    dealt = np.concatenate(site.partition.indices)
    assert abs(len(kept) - 64) <= 5 and set(dealt) == set(shared) and not set(dealt) & set(kept)
    x, y = proxy_data(site.config)
    assert np.array_equal(x.numpy(), site.dataset.train_x[kept]) and np.array_equal(y, site.dataset.train_y[kept])
    assert (site.partition.label_histogram.sum(axis=0) == np.bincount(site.dataset.train_y[shared])).all()
    assert proxy_examples(load_config(None, ["strategy.name=leff"])) == 256
    assert proxy_examples(load_config(None)) == 0


def test_a_proxy_of_another_task_has_no_labels_and_must_fit(tmp_path):
    other = ["strategy.proxy_task=digits", "strategy.proxy_options.seed=5"]
    x, y = proxy_data(settings(tmp_path, *LEFF, *other))
    assert y is None and len(x) > 1000
    result = simulate(settings(tmp_path, *LEFF, *other, "federation.rounds=1"))
    assert np.isfinite(result.metrics["server_loss"])
    with pytest.raises(BadOption, match=r"proxy_task 'digits' has examples \(64,\), int32: must be those of 'digits'"):
        proxy_data(settings(tmp_path, *LEFF, "strategy.proxy_task=digits", "strategy.proxy_options.tokens=true"))


def threshold_here():
    try:
        find_python(None)
    except BackendUnavailable as error:
        return str(error)
    return ""


@pytest.mark.skipif(bool(threshold_here()), reason=threshold_here())
def test_under_a_committee_the_model_is_that_of_the_clear_run_and_lonely_blocks_are_not_sent(tmp_path):
    protected = ["protection.name=openfhe-threshold", "protection.committee_size=2", "federation.rounds=1"]
    sealed = simulate(settings(tmp_path, *LEFF, *protected, "output.name=sealed"))
    clear = simulate(
        settings(tmp_path, *LEFF, "strategy.min_layer_clients=2", "federation.rounds=1", "output.name=clear")
    )
    for name, array in clear.state.arrays.items():
        np.testing.assert_allclose(sealed.state.arrays[name], array, atol=0.02)
    assert sealed.metrics["server_leff_trained_blocks"] == clear.metrics["server_leff_trained_blocks"] >= 1


@needs(MINILM, FILMS, "tokenizers")
def test_the_pre_trained_minilm_is_fine_tuned_on_real_text(tmp_path):
    own = ["task.options.tokens=8", "task.options.limit=200", "federation.rounds=1", "training.max_steps=1"]
    own += ["data.min_size=8", "data.proxy_examples=16", "strategy.distil_steps=1", f"output.folder={tmp_path}"]
    result = simulate(load_config("experiments/configs/papers/leff_minilm.toml", own))
    trained = {n.split(".")[1] for n, a in result.state.arrays.items() if n.startswith("blocks.")}
    assert len(trained) == 6 and 0.3 < result.metrics["server_accuracy"] < 1
    tail, block, stem = 770 * 4, 1_774_464 * 4, (30522 + 8 + 2) * 384 * 4
    ledger = Ledger.read(result.folder)
    assert column(ledger, "upload", "logical_bytes", 1)[0] == block + tail + 2 * 80
    down = column(ledger, "download", "logical_bytes", 1)
    assert down[5] == pytest.approx(6 * block + tail + stem, rel=1e-3)
