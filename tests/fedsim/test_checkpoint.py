"""Checkpoints: what is read is what was written, or an error that says so."""

import random

import numpy as np
import pytest

from fedsim.checkpoint import Checkpoint, latest_checkpoint, load_checkpoint, save_checkpoint, weights_sha256
from fedsim.errors import FedsimError
from strategies.records import NamedArrays


def point(server_round, strategy=True):
    rng = np.random.default_rng(server_round)
    arrays = {"w": rng.normal(size=(3, 2)).astype(np.float32), "n": np.array(server_round, np.int64)}
    own = {"velocity/w": rng.normal(size=(3, 2))} if strategy else {}
    return Checkpoint(server_round, NamedArrays(arrays), own)


@pytest.mark.parametrize("strategy", [True, False])
def test_round_trip(tmp_path, strategy):
    written = point(4, strategy)
    read = load_checkpoint(save_checkpoint(tmp_path, written))
    assert read.round == 4 and weights_sha256(read.state) == weights_sha256(written.state)
    assert set(read.strategy) == set(written.strategy)
    for name, array in written.strategy.items():
        np.testing.assert_array_equal(read.strategy[name], array)


def test_keeps_the_newest_and_leaves_no_temporary_files(tmp_path):
    for server_round in range(1, 6):
        save_checkpoint(tmp_path, point(server_round), keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["round-000004.ckpt", "round-000005.ckpt"]
    assert latest_checkpoint(tmp_path).round == 5


def test_a_damaged_file_is_refused_and_the_one_before_it_is_taken(tmp_path):
    save_checkpoint(tmp_path, point(1))
    path = save_checkpoint(tmp_path, point(2))
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with pytest.raises(FedsimError, match="checksum does not match"):
        load_checkpoint(path)
    assert latest_checkpoint(tmp_path).round == 1


def test_an_empty_folder_has_no_checkpoint(tmp_path):
    assert latest_checkpoint(tmp_path) is None
    assert latest_checkpoint(tmp_path / "nowhere") is None


@pytest.mark.report("D15")
def test_any_damage_is_an_error_and_never_another_model(tmp_path):
    path = save_checkpoint(tmp_path, point(3))
    whole, rng = path.read_bytes(), random.Random(1)
    for _ in range(300):
        data = bytearray(whole)
        if rng.random() < 0.3:
            data = data[: rng.randrange(len(data))]
        else:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        with pytest.raises(FedsimError):
            load_checkpoint(path)


def test_equal_models_have_equal_digests_and_others_do_not():
    assert weights_sha256(point(1).state) == weights_sha256(point(1).state)
    other = point(1).state
    other.arrays["w"][0, 0] = np.nextafter(other.arrays["w"][0, 0], np.float32(9))
    assert weights_sha256(other) != weights_sha256(point(1).state)
