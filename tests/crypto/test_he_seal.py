"""BFV on SEAL: the law, its sizes, what it refuses, and what the server holds."""

import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("tenseal", reason="tenseal is not installed: pip install 'fedsim[tenseal]'")

from crypto import bfv, wire
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
from crypto.he_seal import BfvSum
from crypto.keys import without_secret
from experiments.bench.peak import peak_bytes, reset_peak

FAST = settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


def tag(length: int, round_: int = 3) -> Tag:
    return Tag(round=round_, layout_hash=b"layout-hash-0123", length=length)


def federation(plan: Plan, **options):
    """Return (sum, server bundle, clients' bundle) with the key bound."""
    sum_ = BfvSum(plan, **options)
    server, clients = sum_.make_keys()
    return sum_.with_key(server.key_id), server, clients


def add_many(sum_: BfvSum, parts: list[bytes], counts: list[int], t: Tag) -> bytes:
    """Return the total of each part added `counts[i]` times (by doubling: a total merged with itself)."""
    adder = sum_.adder(t)
    for part, count in zip(parts, counts, strict=True):
        if count == 1:
            adder.add(part)
            continue
        power = sum_.adder(t)
        power.add(part)
        while count:
            if count & 1:
                adder.merge(power.total())
            count >>= 1
            if count:
                power.merge(power.total())
    assert adder.count == sum(counts)
    return adder.total()


