"""Tables of runs: written, read back, filled up, and summarised by paired seeds."""

import pytest

from experiments.fedluar import figures
from experiments.fedluar.sweep import settings_of
from experiments.fedluar.table import Row, fill, frequencies, markdown, paired, read_rows, write_rows


def row(arm, seed, accuracy, **more):
    return Row(arm=arm, seed=seed, rounds=4, accuracy=accuracy, comm=0.5, longest_run=2, **more)


def test_rows_survive_the_file(tmp_path):
    rows = [row("luar-2", 1, 0.75, frequencies=frequencies(["a.weight", "b"], [1, 4], 4)), row("fedavg", 2, 0.5)]
    write_rows(tmp_path / "t.csv", rows)
    assert read_rows(tmp_path / "t.csv") == rows and read_rows(tmp_path / "none.csv") == []
    assert rows[0].shares == {"a.weight": 0.75, "b": 0.0} and rows[1].shares == {}


def test_a_table_is_filled_up_and_not_run_again(tmp_path):
    path, ran = tmp_path / "t.csv", []

    def run(arm, seed, rows):
        ran.append((arm, seed, len(rows)))
        return row(arm, seed, 0.5)

    fill(path, [("a", 1), ("b", 1)], run)
    rows = fill(path, [("a", 1), ("a", 2), ("b", 1)], run)
    assert ran == [("a", 1, 0), ("b", 1, 1), ("a", 2, 2)]
    assert read_rows(path) == rows


def test_differences_are_paired_by_seed():
    rows = [row("a", 1, 0.9), row("a", 2, 0.5), row("b", 2, 0.4), row("b", 1, 0.8), row("a", 3, 0.1)]
    assert paired(rows, "a", "b").value == pytest.approx(0.1) and paired(rows, "a", "b").half == pytest.approx(0.0)
    assert paired(rows, "a", "c").count == 0
    assert "| a | 3 | 0.500 +- " in markdown(rows, "b") and "0.100 +- 0.000" in markdown(rows, "b")


def test_arms_are_spelt_by_rule():
    assert settings_of("drop-3-cap-2") == [
        "strategy.delta=3",
        "strategy.downlink=delta",
        "strategy.drop=true",
        "strategy.max_staleness=2",
    ]
    with pytest.raises(ValueError, match="arm 'luar' must be fedavg, or one of luar, drop"):
        settings_of("luar")


def test_figures_are_drawn_from_a_table(tmp_path, monkeypatch):
    shares = "a.weight:0.50 b.weight:0.25"
    rows = [row("fedavg", s, 0.9) for s in (1, 2)]
    rows += [row("luar-1", s, 0.88, frequencies=shares) for s in (1, 2)] + [row("drop-1", 1, 0.5)]
    write_rows(tmp_path / "t.csv", rows)
    monkeypatch.setattr("sys.argv", ["figures", str(tmp_path / "t.csv"), "--out", str(tmp_path)])
    figures.main()
    axes = figures.layers_figure(rows, ["luar-1"], "t").axes[0]
    assert [b.get_height() for b in axes.patches] == [0.5, 0.25]
    points = figures.accuracy_figure(rows, "t").axes[0].get_legend_handles_labels()[1]
    assert points == ["luar-1", "drop-1"]
    assert all((tmp_path / f"t_{kind}.png").read_bytes()[:4] == b"\x89PNG" for kind in ("accuracy", "layers"))
