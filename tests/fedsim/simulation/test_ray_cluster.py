"""A run on a Ray cluster of two nodes, of which one is killed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from ray.cluster_utils import Cluster

from fedsim.config import RunConfig, load_config
from fedsim.events import NullObserver, RoundEnd
from fedsim.runner import simulate
from fedsim.simulation import pool

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Two raylets with one CPU each, so that each has one worker."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    size = {"num_cpus": 1, "object_store_memory": 128 * 2**20}
    two = Cluster(initialize_head=True, head_node_args={**size, "include_dashboard": False})
    try:
        two.add_node(**size)
        monkeypatch.setenv("RAY_ADDRESS", two.address)
        yield two
    finally:
        two.shutdown()


def settings(folder: Path, *sets: str) -> RunConfig:
    common = ["task.name=digits", "model.name=mlp", "federation.num_clients=8", "federation.rounds=4"]
    return load_config(None, [*common, "engine.chunk=1", "output.report=false", f"output.folder={folder}", *sets])


class Killer(NullObserver):
    """Kills the second node after the first round."""

    def __init__(self, cluster: Any) -> None:
        self._cluster, self.before = cluster, (0, 0.0)

    def round_end(self, event: RoundEnd) -> None:
        """See :class:`fedsim.events.Observer`."""
        if event.round == 1:
            self.before = _alive_nodes(), ray.available_resources().get("CPU", 0.0)
            node = next(iter(self._cluster.worker_nodes))
            raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
            # As when a machine loses power: workers that outlive their raylet would answer for a while.
            for process in (raylet, *raylet.children(recursive=True)):
                process.kill()
            self._cluster.remove_node(node, allow_graceful=False)


def _alive_nodes() -> int:
    return sum(node["Alive"] for node in ray.nodes())


def test_a_node_that_dies_changes_no_weight(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deaths: list[object] = []
    monkeypatch.setattr(pool._log, "warning", lambda *words: deaths.append(words))
    alone = simulate(settings(tmp_path / "alone", "engine.name=inline"))
    killer = Killer(cluster)
    spread = simulate(settings(tmp_path / "spread", "engine.name=ray", "engine.workers=2"), killer)
    assert spread.weights_sha256 == alone.weights_sha256
    # Both nodes had all their CPUs taken: one worker each.
    assert killer.before == (2, 0.0) and not cluster.worker_nodes
    assert deaths