def check_law(data: st.DataObject, mode: bfv.Mode, clients: int, length: int, distinct: int) -> None:
    """Seal `distinct` vectors, add them up to `clients` in all, compare with the float64 sum."""
    bound = data.draw(st.sampled_from([1e-3, 1.0, 8.0, 1000.0]))
    stochastic = data.draw(st.booleans())
    sum_, _, key = federation(Plan(length=length, clients=clients, bound=bound), mode=mode, stochastic=stochastic)
    sealer, t = sum_.sealer(key), tag(length)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    kinds = [np.zeros(length), np.full(length, bound), np.full(length, -bound), rng.uniform(-bound, bound, length)]
    counts = [clients // distinct + (i < clients % distinct) for i in range(distinct)]
    vectors = [kinds[i] for i in rng.integers(0, 4, distinct)]
    parts = [sealer.seal(v, t)[0] for v in vectors]
    opened = sum_.opener(key).open([add_many(sum_, parts, counts, t)], t)
    expected = sum(c * v for c, v in zip(counts, vectors, strict=True))
    assert opened.shape == (length,) and opened.dtype == np.float64
    assert np.max(np.abs(opened - expected)) <= sum_.budget.error_bound
    assert sum_.budget.error_bound == pytest.approx(clients * sum_.codec.step * (1 if stochastic else 0.5), rel=1e-6)


@pytest.mark.parametrize("clients", [1, 2, 3, 10, 100, 1000])
@FAST
@given(data=st.data())
def test_symmetric_sums_obey_the_law_even_for_repeated_noise(clients: int, data: st.DataObject) -> None:
    length = data.draw(st.sampled_from([1, 2, 2047, 2048, 2049]))
    check_law(data, "symmetric", clients, length, distinct=min(clients, 4))


@pytest.mark.parametrize("clients", [1, 2, 3, 10, 100])
@settings(FAST, max_examples=3)
@given(data=st.data())
def test_public_sums_obey_the_law(clients: int, data: st.DataObject) -> None:
    check_law(data, "public", clients, data.draw(st.sampled_from([1, 2048, 2049])), distinct=clients)


@settings(FAST, max_examples=1)
@given(data=st.data())
def test_a_public_sum_of_1000_obeys_the_law(data: st.DataObject) -> None:
    check_law(data, "public", 1000, 2048, distinct=1000)


@pytest.mark.report("U30")
def test_1024_clients_at_the_clip_value_sum_exactly() -> None:
    sum_, _, key = federation(Plan(length=2049, clients=1024, bound=8.0))
    t = tag(2049)
    part = sum_.sealer(key).seal(np.full(2049, 8.0, np.float32), t)[0]
    opened = sum_.opener(key).open([add_many(sum_, [part], [1024], t)], t)
    np.testing.assert_array_equal(opened, np.full(2049, 8192.0))


def test_partial_totals_merge_to_the_same_bytes_of_sum() -> None:
    sum_, _, key = federation(Plan(length=3000, clients=6, bound=1.0))
    sealer, opener, t = sum_.sealer(key), sum_.opener(key), tag(3000)
    parts = [sealer.seal(np.random.default_rng(i).uniform(-1, 1, 3000), t)[0] for i in range(6)]
    whole = add_many(sum_, parts, [1] * 6, t)
    merged = sum_.adder(t)
    for pair in (parts[4:], parts[:2], parts[2:4]):
        merged.merge(add_many(sum_, pair, [1, 1], t))
    assert merged.count == 6
    np.testing.assert_array_equal(opener.open([merged.total()], t), opener.open([whole], t))


def test_fresh_randomness_each_time() -> None:
    sum_, _, key = federation(Plan(length=10, clients=2, bound=1.0))
    sealer = sum_.sealer(key)
    assert sealer.seal(np.ones(10), tag(10)) != sealer.seal(np.ones(10), tag(10))


def test_values_beyond_the_bound_are_clipped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    sum_, _, key = federation(Plan(length=4, clients=1, bound=8.0))
    sealer, t = sum_.sealer(key), tag(4)
    with caplog.at_level("WARNING"):
        part = sealer.seal(np.array([8.0, 9.0, -100.0, 1.0]), t)[0]
    assert sealer.clipped == 2
    assert "2 of 4 values lie outside the bound 8" in caplog.text
    np.testing.assert_allclose(
        sum_.opener(key).open([add_many(sum_, [part], [1], t)], t), [8, 8, -8, 1], atol=sum_.budget.error_bound
    )


@pytest.mark.report("T8")
def test_names_nan_at_the_client() -> None:
    sum_, _, key = federation(Plan(length=3, clients=2, bound=1.0))
    with pytest.raises(InputError, match="coordinate 1 is nan"):
        sum_.sealer(key).seal(np.array([0.0, np.nan, 1.0]), tag(3))


def test_refuses_wrong_lengths() -> None:
    sum_, _, key = federation(Plan(length=3, clients=2, bound=1.0))
    with pytest.raises(InputError, match=r"shape \(2,\)"):
        sum_.sealer(key).seal(np.zeros(2), tag(3))
    with pytest.raises(InputError, match="plan declares at most 3"):
        sum_.sealer(key).seal(np.zeros(4), tag(4))
    with pytest.raises(InputError, match="plan declares at most 3"):
        sum_.adder(tag(4))


@pytest.mark.report("U58")
@pytest.mark.parametrize("kind", ["strided", "reversed", "big-endian", "float32"])
def test_any_memory_layout_gives_the_same_integers(kind: str) -> None:
    values = np.linspace(-1, 1, 500)
    forms = {
        "strided": np.repeat(values, 3)[::3],
        "reversed": values[::-1].copy()[::-1],
        "big-endian": values.astype(">f8"),
        "float32": values.astype(np.float32),
    }
    sum_, _, key = federation(Plan(length=500, clients=1, bound=1.0), stochastic=False)
    t = tag(500)
    opened = sum_.opener(key).open([add_many(sum_, sum_.sealer(key).seal(forms[kind], t), [1], t)], t)
    np.testing.assert_array_equal(opened, np.rint(forms[kind].astype("f8") / sum_.codec.step) * sum_.codec.step)


@pytest.mark.parametrize("mode", ["symmetric", "public"])
@pytest.mark.parametrize("clients", [2, 100, 1000])
def test_budget_states_the_bytes_on_the_wire(mode: str, clients: int) -> None:
    length = 3 * 2048
    sum_, _, key = federation(Plan(length=length, clients=clients, bound=1.0), mode=mode)
    t = tag(length)
    part = sum_.sealer(key).seal(np.random.default_rng(0).normal(size=length).clip(-1, 1), t)[0]
    total = add_many(sum_, [part], [2], t)
    assert len(part) == pytest.approx(sum_.budget.upload_bytes, rel=0.03)
    assert len(total) == pytest.approx(sum_.budget.download_bytes, rel=0.03)


def test_upload_is_at_most_7_point_2_bytes_a_value_at_1000_clients() -> None:
    length = 16 * 2048
    sum_, _, key = federation(Plan(length=length, clients=1000, bound=1.0))
    part = sum_.sealer(key).seal(np.zeros(length), tag(length))[0]
    assert len(part) / length <= 7.2


def test_parameters_have_128_bits_and_a_margin() -> None:
    for clients in (1, 10, 1000, 100_000):
        plan = Plan(length=10**7, clients=clients, bound=1.0)
        sum_ = BfvSum(plan)
        p = sum_.parameters
        assert p.security_bits >= 128 and sum_.budget.headroom_bits >= 0
        assert 2**p.modulus_bits >= 2 * 2 * p.plain_modulus * bfv.noise(clients, plan.length, p.ring, p.mode)


def test_a_wide_plan_moves_to_the_next_ring() -> None:
    assert BfvSum(Plan(length=10, clients=100, bound=1.0), value_bits=40).parameters.ring == 4096
    sum_, _, key = federation(Plan(length=4097, clients=3, bound=1.0), value_bits=53, stochastic=False)
    assert len(sum_.parameters.chain) == 2
    v, t = np.random.default_rng(5).integers(-(2**20), 2**20, 4097) * 2.0**-20, tag(4097)
    opened = sum_.opener(key).open([add_many(sum_, sum_.sealer(key).seal(v, t), [3], t)], t)
    np.testing.assert_array_equal(opened, 3 * v)


@pytest.mark.parametrize("options", [{"value_bits": 54}, {"value_bits": 40, "ring": 2048}])
def test_refuses_what_does_not_fit_and_names_the_bound(options: dict[str, int]) -> None:
    with pytest.raises(BudgetExceeded, match=r"value bits \+ 10 bits for 1000 clients .* lower value_bits"):
        BfvSum(Plan(length=10, clients=1000, bound=1.0), **options)


def test_refuses_unknown_rings() -> None:
    with pytest.raises(BudgetExceeded, match="ring 1000"):
        BfvSum(Plan(length=1, clients=1, bound=1.0), ring=1000)


def test_more_vectors_than_declared_are_refused() -> None:
    sum_, _, key = federation(Plan(length=1, clients=2, bound=1.0))
    part = sum_.sealer(key).seal(np.ones(1), tag(1))[0]
    adder = sum_.adder(tag(1))
    adder.add(part)
    adder.add(part)
    with pytest.raises(WireError, match="3 vectors: the plan declares 2"):
        adder.add(part)
    assert adder.count == 2


def test_nothing_added_is_an_error() -> None:
    sum_, _, _ = federation(Plan(length=1, clients=2, bound=1.0))
    with pytest.raises(EmptySum, match="at least one client"):
        sum_.adder(tag(1)).total()


@pytest.fixture(scope="module")
def setting():
    """Return (sum, clients' key, sealer, a good part of 2049 times 0.5)."""
    sum_, _, key = federation(Plan(length=2049, clients=4, bound=1.0), stochastic=False)
    sealer = sum_.sealer(key)
    return sum_, key, sealer, sealer.seal(np.full(2049, 0.5), tag(2049))[0]


class TestWrongMessages:
    """Each is refused with its type, and the running sum stays as it was."""

    def refuse(self, setting, bad: bytes, error: type[Exception], match: str) -> None:
        sum_, key, _, good = setting
        adder = sum_.adder(tag(2049))
        adder.add(good)
        with pytest.raises(error, match=match):
            adder.add(bad)
        adder.add(good)
        assert adder.count == 2
        np.testing.assert_array_equal(sum_.opener(key).open([adder.total()], tag(2049)), np.ones(2049))

    def test_another_key(self, setting) -> None:
        _, _, other = federation(Plan(length=2049, clients=4, bound=1.0), stochastic=False)
        bad = setting[0].with_key(other.key_id).sealer(other).seal(np.ones(2049), tag(2049))[0]
        self.refuse(setting, bad, KeyMismatch, "this round uses")

    def test_another_round(self, setting) -> None:
        self.refuse(setting, setting[2].seal(np.ones(2049), tag(2049, 2))[0], ReplayError, "round 2: this is round 3")

    def test_another_layout(self, setting) -> None:
        other = replace(tag(2049), layout_hash=bytes(16))
        self.refuse(setting, setting[2].seal(np.ones(2049), other)[0], LayoutMismatch, "layout")

    def test_cut_off(self, setting) -> None:
        self.refuse(setting, setting[3][:-1], WireError, "cut off")

    def test_one_bit(self, setting) -> None:
        bad = bytearray(setting[3])
        bad[len(bad) // 2] ^= 1
        self.refuse(setting, bytes(bad), IntegrityError, "damaged")

    def test_too_long(self, setting) -> None:
        frame = wire.decode(setting[3], setting[0].header(tag(2049)), wire.PART)
        bad = wire.encode(setting[0].header(tag(2049)), wire.PART, 1, bytes(frame.body) + b"\0")
        self.refuse(setting, bad, WireError, "nothing may follow")

    def test_a_ciphertext_missing(self, setting) -> None:
        bad = wire.encode(setting[0].header(tag(2049)), wire.PART, 1, b"")
        self.refuse(setting, bad, WireError, "ends before ciphertext 0")

    def test_a_total_as_a_part(self, setting) -> None:
        adder = setting[0].adder(tag(2049))
        adder.add(setting[3])
        self.refuse(setting, adder.total(), WireError, "kind")

    def test_forged_checksum_over_a_damaged_second_ciphertext(self, setting) -> None:
        header = setting[0].header(tag(2049))
        body = bytearray(wire.decode(setting[3], header, wire.PART).body)
        body[-4000:] = os.urandom(4000)
        bad = wire.encode(header, wire.PART, 1, body)
        self.refuse(setting, bad, WireError, "SEAL refuses")

    def test_a_ciphertext_of_another_making_is_found_when_opening(self, setting) -> None:
        sum_, key, _, good = setting
        stranger = BfvSum(sum_.plan, stochastic=False)
        other = stranger.make_keys()[1]
        foreign = stranger.sealer(other).seal(np.ones(2049), tag(2049))[0]
        body = wire.decode(foreign, stranger.with_key(other.key_id).header(tag(2049)), wire.PART).body
        adder = sum_.adder(tag(2049))
        adder.add(good)
        adder.add(wire.encode(sum_.header(tag(2049)), wire.PART, 1, body))
        with pytest.raises(IntegrityError, match="noise budget left: sums of 2 clients keep at least"):
            sum_.opener(key).open([adder.total()], tag(2049))


class TestKeys:
    """Who holds what."""

    def test_the_server_holds_no_key_and_cannot_open(self) -> None:
        for mode in ("symmetric", "public"):
            sum_, server, clients = federation(Plan(length=8, clients=2, bound=1.0), mode=mode)
            assert server.secret == b"" and server.public == b""
            with pytest.raises(KeyMismatch, match="no secret key"):
                sum_.opener(server)
            with pytest.raises(KeyMismatch, match="needs it"):
                sum_.sealer(server)
            adder = sum_.adder(tag(8))
            adder.add(sum_.sealer(clients).seal(np.ones(8), tag(8))[0])
            reachable = [type(v).__name__ for o in (adder, adder._engine) for v in vars(o).values()]
            assert not {"SecretKey", "Decryptor", "KeyGenerator", "KeyBundle"} & set(reachable)

    def test_a_public_bundle_seals_and_cannot_open(self) -> None:
        sum_, _, clients = federation(Plan(length=8, clients=2, bound=1.0), mode="public")
        public = without_secret(clients, "clients")
        part = sum_.sealer(public).seal(np.ones(8), tag(8))[0]
        np.testing.assert_array_equal(
            sum_.opener(clients).open([add_many(sum_, [part], [2], tag(8))], tag(8)), np.full(8, 2.0)
        )
        with pytest.raises(KeyMismatch, match="only the clients' bundle opens"):
            sum_.opener(public)

    def test_a_key_of_other_parameters_is_refused(self) -> None:
        sum_ = BfvSum(Plan(length=8, clients=2, bound=1.0))
        _, key = BfvSum(Plan(length=8, clients=2000, bound=1.0)).make_keys()
        with pytest.raises(KeyMismatch, match="make the keys anew"):
            sum_.sealer(key)

    def test_an_unbound_sum_is_refused(self) -> None:
        with pytest.raises(KeyMismatch, match="call with_key"):
            BfvSum(Plan(length=8, clients=2, bound=1.0)).adder(tag(8))

    @pytest.mark.report("U23")
    def test_roles_cross_processes(self) -> None:
        sum_, _, key = federation(Plan(length=8, clients=2, bound=1.0))
        sealer, opener = pickle.loads(pickle.dumps((sum_.sealer(key), sum_.opener(key))))
        far = pickle.loads(pickle.dumps(sum_))
        total = add_many(far, sealer.seal(np.ones(8), tag(8)), [1], tag(8))
        np.testing.assert_array_equal(opener.open([total], tag(8)), np.ones(8))

    def test_each_key_set_is_fresh(self) -> None:
        sum_ = BfvSum(Plan(length=8, clients=2, bound=1.0))
        keys = [sum_.make_keys()[1] for _ in range(3)]
        assert len({k.key_id for k in keys}) == len({k.secret for k in keys}) == 3

    def test_forked_clients_draw_different_randomness(self) -> None:
        sum_, _, key = federation(Plan(length=8, clients=2, bound=1.0))
        sealer = sum_.sealer(key)
        parts = []
        for _ in range(2):
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                os.write(write, sealer.seal(np.ones(8), tag(8))[0])
                os._exit(0)
            os.waitpid(child, 0)
            parts.append(os.read(read, 1 << 16))
            os.close(read)
            os.close(write)
        assert parts[0] != parts[1]
        total = add_many(sum_, parts, [1, 1], tag(8))
        np.testing.assert_array_equal(sum_.opener(key).open([total], tag(8)), np.full(8, 2.0))

    @pytest.mark.report("U11", "one of eight threads fails: one Python exception, and the others' parts are right")
    def test_a_failure_in_one_of_eight_threads_is_one_exception(self) -> None:
        sum_, _, key = federation(Plan(length=5000, clients=8, bound=1.0))
        vectors = [np.full(5000, 0.125, np.float32) for _ in range(8)]
        vectors[3][4999] = np.nan
        with ThreadPoolExecutor(8) as pool:
            sealing = [pool.submit(sum_.sealer(key).seal, vector, tag(5000)) for vector in vectors]
        failed = [future.exception() for future in sealing]
        assert [at for at, error in enumerate(failed) if error] == [3]
        assert isinstance(failed[3], InputError) and "4999" in str(failed[3])
        parts = [future.result()[0] for at, future in enumerate(sealing) if at != 3]
        opened = sum_.opener(key).open([add_many(sum_, parts, [1] * 7, tag(5000))], tag(5000))
        np.testing.assert_array_equal(opened, np.full(5000, 0.875))

    def test_no_open_file_is_left_behind(self) -> None:
        sum_, _, key = federation(Plan(length=8, clients=2, bound=1.0))
        sum_.sealer(key)
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            sum_.sealer(key).seal(np.ones(8), tag(8))
        assert len(os.listdir("/proc/self/fd")) == before


EIGHT_CLIENTS = """
import resource, sys
import numpy as np
from crypto.base import Plan, Tag
from crypto.he_seal import BfvSum
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
length = int(sys.argv[1])
sum_ = BfvSum(Plan(length=length, clients=8, bound=1.0), stochastic=False)
server, clients = sum_.make_keys()
sum_, t = sum_.with_key(server.key_id), Tag(round=1, layout_hash=b"layout-hash-0123", length=length)
adder = sum_.adder(t)
for client in range(8):
    adder.add(sum_.sealer(clients).seal(np.full(length, client / 8, np.float32), t)[0])
opened = sum_.opener(clients).open([adder.total()], t)
print(bool(np.abs(opened - 3.5).max() <= sum_.budget.error_bound))
"""


@pytest.mark.report("U24", "eight clients of a million values complete within 4 GB of address space")
@pytest.mark.parametrize("length", [100_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_eight_clients_complete_within_a_memory_limit(length: int) -> None:
    command = [sys.executable, "-c", EIGHT_CLIENTS, str(length)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment, check=False)
    assert done.stdout.strip() == "True", done.stderr[-2000:]


@pytest.fixture(scope="module")
def million():
    """Return (sum, one part of a million values, extra peak bytes while it was sealed)."""
    sum_, _, key = federation(Plan(length=10**6, clients=100, bound=1.0))
    sealer, vector = sum_.sealer(key), np.full(10**6, 0.5, np.float32)
    before = reset_peak()
    part = sealer.seal(vector, tag(10**6))[0]
    return sum_, part, peak_bytes() - before


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the peak is read from Linux's /proc")
class TestMemory:
    """Peaks of one million values; ``experiments/bench/he.py --memory`` measures ten million."""

    @pytest.mark.report("U21")
    def test_sealing_stays_near_the_payload(self, million) -> None:
        _, part, extra = million
        assert extra < 3 * len(part) + 20e6

    @pytest.mark.report("U59")
    def test_adding_takes_one_total_however_many_clients(self, million) -> None:
        sum_, part, _ = million
        before = reset_peak()
        adder = sum_.adder(tag(10**6))
        for _ in range(6):
            adder.add(part)
        assert adder.count == 6
        assert peak_bytes() - before < sum_.budget.memory_bytes + 20e6
