"""The protections' settings: one class for each secure sum, told apart by `protection.name`.

The classes check shapes and ranges only. Whether the parameters hold the sum of so many clients, and at which
security level, is said by the scheme itself (:class:`crypto.base.Budget`), which refuses what does not fit before
round 1.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from fedsim._config.base import Count, Ints, Positive, Section

SealDegree = Literal[1024, 2048, 4096, 8192, 16384, 32768]
OpenFheDegree = Literal[2048, 4096, 8192, 16384, 32768, 65536]
PrimeBits = Annotated[int, Field(ge=20, le=60)]
PlainBits = Annotated[int, Field(ge=13, le=31)]
ValueBits = Annotated[int, Field(ge=2, le=40)]
ScaleBits = Annotated[int, Field(ge=1, le=58)]
CommitteeSize = Annotated[int, Field(ge=2, le=10)]
RlweCommitteeSize = Annotated[int, Field(ge=2, le=50)]
SmudgingBits = Annotated[int, Field(ge=20, le=64)]
FractionBits = Annotated[int, Field(ge=1, le=52)]
#: Its square, times lengths and numbers of clients, stays within floats.
NormBound = Annotated[float, Field(ge=1e-30, le=1e30)]
Mode = Literal["symmetric", "public"]


#: Weights of the models here stay far below; the schemes' precision is relative to it.
DEFAULT_BOUND = 8.0


class Protection(Section):
    """What every protection declares.

    Attributes:
        opened_by: who can read the sum: ``server``, ``clients``, or a ``committee`` of clients that hands it to the
            server.
        uniform_only: every client counts the same, because the sensitivity of the sum is stated per client.
        repeatable: every client that opens a total gets the same bits.
        needs: the backend that must load: ``tenseal``, ``openfhe``, or nothing but what is always installed.
    """

    opened_by: ClassVar[Literal["server", "clients", "committee"]] = "server"
    uniform_only: ClassVar[bool] = False
    repeatable: ClassVar[bool] = True
    needs: ClassVar[Literal["", "tenseal", "openfhe"]] = ""

    @property
    def plan_bound(self) -> float:
        """Largest absolute value of a coordinate that a client promises; sizes the plan of the secure sum."""
        return DEFAULT_BOUND


class PlainConfig(Protection):
    """The server sees each update."""

    name: Literal["plain"] = Field(default="plain", description="protection")


class _Bounded(Protection):
    opened_by = "clients"

    bound: Positive = Field(
        default=DEFAULT_BOUND, description="largest absolute value of a coordinate; a vector beyond is refused"
    )

    @property
    def plan_bound(self) -> float:
        """See :attr:`Protection.plan_bound`."""
        return self.bound


class _Clipped(Protection):
    opened_by: ClassVar[Literal["server", "clients", "committee"]] = "clients"

    clip: Positive = Field(default=DEFAULT_BOUND, description="coordinates beyond are clipped, and counted")

    @property
    def plan_bound(self) -> float:
        """See :attr:`Protection.plan_bound`."""
        return self.clip


class CkksConfig(_Bounded):
    """CKKS on TenSEAL, one key held by the clients; approximate sums."""

    needs = "tenseal"

    name: Literal["ckks"] = Field(default="ckks", description="protection")
    poly_degree: SealDegree = Field(default=4096, description="ring dimension N")
    chain: Annotated[Ints, Field(min_length=1, max_length=30)] = Field(
        default=(54, 54), description="bits of the primes of the modulus, the last one special"
    )
    scale_bits: ScaleBits = Field(default=40, description="log2 of the scale")
    allow_insecure: bool = Field(default=False, description="accept parameters below 128 bits of security")


class BfvConfig(_Clipped):
    """BFV on SEAL, one key held by the clients; exact sums of fixed-point values."""

    needs = "tenseal"

    name: Literal["bfv"] = Field(default="bfv", description="protection")
    poly_degree: SealDegree | None = Field(
        default=None, description="ring dimension N; not set: the smallest that carries the sum"
    )
    value_bits: ValueBits = Field(default=22, description="bits of a fixed-point value, sign included")
    rounding: Literal["stochastic", "nearest"] = Field(
        default="stochastic", description="stochastic is unbiased; nearest has half the largest error"
    )
    mode: Mode = Field(
        default="symmetric", description="symmetric halves the upload; public seals without the secret key"
    )


class RlweConfig(_Clipped):
    """Additive RLWE of our own, not audited: one key held by the clients; exact sums, the fewest bytes and seconds."""

    name: Literal["rlwe"] = Field(default="rlwe", description="protection; our own code, which nobody has audited")
    poly_degree: Literal[1024, 2048] | None = Field(
        default=None, description="ring dimension N; not set: the smallest that carries the sum"
    )
    value_bits: ValueBits = Field(default=22, description="bits of a fixed-point value, sign included")
    rounding: Literal["stochastic", "nearest"] = Field(
        default="stochastic", description="stochastic is unbiased; nearest has half the largest error"
    )
    mode: Mode = Field(
        default="symmetric", description="symmetric halves the upload; public seals without the secret key"
    )


class RlweThresholdConfig(_Clipped):
    """Additive RLWE of our own, not audited: a committee of clients opens the exact sum together, all of them."""

    opened_by = "committee"

    name: Literal["rlwe-threshold"] = Field(
        default="rlwe-threshold", description="protection; our own code, which nobody has audited"
    )
    committee_size: RlweCommitteeSize = Field(
        default=3, description="clients that hold a share of the key; all must open"
    )
    value_bits: ValueBits = Field(default=22, description="bits of a fixed-point value, sign included")
    rounding: Literal["stochastic", "nearest"] = Field(
        default="stochastic", description="stochastic is unbiased; nearest has half the largest error"
    )
    smudging_bits: SmudgingBits = Field(
        default=40,
        description="all that a member sends in a run is within statistical distance 2^-this of hiding its share",
    )


class _OpenFhe(Protection):
    needs = "openfhe"

    interpreter: str | None = Field(
        default=None, min_length=1, description="python that imports openfhe; not set: one that is found"
    )


class OpenFheCkksConfig(_OpenFhe, _Bounded):
    """CKKS on OpenFHE, one key held by the clients; approximate sums."""

    # OpenFHE adds fresh noise to every decryption of CKKS, against the recovery of the key from opened sums.
    repeatable = False

    name: Literal["openfhe-ckks"] = Field(default="openfhe-ckks", description="protection")
    poly_degree: OpenFheDegree = Field(default=4096, description="ring dimension N")
    modulus_bits: PrimeBits = Field(default=60, description="bits of the ciphertext modulus")
    scale_bits: ScaleBits | None = Field(
        default=None, description="log2 of the scale; not set: the largest that leaves room for the sum"
    )
    mode: Mode = Field(default="public", description="symmetric has less noise; public seals without the secret key")


class OpenFheBgvConfig(_OpenFhe, _Clipped):
    """BGV on OpenFHE, one key held by the clients; exact sums of fixed-point values."""

    name: Literal["openfhe-bgv"] = Field(default="openfhe-bgv", description="protection")
    poly_degree: OpenFheDegree = Field(default=2048, description="ring dimension N")
    modulus_bits: PrimeBits = Field(default=54, description="bits of the ciphertext modulus")
    plain_bits: PlainBits = Field(default=31, description="bits of the plaintext modulus, which holds the whole sum")
    mode: Mode = Field(default="public", description="symmetric has less noise; public seals without the secret key")


class OpenFheThresholdConfig(_OpenFhe):
    """A committee of clients opens the sum together, all of them, on OpenFHE; the server gets the sum only."""

    opened_by = "committee"

    name: Literal["openfhe-threshold"] = Field(default="openfhe-threshold", description="protection")
    base: Literal["bgv", "ckks"] = Field(default="bgv", description="scheme below: bgv is exact, ckks approximate")
    committee_size: CommitteeSize = Field(default=3, description="clients that hold a share of the key; all must open")
    flooding: Literal["heuristic", "statistical"] = Field(
        default="heuristic",
        description="how partial decryptions hide the shares: statistical is proven, at three times the bytes (bgv)",
    )
    bound: Positive = Field(
        default=DEFAULT_BOUND, description="largest absolute value of a coordinate; bgv clips, ckks refuses"
    )

    @property
    def plan_bound(self) -> float:
        """See :attr:`Protection.plan_bound`."""
        return self.bound


class PreambleConfig(Protection):
    """PREAMBLE: two aggregators that do not collude add shares of block-sparse updates, with differential privacy."""

    uniform_only = True

    name: Literal["preamble"] = Field(default="preamble", description="protection")
    # Below, the accountant takes minutes; above, it states nothing.
    epsilon: Annotated[float, Field(ge=1e-3, le=500)] = Field(
        default=1.0, description="privacy loss, of a round or of the whole run as `budget` says"
    )
    delta: Annotated[float, Field(ge=1e-30, lt=1)] = Field(
        default=1e-6, description="probability that epsilon is exceeded"
    )
    budget: Literal["round", "run"] = Field(default="round", description="what epsilon and delta are stated for")
    clip_norm: NormBound = Field(default=1.0, description="L2 norm to which each client's update is clipped")
    clip_factor: NormBound = Field(
        default=1.0, description="a block is clipped to factor * sqrt(block share of the vector)"
    )
    block_size: Count | None = Field(
        default=None, description="coordinates in a block; not set: chosen for the least error within the byte budget"
    )
    blocks: Count | None = Field(
        default=None, description="blocks that a client sends, one from each group; set with block_size or not at all"
    )
    byte_budget: Count | None = Field(
        default=None, description="largest report in bytes; not set: an eighth of a dense share"
    )
    dense: bool = Field(
        default=False, description="send all coordinates in one block: the dense Gaussian mechanism, to compare with"
    )
    word_bits: Literal[32, 64] = Field(default=64, description="bits of a word in which shares are added")
    fraction_bits: FractionBits | None = Field(
        default=None, description="bits after the point of a sent value; not set: as many as a word carries"
    )
    rotation: bool = Field(
        default=True, description="rotate updates by random signs, permutation and Hadamard transform"
    )
    verify: Literal["strict", "blocks", "norm"] = Field(
        default="blocks",
        description="what aggregators check of a report: its encoding, that each group has one block, the norm as well",
    )
    noise: Literal["gaussian", "off-not-private"] = Field(
        default="gaussian", description="discrete Gaussian of both aggregators; off is for tests of exactness only"
    )
    min_cohort: Count = Field(default=2, description="fewest reports of which the helper hands out a total")
    transport: Literal["relay", "direct"] = Field(
        default="direct",
        description="how the leader reaches the helper: direct, by a connection of its own, or relay, through a node "
        "of the helper's owner",
    )
    helper_timeout_s: Positive = Field(
        default=300.0, description="longest wait for one answer of the helper, in seconds"
    )

    @property
    def plan_bound(self) -> float:
        """The L2 norm to which an update is clipped bounds each of its coordinates."""
        return self.clip_norm


#: Name -> class; a new protection is a class above, a row here and a member of the union below.
PROTECTIONS: dict[str, type[Protection]] = {
    "plain": PlainConfig,
    "ckks": CkksConfig,
    "bfv": BfvConfig,
    "rlwe": RlweConfig,
    "rlwe-threshold": RlweThresholdConfig,
    "openfhe-ckks": OpenFheCkksConfig,
    "openfhe-bgv": OpenFheBgvConfig,
    "openfhe-threshold": OpenFheThresholdConfig,
    "preamble": PreambleConfig,
}


def protection_tag(value: Any) -> str | None:
    """Tell which class a protection's settings belong to, or None where the name is no text."""
    name = value.get("name", "plain") if isinstance(value, dict) else getattr(value, "name", None)
    return name if isinstance(name, str) else None


ProtectionConfig = Annotated[
    Annotated[PlainConfig, Tag("plain")]
    | Annotated[CkksConfig, Tag("ckks")]
    | Annotated[BfvConfig, Tag("bfv")]
    | Annotated[RlweConfig, Tag("rlwe")]
    | Annotated[RlweThresholdConfig, Tag("rlwe-threshold")]
    | Annotated[OpenFheCkksConfig, Tag("openfhe-ckks")]
    | Annotated[OpenFheBgvConfig, Tag("openfhe-bgv")]
    | Annotated[OpenFheThresholdConfig, Tag("openfhe-threshold")]
    | Annotated[PreambleConfig, Tag("preamble")],
    Discriminator(protection_tag),
]
