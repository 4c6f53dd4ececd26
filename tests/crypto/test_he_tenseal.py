"""CKKS on TenSEAL: the law within the error bound, headroom, and what the server holds."""

import pickle

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("tenseal", reason="tenseal is not installed: pip install 'fedsim[tenseal]'")

from crypto import wire
from crypto.base import Plan, Tag
from crypto.ckks import CkksParameters
from crypto.errors import BackendUnavailable, BudgetExceeded, InputError, IntegrityError, KeyMismatch, WireError
from crypto.he_seal import library
from crypto.he_tenseal import CkksSum
from crypto.keys import without_secret

FAST = settings(max_examples=4, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


def tag(length: int, round_: int = 3) -> Tag:
    return Tag(round=round_, layout_hash=b"layout-hash-0123", length=length)


def federation(plan: Plan, **options):
    """Return (sum, server bundle, clients' bundle) with the key bound."""
    sum_ = CkksSum(plan, **options)
    server, clients = sum_.make_keys()
    return sum_.with_key(server.key_id), server, clients


def add_all(sum_: CkksSum, parts: list[bytes], t: Tag) -> bytes:
    adder = sum_.adder(t)
    for part in parts:
        adder.add(part)
    return adder.total()


def check_law(data: st.DataObject, mode: str, clients: int, length: int, parameters: CkksParameters) -> None:
    bound = data.draw(st.sampled_from([1e-2, 1.0, 7.0]))
    sum_, _, key = federation(Plan(length=length, clients=clients, bound=bound), parameters=parameters, mode=mode)
    sealer, t = sum_.sealer(key), tag(length)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    kinds = [np.zeros(length), np.full(length, bound), np.full(length, -bound), rng.uniform(-bound, bound, length)]
    vectors = [kinds[i] for i in rng.integers(0, 4, clients)]
    opened = sum_.opener(key).open([add_all(sum_, [sealer.seal(v, t)[0] for v in vectors], t)], t)
    assert opened.shape == (length,) and opened.dtype == np.float64
    assert np.max(np.abs(opened - np.sum(vectors, axis=0))) <= sum_.budget.error_bound


@pytest.mark.parametrize("mode", ["symmetric", "public"])
@pytest.mark.parametrize("clients", [1, 2, 3, 10])
@FAST
@given(data=st.data())
def test_sum_obeys_the_law(mode: str, clients: int, data: st.DataObject) -> None:
    parameters = data.draw(
        st.sampled_from(
            [
                CkksParameters(),
                CkksParameters(chain=(60, 40), scale_bits=30),
                CkksParameters(2048, (54,), 40, special=False),
                CkksParameters(8192, (60, 40, 40, 60), 40),
            ]
        )
    )
    length = data.draw(st.sampled_from([1, 2, parameters.slots - 1, parameters.slots, parameters.slots + 1]))
    check_law(data, mode, clients, length, parameters)


@pytest.mark.parametrize("mode", ["symmetric", "public"])
@pytest.mark.parametrize("clients", [100, 1000])
@settings(FAST, max_examples=1)
@given(data=st.data())
def test_many_clients_obey_the_law(mode: str, clients: int, data: st.DataObject) -> None:
    small = CkksParameters(2048, (54,), 40, special=False)
    parameters = CkksParameters() if (mode, clients) == ("public", 100) else small
    check_law(data, mode, clients, parameters.slots, parameters)


@pytest.mark.report(
    "U7", "4,095 to 8,193 values open to the plain sum within the bound; the last ciphertext is not polluted"
)
@pytest.mark.parametrize("length", [4095, 4096, 4097, 8192, 8193])
def test_lengths_across_slot_edges_do_not_pollute_the_last_chunk(length: int) -> None:
    sum_, _, key = federation(Plan(length=length, clients=2, bound=1.0), parameters=CkksParameters(8192, (60, 60), 40))
    v, t = np.random.default_rng(length).uniform(-1, 1, length), tag(length)
    sealer = sum_.sealer(key)
    opened = sum_.opener(key).open([add_all(sum_, [*sealer.seal(v, t), *sealer.seal(v, t)], t)], t)
    assert np.max(np.abs(opened - 2 * v)) <= sum_.budget.error_bound


@pytest.mark.report(
    "U2", "chain [40,40] at scale 2^30 is refused with its bound of 512; on [60,40] the sum is 1600 within 1e-3"
)
@pytest.mark.report("T5", "refused before round 1 with the bound and two remedies")
def test_16_times_100_is_refused_on_a_short_chain_and_right_on_a_long_one() -> None:
    plan = Plan(length=2048, clients=16, bound=100.0)
    with pytest.raises(BudgetExceeded, match=r"16 clients at 100 .* bound 512 only .* \[60, 40\], or scale 2\^28"):
        CkksSum(plan, parameters=CkksParameters(chain=(40, 40), scale_bits=30))
    sum_, _, key = federation(plan, parameters=CkksParameters(chain=(60, 40), scale_bits=30), mode="public")
    sealer, t = sum_.sealer(key), tag(2048)
    parts = [sealer.seal(np.full(2048, 100.0, np.float32), t)[0] for _ in range(16)]
    assert np.max(np.abs(sum_.opener(key).open([add_all(sum_, parts, t)], t) - 1600)) < 1e-3


@pytest.mark.report("U3", "2,048 products on chain [40,29,40] at scale 2^28 sum within 1e-3, or are refused")
@pytest.mark.parametrize("chain", [(40, 28, 40), (40, 29, 40)])
def test_a_modulus_of_one_bit_more_never_gives_a_wrong_sum(chain: tuple[int, ...]) -> None:
    rng = np.random.default_rng(355)
    products = (rng.uniform(0.5, 1, (4, 2048)) * rng.uniform(0.5, 1, (4, 2048)) * 0.25).astype(np.float32)
    plan = Plan(length=2048, clients=4, bound=1.0)
    try:
        sum_, _, key = federation(plan, parameters=CkksParameters(8192, chain, 28), mode="public")
    except BudgetExceeded:
        return
    sealer, t = sum_.sealer(key), tag(2048)
    opened = sum_.opener(key).open([add_all(sum_, [sealer.seal(v, t)[0] for v in products], t)], t)
    np.testing.assert_allclose(opened, products.astype(np.float64).sum(axis=0), rtol=1e-3)


@pytest.mark.report("U10", "zeros seal and sum like any value; layers that do not travel cost 0 bytes")
def test_a_zero_vector_and_a_zero_beside_a_value_sum_right() -> None:
    sum_, _, key = federation(Plan(length=2, clients=2, bound=1.0))
    sealer, t = sum_.sealer(key), tag(2)
    parts = [sealer.seal(np.zeros(2), t)[0], sealer.seal(np.array([0.1, 0.0]), t)[0]]
    np.testing.assert_allclose(
        sum_.opener(key).open([add_all(sum_, parts, t)], t), [0.1, 0.0], atol=sum_.budget.error_bound
    )


def test_opened_values_lie_on_the_release_grid() -> None:
    sum_, _, key = federation(Plan(length=500, clients=2, bound=1.0))
    t = tag(500)
    opened = sum_.opener(key).open([add_all(sum_, sum_.sealer(key).seal(np.full(500, 1 / 3), t), t)], t)
    assert sum_.bound.grid >= sum_.bound.noise_bound
    np.testing.assert_array_equal(opened / sum_.bound.grid, np.rint(opened / sum_.bound.grid))


def test_refuses_nan_and_values_beyond_the_bound() -> None:
    sum_, _, key = federation(Plan(length=2, clients=2, bound=1.0))
    with pytest.raises(InputError, match="coordinate 0 is nan"):
        sum_.sealer(key).seal(np.array([np.nan, 1.0]), tag(2))
    with pytest.raises(InputError, match=r"coordinate 1 is -1\.5 .* bound 1"):
        sum_.sealer(key).seal(np.array([1.0, -1.5]), tag(2))


@pytest.mark.parametrize("mode", ["symmetric", "public"])
@pytest.mark.parametrize(
    "parameters",
    [CkksParameters(), CkksParameters(chain=(40, 40), scale_bits=30), CkksParameters(8192, (60, 40, 40, 60), 40)],
    ids=lambda p: str(p.chain),
)
def test_budget_states_the_bytes_on_the_wire(parameters: CkksParameters, mode: str) -> None:
    sum_, _, key = federation(Plan(length=8192, clients=2, bound=1.0), parameters=parameters, mode=mode)
    part = sum_.sealer(key).seal(np.random.default_rng(0).uniform(-1, 1, 8192), tag(8192))[0]
    assert len(part) == pytest.approx(sum_.budget.upload_bytes, rel=0.04)
    assert len(add_all(sum_, [part], tag(8192))) == pytest.approx(sum_.budget.download_bytes, rel=0.04)


def test_upload_is_at_most_31_bytes_a_value_with_a_public_key_and_half_with_seeds() -> None:
    for mode, most in (("public", 31.0), ("symmetric", 15.5)):
        sum_, _, key = federation(Plan(length=16384, clients=1000, bound=1.0), mode=mode)
        assert len(sum_.sealer(key).seal(np.zeros(16384), tag(16384))[0]) / 16384 <= most


@pytest.mark.report("U21", "two ciphertexts, at most 0.7 MB; sealing needs less than three times the payload")
def test_5609_values_make_two_ciphertexts() -> None:
    sum_, _, key = federation(
        Plan(length=5609, clients=2, bound=1.0), parameters=CkksParameters(8192, (60, 40, 40, 60), 40), mode="public"
    )
    assert sum_.ciphertexts(5609) == 2
    assert len(sum_.sealer(key).seal(np.zeros(5609), tag(5609))[0]) <= 700_000


class TestKeys:
    """Who holds what."""

    @pytest.mark.report("U20", "less than 0.5 MB at ring 8192: no evaluation keys")
    def test_a_public_bundle_is_small_and_holds_no_evaluation_keys(self) -> None:
        _, server, clients = federation(
            Plan(length=8, clients=2, bound=1.0), parameters=CkksParameters(8192, (60, 40, 40, 60), 40), mode="public"
        )
        assert len(server.encode()) < 100
        assert len(without_secret(clients, "clients").encode()) < 500_000

    @pytest.mark.report("U18", "what the server has does not open; no file and no log of a run holds a byte of a key")
    def test_the_server_holds_no_key_and_cannot_open(self) -> None:
        sum_, server, clients = federation(Plan(length=8, clients=2, bound=1.0), mode="public")
        assert server.secret == b"" and server.public == b""
        with pytest.raises(KeyMismatch, match="no secret key"):
            sum_.opener(server)
        adder = sum_.adder(tag(8))
        adder.add(sum_.sealer(clients).seal(np.ones(8), tag(8))[0])
        reachable = [type(v).__name__ for o in (adder, adder._engine) for v in vars(o).values()]
        assert not {"SecretKey", "Decryptor", "KeyGenerator", "KeyBundle"} & set(reachable)

    def test_a_decryptor_made_from_what_the_server_has_reads_garbage(self) -> None:
        sum_, _, clients = federation(Plan(length=8, clients=2, bound=1.0), mode="public")
        adder = sum_.adder(tag(8))
        adder.add(sum_.sealer(clients).seal(np.full(8, 0.5), tag(8))[0])
        api, engine = library(), adder._engine
        guess = api.Decryptor(engine._context, api.KeyGenerator(engine._context).secret_key())
        values = engine.decrypt(guess, engine.load(memoryview(engine.save(adder._total[0]))), 1)
        assert np.min(np.abs(values[:8] - 0.5)) > 1e-3

    @pytest.mark.report("U8", "`KeyMismatch` from the key's id in the header; nothing is added")
    @pytest.mark.report("T7", "refused by the key's id; where the id is forged, found when opening")
    def test_two_key_pairs_never_mix(self) -> None:
        sum_, _, key = federation(Plan(length=3, clients=2, bound=3.0))
        _, _, other = federation(Plan(length=3, clients=2, bound=3.0))
        with pytest.raises(KeyMismatch, match="one key set"):
            sum_.sealer(other)
        foreign = sum_.with_key(other.key_id).sealer(other).seal(np.array([1.0, 2, 3]), tag(3))[0]
        adder = sum_.adder(tag(3))
        adder.add(sum_.sealer(key).seal(np.array([1.0, 2, 3]), tag(3))[0])
        with pytest.raises(KeyMismatch, match="this round uses"):
            adder.add(foreign)
        assert adder.count == 1

    @pytest.mark.report("T7")
    def test_a_forged_key_id_is_found_when_opening(self) -> None:
        sum_, _, key = federation(Plan(length=3, clients=2, bound=3.0))
        stranger, _, other = federation(Plan(length=3, clients=2, bound=3.0))
        body = wire.decode(stranger.sealer(other).seal(np.ones(3), tag(3))[0], stranger.header(tag(3)), wire.PART).body
        total = add_all(sum_, [wire.encode(sum_.header(tag(3)), wire.PART, 1, body)], tag(3))
        with pytest.raises(IntegrityError, match="another making"):
            sum_.opener(key).open([total], tag(3))

    @pytest.mark.report("U9", "refused by the decoder with both values")
    def test_a_ciphertext_of_another_scale_is_refused(self) -> None:
        plan = Plan(length=3, clients=2, bound=3.0)
        sum_, _, key = federation(plan)
        other = CkksSum(plan, parameters=CkksParameters(scale_bits=41)).with_key(key.key_id)
        body = wire.decode(other.sealer(key).seal(np.ones(3), tag(3))[0], other.header(tag(3)), wire.PART).body
        with pytest.raises(WireError, match=r"scale 2\.19902e\+12 where this round has 1\.09951e\+12"):
            sum_.adder(tag(3)).add(wire.encode(sum_.header(tag(3)), wire.PART, 1, body))

    @pytest.mark.report("U23", "roles and descriptions define their state and cross processes")
    def test_roles_cross_processes(self) -> None:
        sum_, _, key = federation(Plan(length=8, clients=2, bound=1.0))
        sealer, opener, far = pickle.loads(pickle.dumps((sum_.sealer(key), sum_.opener(key), sum_)))
        total = add_all(far, sealer.seal(np.ones(8), tag(8)), tag(8))
        np.testing.assert_allclose(opener.open([total], tag(8)), np.ones(8), atol=sum_.budget.error_bound)


@pytest.mark.report("U26", "all imports without it; what needs it says why, and a test can demand that it is there")
def test_says_why_where_tenseal_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tenseal", None)
    sum_ = CkksSum(Plan(length=8, clients=2, bound=1.0))
    assert sum_.budget.upload_bytes > 0
    with pytest.raises(BackendUnavailable, match=r"tenseal does not load: .*pip install 'fedsim\[tenseal\]'"):
        sum_.make_keys()
