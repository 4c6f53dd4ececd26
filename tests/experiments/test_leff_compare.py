"""Comparisons of a table's arms, by hand."""

import sys
from dataclasses import replace

import pytest

from experiments.leff import finetune
from experiments.leff.compare import compared, differences, main
from experiments.leff.finetune import Row

ROW = Row("full", 1, 2, 0.8, 0.9, 6.0, 4.0, 1.0, 2.0, 4_000_000, 5, 2_000_000, 7, 8.0, 9.0)
LEFF = replace(ROW, arm="leff", accuracy=0.7, round_s=2.0, peak_first_bytes=1_000_000, spread=2.0)
ROWS = [ROW, replace(ROW, seed=2, accuracy=0.6), LEFF, replace(LEFF, seed=2, accuracy=0.56), replace(LEFF, seed=3)]


def test_differences_are_of_the_seeds_that_both_have():
    assert differences(ROWS, "leff", "full") == pytest.approx([-0.1, -0.04])
    assert differences(ROWS, "head", "full") == []


def test_a_line_has_means_paired_differences_and_costs_against_the_other_arm():
    full, leff = compared(ROWS, "full")
    assert full[:4] == ["full", "0.800, 0.600", "0.700 ± 1.271", ""] and full[5] == "1.00"
    assert leff[3] == "-7.0 ± 38.1"
    assert leff[4:] == ["2.000 s", "3.00", "2.00", "1.0 MB (0.25)", "2.0 MB"]
    idle = replace(ROW, arm="strongest", peak_first_bytes=0)
    assert [line[7] for line in compared([ROW, idle], "strongest")] == ["none", "none"]
    with pytest.raises(ValueError, match=r"arm 'head' has no row: must be one of full, leff"):
        compared(ROWS, "head")


def test_settings_are_varied_one_at_a_time_and_the_table_is_printed(tmp_path, monkeypatch, capsys):
    asked = []

    def run_arm(config, arm, seed, work, more):
        asked.append((arm, seed, more))
        return replace(ROW, arm=arm, seed=seed)

    monkeypatch.setattr(finetune, "run_arm", run_arm)
    out = tmp_path / "sweep.csv"
    call = ["finetune", "x.toml", "--arms", "leff", "--seeds", "1", "2", "--set", "a={seed}", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", [*call, "--vary", "strategy.rate=0.2", "training.lr=1e-3"])
    finetune.main()
    arms = ["leff", "leff strategy.rate=0.2", "leff training.lr=1e-3"]
    assert asked == [(arm, seed, [f"a={seed}"]) for seed in (1, 2) for arm in arms]
    finetune.main()
    assert len(asked) == 6
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["compare", str(out), "--against", "leff"])
    main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5 and lines[0].startswith("| arm | accuracy by seed | mean, 95 % interval | points less leff")
    assert lines[3].startswith("| leff strategy.rate=0.2 | 0.800, 0.800 | 0.800 ± 0.000 | 0.0 ± 0.0 | 6.000 s | 1.00 |")


def test_a_changed_setting_comes_after_all_others(tmp_path, monkeypatch):
    seen = []

    def load_config(path, settings):
        seen.append(settings)
        raise InterruptedError

    monkeypatch.setattr(finetune, "load_config", load_config)
    with pytest.raises(InterruptedError):
        finetune.run_arm(tmp_path / "x.toml", "head-fast training.lr=1e-3", 1, tmp_path, ["training.lr=5e-3"])
    assert (
        seen[0][-2:] == ["training.lr=5e-3", "training.lr=1e-3"]
        and "output.name=x-head-fast-training.lr-1e-3-1" in seen[0]
    )
