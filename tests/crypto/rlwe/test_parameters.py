"""Parameters: the security table, the failure bound against the exact law, what is refused, bytes to the byte."""

from fractions import Fraction
from math import comb, exp, log, log2, sqrt

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from crypto.base import Plan
from crypto.bfv import codec
from crypto.errors import BudgetExceeded
from crypto.lattice import is_prime, max_modulus_bits, tail
from crypto.rlwe import reference
from crypto.rlwe.parameters import (
    COMMITTEE_RINGS,
    LEAST_MODULUS_BITS,
    NORM_EXCESS,
    RINGS,
    RlweParameters,
    fit,
    fit_committee,
    noise_variance,
)

PLANS = st.builds(
    Plan,
    length=st.integers(1, 10**8),
    clients=st.integers(1, 5000),
    bound=st.sampled_from([1e-3, 1.0, 8.0, 1000.0]),
)


def check(p: RlweParameters, plan: Plan, max_value: int) -> None:
    assert p.security_bits >= 128 and p.modulus_bits <= max_modulus_bits(p.ring)
    assert all(is_prime(q) and q % (2 * p.ring) == 1 for q in p.moduli) and len(set(p.moduli)) == len(p.moduli)
    assert 2**p.plain_bits >= 2 * plan.clients * max_value + 1
    assert p.delta / 2 - 1 >= p.noise_bound(plan.clients)


@given(plan=PLANS, value_bits=st.integers(2, 24), mode=st.sampled_from(["symmetric", "public"]))
@example(plan=Plan(length=1, clients=21, bound=1e-3), value_bits=16, mode="symmetric")
@example(plan=Plan(length=1, clients=5, bound=1e-3), value_bits=9, mode="symmetric")
def test_every_plan_that_fits_holds_its_sum_and_noise(plan: Plan, value_bits: int, mode) -> None:
    fixed = codec(plan, value_bits, stochastic=True)
    p = fit(plan, fixed, mode)
    assert p.ring in RINGS and len(p.moduli) == 1
    check(p, plan, fixed.max_value)
    # No shorter q would do: not the largest prime with a bit less.
    shorter = 2 ** (p.modulus_bits - 1) - 2 * p.ring + 1
    while not is_prime(shorter):
        shorter -= 2 * p.ring
    assert p.modulus_bits == LEAST_MODULUS_BITS or (shorter >> p.plain_bits) / 2 - 1 < p.noise_bound(plan.clients)


@given(
    plan=PLANS.filter(lambda plan: plan.clients <= 1000),
    parties=st.sampled_from([2, 3, 10, 50]),
    rounds=st.integers(1, 1000),
)
def test_committees_hold_their_sum_noise_and_smudging(plan: Plan, parties: int, rounds: int) -> None:
    fixed = codec(plan, 18, stochastic=True)
    p = fit_committee(plan, fixed, parties, rounds)
    assert p.ring in COMMITTEE_RINGS
    check(p, plan, fixed.max_value)
    # The statistical distance of all that a member sends: r/2 sqrt(I M) / sigma.
    shown = p.ciphertexts(plan.length) * p.ring * rounds
    shift = sqrt(noise_variance(p.ring, "public", plan.clients, parties))
    assert shift / 2 * sqrt(1.01 * shown) / 2.0**p.smudge_bits <= 2.0**-40


@pytest.mark.parametrize("clients", [1, 2, 3, 10, 100, 1000])
def test_symmetric_failure_is_below_2_to_the_minus_40_by_the_exact_law(clients: int) -> None:
    """The noise of a sum of n is Binomial(42 n, 1/2) - 21 n; its tail is added up in whole numbers."""
    p = fit(Plan(length=1, clients=clients, bound=1.0), codec(Plan(length=1, clients=1, bound=1.0), 20, True))
    limit = p.delta // 2 - 1
    first = 21 * clients + limit + 1
    term, tail = comb(42 * clients, first) if first <= 42 * clients else 0, 0
    for k in range(first, min(42 * clients, first + 2000) + 1):
        tail += term
        term = term * (42 * clients - k) // (k + 1)
    # Beyond 2000 terms the ratio of neighbours is below one half of the first's.
    failure = Fraction(2 * p.ring * (2 * tail), 2 ** (42 * clients))
    assert failure <= Fraction(1, 2**40)
    assert p.noise_bound(clients) <= limit


