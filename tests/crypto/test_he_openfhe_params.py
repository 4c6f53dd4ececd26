"""Moduli, sizes, budgets, packed residues: everything that needs no library."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crypto._openfhe.params import Ring, bgv_margin_bits, prime_above, prime_below
from crypto._openfhe.residues import add_into, pack, packed_bytes, unpack
from crypto.base import Plan
from crypto.errors import BudgetExceeded, InputError, WireError
from crypto.he_openfhe import OpenFheBgv, OpenFheCkks
from crypto.he_openfhe_threshold import ThresholdBgv, bgv_ring, threshold_sum
from crypto.lattice import is_prime

PLAN = Plan(length=5000, clients=100, bound=1.0)


def _divides_none(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))


def test_primes_equal_trial_division() -> None:
    assert [n for n in range(6000) if is_prime(n)] == [n for n in range(6000) if _divides_none(n)]


@pytest.mark.parametrize("composite", [561, 3215031751, 3825123056546413051, (2**31 - 1) * (2**29 - 3)])
def test_strong_pseudoprimes_are_composite(composite: int) -> None:
    assert not is_prime(composite)


@given(st.integers(2**10, 2**20), st.sampled_from([2, 12, 64]))
def test_primes_of_a_progression_are_the_nearest(start: int, step: int) -> None:
    above = next(n for n in range(start + 1, 2**22) if n % step == 1 and _divides_none(n))
    below = next(n for n in range(start - 1, 1, -1) if n % step == 1 and _divides_none(n))
    assert (prime_above(start, step), prime_below(start, step)) == (above, below)


def test_no_prime_in_a_progression_is_refused() -> None:
    with pytest.raises(BudgetExceeded, match="no prime below"):
        prime_below(100, 1000)


def test_moduli_are_the_ones_that_the_library_chooses() -> None:
    assert Ring("bgv", 2048, 54, plain_bits=31).moduli == (17891935712649217,)
    assert Ring("ckks", 4096, 60, scale_bits=40).moduli == (1152921504606830593,)
    assert bgv_ring("statistical").moduli == (1150326557037641729, 1150256185609076737, 1149798771323404289)


@pytest.mark.parametrize("ring", [Ring("bgv", 2048, 54, plain_bits=31), bgv_ring("heuristic"), bgv_ring("statistical")])
def test_moduli_suit_transform_and_plaintext(ring: Ring) -> None:
    assert ring.plain_modulus > 2**ring.plain_bits and ring.plain_modulus % (2 * ring.ring) == 1
    for q in ring.moduli:
        assert is_prime(q) and q % (2 * ring.ring * ring.plain_modulus) == 1 and q < 2**60
    assert ring.security_bits >= 128


@pytest.mark.parametrize(
    ("ring", "message"),
    [
        (dict(kind="bgv", ring=1 << 17, first_bits=60, plain_bits=31), "ring 131072: must be one of"),
        (dict(kind="bgv", ring=2048, first_bits=60, plain_bits=31), "128 bits of security allow 54"),
        (dict(kind="bgv", ring=4096, first_bits=60, plain_bits=40), r"40 bits at ring 4096: must lie in \[14, 31\]"),
        (dict(kind="bgv", ring=2048, first_bits=44, plain_bits=31), "at least 46 bits"),
        (dict(kind="bgv", ring=2048, first_bits=61, plain_bits=31), r"61 bits: must lie in \[20, 60\]"),
        (dict(kind="ckks", ring=2048, first_bits=54, scale_bits=40), "OpenFHE takes 53"),
        (dict(kind="ckks", ring=4096, first_bits=60, scale_bits=59), "lower the scale"),
        (dict(kind="ckks", ring=4096, first_bits=60, scale_bits=40, flooding="statistical"), "use BGV"),
    ],
)
def test_refuses_rings(ring: dict[str, object], message: str) -> None:
    with pytest.raises(BudgetExceeded, match=message):
        Ring(**ring)  # type: ignore[arg-type]


def test_refuses_a_bgv_sum_whose_noise_wraps_silently() -> None:
    narrow = Ring("bgv", 2048, 54, plain_bits=31)
    OpenFheBgv(PLAN, narrow)
    with pytest.raises(BudgetExceeded, match="3 flooding parties at 31 plain bits exceeds .* silently wrong"):
        ThresholdBgv(PLAN, 3, narrow)
    with pytest.raises(BudgetExceeded, match="noise of 20000000 clients"):
        OpenFheBgv(Plan(length=1, clients=20_000_000, bound=1e-3), Ring("bgv", 2048, 54, plain_bits=31))


def test_margin_grows_with_the_modulus_and_falls_with_clients_and_parties() -> None:
    def margin(bits: int, clients: int, parties: int) -> float:
        return bgv_margin_bits(Ring("bgv", 4096, bits, plain_bits=28), clients, 3, parties, False, True)

    assert margin(60, 10, 2) > margin(58, 10, 2)
    assert margin(60, 10, 2) > margin(60, 10, 10)
    assert margin(60, 10, 2) > margin(60, 10_000_000, 2)


def test_refuses_a_ckks_sum_that_wraps_naming_the_bound() -> None:
    with pytest.raises(BudgetExceeded, match="16 clients at 100 can reach 1600.*below the bound 512"):
        OpenFheCkks(Plan(length=10, clients=16, bound=100.0), Ring("ckks", 4096, 60, scale_bits=50))
    fitted = OpenFheCkks(Plan(length=10, clients=16, bound=100.0))
    assert fitted.ring.scale_bits == 47 and fitted.budget.headroom_bits > 0


@pytest.mark.report("U16", "refused before anything is allocated, with the bytes wanted and the limit")
def test_refuses_memory_above_the_limit_before_anything_is_allocated() -> None:
    large = OpenFheBgv(PLAN, Ring("bgv", 65536, 60, plain_bits=31), python="/nonexistent")
    with pytest.raises(BudgetExceeded, match="ring 65536 with 1 primes needs about .* the limit is 104857600"):
        large.make_keys(memory_limit_bytes=100 << 20)


@pytest.mark.parametrize("parties", [0, 1, 11])
def test_refuses_committees_of_other_sizes(parties: int) -> None:
    with pytest.raises(InputError, match=f"committee of {parties}: must have 2 to 10"):
        threshold_sum(PLAN, parties)


def test_refuses_unknown_threshold_settings() -> None:
    with pytest.raises(InputError, match="base 'bfv': must be bgv or ckks"):
        threshold_sum(PLAN, 3, "bfv")
    with pytest.raises(InputError, match="use base bgv"):
        threshold_sum(PLAN, 3, "ckks", "statistical")
    with pytest.raises(InputError, match="a ckks ring for 'ofhe-bgv'"):
        OpenFheBgv(PLAN, Ring("ckks", 4096, 60, scale_bits=40))


def test_bytes_a_parameter() -> None:
    plan = Plan(length=1_000_000, clients=100, bound=1.0)
    assert OpenFheBgv(plan).budget.upload_bytes / plan.length < 13.6
    assert OpenFheCkks(plan).budget.upload_bytes / plan.length < 30.1
    threshold = threshold_sum(plan, 3)
    assert threshold.budget.upload_bytes / plan.length < 15.1
    assert threshold.partial_bytes / plan.length < 7.6
    assert threshold_sum(plan, 3, flooding="statistical").budget.upload_bytes / plan.length < 45.5


@given(st.sampled_from([20, 27, 30, 32, 45, 53, 54, 58, 60]), st.integers(0, 3), st.integers(0, 2**32))
def test_residues_survive_packing(bits: int, count: int, seed: int) -> None:
    modulus = np.array([2**bits - 1], np.uint64)
    residues = np.random.default_rng(seed).integers(0, modulus[0], (count, 2, 1, 64), np.uint64)
    data = pack(residues, bits)
    assert data.nbytes == packed_bytes(residues.size, bits)
    reference = sum(int(r) << (bits * i) for i, r in enumerate(residues.reshape(-1)))
    assert int.from_bytes(data.tobytes(), "little") == reference
    assert np.array_equal(unpack(memoryview(data), bits, modulus, residues.shape), residues)


def test_refuses_residues_that_are_not_below_their_modulus() -> None:
    moduli = np.array([97, 101], np.uint64)
    residues = np.zeros((3, 2, 2, 64), np.uint64)
    residues[:, :, 1] = 100
    residues[:, :, 0] = 96
    assert unpack(memoryview(pack(residues, 7)), 7, moduli, residues.shape).shape == residues.shape
    residues[2, 1, 0, 63] = 97
    with pytest.raises(WireError, match=r"residue 97 at \(2, 1, 0, 63\): must be below its modulus"):
        unpack(memoryview(pack(residues, 7)), 7, moduli, residues.shape)


@given(st.integers(0, 2**32))
def test_addition_of_residues_equals_integers(seed: int) -> None:
    moduli = np.array(bgv_ring("statistical").moduli, np.uint64)
    a, b = (np.random.default_rng((seed, i)).integers(0, moduli[:, None], (2, 3, 8), np.uint64) for i in (0, 1))
    a[0, 0, 0], b[0, 0, 0] = moduli[0] - np.uint64(1), 1
    expected = [
        [
            [(int(x) + int(y)) % int(q) for x, y in zip(*rows, strict=True)]
            for *rows, q in zip(p, r, moduli, strict=True)
        ]
        for p, r in zip(a, b, strict=True)
    ]
    add_into(a, b, moduli)
    assert a.tolist() == expected


def test_the_library_is_never_imported_into_this_process() -> None:
    code = "import sys; sys.modules['openfhe'] = None; import crypto.he_openfhe_threshold; print('fine')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "fine", done.stderr
