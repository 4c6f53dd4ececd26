"""CKKS and BGV on OpenFHE with one key: the law of a secure sum, refusals, damaged messages, sizes."""

import os
import pickle
import subprocess
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crypto import wire
from crypto._openfhe.find import find_python
from crypto.base import Plan, Tag
from crypto.errors import (
    BackendFailed,
    BackendUnavailable,
    EmptySum,
    InputError,
    IntegrityError,
    KeyMismatch,
    LayoutMismatch,
    ReplayError,
    WireError,
)
from crypto.he_openfhe import SCHEMES, OpenFheBgv, OpenFheSum
from crypto.keys import KeyBundle

try:
    PYTHON, REASON = find_python(), ""
except BackendUnavailable as error:
    PYTHON, REASON = "", str(error)
needs_library = pytest.mark.skipif(bool(REASON), reason=f"OPENFHE IS NOT TESTED HERE: {REASON}")

CASES = [(name, symmetric) for name in SCHEMES for symmetric in (False, True)]
each_case = pytest.mark.parametrize(("name", "symmetric"), CASES)
each_scheme = pytest.mark.parametrize("name", list(SCHEMES))
LONGEST = 4097  # one past two BGV and two CKKS ciphertexts
SLOTS = 2048


@cache
def federation(name: str, symmetric: bool = False, clients: int = 1000) -> tuple[OpenFheSum, KeyBundle, KeyBundle]:
    plan = Plan(length=LONGEST, clients=clients, bound=2.0)
    sum_ = SCHEMES[name](plan, symmetric=symmetric, python=PYTHON)
    server, own = sum_.make_keys()
    return sum_.with_key(server.key_id), server, own


def tag(length: int, round_: int = 3, layout: bytes = bytes(range(16))) -> Tag:
    return Tag(round=round_, layout_hash=layout, length=length)


def vectors(count: int, length: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.uniform(-2, 2, length).astype(np.float32) for _ in range(count)]


@pytest.mark.report("U26")
@pytest.mark.skipif(not os.environ.get("FEDSIM_REQUIRE_OPENFHE"), reason="FEDSIM_REQUIRE_OPENFHE is not set")
def test_library_is_there_where_it_is_required() -> None:
    assert not REASON


@needs_library
@each_case
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_opened_sum_equals_the_plain_sum_within_the_bound(name: str, symmetric: bool, data: st.DataObject) -> None:
    sum_, _, own = federation(name, symmetric)
    length = data.draw(st.sampled_from([1, 2, 3, SLOTS - 1, SLOTS, SLOTS + 1, 2 * SLOTS, LONGEST]))
    kinds = {
        "zeros": np.zeros(length, np.float32),
        "largest": np.full(length, 2.0, np.float32),
        "lowest": np.full(length, -2.0, np.float32),
        "mixed": vectors(1, length, data.draw(st.integers(0, 99)))[0],
    }
    parts = [kinds[k] for k in data.draw(st.lists(st.sampled_from(sorted(kinds)), min_size=1, max_size=5))]
    adders = [sum_.adder(tag(length)), sum_.adder(tag(length))]
    sealer = sum_.sealer(own)
    for vector in parts:
        before = vector.copy()
        adders[data.draw(st.integers(0, 1))].add(sealer.seal(vector, tag(length))[0])
        assert np.array_equal(vector, before)
    filled = [adder for adder in adders if adder.count]
    for other in filled[1:]:
        filled[0].merge(other.total())
    opened = sum_.opener(own).open([filled[0].total()], tag(length))
    expected = np.sum([vector.astype(np.float64) for vector in parts], axis=0)
    assert filled[0].count == len(parts) and opened.shape == (length,) and opened.dtype == np.float64
    assert np.abs(opened - expected).max() <= sum_.budget.error_bound


