"""The experiment's own arithmetic, and (slow) that training blocks beats training the head alone."""

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from experiments.leff.finetune import ARMS, Row, interval, peak, read, run_arm, times, turns
from experiments.leff.pretrain import pretrain
from fedsim.config import load_config
from strategies.records import model_bytes

DIGITS = "experiments/configs/papers/leff_digits.toml"
MINILM = "experiments/configs/papers/leff_minilm.toml"
WORD_ORDER = "experiments/configs/papers/leff_word_order.toml"


def entries(*rows):
    names = ("round", "client", "phase", "virtual_s", "peak_memory_bytes")
    return pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows])


def test_turns_add_up_phases_and_leave_out_the_first_round_and_the_server():
    table = entries(
        (1, 0, "train", 9.0, 0),
        (2, 0, "download", 1.0, 0),
        (2, 0, "train", 2.0, 10),
        (2, 1, "train", 5.0, 30),
        (2, 1, "upload", math.nan, 0),
        (2, -1, "train", 7.0, 0),
        (3, 0, "train", 4.0, 20),
        (3, 0, "evaluate", 8.0, 0),
    )
    assert turns(table, ("download", "train", "upload")) == [[3.0, 5.0], [4.0]]
    assert times(table) == {"round_s": 4.5, "spread": 1.333, "train_s": 4.5, "train_spread": 1.75}
    assert peak(table, 0) == 10 and peak(table, 1) == 30 and peak(table, 5) == 0


def test_intervals_are_students():
    mean, half = interval([1.0, 2.0, 3.0])
    assert mean == 2.0 and half == pytest.approx(4.303 / math.sqrt(3), rel=1e-3)
    assert math.isnan(interval([1.0])[1])


def test_rows_are_read_as_they_were_written(tmp_path):
    assert read(tmp_path / "none.csv") == []
    names = list(Row.__dataclass_fields__)
    (tmp_path / "t.csv").write_text(",".join(names) + "\nleff,1,2,0.5,0.6,1.5,2.5,1.0,2.0,3,4,5,6,7.5,8.5\n")
    assert read(tmp_path / "t.csv") == [Row("leff", 1, 2, 0.5, 0.6, 1.5, 2.5, 1.0, 2.0, 3, 4, 5, 6, 7.5, 8.5)]


def test_the_stored_results_are_rows_of_known_arms():
    tables = sorted(Path("experiments/results").glob("leff_*.csv"))
    assert {"leff_digits", "leff_digits_even", "leff_digits_sweep", "leff_minilm", "leff_word_order"} <= {
        table.stem for table in tables
    }
    for table in tables:
        rows = read(table)
        assert len(rows) > 3 and all(row.arm.split()[0] in ARMS and 0 <= row.accuracy <= row.best <= 1 for row in rows)


@pytest.mark.parametrize("config", [DIGITS, MINILM, WORD_ORDER])
@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_is_a_valid_setting(config, arm):
    assert load_config(config, ARMS[arm]).federation.num_clients == 6


@pytest.mark.slow
def test_18_training_blocks_beats_training_the_head_alone(tmp_path):
    state, loss = pretrain(load_config(DIGITS), 12)
    assert loss < 1.386
    start = tmp_path / "start.safetensors"
    start.write_bytes(model_bytes(state))
    more = [f"model.weights={start}"]
    found = {arm: run_arm(Path(DIGITS), arm, 1, tmp_path, more) for arm in ("leff", "full", "head", "strongest")}
    assert found["leff"].accuracy > found["head"].accuracy + 0.1
    assert found["leff"].round_s < found["full"].round_s and found["leff"].spread < 3
    assert found["leff"].peak_first_bytes < 0.6 * found["full"].peak_first_bytes
    assert np.isfinite(found["leff"].server_s)
