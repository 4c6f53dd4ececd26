"""The engine benchmark runs, counts what it says it counts, and ours is nowhere near Flower's cost."""

import gc
import mmap
import time

import numpy as np
import pytest

from experiments.bench import engine
from experiments.bench.engine import Cost, main, model, peak_memory, streamed_rounds, table
from fedsim.simulation.inline import InlineGrid


def test_the_model_has_the_asked_size() -> None:
    arrays = model(0.1).to_numpy_ndarrays()
    assert len(arrays) == engine.ARRAYS and sum(a.nbytes for a in arrays) == 100_000


def test_a_missing_or_failed_reply_stops_the_measurement() -> None:
    with pytest.raises(RuntimeError, match="0 replies from 3 clients"):
        engine.check([], 3)


def test_the_streamed_round_sums_every_client(monkeypatch: pytest.MonkeyPatch) -> None:
    sums: list[float] = []
    add = np.add
    monkeypatch.setattr(engine.np, "add", lambda t, a, out: sums.append(1.0) or add(t, a, out=out))
    with InlineGrid(engine.app, node_configs=[{}] * 7, run_config={}, seed=0) as grid:
        streamed_rounds(grid, model(0.01), 3)(1)
    # 7 clients in batches of 3, 3 and 1: 2 + 2 + 0 additions in the reducer, 2 in the fold, of ten arrays each.
    assert len(sums) == 6 * engine.ARRAYS


def test_the_table_gives_ratios_to_flower() -> None:
    text = table([Cost("ray", 2.0, 4.0, 1.0, 0.5), Cost("flower", 20.0, 20.0, 1.0, 0.5)])
    assert text.splitlines()[1].split()[-2:] == ["10.0", "5.0"]


def test_peak_memory_sees_a_large_array() -> None:
    found: list[float] = []
    gc.collect()
    # Pages of its own: a new array may lie in memory that the process freed before and still holds.
    with peak_memory(found, period_s=0.001), mmap.mmap(-1, 200_000_000) as pages:
        pages.write(bytes(len(pages)))
        # On a busy machine the sampler may not have had a turn yet.
        time.sleep(0.3)
    assert 150 < found[0] < 800


def test_inline_is_far_cheaper_than_flower_would_allow(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--clients", "40", "--model-mb", "0.05", "--rounds", "2", "--engines", "loop", "inline"]
    loop, inline = main(options)
    assert "40 clients x 0.05 MB" in capsys.readouterr().out
    # Wide on purpose: Flower's engine costs hundreds of times the loop.
    assert inline.cpu_ms < 20 * max(loop.cpu_ms, 0.5)


@pytest.mark.slow
def test_ray_is_far_cheaper_than_flower() -> None:
    ray, flower = main(["--clients", "100", "--model-mb", "0.1", "--rounds", "3", "--engines", "ray", "flower"])
    assert ray.wall_ms < flower.wall_ms / 3
