"""Statistics by hand, tables as CSV and LaTeX, and the page in a real browser."""

import math
import re
import shutil
import subprocess

import pytest

from experiments.sweeps.report import csv_text, latex_text, overhead_rows, write_sweep_report
from experiments.sweeps.results import read_results, write_results
from experiments.sweeps.spec import read_spec
from experiments.sweeps.statistics import cells_of, common_target, mean, ratio, to_reach
from fedsim.measure.ledger import PHASES


def test_an_interval_by_hand():
    # Student's t for 2 degrees of freedom at 97.5 % is 4.303; the standard deviation of 1, 2, 3 is 1.
    found = mean([1.0, None, 2.0, math.nan, 3.0])
    assert (found.value, found.count) == (2.0, 3) and found.half == pytest.approx(4.303 / math.sqrt(3), rel=1e-3)
    assert math.isnan(mean([5.0]).half) and mean([5.0]).value == 5.0 and math.isnan(mean([]).value)


def row(arm, alpha, seed, accuracy=0.8, bytes_=1000, **more):
    curve = [0.2, accuracy / 2, accuracy]
    return {
        "trial": f"{arm}-{alpha}-{seed}", "arm": arm, "seed": seed, "set:data.alpha": alpha,
        "set:federation.participation": "1",
        "status": "finished", "reason": "", "final_accuracy": accuracy, "best_accuracy": accuracy,
        "worst_decile_accuracy": accuracy / 2, "rounds": 3, "upload_bytes": bytes_, "download_bytes": bytes_,
        "helper_bytes": 0, "virtual_s": 30.0 * bytes_ / 1000, "measured_s": 3.0, "turns": 12, "ok_turns": 12,
        **{f"{kind}_{phase}_s": 0.5 for kind in ("virtual", "measured") for phase in PHASES},
        "tiers": ["phone-low", "laptop"], "tier_accuracy": [accuracy - 0.1, accuracy],
        "curve_round": [1, 2, 3], "curve_accuracy": curve, "curve_bytes": [bytes_, 2.0 * bytes_, 3.0 * bytes_],
        "curve_virtual_s": [10.0, 20.0, 30.0], "curve_measured_s": [1.0, 2.0, 3.0],
        **more,
    }  # fmt: skip


ROWS = [
    row(arm, alpha, seed, accuracy=0.6 + 0.05 * seed + (0.1 if alpha == "100" else 0), bytes_=size)
    for arm, size in (("fed<avg>", 1000), ("sealed_50%", 3000))
    for alpha in ("0.1", "100")
    for seed in (1, 2, 3)
]
LOST = {"trial": "lost", "arm": "sealed_50%", "seed": 9, "set:data.alpha": "100", "set:federation.participation": "1"}


def test_combinations_are_named_by_arm_and_what_differs_within():
    cells = cells_of([*ROWS, LOST | {"status": "failed", "reason": "x"}])
    assert [c.name for c in cells] == [f"{a}, alpha {v}" for a in ("fed<avg>", "sealed_50%") for v in ("0.1", "100")]
    assert [len(c.rows) for c in cells] == [3, 3, 3, 3]
    assert common_target(cells) == 0.7


def test_what_it_took_to_reach_an_accuracy():
    one = row("a", "1", 1, accuracy=0.8)
    assert (to_reach(one, 0.4, "virtual_s"), to_reach(one, 0.5, "bytes"), to_reach(one, 0.5, "round")) == (20, 3000, 3)
    assert to_reach(one, 0.81, "bytes") is None


def test_ratios_pair_the_seeds():
    cells = cells_of(
        [row("a", "1", s, bytes_=1000 * s) for s in (1, 2)] + [row("b", "1", s, bytes_=3000 * s) for s in (2, 1)]
    )
    found = ratio(cells[1], cells[0], "virtual_s")
    assert (found.value, found.half) == (3.0, 0.0)


def test_the_overhead_table_is_sorted_by_bytes_with_ratios():
    cells = cells_of(ROWS)
    rows = overhead_rows(cells, cells[0])
    assert [r["bytes"] for r in rows] == [2000, 2000, 6000, 6000]
    assert [r["bytes ratio"] for r in rows] == [1, 1, 3, 3] and rows[0]["accuracy ratio"] == 1


def test_csv_and_latex_say_the_same():
    rows = [
        {
            "combination": "a_b & 5%",
            "final accuracy": 0.8125,
            "final accuracy ±": math.nan,
            "bytes": 2e6,
            "bytes ±": 1e5,
        }
    ]
    assert csv_text(rows).splitlines()[1] == "a_b & 5%,0.8125,,2e+06,100000"
    assert r"a\_b \& 5\% & 81.2 \% & 2.00 MB $\pm$ 100 kB \\" in latex_text(rows)


def test_results_are_read_back(tmp_path):
    write_results([*ROWS, LOST | {"status": "failed", "reason": "died"}], tmp_path / "r.parquet")
    again = read_results(tmp_path / "r.parquet")
    assert again[0] == ROWS[0] and again[-1]["reason"] == "died" and again[-1]["curve_round"] is None


def report(tmp_path):
    (tmp_path / "s.toml").write_text(
        '[sweep]\nname = "page"\nseeds = [1, 2, 3]\nheat = ["data.alpha", "federation.participation"]\n'
        "[grid]\n'data.alpha' = [0.1, 100.0]\n'federation.participation' = [0.5, 1.0]\n"
    )
    spec = read_spec(tmp_path / "s.toml", tmp_path)
    return write_sweep_report(spec, [*ROWS, LOST | {"status": "failed", "reason": "<b>died</b>"}], tmp_path, png=False)


def test_the_page_escapes_and_names_what_did_not_finish(tmp_path):
    source = report(tmp_path).read_text()
    body = re.sub(r"<script.*?</script>", "", source, flags=re.S)
    assert "fed&lt;avg&gt;" in body and "<avg>" not in body and "&lt;b&gt;died" in body
    assert {p.name for p in tmp_path.iterdir()} >= {
        "report.html",
        "summary.csv",
        "summary.tex",
        "overhead.csv",
        "trials.csv",
    }
    assert "http://" not in body and "https://" not in body, "the page needs no network"


BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.mark.skipif(BROWSER is None, reason="NO BROWSER: chromium is not on PATH; apt-get install chromium")
def test_every_figure_is_drawn_in_a_browser(tmp_path):
    flags = "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --virtual-time-budget=20000"
    command = [
        BROWSER,
        *flags.split(),
        "--enable-logging=stderr",
        f"--user-data-dir={tmp_path / 'profile'}",
        "--dump-dom",
        report(tmp_path).as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)
    assert "CONSOLE" not in done.stderr and 'data-drawn="true"' in done.stdout
    body = re.sub(r"<script.*?</script>", "", done.stdout, flags=re.S)
    places = re.split(r'<div class="plot[^"]*" data-figure="', body)[1:]
    marks = r'class="js-line"|<g class="point"|<image [^>]*data:image|class="hm"'
    drawn = {place.split('"', 1)[0]: len(re.findall(marks, place)) for place in places}
    assert set(drawn) == {
        "overhead_virtual", "overhead_measured", "accuracy_virtual_1", "accuracy_virtual_2", "accuracy_bytes_1",
        "accuracy_bytes_2", "heat_1", "heat_2", "fairness",
    }  # fmt: skip
    assert all(drawn.values()), drawn
    assert "fill: rgb" in body or "js-fill" in body, "intervals are bands"
