"""What a secure sum costs on the wire and in time, by formula: needs no backend.

For a number of parameters and of clients, :func:`sizes` gives one row a scheme, our own beside the contexts that papers
published, so that their tables can be compared. Bytes of SEAL's ciphertexts are predicted to about 4 % (a test
compares with real ones); OpenFHE's residues are packed to the bit, so exact.

Seconds are estimates: ciphertexts times the CPU seconds of one, :data:`COSTS`, measured by ``experiments/bench/he.py``
in one thread on a busy two-core AMD EPYC (Zen 3); a quiet machine is about 1.7 times faster: compare rows rather than
seconds. OpenFHE's and our RLWE's were measured apart (the latter by ``experiments/bench/rlwe.py``) and are brought to
the same state by the ratio of TenSEAL's usual context in both runs. Contexts that were not measured are scaled from the
one of the same family by ``N log2(N) * primes``, the cost of their transforms; the row says so. PREAMBLE's seconds are
a coordinate's, :data:`PREAMBLE_COSTS`, measured at 2^23 coordinates in one thread of a busy Sapphire Rapids; its error
is that of (1, 1e-6)-differential privacy a round.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import log2, nan

from crypto import bfv, ckks
from crypto.base import Budget, Plan, Tag
from crypto.ckks import CkksParameters
from crypto.errors import BudgetExceeded, InputError
from crypto.he_openfhe import OpenFheBgv, OpenFheCkks, OpenFheSum
from crypto.he_openfhe_threshold import ThresholdBgv
from crypto.lattice import security_bits
from crypto.plain import PlainSum
from crypto.preamble.blocks import BlockShape
from crypto.preamble.rotation import padded_length
from crypto.preamble.scheme import Parameters, PreambleSum
from crypto.preamble.sizing import evaluate
from crypto.rlwe.scheme import AdditiveRlwe, RlweSum
from crypto.rlwe.threshold import RlweThreshold

#: Parameters of models that papers count, embeddings and norms included, heads of pre-training excluded.
MODELS = {
    "lenet5": 61_706,
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    "vit-b16": 85_798_656,
    "bert-base": 109_482_240,
    "tinyllama-1.1b": 1_100_048_384,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """CPU seconds of one ciphertext.

    Attributes:
        ring: N of the measured context.
        primes: data primes of the measured context.
        seal_s: encode, encrypt, serialise.
        add_s: load and add.
        open_s: load, decrypt, decode.
    """

    ring: int
    primes: int
    seal_s: float
    add_s: float
    open_s: float

    def scaled(self, ring: int, primes: int) -> "Cost":
        """Return the estimate for another context of the same family."""
        factor = ring * log2(ring) * primes / (self.ring * log2(self.ring) * self.primes)
        return Cost(
            ring=ring,
            primes=primes,
            seal_s=self.seal_s * factor,
            add_s=self.add_s * factor,
            open_s=self.open_s * factor,
        )


#: Measured, see the module docstring.
COSTS = {
    "bfv-symmetric": Cost(ring=2048, primes=1, seal_s=1.97e-3, add_s=0.33e-3, open_s=1.17e-3),
    "bfv-public": Cost(ring=2048, primes=1, seal_s=2.70e-3, add_s=0.33e-3, open_s=1.40e-3),
    "rlwe-symmetric": Cost(ring=2048, primes=1, seal_s=0.10e-3, add_s=0.06e-3, open_s=0.11e-3),
    "rlwe-public": Cost(ring=2048, primes=1, seal_s=0.21e-3, add_s=0.11e-3, open_s=0.13e-3),
    "rlwe-threshold": Cost(ring=4096, primes=2, seal_s=1.5e-3, add_s=0.47e-3, open_s=1.4e-3),
    "ckks-symmetric": Cost(ring=4096, primes=1, seal_s=2.35e-3, add_s=0.65e-3, open_s=1.60e-3),
    "ckks-public": Cost(ring=4096, primes=1, seal_s=4.85e-3, add_s=0.65e-3, open_s=1.85e-3),
    "tenseal": Cost(ring=8192, primes=3, seal_s=16.3e-3, add_s=1.70e-3, open_s=4.35e-3),
    "openfhe-ckks": Cost(ring=4096, primes=1, seal_s=3.1e-3, add_s=0.69e-3, open_s=1.70e-3),
    "openfhe-bgv": Cost(ring=2048, primes=1, seal_s=1.6e-3, add_s=0.45e-3, open_s=0.76e-3),
}


#: CPU seconds a coordinate: to seal, to add one client at both aggregators, to draw both noises and open; measured.
PREAMBLE_COSTS = {"preamble": (33e-9, 2.5e-9, 370e-9), "preamble-dense": (75e-9, 58e-9, 300e-9)}
#: The guarantee of a round whose noise PREAMBLE's rows state, and the share of a dense vector that a client sends.
PREAMBLE_EPSILON, PREAMBLE_DELTA, PREAMBLE_SAVING = 1.0, 1e-6, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRow:
    """One scheme's costs for one round.

    Attributes:
        scheme: name, as in :data:`SCHEMES`.
        context: parameters in short.
        ciphertexts: number a client sends; 0 for schemes without.
        upload_bytes: bytes a client sends.
        download_bytes: bytes of the total that a client receives.
        expansion: upload over the same parameters as float32.
        error_bound: largest error of one coordinate of the sum; NaN where a paper does not say.
        headroom_bits: spare bits before the sum would wrap; NaN where a paper does not say.
        security_bits: by the table of :mod:`crypto.lattice`; 0 for none.
        seal_s: estimated CPU seconds at a client to seal.
        add_s: estimated CPU seconds at the server to add all clients.
        open_s: estimated CPU seconds at a client to open.
        note: where the row comes from, or why the plan was refused (then the numbers are NaN or 0).
    """

    scheme: str
    context: str
    ciphertexts: int
    upload_bytes: int
    download_bytes: int
    expansion: float
    error_bound: float
    headroom_bits: float
    security_bits: int
    seal_s: float
    add_s: float
    open_s: float
    note: str = ""

    @property
    def fits(self) -> bool:
        """Whether the scheme carries the plan."""
        return self.upload_bytes > 0


def sizes(length: int, clients: int, bound: float = 1.0, schemes: Iterable[str] | None = None) -> list[SizeRow]:
    """Return one row a scheme.

    Args:
        length: number of parameters that travel; :data:`MODELS` lists some models.
        clients: number of vectors that are summed.
        bound: largest absolute value of a parameter.
        schemes: names from :data:`SCHEMES`; all by default.

    Raises:
        InputError: an unknown scheme.
    """
    plan = Plan(length=length, clients=clients, bound=bound)
    rows = []
    for name in SCHEMES if schemes is None else schemes:
        if name not in SCHEMES:
            raise InputError(f"scheme '{name}': sizes are known for {', '.join(SCHEMES)}")
        try:
            rows.append(SCHEMES[name](name, plan))
        except BudgetExceeded as error:
            rows.append(_row(name, plan, "refused", 0, _NOTHING, None, str(error)))
    return rows


_NOTHING = Budget(upload_bytes=0, download_bytes=0, error_bound=nan, headroom_bits=nan, security_bits=0, memory_bytes=0)


def _row(
    name: str, plan: Plan, context: str, ciphertexts: int, budget: Budget, cost: Cost | None, note: str = ""
) -> SizeRow:
    return SizeRow(
        scheme=name,
        context=context,
        ciphertexts=ciphertexts,
        upload_bytes=budget.upload_bytes,
        download_bytes=budget.download_bytes,
        expansion=budget.upload_bytes / (4 * plan.length),
        error_bound=budget.error_bound,
        headroom_bits=budget.headroom_bits,
        security_bits=budget.security_bits,
        seal_s=cost.seal_s * ciphertexts if cost else nan,
        add_s=cost.add_s * ciphertexts * plan.clients if cost else nan,
        open_s=cost.open_s * ciphertexts if cost else nan,
        note=note,
    )


def _plain(name: str, plan: Plan) -> SizeRow:
    return _row(name, plan, "float32", 0, PlainSum(plan).budget, None, "hides nothing")


def _bfv(mode: bfv.Mode) -> Callable[[str, Plan], SizeRow]:
    def row(name: str, plan: Plan) -> SizeRow:
        fixed = bfv.codec(plan, bfv.VALUE_BITS, stochastic=True)
        p = bfv.fit(plan, fixed, mode)
        cost = COSTS[f"bfv-{mode}"].scaled(p.ring, len(p.chain))
        context = f"N={p.ring} q={p.modulus_bits} t={p.plain_modulus.bit_length()} bits, {mode}"
        note = "exact" if p.ring == 2048 else "exact; seconds scaled"
        return _row(name, plan, context, p.ciphertexts(plan.length), bfv.budget(p, fixed, plan), cost, note)

    return row


def _rlwe(build: Callable[[Plan], AdditiveRlwe], family: str) -> Callable[[str, Plan], SizeRow]:
    def row(name: str, plan: Plan) -> SizeRow:
        sum_ = build(plan)
        p = sum_.parameters
        context = f"N={p.ring} q={p.modulus_bits} t={p.plain_bits} bits, {p.mode}"
        note = "exact; ours, not audited"
        if isinstance(sum_, RlweThreshold):
            note += f"; {sum_.parties} members, each sends {sum_.body_bytes(plan.length, 1)} more bytes to open"
        cost = COSTS[family].scaled(p.ring, len(p.moduli))
        return _row(name, plan, context, p.ciphertexts(plan.length), sum_.budget, cost, note)

    return row


def _ckks(p: CkksParameters, seeded: bool, family: str, note: str = "") -> Callable[[str, Plan], SizeRow]:
    def row(name: str, plan: Plan) -> SizeRow:
        bound = ckks.check(p, plan, "symmetric" if seeded else "public-switched")
        context = f"N={p.ring} {list(p.chain)} scale 2^{p.scale_bits}, {'symmetric' if seeded else 'public'}"
        budget = ckks.budget(p, bound, plan, seeded)
        return _row(name, plan, context, p.ciphertexts(plan.length), budget, COSTS[family], note)

    return row


def _openfhe(build: Callable[[Plan], OpenFheSum], family: str) -> Callable[[str, Plan], SizeRow]:
    def row(name: str, plan: Plan) -> SizeRow:
        sum_ = build(plan)
        ring, count = sum_.ring, sum_.ring.ciphertexts(plan.length)
        if ring.kind == "bgv":
            context = f"N={ring.ring} q={ring.modulus_bits} t={ring.plain_bits} bits, public"
        else:
            context = f"N={ring.ring} [{ring.first_bits}] scale 2^{ring.scale_bits}, public"
        note = "exact" if ring.kind == "bgv" else ""
        if sum_.opened_by == "committee":
            note += f"; {sum_.parties} members, each sends {sum_.body_bytes(plan.length, 1)} more bytes to open"
        return _row(name, plan, context, count, sum_.budget, COSTS[family].scaled(ring.ring, len(ring.moduli)), note)

    return row


def preamble_shape(length: int) -> BlockShape:
    """Return the blocks that PREAMBLE's row is for: a 64th of the rotated vector, in 64 blocks of 256 to 2048."""
    spread = padded_length(length)
    payload = max(1, spread // PREAMBLE_SAVING)
    block = min(spread, max(256, min(2048, payload // 64)))
    return BlockShape(length=length, block_size=block, groups=max(1, payload // block))


def _preamble(dense: bool) -> Callable[[str, Plan], SizeRow]:
    def row(name: str, plan: Plan) -> SizeRow:
        whole = BlockShape(length=plan.length, block_size=plan.length, groups=1, rotated=False)
        shape = whole if dense else preamble_shape(plan.length)
        choice = evaluate(shape, plan.clients, PREAMBLE_EPSILON, PREAMBLE_DELTA, 1, norm_bound=plan.bound)
        bits = max(0, min(20, 30 - round(log2(choice.sensitivity)), 27 - round(log2(choice.sigma))))
        parameters = Parameters.of(choice, norm_bound=plan.bound, fraction_bits=bits)
        sum_ = PreambleSum(plan, parameters, helper_key=bytes(32), run=bytes(16))
        public = sum_.shape(Tag(round=0, layout_hash=bytes(16), length=plan.length)).public_bytes
        context = f"B={shape.block_size} k={shape.groups} t={shape.blocks_per_group}, 64-bit words, two aggregators"
        note = (
            f"public share {public:,} bytes; clipped to norm {plan.bound:g}, private at epsilon 1, delta 1e-6 a round"
        )
        seal_s, add_s, open_s = PREAMBLE_COSTS[name]
        return replace(
            _row(name, plan, context, 0, sum_.budget, None, note),
            seal_s=seal_s * shape.padded_length,
            add_s=add_s * shape.padded_length * plan.clients,
            open_s=open_s * shape.padded_length,
        )

    return row


def _published(ring: int, bits: int, bytes_each: int, note: str) -> Callable[[str, Plan], SizeRow]:
    def row(name: str, plan: Plan) -> SizeRow:
        count = -(-plan.length // (ring // 2))
        budget = Budget(
            upload_bytes=count * bytes_each,
            download_bytes=count * bytes_each,
            error_bound=nan,
            headroom_bits=nan,
            security_bits=security_bits(ring, bits),
            memory_bytes=2 * count * bytes_each,
        )
        cost = COSTS["openfhe-ckks"].scaled(ring, -(-bits // 60))
        return _row(name, plan, f"N={ring} q={bits} bits", count, budget, cost, f"{note}; seconds scaled")

    return row


#: What :func:`sizes` knows, by name.
SCHEMES: dict[str, Callable[[str, Plan], SizeRow]] = {
    "plain": _plain,
    "bfv": _bfv("symmetric"),
    "bfv-public": _bfv("public"),
    "rlwe": _rlwe(lambda plan: RlweSum(plan), "rlwe-symmetric"),
    "rlwe-public": _rlwe(lambda plan: RlweSum(plan, mode="public"), "rlwe-public"),
    "rlwe-threshold": _rlwe(lambda plan: RlweThreshold(plan, 3), "rlwe-threshold"),
    "ckks": _ckks(CkksParameters(), True, "ckks-symmetric"),
    "ckks-public": _ckks(CkksParameters(), False, "ckks-public"),
    "openfhe-ckks": _openfhe(OpenFheCkks, "openfhe-ckks"),
    "openfhe-bgv": _openfhe(OpenFheBgv, "openfhe-bgv"),
    "openfhe-threshold": _openfhe(lambda plan: ThresholdBgv(plan, 3), "openfhe-bgv"),
    "tenseal-usual": _ckks(CkksParameters(8192, (60, 40, 40, 60), 40), False, "tenseal", "TenSEAL's usual context"),
    "preamble": _preamble(dense=False),
    "preamble-dense": _preamble(dense=True),
    # DictPFL (Xue et al., NeurIPS 2025), section 5: N = 2^16, 1555-bit modulus; bytes bit-packed, 2 * N * 1555 / 8.
    "dictpfl-paper": _published(65536, 1555, 2 * 65536 * 1555 // 8, "DictPFL section 5, bit-packed"),
    # FedML-HE (Jin et al., arXiv 2303.10837), section 4: 4096 slots, depth 1, scale 2^52: two 64-bit limbs.
    "fedml-he-paper": _published(8192, 112, 2 * 8192 * 2 * 8, "FedML-HE: 4096 slots, depth 1, scale 2^52"),
}
