"""A run that does not fit is refused before anything is made, and the estimate is right within a factor."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from crypto import BudgetExceeded
from fedsim import resources
from fedsim.config import load_config, to_run_config
from fedsim.resources import Need, Room, check, need, shortages
from fedsim.runner import simulate
from fedsim.site import site_of

SMALL = ["task.name=digits", "model.name=mlp", "federation.num_clients=4", "federation.rounds=2", "engine.name=inline"]
GB = 10**9
PLENTY = Room(100 * GB, 10 * GB, 100 * GB)


def settings(folder, *more):
    return load_config(None, [*SMALL, f"output.folder={folder}", "output.name=run", *more])


def needed(*more, engine="inline", workers=1):
    return need(site_of(to_run_config(settings("runs", *more))), engine, workers, 1.0)


def test_what_fits_passes_and_each_shortage_has_value_rule_and_remedy():
    wanted = Need(3 * GB, 200 * 10**6, 5 * GB, 60.0)
    check(wanted, Path("runs"), PLENTY)
    with pytest.raises(BudgetExceeded) as caught:
        check(wanted, Path("runs"), Room(GB, 64 * 10**6, GB))
    text = str(caught.value)
    assert "about 3.0 GB of memory for the run: 1.0 GB are available; lower engine.workers" in text
    assert (
        "200 MB of shared memory for the run: 64 MB are free in /dev/shm; start the container with --shm-size" in text
    )
    assert "5.0 GB of disk for the run: 1.0 GB are free in runs; set output.folder elsewhere" in text
    assert shortages(wanted, Room(10 * GB, None, 10 * GB), Path("runs")) == []


@pytest.mark.report("U16")
@pytest.mark.report("U68")
@pytest.mark.parametrize("short", [Room(10**8, None, GB), Room(100 * GB, None, 10**5)])
def test_a_run_that_does_not_fit_makes_nothing(tmp_path, monkeypatch, short):
    monkeypatch.setattr(resources, "room", lambda folder: short)
    with pytest.raises(BudgetExceeded, match="for the run"):
        simulate(settings(tmp_path / "runs"))
    assert not (tmp_path / "runs").exists()
    result = simulate(settings(tmp_path / "runs", "engine.shortage=warn", "output.report=false"))
    assert result.weights_sha256


def test_estimates_grow_with_what_they_are_made_of():
    base = needed()
    assert base.shm_bytes == 0
    assert needed("model.options.hidden=[2000, 2000]").memory_bytes > base.memory_bytes + 5 * 4 * 2000 * 2000
    assert needed("federation.rounds=2000").disk_bytes > base.disk_bytes + 2000 * 4 * 250
    two, four = needed(engine="ray", workers=2), needed(engine="ray", workers=4)
    assert four.memory_bytes > two.memory_bytes + 2 * resources._PROCESS_BYTES and four.shm_bytes > two.shm_bytes > 0


def test_sealed_runs_need_more():
    pytest.importorskip("tenseal", reason="tenseal is not installed: pip install 'fedsim[tenseal]'")
    plain, sealed = needed(), needed("protection.name=ckks")
    assert sealed.memory_bytes > plain.memory_bytes and sealed.disk_bytes > 0


@pytest.mark.parametrize(("limit", "used", "want"), [("max", "5", None), ("500", "200", 300), ("500", "900", 0)])
def test_a_containers_limit_counts(tmp_path, limit, used, want):
    (tmp_path / "memory.max").write_text(limit)
    (tmp_path / "memory.current").write_text(used)
    free = resources._memory_bytes(tmp_path)
    assert free == want if want is not None else free > 10**6
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 100\n")
    assert want is None or resources._memory_bytes(tmp_path) == max(0, int(limit) - int(used) + 100)


MEASURE = """
import sys
from experiments.bench.peak import peak_bytes
from fedsim.config import load_config
from fedsim.runner import simulate
simulate(load_config(None, sys.argv[1:]))
print(peak_bytes())
"""


def test_estimates_are_right_within_a_factor(tmp_path):
    words = [*SMALL, f"output.folder={tmp_path}", "output.name=run", "model.options.hidden=[3000, 1500]"]
    command = [sys.executable, "-c", MEASURE, *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    disk = sum(p.stat().st_size for p in (tmp_path / "run").rglob("*") if p.is_file())
    wanted = needed("model.options.hidden=[3000, 1500]")
    measured = int(done.stdout.split()[-1])
    assert measured / 1.3 <= wanted.memory_bytes <= 4 * measured, (measured, wanted)
    assert disk <= wanted.disk_bytes <= 6 * disk, (disk, wanted)