@needs_library
@each_scheme
@pytest.mark.parametrize("clients", [100, 1000])
def test_many_clients_stay_within_the_bound_of_their_number(name: str, clients: int) -> None:
    sum_, _, own = federation(name, False, clients)
    here, sealer, expected = tag(50), sum_.sealer(own), np.zeros(50)
    adder = sum_.adder(here)
    for vector in vectors(clients, 50, clients):
        adder.add(sealer.seal(vector, here)[0])
        expected += vector
    opened = sum_.opener(own).open([adder.total()], here)
    assert np.abs(opened - expected).max() <= sum_.budget.error_bound


@pytest.mark.report("U30")
@needs_library
def test_1024_clients_at_the_clip_value_sum_exactly() -> None:
    sum_, _, own = federation("openfhe-bgv", False, 1024)
    here = tag(3)
    part = sum_.sealer(own).seal(np.array([2.0, -2.0, 0.5], np.float32), here)[0]
    adder = sum_.adder(here)
    adder.add(part)
    for _ in range(10):  # doubling: the same noise 1024 times, which is worse than 1024 independent ones
        adder.merge(adder.total())
    assert adder.count == 1024
    assert sum_.opener(own).open([adder.total()], here).tolist() == [2048.0, -2048.0, 512.0]


@needs_library
def test_bgv_sums_values_on_its_grid_exactly() -> None:
    sum_, _, own = federation("openfhe-bgv")
    assert isinstance(sum_, OpenFheBgv)
    grid = np.random.default_rng(5).integers(-2000, 2000, (6, LONGEST)) * sum_.codec.step
    adder, sealer = sum_.adder(tag(LONGEST)), sum_.sealer(own)
    for vector in grid:
        adder.add(sealer.seal(vector, tag(LONGEST))[0])
    assert np.array_equal(sum_.opener(own).open([adder.total()], tag(LONGEST)), grid.sum(axis=0))


@needs_library
def test_bgv_clips_and_counts_and_ckks_refuses_what_is_beyond_the_bound() -> None:
    wide = np.array([1.0, 3.0, -5.0], np.float32)
    sum_, _, own = federation("openfhe-bgv")
    sealer, adder = sum_.sealer(own), sum_.adder(tag(3))
    adder.add(sealer.seal(wide, tag(3))[0])
    assert sealer.clipped == 2
    assert sum_.opener(own).open([adder.total()], tag(3)) == pytest.approx([1.0, 2.0, -2.0], abs=1e-5)
    sum_, _, own = federation("openfhe-ckks")
    with pytest.raises(InputError, match=r"value 3.0 \(2 such in a batch\) is beyond the declared bound 2"):
        sum_.sealer(own).seal(wide, tag(3))


@pytest.mark.report("T8", "refused by the client, before any library")
@needs_library
@each_scheme
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_refuses_what_is_not_finite_before_the_library(name: str, bad: float) -> None:
    sum_, _, own = federation(name)
    vector = np.ones(LONGEST, np.float32)
    vector[SLOTS + 7] = bad
    with pytest.raises(InputError, match=f"coordinate {SLOTS + 7} is {bad}"):
        sum_.sealer(own).seal(vector, tag(LONGEST))


@needs_library
@each_scheme
def test_refuses_other_shapes_and_longer_rounds(name: str) -> None:
    sum_, _, own = federation(name)
    with pytest.raises(InputError, match=r"shape \(2,\): must be floats of shape \(3,\)"):
        sum_.sealer(own).seal(np.ones(2, np.float32), tag(3))
    with pytest.raises(InputError, match=f"round of {LONGEST + 1} coordinates: the plan declares at most {LONGEST}"):
        sum_.adder(tag(LONGEST + 1))


@needs_library
@each_scheme
def test_refuses_parts_of_another_key_round_layout_and_kind(name: str) -> None:
    sum_, _, own = federation(name)
    other, _, others_own = federation(name, False, 1000.0)  # type: ignore[arg-type] - another entry of the cache
    assert other.key_id != sum_.key_id
    part = sum_.sealer(own).seal(np.ones(3, np.float32), tag(3))[0]
    with pytest.raises(KeyMismatch, match="distribute the run's keys"):
        other.adder(tag(3)).add(part)
    with pytest.raises(KeyMismatch, match="distribute one key set"):
        sum_.opener(others_own)
    with pytest.raises(ReplayError, match="round 3: this is round 4"):
        sum_.adder(tag(3, 4)).add(part)
    with pytest.raises(LayoutMismatch):
        sum_.adder(tag(3, layout=bytes(16))).add(part)
    with pytest.raises(WireError, match="kind 1: expected"):
        sum_.adder(tag(3)).merge(part)
    with pytest.raises(EmptySum):
        sum_.adder(tag(3)).total()
    with pytest.raises(WireError, match="2 totals"):
        sum_.opener(own).open([part, part], tag(3))


