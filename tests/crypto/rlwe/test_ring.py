"""The native ring: the same words as the numpy reference, on every instruction set."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crypto import _native, prg
from crypto.fixed_point import FixedPoint
from crypto.lattice import batching_prime_below
from crypto.rlwe import reference
from crypto.rlwe.engine import PublicEncryptor, Seeds, SymmetricEncryptor, checked_plane, native_ring, unpacked
from crypto.rlwe.parameters import RlweParameters

KEY, OTHER = bytes(range(16)), bytes(range(1, 17))


def parameters(ring: int, bits: tuple[int, ...], plain_bits: int, **more) -> RlweParameters:
    primes: list[int] = []
    for b in bits:
        primes.append(batching_prime_below(ring, min([2**b, *primes])))
    return RlweParameters(ring, tuple(primes), plain_bits, more.pop("mode", "symmetric"), **more)


#: Doubles, their limit, integers, and two primes of each kind; 7 bits reject every fourth word.
CASES = [
    parameters(16, (7,), 2),
    parameters(64, (12,), 3),
    parameters(1024, (23,), 13),
    parameters(2048, (40,), 29),
    parameters(2048, (48,), 31),
    parameters(2048, (49,), 31),
    parameters(256, (57,), 40),
    parameters(128, (30, 30), 20, parties=3, smudge_bits=20),
    parameters(4096, (52, 51), 31, parties=3, smudge_bits=67),
]
each_case = pytest.mark.parametrize("p", CASES, ids=lambda p: f"{p.ring}-{p.modulus_bits}")
each_isa = pytest.mark.parametrize("isa", _native.ring_isas())


def words(p: RlweParameters) -> np.ndarray:
    return np.zeros(len(p.moduli) * p.ring, np.uint64)


def flat(polynomial: np.ndarray) -> list[int]:
    return [int(x) for row in polynomial for x in row]


def small(p: RlweParameters, rng: np.random.Generator) -> np.ndarray:
    most = min(p.moduli) - 1
    x = rng.integers(-most, most, p.ring, endpoint=True)
    x[:4] = most, -most, 0, most
    return x


@each_case
@each_isa
def test_forward_is_the_references(p: RlweParameters, isa: str) -> None:
    x = small(p, np.random.default_rng(p.ring))
    out = words(p)
    native_ring(p).forward(x, out, isa)
    assert out.tolist() == flat(reference.transformed(p, x.astype(object)))


@pytest.mark.parametrize("p", CASES[:2], ids=lambda p: str(p.ring))
def test_the_references_transform_is_the_definition(p: RlweParameters) -> None:
    (q,) = p.moduli
    x = small(p, np.random.default_rng(1)).astype(object)
    there = reference.forward(x, q)
    assert there.tolist() == reference.forward_by_definition(x, q).tolist()
    assert reference.inverse(there, q).tolist() == (x % q).tolist()


def negacyclic(x: list[int], y: list[int], q: int) -> list[int]:
    out = [0] * len(x)
    for i, a in enumerate(x):
        for j, b in enumerate(y):
            sign, at = (1, i + j) if i + j < len(x) else (-1, i + j - len(x))
            out[at] = (out[at] + sign * a * b) % q
    return out


@pytest.mark.parametrize("p", [CASES[0], CASES[1], parameters(32, (48,), 10), parameters(32, (57,), 10)], ids=str)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_products_are_schoolbook_products(p: RlweParameters, data: st.DataObject) -> None:
    (q,) = p.moduli
    sizes = st.lists(st.one_of(st.integers(1 - q, q - 1), st.just(q - 1)), min_size=p.ring, max_size=p.ring)
    x, y = data.draw(sizes), data.draw(sizes)
    ring, (there_x, there_y) = native_ring(p), (words(p), words(p))
    ring.forward(np.array(x), there_x)
    ring.forward(np.array(y), there_y)
    plane = np.empty(ring.polynomial_bytes, np.uint8)
    ring.pack_plane(there_x, plane)
    multiplier = _native.RlweMultiplier(ring, there_y, divided=True)
    for isa in _native.ring_isas():
        out = words(p)
        ring.add_product(plane, multiplier, out, isa)
        assert out.tolist() == negacyclic(x, y, q), isa


@each_case
@each_isa
def test_products_in_transformed_order_are_the_references(p: RlweParameters, isa: str) -> None:
    ring = native_ring(p)
    x = reference.uniform(p, KEY, b"x/1", 0)
    y = reference.uniform(p, KEY, b"y/1", 0)
    z = reference.uniform(p, KEY, b"z/1", 0)
    out = np.array(flat(z), np.uint64)
    multiplier = _native.RlweMultiplier(ring, np.array(flat(y), np.uint64), divided=False)
    ring.multiply_add(np.array(flat(x), np.uint64), multiplier, out, isa)
    rows = [(a * b + c) % q for a, b, c, q in zip(x, y, z, p.moduli, strict=True)]
    assert out.tolist() == flat(np.array(rows, object))


@each_case
@each_isa
def test_random_polynomials_are_the_references(p: RlweParameters, isa: str) -> None:
    ring, key = native_ring(p), prg.stream_key(KEY, b"x/1")
    for index in (0, 1, 7):
        out, signed = words(p), np.empty(p.ring, np.int64)
        ring.uniform(key, index, out, isa)
        assert out.tolist() == flat(reference.uniform(p, KEY, b"x/1", index))
        ring.errors(key, index, signed, isa)
        assert signed.tolist() == reference.errors(p, KEY, b"x/1", index).tolist()
        ring.ternary(key, index, signed, isa)
        assert signed.tolist() == reference.ternary(p, KEY, b"x/1", index).tolist()


@pytest.mark.parametrize("p", CASES[-2:], ids=lambda p: str(p.ring))
@each_isa
def test_smudging_is_the_references(p: RlweParameters, isa: str) -> None:
    out = np.zeros(2 * len(p.moduli) * p.ring, np.uint64)
    native_ring(p).add_smudging(prg.stream_key(KEY, prg.RLWE_SMUDGE), p.smudge_bits, out, isa)
    expected = [flat(reference.residues(p, reference.smudging(p, KEY, index))) for index in (0, 1)]
    assert out.tolist() == expected[0] + expected[1]


@each_case
@each_isa
def test_planes_are_the_references_and_add_up(p: RlweParameters, isa: str) -> None:
    ring = native_ring(p)
    polynomials = [reference.uniform(p, KEY, b"x/1", i) for i in range(3)]
    plane = np.frombuffer(reference.pack(p, polynomials), np.uint8)
    assert plane.size == 3 * ring.polynomial_bytes == 3 * p.ring * p.modulus_bits // 8
    total = np.zeros(3 * len(p.moduli) * p.ring, np.uint64)
    assert ring.canonical(plane, isa)
    ring.add_plane(plane, total, isa)
    assert total.tolist() == [x for polynomial in polynomials for x in flat(polynomial)]
    ring.add_uniform(prg.stream_key(KEY, b"x/1"), total, isa)
    out = np.empty_like(plane)
    ring.pack_plane(total, out, isa)
    moduli = np.array(p.moduli, object)[:, None]
    assert out.tobytes() == reference.pack(p, [(x + x) % moduli for x in polynomials])


@each_case
@each_isa
def test_a_residue_at_its_modulus_is_not_canonical(p: RlweParameters, isa: str) -> None:
    ring = native_ring(p)
    for limb, prime in enumerate(p.moduli):
        for at in (0, p.ring - 1):
            x = np.zeros((len(p.moduli), p.ring), object)
            x[limb, at] = prime - 1
            assert ring.canonical(np.frombuffer(reference.pack(p, [x]), np.uint8), isa)
            x[limb, at] = prime
            assert not ring.canonical(np.frombuffer(reference.pack(p, [x]), np.uint8), isa)


def vector(p: RlweParameters, dtype: type, codec: FixedPoint) -> np.ndarray:
    x = np.random.default_rng(3).uniform(-1.1 * codec.bound, 1.1 * codec.bound, p.ring + 5).astype(dtype)
    x[:6] = 0.0, codec.bound, -codec.bound, codec.step / 2, -codec.step / 2, -codec.bound * 1000
    return x


@each_case
@pytest.mark.parametrize("stochastic", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_symmetric_ciphertexts_are_the_references(p: RlweParameters, dtype: type, stochastic: bool) -> None:
    codec = FixedPoint.fitting(bound=1.5, clients=1, ring_bits=max(2, p.plain_bits - 1), stochastic=stochastic)
    x, seeds = vector(p, dtype, codec), Seeds(KEY, OTHER)
    encryptor = SymmetricEncryptor(p, b"k" * 16)
    sealed = reference.seal_symmetric(p, codec, x, b"k" * 16, seeds.public, seeds.secret)
    expected = seeds.public + reference.pack(p, sealed)
    clipped = codec.encode_with(x, np.zeros(x.size, np.uint32) if stochastic else None).clipped
    for isa in _native.ring_isas():
        assert encryptor.encrypt(x, codec, seeds, isa) == (expected, clipped), isa


@each_case
@pytest.mark.parametrize("stochastic", [False, True])
def test_public_ciphertexts_are_the_references(p: RlweParameters, stochastic: bool) -> None:
    codec = FixedPoint.fitting(bound=1.5, clients=1, ring_bits=max(2, p.plain_bits - 1), stochastic=stochastic)
    x, seeds = vector(p, np.float32, codec), Seeds(KEY, OTHER)
    a, b = reference.uniform(p, KEY, prg.RLWE_KEY, 0), reference.public_key(p, KEY, b"k" * 16)
    encryptor = PublicEncryptor(p, KEY + reference.pack(p, [b]))
    first, second = reference.seal_public(p, codec, x, a, b, seeds.secret)
    expected = reference.pack(p, first) + reference.pack(p, second)
    for isa in _native.ring_isas():
        assert encryptor.encrypt(x, codec, seeds, isa)[0] == expected, isa


@each_case
@each_isa
def test_decoding_is_the_references_at_every_border(p: RlweParameters, isa: str) -> None:
    rng = np.random.default_rng(p.modulus_bits)
    half = 2 ** (p.plain_bits - 1)
    m = np.array([int(v) for v in rng.integers(1 - half, half, p.ring)], object)
    m[:2] = 1 - half, half - 1
    away = (p.delta - 1) // 2
    e = np.array([int(rng.choice([-away, away, 0, 1, -1])) for _ in range(p.ring)], object)
    x = reference.residues(p, p.delta * m + e)
    out = np.empty(p.ring)
    largest, noise = native_ring(p).decode(np.array(flat(x), np.uint64), 1.0, out, isa)
    assert out.tolist() == m.tolist() == reference.decode(p, x).tolist()
    assert largest == half - 1 and noise == pytest.approx(max(abs(v) for v in e))


@each_case
@each_isa
def test_any_phases_decode_alike_on_every_instruction_set(p: RlweParameters, isa: str) -> None:
    # Phases beyond what honest noise reaches, zero, q - 1 and the gap of q - delta t among them.
    x = np.array(flat(reference.uniform(p, KEY, b"x/1", 0)), np.uint64)
    if len(p.moduli) == 1:
        q, shift = p.modulus, (p.delta << (p.plain_bits - 1)) + p.delta // 2
        x[:6] = 0, q - 1, q - shift - 1, q - shift, q // 2, q // 2 + 1
        x[6:16] = [(p.delta // 2 + k * p.delta + d) % q for k in (0, 1) for d in range(-2, 3)]
    outs = [np.empty(p.ring), np.empty(p.ring)]
    found = [native_ring(p).decode(x, 0.5, out, name) for out, name in zip(outs, ("generic", isa), strict=True)]
    assert found[0] == found[1] and np.array_equal(*outs)


@each_case
@each_isa
def test_a_plane_that_is_not_canonical_leaves_the_total_as_it_was(p: RlweParameters, isa: str) -> None:
    x = np.zeros((len(p.moduli), p.ring), object)
    x[-1, -1] = p.moduli[-1]
    good = reference.uniform(p, KEY, b"x/1", 0)
    plane = np.frombuffer(reference.pack(p, [good, good, x]), np.uint8)
    total = np.array(3 * flat(reference.uniform(p, KEY, b"y/1", 0)), np.uint64)
    before = total.copy()
    assert not native_ring(p).add_plane(plane, total, isa)
    assert np.array_equal(total, before)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((24, [97], 2), "ring 24: must be a power of two"),
        ((8192, [1], 2), "ring 8192"),
        ((16, [], 2), "0 moduli"),
        ((16, [97, 97], 2), "2 moduli: must be one, or two different ones"),
        ((16, [96], 2), "modulus 96: must be 1 modulo 32"),
        ((16, [2**60 + 1], 2), "at most 57 bits"),
        ((16, [33], 2), "has no root of order 32"),
        ((16, [97], 6), "6 plain bits"),
        ((16, [97], 0), "0 plain bits"),
    ],
)
def test_refuses_rings(arguments: tuple, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        _native.RlweRing(*arguments)


def test_refuses_arrays_of_another_size_and_keys_of_another_length() -> None:
    p = CASES[2]
    ring, secret = native_ring(p), SymmetricEncryptor(p, bytes(16))._secret
    x, plane = np.zeros(10, np.float32), np.zeros(ring.polynomial_bytes, np.uint8)
    with pytest.raises(ValueError, match="output of 10 entries"):
        ring.seal_symmetric(x, 1.0, 8.0, None, secret, KEY, KEY, np.zeros(10, np.uint8))
    with pytest.raises(ValueError, match="error key of 3 bytes: must be 16"):
        ring.seal_symmetric(x, 1.0, 8.0, None, secret, KEY, b"abc", plane)
    with pytest.raises(ValueError, match="values must fit half of 2"):
        ring.seal_symmetric(x, 1.0, 2.0**20, None, secret, KEY, KEY, plane)
    with pytest.raises(ValueError, match="multiplier of another ring"):
        native_ring(CASES[-1]).add_product(
            np.zeros(native_ring(CASES[-1]).polynomial_bytes, np.uint8), secret, words(CASES[-1])
        )
    with pytest.raises(ValueError, match="plane of 7 entries"):
        ring.canonical(plane[:7])
    with pytest.raises(ValueError, match="total of 5 entries"):
        ring.add_plane(plane, np.zeros(5, np.uint64))
    with pytest.raises(ValueError, match="101 bits: must lie in"):
        ring.add_smudging(KEY, 101, words(p))
    with pytest.raises(ValueError, match="ring kernels 'sse9': here one can use"):
        ring.canonical(plane, "sse9")


def test_unpacked_is_what_was_packed() -> None:
    p = CASES[3]
    x = reference.uniform(p, KEY, b"x/1", 0)
    plane = checked_plane(p, memoryview(reference.pack(p, [x])))
    assert unpacked(p, plane).tolist() == flat(x)
    assert [flat(y) for y in reference.unpack(p, plane.tobytes())] == [flat(x)]
