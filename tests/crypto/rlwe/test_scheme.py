"""``rlwe``: the law, exactness at the worst, equality with BFV, what it refuses, and what the server holds."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crypto import _native, wire
from crypto.base import Plan, Tag
from crypto.errors import (
    BudgetExceeded,
    EmptySum,
    InputError,
    IntegrityError,
    KeyMismatch,
    LayoutMismatch,
    ReplayError,
    WireError,
)
from crypto.keys import KeyBundle, without_secret
from crypto.rlwe import reference
from crypto.rlwe.engine import Seeds
from crypto.rlwe.scheme import RlweSum

FAST = settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
MODES = pytest.mark.parametrize("mode", ["symmetric", "public"])


def tag(length: int, round_: int = 3) -> Tag:
    return Tag(round=round_, layout_hash=b"layout-hash-0123", length=length)


def federation(plan: Plan, **options):
    """Return (sum, server bundle, clients' bundle) with the key bound."""
    sum_ = RlweSum(plan, **options)
    server, clients = sum_.make_keys()
    return sum_.with_key(server.key_id), server, clients


def total_of(sum_: RlweSum, parts: list[bytes], t: Tag) -> bytes:
    adder = sum_.adder(t)
    for part in parts:
        adder.add(part)
    assert adder.count == len(parts)
    return adder.total()


@MODES
@pytest.mark.parametrize("clients", [1, 2, 3, 10, 100, 1000])
@FAST
@given(data=st.data())
def test_sums_obey_the_law(clients: int, mode, data: st.DataObject) -> None:
    length = data.draw(st.sampled_from([1, 2, 1023, 1024, 1025, 2049] if clients <= 10 else [1, 1025]))
    bound = data.draw(st.sampled_from([1e-3, 1.0, 8.0, 1000.0]))
    bits, stochastic = data.draw(st.integers(2, 22)), data.draw(st.booleans())
    plan = Plan(length=length, clients=clients, bound=bound)
    sum_, _, key = federation(plan, mode=mode, value_bits=bits, stochastic=stochastic)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    kinds = [np.zeros(length), np.full(length, bound), np.full(length, -bound), rng.uniform(-bound, bound, length)]
    vectors = [kinds[i] for i in rng.integers(0, 4, clients)]
    sealer, t = sum_.sealer(key), tag(length)
    opened = sum_.opener(key).open([total_of(sum_, [sealer.seal(v, t)[0] for v in vectors], t)], t)
    assert opened.shape == (length,) and opened.dtype == np.float64
    assert np.max(np.abs(opened - np.sum(vectors, axis=0))) <= sum_.budget.error_bound


@MODES
@pytest.mark.parametrize("value", [8.0, -8.0])
def test_1024_clients_at_the_clip_value_sum_exactly(mode, value: float) -> None:
    sum_, _, key = federation(Plan(length=2049, clients=1024, bound=8.0), mode=mode)
    sealer, t = sum_.sealer(key), tag(2049)
    part = [sealer.seal(np.full(2049, value, np.float32), t)[0] for _ in range(1024)]
    opened = sum_.opener(key).open([total_of(sum_, part, t)], t)
    np.testing.assert_array_equal(opened, np.full(2049, 1024 * value))


def integers_of_a_sum(length: int, clients: int, value_bits: int) -> None:
    """Seal whole numbers of steps, a third of them at either clip value: the opened sum is exact."""
    plan = Plan(length=length, clients=clients, bound=1.0)
    sum_, _, key = federation(plan, value_bits=value_bits)
    sealer, t, rng = sum_.sealer(key), tag(length), np.random.default_rng(value_bits)
    most, expected, adder = sum_.codec.max_value, np.zeros(length, np.int64), sum_.adder(t)
    worst = rng.integers(0, 6, length)
    for _ in range(clients):
        values = rng.integers(-most, most, length, endpoint=True)
        values[worst == 0], values[worst == 1] = most, -most
        expected += values
        adder.add(sealer.seal((values * sum_.codec.step).astype(np.float32), t)[0])
    opened = sum_.opener(key).open([adder.total()], t)
    np.testing.assert_array_equal(opened, expected * sum_.codec.step)


@pytest.mark.parametrize("value_bits", [10, 20])
def test_sums_of_1000_are_exact(value_bits: int) -> None:
    integers_of_a_sum(20_000, 1000, value_bits)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("value_bits", [10, 20])
def test_ten_million_coefficients_are_exact(value_bits: int) -> None:
    integers_of_a_sum(10_000_000, 10, value_bits)


@MODES
def test_sums_are_those_of_bfv_on_seal(mode) -> None:
    """Rounded to nearest, both schemes see the same integers; both are exact."""
    pytest.importorskip("tenseal", reason="tenseal is not installed: pip install 'fedsim[tenseal]'")
    from crypto.he_seal import BfvSum

    plan, t = Plan(length=5000, clients=20, bound=2.0), tag(5000)
    rng = np.random.default_rng(8)
    vectors = [rng.uniform(-2.2, 2.2, 5000).astype(np.float32) for _ in range(20)]
    opened = []
    for scheme in (RlweSum(plan, mode=mode, stochastic=False), BfvSum(plan, mode=mode, stochastic=False)):
        _, key = scheme.make_keys()
        bound = scheme.with_key(key.key_id)
        sealer = bound.sealer(key)
        opened.append(bound.opener(key).open([total_of(bound, [sealer.seal(v, t)[0] for v in vectors], t)], t))
    np.testing.assert_array_equal(opened[0], opened[1])


@MODES
def test_partial_totals_merge_to_the_same_bytes(mode) -> None:
    sum_, _, key = federation(Plan(length=3000, clients=6, bound=1.0), mode=mode)
    sealer, t = sum_.sealer(key), tag(3000)
    parts = [sealer.seal(np.random.default_rng(i).uniform(-1, 1, 3000), t)[0] for i in range(6)]
    merged = sum_.adder(t)
    for pair in (parts[4:], parts[:2], parts[2:4]):
        merged.merge(total_of(sum_, pair, t))
    assert merged.count == 6
    assert merged.total() == total_of(sum_, parts, t) == total_of(sum_, parts[::-1], t)


@MODES
def test_messages_have_exactly_the_bytes_of_the_budget(mode) -> None:
    plan = Plan(length=2500, clients=10, bound=1.0)
    sum_, _, key = federation(plan, mode=mode)
    part = sum_.sealer(key).seal(np.ones(2500), tag(2500))[0]
    p, seed = sum_.parameters, 16 if mode == "symmetric" else 0
    plane = p.ciphertexts(2500) * p.ring * p.modulus_bits // 8
    assert len(part) == sum_.budget.upload_bytes == wire.HEADER_BYTES + seed + plane * (1 if seed else 2)
    assert len(total_of(sum_, [part], tag(2500))) == sum_.budget.download_bytes == wire.HEADER_BYTES + 2 * plane


@MODES
def test_every_instruction_set_seals_and_opens_the_same(mode) -> None:
    sum_, _, key = federation(Plan(length=3000, clients=10, bound=1.0), mode=mode)
    sealer, t, x = sum_.sealer(key), tag(3000), np.linspace(-1, 1, 3000, dtype=np.float32)
    made = {sealer.seal_with(x, t, Seeds(b"p" * 16, b"s" * 16), isa) for isa in _native.ring_isas()}
    assert len(made) == 1


def test_the_reference_opens_what_was_sealed() -> None:
    plan = Plan(length=1030, clients=3, bound=1.0)
    sum_, _, key = federation(plan, value_bits=12)
    sealer, t, p = sum_.sealer(key), tag(1030), sum_.parameters
    vectors = [np.random.default_rng(i).uniform(-1, 1, 1030) for i in range(3)]
    total = total_of(sum_, [sealer.seal(v, t)[0] for v in vectors], t)
    body = total[wire.HEADER_BYTES :]
    first, second = (reference.unpack(p, half) for half in (body[: len(body) // 2], body[len(body) // 2 :]))
    s = reference.secret(p, key.secret)
    opened = [reference.decode(p, reference.phase(p, c0, c1, s)) for c0, c1 in zip(first, second, strict=True)]
    values = np.concatenate(opened)[:1030].astype(float) * sum_.codec.step
    np.testing.assert_array_equal(values, sum_.opener(key).open([total], t))


def test_padding_does_not_depend_on_the_number_of_clients() -> None:
    """A strategy pads to whole ciphertexts before it knows how many clients there are, which the ring depends on."""
    sums = [RlweSum(Plan(length=3000, clients=n, bound=1.0), value_bits=12) for n in (1, 1000)]
    assert [s.parameters.ring for s in sums] == [1024, 2048]
    assert [s.slots % s.parameters.ring for s in sums] == [0, 0] and len({s.slots for s in sums}) == 1


def test_fresh_randomness_each_time() -> None:
    sum_, _, key = federation(Plan(length=10, clients=2, bound=1.0))
    sealer = sum_.sealer(key)
    one, other = (sealer.seal(np.ones(10), tag(10))[0][wire.HEADER_BYTES :] for _ in range(2))
    assert one[:16] != other[:16] and one[16:] != other[16:]


def test_values_beyond_the_bound_are_clipped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    sum_, _, key = federation(Plan(length=4, clients=1, bound=8.0))
    sealer, t = sum_.sealer(key), tag(4)
    with caplog.at_level("WARNING"):
        part = sealer.seal(np.array([8.0, 9.0, -100.0, 1.0]), t)[0]
    assert sealer.clipped == 2 and "2 of 4 values lie outside the bound 8" in caplog.text
    opened = sum_.opener(key).open([total_of(sum_, [part], t)], t)
    np.testing.assert_allclose(opened, [8, 8, -8, 1], atol=sum_.budget.error_bound)


def test_rounding_is_unbiased() -> None:
    sum_, _, key = federation(Plan(length=20_000, clients=1, bound=1.0), value_bits=4)
    t = tag(20_000)
    x = np.full(20_000, 0.3 * sum_.codec.step)
    opened = sum_.opener(key).open([total_of(sum_, [sum_.sealer(key).seal(x, t)[0]], t)], t)
    assert set(np.unique(opened)) == {0.0, sum_.codec.step}
    assert opened.mean() == pytest.approx(x[0], abs=4 * sum_.codec.step * 0.5 / np.sqrt(20_000))


@pytest.mark.parametrize(
    ("vector", "text"),
    [
        (np.array([1.0, np.nan, 2.0]), r"coordinate 1 is nan"),
        (np.array([1.0, 2.0, -np.inf]), r"coordinate 2 is -inf"),
        (np.ones(4), "shape"),
        (np.ones((3, 1)), "shape"),
        (np.ones(3, np.int64), "dtype"),
    ],
)
def test_refuses_vectors(vector: np.ndarray, text: str) -> None:
    sum_, _, key = federation(Plan(length=3, clients=1, bound=1.0))
    with pytest.raises(InputError, match=text):
        sum_.sealer(key).seal(vector, tag(3))


@pytest.mark.parametrize("vector", [np.arange(6.0)[::2], np.array([0, 2, 4], np.float16), np.array([0, 2, 4.0], ">f8")])
def test_takes_any_floats_in_any_order(vector: np.ndarray) -> None:
    sum_, _, key = federation(Plan(length=3, clients=1, bound=8.0))
    part = sum_.sealer(key).seal(vector, tag(3))[0]
    np.testing.assert_array_equal(sum_.opener(key).open([total_of(sum_, [part], tag(3))], tag(3)), [0, 2, 4])


@MODES
def test_refuses_messages_of_another_round_layout_key_or_length(mode) -> None:
    plan = Plan(length=30, clients=4, bound=1.0)
    sum_, _, key = federation(plan, mode=mode)
    other, _, other_key = federation(plan, mode=mode)
    adder, t = sum_.adder(tag(30)), tag(30)
    part = sum_.sealer(key).seal(np.ones(30), t)[0]
    adder.add(part)
    before = adder.total()
    bad = [
        (ReplayError, sum_.sealer(key).seal(np.ones(30), tag(30, 2))[0]),
        (LayoutMismatch, sum_.sealer(key).seal(np.ones(30), replace(t, layout_hash=bytes(16)))[0]),
        (KeyMismatch, other.sealer(other_key).seal(np.ones(30), t)[0]),
        (WireError, part[:-1]),
        (WireError, part + b"\0"),
        (WireError, before),
        (IntegrityError, part[:-1] + bytes([part[-1] ^ 1])),
    ]
    for error, message in bad:
        with pytest.raises(error):
            adder.add(message)
    with pytest.raises(WireError):
        adder.merge(part)
    assert adder.count == 1 and adder.total() == before


@MODES
def test_refuses_residues_at_or_above_the_modulus_and_keeps_the_sum(mode) -> None:
    sum_, _, key = federation(Plan(length=3000, clients=4, bound=1.0), mode=mode)
    t = tag(3000)
    part = sum_.sealer(key).seal(np.ones(3000), t)[0]
    adder = sum_.adder(t)
    adder.add(part)
    before = adder.total()
    body = bytearray(part[wire.HEADER_BYTES :])
    body[-7:] = b"\xff" * 7
    with pytest.raises(WireError, match="a residue is not below the modulus"):
        adder.add(wire.encode(sum_.header(t), wire.PART, 1, body))
    bad = bytearray(before[wire.HEADER_BYTES :])
    bad[:7] = b"\xff" * 7
    framed = wire.encode(sum_.header(t), wire.TOTAL, 1, bad)
    with pytest.raises(WireError, match="a residue is not below the modulus"):
        adder.merge(framed)
    with pytest.raises(WireError, match="a residue is not below the modulus"):
        sum_.opener(key).open([framed], t)
    assert adder.count == 1 and adder.total() == before


def test_a_ciphertext_of_another_making_is_found_when_opening() -> None:
    sum_, _, key = federation(Plan(length=30, clients=4, bound=1.0))
    t = tag(30)
    good = sum_.sealer(key).seal(np.ones(30), t)[0]
    body = bytearray(good[wire.HEADER_BYTES :])
    body[:16] = bytes(16)  # another seed: a uniform phase
    forged = wire.encode(sum_.header(t), wire.PART, 1, body)
    with pytest.raises(IntegrityError, match="a client sent a ciphertext of another making"):
        sum_.opener(key).open([total_of(sum_, [good, forged], t)], t)


def test_refuses_more_vectors_than_planned_and_empty_sums() -> None:
    sum_, _, key = federation(Plan(length=3, clients=1, bound=1.0))
    adder, t = sum_.adder(tag(3)), tag(3)
    with pytest.raises(EmptySum):
        adder.total()
    part = sum_.sealer(key).seal(np.ones(3), t)[0]
    adder.add(part)
    with pytest.raises(WireError, match="2 vectors: the plan declares 1 clients"):
        adder.add(part)
    with pytest.raises(InputError, match="round of 4 coordinates"):
        sum_.adder(tag(4))


def test_the_server_can_neither_seal_nor_open() -> None:
    sum_, server, clients = federation(Plan(length=3, clients=1, bound=1.0))
    assert server.secret == b"" == server.public and clients.public == b""
    for make in (sum_.sealer, sum_.opener):
        with pytest.raises(KeyMismatch, match="has no secret key"):
            make(server)
    assert len(clients.secret) == 16 and clients.secret not in pickle.dumps(vars(sum_.adder(tag(3))))


def test_in_public_mode_no_secret_is_needed_to_seal() -> None:
    sum_, _, clients = federation(Plan(length=3, clients=1, bound=1.0), mode="public")
    sealer = sum_.sealer(without_secret(clients, "clients"))
    part = sealer.seal(np.ones(3), tag(3))[0]
    assert clients.secret not in pickle.dumps(sealer)
    np.testing.assert_array_equal(sum_.opener(clients).open([total_of(sum_, [part], tag(3))], tag(3)), np.ones(3))


def test_roles_survive_pickling() -> None:
    sum_, _, key = federation(Plan(length=3, clients=1, bound=1.0))
    sum_, sealer, opener = pickle.loads(pickle.dumps((sum_, sum_.sealer(key), sum_.opener(key))))
    part = sealer.seal(np.ones(3), tag(3))[0]
    np.testing.assert_array_equal(opener.open([total_of(sum_, [part], tag(3))], tag(3)), np.ones(3))


def test_keys_follow_from_their_seeds_and_differ_otherwise() -> None:
    sum_ = RlweSum(Plan(length=3, clients=1, bound=1.0))
    one, again = (sum_.keys_from(b"p" * 16, b"s" * 16) for _ in range(2))
    assert one == again and sum_.keys_from(b"p" * 16, b"t" * 16)[0].key_id != one[0].key_id
    assert sum_.make_keys()[1].secret != sum_.make_keys()[1].secret


@pytest.mark.parametrize(
    "change", [{"secret": b"short"}, {"params_hash": bytes(range(16))}, {"scheme": "bfv"}, {"key_id": b"87654321"}]
)
def test_refuses_other_keys(change: dict) -> None:
    sum_, _, key = federation(Plan(length=3, clients=1, bound=1.0))
    fields = {name: getattr(key, name) for name in ("role", "scheme", "params_hash", "key_id", "public", "secret")}
    with pytest.raises(KeyMismatch):
        sum_.sealer(KeyBundle(**(fields | change)))


def test_refuses_damaged_public_keys() -> None:
    sum_, _, key = federation(Plan(length=3, clients=1, bound=1.0), mode="public")
    with pytest.raises(KeyMismatch, match="public key of 3 bytes"):
        sum_.sealer(replace(key, public=b"abc"))
    with pytest.raises(WireError, match="not below the modulus"):
        sum_.sealer(replace(key, public=key.public[:16] + b"\xff" * (len(key.public) - 16)))


def test_refuses_a_plan_that_does_not_fit() -> None:
    with pytest.raises(BudgetExceeded, match="ring 2048 allows 54"):
        RlweSum(Plan(length=3, clients=1000, bound=1.0), value_bits=40)