@needs_library
def test_refuses_more_vectors_than_the_plan_declares() -> None:
    sum_, _, own = federation("openfhe-bgv", False, 2)
    adder, part = sum_.adder(tag(3)), sum_.sealer(own).seal(np.ones(3, np.float32), tag(3))[0]
    adder.add(part)
    adder.add(part)
    with pytest.raises(WireError, match="3 vectors: the plan declares 2 clients"):
        adder.add(part)
    assert adder.count == 2


@needs_library
@each_case
def test_server_cannot_decrypt(name: str, symmetric: bool) -> None:
    sum_, server, own = federation(name, symmetric)
    adder, sealer = sum_.adder(tag(3)), sum_.sealer(own)
    adder.add(sealer.seal(np.ones(3, np.float32), tag(3))[0])
    assert server.secret == b"" and own.secret
    with pytest.raises(KeyMismatch, match="'server' bundle has no secret key"):
        sum_.opener(server)
    held = b"".join([pickle.dumps(sum_), server.encode(), adder.total(), repr((sum_, adder, own, sealer)).encode()])
    needle = own.secret[1000:1016]
    assert needle not in held and needle.hex().encode() not in held
    # All that the server holds, used as if it were a key, opens nothing.
    halves = sum_.unpack_key(server.public, 2)
    sealed = sum_.unpack(wire.decode(adder.total(), sum_.header(tag(3)), wire.TOTAL).body, 2)
    for half in (halves[:, :1], halves[:, 1:]):
        try:
            opened = sum_.values(sum_.call("decrypt", half.copy(), sealed), 3, 1)
        except (BackendFailed, IntegrityError) as error:  # CKKS may notice in the library, both by the range
            assert "approximation error" in str(error) or "opened sum reaches" in str(error)
        else:
            assert np.abs(opened - 1).max() > 0.5


@needs_library
def test_symmetric_sealing_wants_the_secret() -> None:
    sum_, server, _ = federation("openfhe-bgv", True)
    with pytest.raises(KeyMismatch, match="has no secret key: sealing in symmetric mode"):
        sum_.sealer(server)


@needs_library
def test_equal_vectors_seal_differently() -> None:
    sum_, _, own = federation("openfhe-bgv")
    sealer, vector = sum_.sealer(own), np.ones(3, np.float32)
    assert sealer.seal(vector, tag(3)) != sealer.seal(vector, tag(3))


@pytest.mark.report("U13")
@needs_library
@each_scheme
def test_refuses_every_damaged_message(name: str) -> None:
    sum_, _, own = federation(name)
    adder, sealer = sum_.adder(tag(3)), sum_.sealer(own)
    good = sealer.seal(np.array([1, 2, -1], np.float32), tag(3))[0]
    adder.add(good)
    accepted = fuzz(good, adder.add, 10_000)
    assert accepted == 0 and adder.count == 1
    opened = sum_.opener(own).open([adder.total()], tag(3))
    assert opened == pytest.approx([1, 2, -1], abs=1e-4)


def fuzz(good: bytes, take: Callable[[bytes], object], count: int) -> int:
    """Offer damaged copies; return how many were taken. Anything but a WireError propagates."""
    rng, accepted = np.random.default_rng(11), 0
    for i in range(count):
        bad = bytearray(good)
        at = int(rng.integers(len(bad))) if i % 3 else int(rng.integers(wire.HEADER_BYTES))
        match i % 5:
            case 0:
                bad[at] ^= 1 << int(rng.integers(8))
            case 1:
                del bad[at:]
            case 2:
                bad[at:at] = rng.bytes(int(rng.integers(1, 9)))
            case 3:
                bad[at : at + 8] = rng.bytes(8)
            case 4:
                del bad[at : at + int(rng.integers(1, 9))]
        try:
            take(bytes(bad))
        except WireError:
            continue
        accepted += bytes(bad) != good
    return accepted


