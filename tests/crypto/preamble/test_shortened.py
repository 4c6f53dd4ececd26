"""Rounds that are shorter than the plan's: fewer blocks, no less privacy, the same sum."""

from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from crypto.base import Plan, Tag
from crypto.errors import BudgetExceeded
from crypto.preamble.noise import NoNoiseForTests
from crypto.preamble.privacy import Mechanism, guarantee
from crypto.preamble.scheme import Parameters, PreambleSum, _bounds

KEY = X25519PrivateKey.from_private_bytes(bytes(range(32)))


def scheme(length, block_size=8, groups=8, **changes):
    parameters = Parameters(norm_bound=1.0, block_size=block_size, groups=groups, sigma=3.0, fraction_bits=16)
    key = KEY.public_key().public_bytes_raw()
    return PreambleSum(
        Plan(length=length, clients=9, bound=1.0), replace(parameters, **changes), helper_key=key, run=bytes(16)
    )


@given(st.data())
def test_privacy_blocks_and_noise_of_any_shorter_round(data):
    length, block = data.draw(st.integers(1, 3000)), data.draw(st.sampled_from([1, 4, 16, 24]))
    plan = scheme(length, block, data.draw(st.integers(1, 20)), rotated=data.draw(st.booleans()))
    short = plan.shortened(data.draw(st.integers(1, length)))
    p, q = plan.parameters, short.parameters
    full, less = _bounds(p, length), _bounds(q, short.plan.length)
    assert less.shape.blocks_per_group >= full.shape.blocks_per_group
    assert q.groups <= p.groups and q.block_size <= p.block_size and q.fraction_bits <= p.fraction_bits
    assert q.sigma / less.sensitivity == pytest.approx(p.sigma / full.sensitivity, rel=1e-12)
    assert less.integer_bound <= full.integer_bound * (1 + 1e-9)
    assert short.budget.upload_bytes <= plan.budget.upload_bytes
    if short is not plan:
        spread = short.plan.length
        assert less.shape.spread_length >= spread and q.groups * q.block_size < p.groups * p.block_size


@pytest.mark.parametrize(("length", "groups"), [(4096, 8), (2048, 4), (1030, 4), (1024, 2), (512, 1), (3, 1)])
def test_half_the_coordinates_are_half_the_blocks_and_hide_a_client_no_worse(length, groups):
    plan = scheme(4096, 64, 8)
    short = plan.shortened(length)
    assert short.parameters.groups == groups and short.plan.length >= length
    sigma, s = short.parameters.sigma, _bounds(short.parameters, short.plan.length).sensitivity
    assert sigma == pytest.approx(3.0 * np.sqrt(8 / groups))
    mechanism = Mechanism(ratio=sigma / s, blocks_per_group=8, groups=groups)
    whole = Mechanism(ratio=sigma / s, blocks_per_group=8, groups=8)
    assert guarantee(mechanism, 1e-6).epsilon <= guarantee(whole, 1e-6).epsilon


@pytest.mark.parametrize("length", [1, 33, 512, 700])
@pytest.mark.parametrize("rotated", [True, False])
def test_both_servers_derive_the_round_and_open_its_exact_sum(length, rotated):
    """Blocks as long as their group, so that nothing is sampled; clip factor 4, so that nothing is clipped."""
    plan = scheme(1024, 64, 16, rotated=rotated, clip_factor=4.0)
    short = plan.shortened(length)
    tag = Tag(round=1, layout_hash=bytes(16), length=short.plan.length)
    leader, helper = short.leader(tag, NoNoiseForTests()), short.helper(tag, KEY, NoNoiseForTests())
    rng, vectors = np.random.default_rng(length), []
    for _ in range(3):
        v = rng.normal(size=length) / np.sqrt(1024)
        vectors.append(v)
        parts = short.sealer().seal(np.pad(v, (0, tag.length - length)), tag)
        helper.add(leader.add_and_relay(*parts))
    proofs = leader.verify_init(), helper.verify_init()
    leader.settle(proofs[1])
    helper.settle(proofs[0])
    opened = short.opener().open([leader.total(), helper.total()], tag)
    np.testing.assert_allclose(opened[:length], np.sum(vectors, axis=0), atol=1e-3)


def test_one_block_of_the_whole_vector_shrinks_itself():
    plan = scheme(1000, 1024, 1)
    assert plan.shortened(1000) is plan and plan.shortened(600) is plan
    short = plan.shortened(200)
    assert (short.parameters.block_size, short.plan.length, short.parameters.sigma) == (256, 256, 3.0)


def test_refuses_a_longer_round():
    with pytest.raises(BudgetExceeded, match="a round of 4097 coordinates: the plan's longest round has 4096"):
        scheme(4096).shortened(4097)
