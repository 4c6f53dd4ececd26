"""AES kernels and seeded streams: published vectors, all instruction sets, an independent library."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st

from crypto import _native, prg
from crypto.errors import InputError

VECTORS = Path(__file__).parents[1] / "vectors" / "prg" / "v1"
ISAS = ["generic", "aesni", "vaes", "armv8"]


def load(name: str) -> dict[str, Any]:
    return dict(json.loads((VECTORS / name).read_text()))


def names(pattern: str) -> list[str]:
    return sorted(p.name for p in VECTORS.glob(pattern))


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> str:
    if request.param not in prg.isas():
        pytest.skip(f"this processor has no {request.param}: the kernels are compiled but NOT run here")
    return str(request.param)


def encrypt(key: bytes, data: bytes, isa: str = "") -> bytes:
    out = np.empty(len(data), np.uint8)
    _native.aes_encrypt(key, np.frombuffer(data, np.uint8), out, isa)
    return out.tobytes()


def keystream(key: bytes, counter: bytes, size_bytes: int, isa: str = "") -> bytes:
    out = np.empty(size_bytes, np.uint8)
    _native.aes_stream(key, counter, out, isa)
    return out.tobytes()


def run_vector(vector: dict[str, Any], isa: str) -> tuple[str, str]:
    """Return (computed, stored) in hexadecimal."""
    if vector["kind"] == "round_keys":
        return _native.aes_round_keys(bytes.fromhex(vector["key"]), isa).hex(), vector["round_keys"]
    if vector["kind"] == "stream":
        seed, domain = bytes.fromhex(vector["seed"]), vector["domain"].encode()
        assert prg.stream_key(seed, domain).hex() == vector["key"]
        return prg.Stream(seed, domain, isa).bytes(len(vector["keystream"]) // 2).hex(), vector["keystream"]
    key, plain = bytes.fromhex(vector["key"]), bytes.fromhex(vector["plaintext"])
    if vector["kind"] == "ecb":
        return encrypt(key, plain, isa).hex(), vector["ciphertext"]
    stream = keystream(key, bytes.fromhex(vector["counter"]), len(plain), isa)
    return bytes(a ^ b for a, b in zip(plain, stream, strict=True)).hex(), vector["ciphertext"]


@pytest.mark.report(
    "T10", "AES-128 in counter mode over the whole seed, with a domain for each use, equal to published vectors"
)
@pytest.mark.parametrize("name", names("[!b]*.json"))
def test_published_vectors(name: str, isa: str) -> None:
    computed, stored = run_vector(load(name), isa)
    assert computed == stored


@pytest.mark.parametrize("name", names("bad_*.json"))
def test_bad_vectors_fail(name: str, isa: str) -> None:
    vector = load(name)
    if vector["expect"] == "mismatch":
        computed, stored = run_vector(vector, isa)
        assert computed != stored
    else:
        with pytest.raises(ValueError, match=vector["expect"]):
            run_vector(vector, isa)


def test_all_vector_kinds_are_stored() -> None:
    kinds = {load(n)["kind"] for n in names("*.json")}
    assert kinds == {"ecb", "ctr", "round_keys", "stream"}
    assert len(names("bad_*.json")) >= 4


@settings(max_examples=60, deadline=None)
@given(
    key=st.binary(min_size=16, max_size=16),
    counter=st.one_of(st.binary(min_size=16, max_size=16), st.integers(0, 40).map(lambda d: b"\xff" * 15 + bytes([d]))),
    blocks=st.integers(0, 70),
)
def test_stream_equals_an_independent_library_on_every_isa(key: bytes, counter: bytes, blocks: int) -> None:
    expected = Cipher(algorithms.AES(key), modes.CTR(counter)).encryptor().update(bytes(16 * blocks))
    for isa in prg.isas():
        assert keystream(key, counter, 16 * blocks, isa) == expected


@pytest.mark.parametrize("low", [2**64 - 1, 2**64 - 8, 2**64 - 17])
def test_counter_carries_into_the_upper_word(low: int, isa: str) -> None:
    counter = (5 << 64 | low).to_bytes(16, "big")
    expected = Cipher(algorithms.AES(bytes(16)), modes.CTR(counter)).encryptor().update(bytes(16 * 50))
    assert keystream(bytes(16), counter, 16 * 50, isa) == expected


@settings(max_examples=40, deadline=None)
@given(
    key=st.binary(min_size=16, max_size=16),
    data=st.integers(0, 40).flatmap(lambda n: st.binary(min_size=16 * n, max_size=16 * n)),
)
def test_block_encryption_equals_an_independent_library_on_every_isa(key: bytes, data: bytes) -> None:
    expected = Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(data)
    for isa in prg.isas():
        assert encrypt(key, data, isa) == expected


def test_encrypts_in_place(isa: str) -> None:
    data = np.arange(16 * 21, dtype=np.uint8)
    expected = encrypt(bytes(range(16)), data.tobytes(), isa)
    _native.aes_encrypt(bytes(range(16)), data, data, isa)
    assert data.tobytes() == expected


def test_unaligned_output(isa: str) -> None:
    room = np.zeros(16 * 20 + 3, np.uint8)
    _native.aes_stream(bytes(16), bytes(16), room[3:], isa)
    assert room[3:].tobytes() == keystream(bytes(16), bytes(16), 16 * 20)


def in_child(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environment}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)


def test_environment_forces_the_isa() -> None:
    done = in_child("from crypto import prg; print(prg.isa())", FEDSIM_ISA="generic")
    assert done.stdout.strip() == "generic"


@pytest.mark.parametrize(
    "name, why",
    [("fast", "no such kernels"), ("armv8" if os.uname().machine == "x86_64" else "vaes", "processor lacks it")],
)
def test_environment_refuses_an_isa_that_is_not_here(name: str, why: str) -> None:
    done = in_child("from crypto import prg; prg.Stream(bytes(16), prg.MASK).bytes(16)", FEDSIM_ISA=name)
    assert done.returncode != 0
    assert f"FEDSIM_ISA='{name}'" in done.stderr and why in done.stderr and "here one can use" in done.stderr


def test_default_is_the_fastest() -> None:
    done = in_child("from crypto import prg; print(prg.isa() == prg.isas()[0])", FEDSIM_ISA="")
    assert done.stdout.strip() == "True"


def test_draws_are_one_stream() -> None:
    whole = prg.Stream(bytes(16), prg.MASK).bytes(64)
    stream = prg.Stream(bytes(16), prg.MASK)
    assert (
        stream.uint32(4).astype("<u4").tobytes() + stream.uint64(2).astype("<u8").tobytes() + stream.bytes(32) == whole
    )


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5])
def test_a_draw_consumes_whole_blocks(count: int) -> None:
    stream = prg.Stream(bytes(16), prg.MASK)
    assert stream.uint32(count).shape == (count,)
    assert stream.block == -(-count * 4 // 16)


def test_seek_finds_the_same_bytes() -> None:
    stream = prg.Stream(bytes(range(16)), prg.MASK)
    whole = stream.bytes(160)
    stream.seek(7)
    assert stream.bytes(48) == whole[112:]


@pytest.mark.report("T10")
def test_domains_and_seeds_give_different_streams() -> None:
    domains = [prg.MASK, prg.ROTATION, prg.SAMPLING, prg.NOISE, prg.RLWE]
    streams = {prg.Stream(bytes(16), d).bytes(16) for d in domains} | {prg.Stream(b"\1" * 16, prg.MASK).bytes(16)}
    assert len(streams) == 6


@pytest.mark.report("U39b", "seeds of equal 32-bit XOR folds, and seeds that differ in one bit, give different streams")
@pytest.mark.parametrize("bit", range(0, 128, 7))
def test_seeds_that_a_32_bit_fold_confuses_give_different_streams(bit: int) -> None:
    def fold(seed: bytes) -> int:
        words = np.frombuffer(seed, np.uint32)
        return int(np.bitwise_xor.reduce(words))

    seed = bytes(range(16))
    rotated = seed[4:] + seed[:4]
    both = (int.from_bytes(seed, "little") ^ (1 << bit) ^ (1 << (bit + 32) % 128)).to_bytes(16, "little")
    one = (int.from_bytes(seed, "little") ^ (1 << bit)).to_bytes(16, "little")
    assert fold(seed) == fold(rotated) == fold(both)
    streams = [prg.Stream(s, prg.MASK).bytes(4096) for s in (seed, rotated, both, one)]
    assert len(set(streams)) == 4
    for other in streams[1:]:
        differ = np.unpackbits(np.frombuffer(streams[0], np.uint8) ^ np.frombuffer(other, np.uint8)).mean()
        assert abs(differ - 0.5) < 0.02, "independent streams differ in half of their 32,768 bits (5 sigma: 0.014)"


def test_floats_use_the_upper_bits() -> None:
    words = prg.Stream(bytes(16), prg.MASK).uint64(1000)
    floats = prg.Stream(bytes(16), prg.MASK).float64(1000)
    assert np.array_equal(floats, (words >> np.uint64(11)).astype(np.float64) / 2.0**53)
    singles = prg.Stream(bytes(16), prg.MASK).float32(4000)
    assert singles.dtype == np.float32 and 0 <= singles.min() and singles.max() < 1
    assert abs(float(singles.mean()) - 0.5) < 5 / np.sqrt(12 * 4000)


@pytest.mark.parametrize(
    "act, text",
    [
        (lambda: prg.Stream(bytes(15), prg.MASK), "seed of 15 bytes: must be 16"),
        (lambda: prg.Stream(bytes(16), b""), "must have 1 to 16"),
        (lambda: prg.Stream(bytes(16), b"x" * 17), "17 bytes: must have 1 to 16"),
        (lambda: prg.Stream(bytes(16), prg.MASK).bytes(-1), "cannot be negative"),
        (lambda: prg.Stream(bytes(16), prg.MASK).seek(-1), r"must lie in \[0, 2\^64\)"),
        (lambda: prg.Stream(bytes(16), prg.MASK).fill(np.zeros(8, np.uint8)), "multiples of 16"),
        (lambda: prg.Stream(bytes(16), prg.MASK).fill(np.zeros(64, np.uint8)[::2]), "contiguous"),
    ],
)
def test_refuses_bad_input(act: Any, text: str) -> None:
    with pytest.raises(InputError, match=text):
        act()


def test_repr_hides_the_seed() -> None:
    seed = b"\xab" * 16
    assert "ab" * 4 not in repr(prg.Stream(seed, prg.MASK)) and "\\xab" not in repr(prg.Stream(seed, prg.MASK))