@needs_library
@each_scheme
def test_refuses_forged_residues_behind_a_right_checksum(name: str) -> None:
    sum_, _, own = federation(name)
    adder = sum_.adder(tag(3))
    forged = wire.encode(sum_.header(tag(3)), wire.PART, 1, b"\xff" * sum_.body_bytes(3))
    with pytest.raises(WireError, match="must be below its modulus; the sender is left out"):
        adder.add(forged)
    assert adder.count == 0
    # Random residues are a valid ciphertext of noise: harmless to the library, and the opener sees it.
    rng = np.random.default_rng(1)
    noise = rng.integers(0, sum_.ring.moduli_array[:, None], (1, *sum_.ring.shape(2)), np.uint64)
    adder.add(wire.encode(sum_.header(tag(3)), wire.PART, 1, sum_.pack(noise)))
    assert adder.count == 1
    with pytest.raises((IntegrityError, BackendFailed), match="opened sum reaches|approximation error"):
        sum_.opener(own).open([adder.total()], tag(3))


@needs_library
@pytest.mark.parametrize(("name", "most"), [("openfhe-bgv", 17.0), ("openfhe-ckks", 31.0)])
def test_bytes_a_parameter_on_the_wire(name: str, most: float) -> None:
    plan = Plan(length=1_000_000, clients=10, bound=1.0)
    sum_ = SCHEMES[name](plan, python=PYTHON)
    _, own = sum_.make_keys()
    part = sum_.sealer(own).seal(np.zeros(plan.length, np.float32), tag(plan.length))[0]
    assert len(part) == sum_.budget.upload_bytes
    assert len(part) / plan.length <= most


@pytest.mark.report("U23")
@needs_library
def test_roles_survive_pickling() -> None:
    sum_, _, own = federation("openfhe-bgv")
    sum_ = pickle.loads(pickle.dumps(sum_))
    own = pickle.loads(pickle.dumps(own))
    sealer, opener = (pickle.loads(pickle.dumps(role)) for role in (sum_.sealer(own), sum_.opener(own)))
    adder = sum_.adder(tag(2))
    adder.add(sealer.seal(np.array([0.5, 1.5], np.float32), tag(2))[0])
    assert opener.open([adder.total()], tag(2)).tolist() == [0.5, 1.5]


PLAIN_ADD = """
import openfhe as o
for technique in (o.FIXEDMANUAL, o.FIXEDAUTO, o.FLEXIBLEAUTO, o.FLEXIBLEAUTOEXT):
    p = o.CCParamsCKKSRNS()
    p.SetMultiplicativeDepth(1); p.SetScalingModSize(50); p.SetScalingTechnique(technique); p.SetBatchSize(8)
    c = o.GenCryptoContext(p)
    for feature in (o.PKE, o.KEYSWITCH, o.LEVELEDSHE): c.Enable(feature)
    k = c.KeyGen()
    total = c.EvalAdd(c.Encrypt(k.publicKey, c.MakeCKKSPackedPlaintext([1.5])), c.MakeCKKSPackedPlaintext([0.5]))
    out = c.Decrypt(total, k.secretKey); out.SetLength(1)
    print(abs(out.GetRealPackedValue()[0] - 2.0) < 1e-6)
"""


@pytest.mark.report("U12", "enc(1.5) + 0.5 = 2.0 in all four scaling modes")
@needs_library
def test_library_adds_plaintexts_right_in_every_scaling_mode() -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([PYTHON, "-I", "-c", PLAIN_ADD], capture_output=True, text=True, timeout=200, env=environment)
    assert done.stdout.split() == ["True"] * 4, done.stdout + done.stderr