def test_bounds_on_norms_hold_but_for_2_to_the_minus_46() -> None:
    for ring in RINGS + COMMITTEE_RINGS:
        assert exp(-ring * (NORM_EXCESS - 1 - log(NORM_EXCESS)) / 2) < 2.0**-46


def test_deviations_solve_the_union_bound() -> None:
    z = tail(2048, -40)
    assert log2(2 * 2048 * exp(-z * z / 2)) == pytest.approx(-40)


@pytest.mark.parametrize("parties", [1, 3])
def test_public_noise_has_the_variance_that_the_bound_assumes(parties: int) -> None:
    """E u + e0 + e1 s on many draws, in plain integers: below the bound's parameter by the factor of the norms."""
    rng, ring, clients = np.random.default_rng(5), 1024, 4

    def error() -> np.ndarray:
        return (rng.binomial(21, 0.5, ring) - rng.binomial(21, 0.5, ring)).astype(float)

    def negacyclic(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        twist = np.exp(1j * np.pi * np.arange(ring) / ring)
        return (np.fft.ifft(np.fft.fft(x * twist) * np.fft.fft(y * twist)) / twist).real

    found = []
    for _ in range(30):
        s = sum(rng.integers(-1, 2, ring).astype(float) for _ in range(parties))
        key_error = sum(error() for _ in range(parties))
        noise = sum(
            negacyclic(key_error, rng.integers(-1, 2, ring).astype(float)) + error() + negacyclic(error(), s)
            for _ in range(clients)
        )
        found.append(np.mean(noise**2))
    assumed = noise_variance(ring, "public", clients, parties)
    assert np.mean(found) == pytest.approx(assumed / NORM_EXCESS, rel=0.05)


@pytest.mark.parametrize(
    ("clients", "value_bits", "ring", "bits", "most"),
    [(1000, 20, 2048, 40, 5.5), (1000, 10, 2048, 30, 4.2), (100, 7, 1024, 23, 3.5)],
)
def test_bytes_a_parameter(clients: int, value_bits: int, ring: int, bits: int, most: float) -> None:
    plan = Plan(length=10**6, clients=clients, bound=1.0)
    p = fit(plan, codec(plan, value_bits, True))
    assert (p.ring, p.modulus_bits) == (ring, bits)
    assert p.part_bytes(plan.length) == 16 + p.ciphertexts(plan.length) * ring * bits // 8
    assert p.part_bytes(plan.length) / plan.length <= most


def test_a_plan_that_does_not_fit_says_which_bits_are_too_many() -> None:
    plan = Plan(length=10, clients=1000, bound=1.0)
    with pytest.raises(BudgetExceeded, match=r"40 value bits \+ 10 bits for 1000 clients need a modulus of 60 bits"):
        fit(plan, codec(plan, 40, True))
    with pytest.raises(BudgetExceeded, match="ring 1024 allows 27 at 128 bits of security; lower value_bits"):
        fit(plan, codec(plan, 22, True), ring=1024)
    with pytest.raises(BudgetExceeded, match=r"ring 4096: sums use \[1024, 2048\]"):
        fit(plan, codec(plan, 10, True), ring=4096)
    with pytest.raises(BudgetExceeded, match="smudging of .* bits need a modulus of .* ring 4096 allows 109"):
        fit_committee(plan, codec(plan, 40, True), 3, 100)


def test_the_reference_agrees_on_delta_and_q() -> None:
    plan = Plan(length=10, clients=10, bound=1.0)
    p = fit_committee(plan, codec(plan, 20, True), 3, 10)
    x = np.array([[p.delta % q] * p.ring for q in p.moduli], object)
    assert set(reference.combine(p, x)) == {p.delta} and set(reference.decode(p, x)) == {1}
