"""The public rotation: orthogonal, the same from the same seed, and flat on structured vectors."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crypto.errors import InputError
from crypto.preamble.rotation import Rotation, hadamard, padded_length

D, B = 2**18, 2**10
VECTORS = Path(__file__).parents[2] / "vectors" / "preamble" / "v1" / "rotation.json"


def slow_hadamard(vector):
    """Sylvester's definition: entry (i, j) is -1 to the number of common one bits."""
    size = vector.size
    signs = [[(-1) ** (i & j).bit_count() for j in range(size)] for i in range(size)]
    return np.array(signs) @ vector / np.sqrt(size)


def structured():
    """Seven vectors on which a poor rotation leaves uneven blocks; each of norm 1."""
    rng, index = np.random.default_rng(5), np.arange(D)
    vectors = {
        "one coordinate": index == 12_345,
        "constant": np.ones(D),
        "one residue modulo B": index % B == 3,
        "one block": index // B == 7,
        "alternating": (-1.0) ** index,
        "smooth": np.sin(index * 2 * np.pi / D),
        "random": rng.standard_normal(D),
    }
    return {name: v / np.linalg.norm(v) for name, v in vectors.items()}


def block_norms(rotated):
    return np.linalg.norm(rotated.reshape(-1, B), axis=1) / np.sqrt(B / D)


@pytest.mark.parametrize("size", [1, 2, 4, 8, 32, 64, 128, 256, 1024])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_hadamard_equals_the_definition(size, dtype):
    vector = np.random.default_rng(size).standard_normal(size).astype(dtype)
    kept = vector.copy()
    got = hadamard(vector)
    assert got.dtype == dtype and np.array_equal(vector, kept)
    assert np.allclose(got, slow_hadamard(vector.astype(np.float64)), atol=1e-12 if dtype is np.float64 else 1e-5)


@pytest.mark.parametrize("bits", range(10, 19))
def test_hadamard_beyond_the_cache_equals_one_of_halves(bits):
    """(H x)_first and _second are the sum and difference of the halves' transforms, over the root of 2."""
    vector = np.random.default_rng(bits).standard_normal(2**bits)
    low, high = (hadamard(half) for half in np.split(vector, 2))
    want = np.concatenate([low + high, low - high]) / np.sqrt(2)
    np.testing.assert_allclose(hadamard(vector), want, atol=1e-12)
    np.testing.assert_allclose(hadamard(hadamard(vector)), vector, atol=1e-12)


def test_hadamard_refuses_other_lengths_and_types():
    with pytest.raises(ValueError, match="transform of 3 values: must be a power of two"):
        hadamard(np.zeros(3))
    for bad in (np.zeros(4, np.int64), np.zeros((2, 2))):
        with pytest.raises(TypeError):
            hadamard(bad)


@given(st.integers(1, 600), st.binary(min_size=16, max_size=16))
def test_is_orthogonal(length, seed):
    rotation, rng = Rotation.from_seed(seed, length), np.random.default_rng(length)
    v, w = rng.standard_normal(length), rng.standard_normal(rotation.padded)
    assert rotation.padded == padded_length(length) >= length > rotation.padded // 2 or length == 1
    assert np.allclose(rotation.undo(rotation.apply(v)), v, atol=1e-10)
    assert np.isclose(rotation.apply(v) @ w, v @ rotation.undo(w), atol=1e-9)


def test_float32_stays_float32_and_orthogonal_to_1e_6():
    rotation = Rotation.from_seed(bytes(16), D)
    v = np.random.default_rng(1).standard_normal(D).astype(np.float32)
    back = rotation.undo(rotation.apply(v))
    assert back.dtype == np.float32 and np.linalg.norm(back - v) <= 1e-6 * np.linalg.norm(v)


@pytest.mark.parametrize("name", structured())
def test_blocks_of_structured_vectors_are_even(name):
    norms = block_norms(Rotation.from_seed(b"seed of a round!", D).apply(structured()[name]))
    # 1.5 times the deviation of a uniform rotation; 'constant' and 'alternating' are among the easy ones.
    assert norms.std() <= 1.5 / np.sqrt(2 * B) and norms.max() <= 1.12


def test_without_permutation_one_residue_stays_uneven():
    """Signs and Hadamard alone are not enough: the defence is the permutation."""
    full = Rotation.from_seed(b"seed of a round!", D)
    bare = Rotation(full.signs, np.arange(D))
    norms = block_norms(bare.apply(structured()["one residue modulo B"]))
    assert norms.std() > 0.4 and norms.max() > 1.3


def test_equals_the_stored_vectors():
    for case in json.loads(VECTORS.read_text())["cases"]:
        rotation = Rotation.from_seed(bytes.fromhex(case["seed"]), case["length"])
        assert rotation.order.tolist() == case["order"] and rotation.signs.tolist() == case["signs"]
        rotated = rotation.apply(np.arange(case["length"], dtype=np.float64))
        assert np.allclose(rotated, case["rotated_range"], atol=1e-9)


def test_seeds_differ_and_repeat():
    one, again, other = (Rotation.from_seed(s, 1000) for s in (bytes(16), bytes(16), bytes(15) + b"\1"))
    assert np.array_equal(one.order, again.order) and np.array_equal(one.signs, again.signs)
    assert not np.array_equal(one.order, other.order) and not np.array_equal(one.signs, other.signs)


def test_signs_and_order_are_uniform():
    signs, first = np.zeros(8), np.zeros(8)
    for i in range(4000):
        rotation = Rotation.from_seed(i.to_bytes(16, "little"), 8)
        signs += rotation.signs
        first[rotation.order[0]] += 1
    assert np.abs(signs).max() < 5 * np.sqrt(4000)
    assert ((first - 500) ** 2 / 500).sum() < 30  # chi-square with 7 degrees of freedom: p > 1e-4


@pytest.mark.parametrize("seed, length", [(bytes(15), 4), (bytes(16), 0)])
def test_refuses_a_senseless_seed_or_length(seed, length):
    with pytest.raises(InputError, match="must be 16 bytes and at least 1"):
        Rotation.from_seed(seed, length)


def test_refuses_another_length():
    with pytest.raises(InputError, match=r"shape \(5,\): must be floats of shape \(6,\)"):
        Rotation.from_seed(bytes(16), 6).apply(np.zeros(5))
