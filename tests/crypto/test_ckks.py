"""CKKS parameters, headroom and error bound, without a backend."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crypto.base import Plan
from crypto.ckks import CkksParameters, check, noise_bound
from crypto.errors import BudgetExceeded
from crypto.lattice import batching_prime, compressed_bytes, fresh_noise_std, is_prime, max_modulus_bits, security_bits


def plan(clients: int, bound: float, length: int = 2048) -> Plan:
    return Plan(length=length, clients=clients, bound=bound)


@pytest.mark.report("T5")
@given(
    clients=st.integers(1, 4096),
    bound=st.floats(1e-3, 1e4),
    chain=st.sampled_from([(40, 40), (54, 54), (60, 40), (40, 20, 40)]),
    scale_bits=st.integers(20, 45),
)
def test_accepts_exactly_what_cannot_wrap(clients: int, bound: float, chain: tuple[int, ...], scale_bits: int) -> None:
    data_bits = sum(chain[:-1])
    if scale_bits > data_bits - 2:
        with pytest.raises(BudgetExceeded, match="lower the scale"):
            CkksParameters(4096, chain, scale_bits)
        return
    parameters = CkksParameters(4096, chain, scale_bits)
    try:
        proof = check(parameters, plan(clients, bound), "public-switched")
    except BudgetExceeded as error:
        wraps = "wraps silently" in str(error)
        assert wraps or "raise the scale" in str(error)
        assert wraps == (
            clients * bound + noise_bound(parameters, plan(clients, bound), "public-switched")
            >= 2.0 ** (data_bits - scale_bits - 1)
        )
    else:
        assert clients * bound + proof.noise_bound < 2.0 ** (data_bits - scale_bits - 1)
        assert proof.headroom_bits > 0
        assert proof.noise_bound <= proof.grid < 2 * proof.noise_bound
        assert proof.error_bound <= bound * 2.0**-10


def test_the_message_names_value_bound_and_two_remedies() -> None:
    with pytest.raises(BudgetExceeded) as caught:
        check(CkksParameters(chain=(40, 40), scale_bits=30), plan(16, 100.0), "public-switched")
    text = str(caught.value)
    assert "16 clients at 100 can reach 1600" in text
    assert "bound 512" in text and "wraps silently" in text
    assert "chain [60, 40], or scale 2^28 or below" in text


def test_the_remedies_in_the_message_work() -> None:
    for remedy in (CkksParameters(chain=(60, 40), scale_bits=30), CkksParameters(chain=(40, 40), scale_bits=28)):
        assert check(remedy, plan(16, 100.0), "public-switched").headroom_bits > 0


@given(st.integers(1, 10_000), st.integers(1, 10_000))
def test_more_clients_never_shrink_the_error_bound(a: int, b: int) -> None:
    bounds = [noise_bound(CkksParameters(), plan(n, 1.0), "symmetric") for n in sorted((a, b))]
    assert bounds[0] <= bounds[1]


def test_flooding_widens_the_bound() -> None:
    quiet = noise_bound(CkksParameters(), plan(10, 1.0), "public")
    assert noise_bound(CkksParameters(), plan(10, 1.0), "public", extra_std=2.0**20, extra_count=3) > 100 * quiet


def test_symmetric_is_quieter_than_switched_than_public() -> None:
    stds = [fresh_noise_std(4096, how) for how in ("symmetric", "public-switched", "public")]
    assert stds == sorted(stds)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"ring": 1000}, "ring 1000"),
        ({"chain": (54,)}, "at least 2 primes"),
        ({"chain": (61, 40)}, "20 to 60 bits"),
        ({"chain": (60, 60)}, "120 modulus bits at ring 4096: 128 bits of security allow 109"),
        ({"scale_bits": 53}, "between 2\\^1 and 2\\^52"),
    ],
)
def test_refuses_bad_parameters(arguments: dict[str, object], match: str) -> None:
    with pytest.raises(BudgetExceeded, match=match):
        CkksParameters(**arguments)


@pytest.mark.report("U40", "every budget states its security; less than 128 bits needs `allow_insecure`")
def test_under_128_bits_needs_an_explicit_flag() -> None:
    weak = CkksParameters(4096, (60, 60), insecure=True)
    assert weak.security_bits == 0
    assert CkksParameters().security_bits == 128


def test_a_scale_that_drowns_the_values_is_refused() -> None:
    with pytest.raises(BudgetExceeded, match=r"error bound .* at scale 2\^20: .* raise the scale"):
        check(CkksParameters(4096, (40, 40), 20), plan(1000, 0.1), "public")


def test_release_rounds_in_place_within_half_a_grid_step() -> None:
    proof = check(CkksParameters(), plan(10, 1.0), "symmetric")
    values = np.random.default_rng(0).uniform(-10, 10, 1000)
    exact = values.copy()
    assert proof.release(values) is values
    assert np.max(np.abs(values - exact)) <= proof.grid / 2


@pytest.mark.parametrize(("ring", "bits"), [(1024, 27), (2048, 54), (4096, 109), (8192, 218), (16384, 438)])
def test_security_table_has_sharp_edges(ring: int, bits: int) -> None:
    assert max_modulus_bits(ring) == bits
    assert security_bits(ring, bits) == 128
    assert security_bits(ring, bits + 1) == 0


def test_unknown_rings_are_named() -> None:
    with pytest.raises(BudgetExceeded, match="ring 3000"):
        max_modulus_bits(3000)


@given(st.integers(0, 5000))
def test_primality_agrees_with_trial_division(number: int) -> None:
    assert is_prime(number) == (number > 1 and all(number % d for d in range(2, int(number**0.5) + 1)))


def test_known_large_primes_and_pseudoprimes() -> None:
    assert is_prime(2**61 - 1) and is_prime(18446744073709551557)
    assert not is_prime(3215031751) and not is_prime(3825123056546413051) and not is_prime(2**61 + 1)


@given(st.sampled_from([1024, 2048, 4096]), st.integers(1, 2**55))
def test_batching_primes_are_prime_large_enough_and_one_modulo_2n(ring: int, least: int) -> None:
    prime = batching_prime(ring, least)
    assert is_prime(prime) and prime >= least and prime % (2 * ring) == 1


@pytest.mark.parametrize(
    ("ring", "primes", "polynomials", "measured"),
    [
        (2048, (44,), 1, 13_796),
        (2048, (54,), 1, 15_580),
        (2048, (54,), 2, 30_912),
        (4096, (54,), 2, 61_740),
        (4096, (40,), 2, 49_070),
        (8192, (60, 40), 2, 235_040),
        (8192, (60, 40, 40), 2, 331_010),
    ],
)
def test_size_formula_agrees_with_measured_ciphertexts(
    ring: int, primes: tuple[int, ...], polynomials: int, measured: int
) -> None:
    assert compressed_bytes(ring, primes, polynomials) == pytest.approx(measured, rel=0.03)
