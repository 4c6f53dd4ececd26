"""The protections' settings: one class for each secure sum, told apart by `protection.name`.

The classes check shapes and ranges only. Whether the parameters hold the sum of so many clients, and at which
security level, is said by the scheme itself (:class:`crypto.base.Budget`), which refuses what does not fit before
round 1.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from fedsim._config.base import Count, Ints, Positive, Section

PolyDegree = Literal[1024, 2048, 4096, 8192, 16384, 32768]
PrimeBits = Annotated[int, Field(ge=16, le=60)]
ValueBits = Annotated[int, Field(ge=2, le=40)]
ScaleBits = Annotated[int, Field(ge=10, le=58)]
CommitteeSize = Annotated[int, Field(ge=2, le=10)]


class Protection(Section):
    """What every protection declares.

    Attributes:
        opened_by: who can read the sum: ``server``, ``clients``, or a ``committee`` of clients that hands it to the
            server.
        uniform_only: every client counts the same, because the sensitivity of the sum is stated per client.
        needs: the backend that must load: ``tenseal``, ``openfhe``, or nothing but what is always installed.
    """

    opened_by: ClassVar[Literal["server", "clients", "committee"]] = "server"
    uniform_only: ClassVar[bool] = False
    needs: ClassVar[Literal["", "tenseal", "openfhe"]] = ""


class PlainConfig(Protection):
    """The server sees each update."""

    name: Literal["plain"] = Field(default="plain", description="protection")


class CkksConfig(Protection):
    """CKKS on TenSEAL, one key held by the clients; approximate sums."""

    opened_by = "clients"
    needs = "tenseal"

    name: Literal["ckks"] = Field(default="ckks", description="protection")
    poly_degree: PolyDegree = Field(default=4096, description="ring dimension N")
    chain: Annotated[Ints, Field(min_length=1, max_length=30)] = Field(
        default=(54, 54), description="bits of the primes of the modulus, the last one special"
    )
    scale_bits: ScaleBits = Field(default=40, description="log2 of the scale")
    bound: Positive = Field(default=8.0, description="largest absolute value of a coordinate; larger is refused")
    allow_insecure: bool = Field(default=False, description="accept parameters below 128 bits of security")


class BfvConfig(Protection):
    """BFV on SEAL, one key held by the clients; exact sums of fixed-point values."""

    opened_by = "clients"
    needs = "tenseal"

    name: Literal["bfv"] = Field(default="bfv", description="protection")
    poly_degree: PolyDegree = Field(default=2048, description="ring dimension N")
    modulus_bits: PrimeBits = Field(default=44, description="bits of the ciphertext modulus")
    value_bits: ValueBits = Field(default=20, description="bits of a fixed-point value, sign included")
    clip: Positive = Field(default=8.0, description="values beyond are clipped, and counted")
    mode: Literal["symmetric", "public"] = Field(
        default="symmetric",
        description="symmetric halves the ciphertexts; public lets clients seal without the secret key",
    )
    allow_insecure: bool = Field(default=False, description="accept parameters below 128 bits of security")


class _OpenFhe(Protection):
    needs = "openfhe"

    interpreter: str | None = Field(
        default=None,
        min_length=1,
        description="python that can import openfhe; not set: this one, or one that is found",
    )
    bound: Positive = Field(default=8.0, description="largest absolute value of a coordinate")


class OpenFheCkksConfig(_OpenFhe):
    """CKKS on OpenFHE, one key held by the clients; approximate sums."""

    opened_by = "clients"

    name: Literal["openfhe-ckks"] = Field(default="openfhe-ckks", description="protection")
    poly_degree: PolyDegree = Field(default=4096, description="ring dimension N")
    modulus_bits: PrimeBits = Field(default=60, description="bits of the ciphertext modulus")
    scale_bits: ScaleBits = Field(default=40, description="log2 of the scale")


class OpenFheBgvConfig(_OpenFhe):
    """BGV on OpenFHE, one key held by the clients; exact sums of fixed-point values."""

    opened_by = "clients"

    name: Literal["openfhe-bgv"] = Field(default="openfhe-bgv", description="protection")
    poly_degree: PolyDegree = Field(default=2048, description="ring dimension N")
    modulus_bits: PrimeBits = Field(default=54, description="bits of the ciphertext modulus")
    value_bits: ValueBits = Field(default=20, description="bits of a fixed-point value, sign included")


class OpenFheThresholdConfig(_OpenFhe):
    """A committee of clients opens the sum together, on OpenFHE; the server gets the sum only."""

    opened_by = "committee"

    name: Literal["openfhe-threshold"] = Field(default="openfhe-threshold", description="protection")
    base: Literal["ckks", "bgv"] = Field(default="bgv", description="scheme below")
    committee_size: CommitteeSize = Field(default=3, description="clients that hold a share of the key")
    threshold: CommitteeSize | None = Field(
        default=None, description="members that must take part to open; not set: all of them"
    )
    poly_degree: PolyDegree = Field(default=4096, description="ring dimension N")
    modulus_bits: PrimeBits = Field(default=60, description="bits of the ciphertext modulus")
    scale_bits: ScaleBits = Field(default=50, description="log2 of the scale (base ckks)")
    value_bits: ValueBits = Field(default=20, description="bits of a fixed-point value, sign included (base bgv)")


class PreambleConfig(Protection):
    """PREAMBLE: two aggregators that do not collude add shares of block-sparse updates, with differential privacy."""

    uniform_only = True

    name: Literal["preamble"] = Field(default="preamble", description="protection")
    epsilon: Positive = Field(default=1.0, description="privacy loss, of a round or of the whole run as `budget` says")
    delta: Annotated[float, Field(gt=0, lt=1)] = Field(default=1e-6, description="probability that epsilon is exceeded")
    budget: Literal["round", "run"] = Field(default="round", description="what epsilon and delta are stated for")
    clip_norm: Positive = Field(default=1.0, description="L2 norm to which each client's update is clipped")
    clip_factor: Positive = Field(
        default=1.0, description="a block is clipped to factor * sqrt(block share of the vector)"
    )
    block_size: Count = Field(default=256, description="coordinates in a block")
    blocks: Count = Field(default=8, description="blocks that a client sends, one from each group")
    word_bits: Literal[32, 64] = Field(default=64, description="bits of a word in which shares are added")
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
        default="relay", description="how shares reach the helper: through the leader, sealed, or directly"
    )
    helper_public_key: str | None = Field(
        default=None,
        min_length=1,
        description="file of the helper's pinned public key; not set: a fresh one (simulation)",
    )


#: Name -> class; a new protection is a class above, a row here and a member of the union below.
PROTECTIONS: dict[str, type[Protection]] = {
    "plain": PlainConfig,
    "ckks": CkksConfig,
    "bfv": BfvConfig,
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
    | Annotated[OpenFheCkksConfig, Tag("openfhe-ckks")]
    | Annotated[OpenFheBgvConfig, Tag("openfhe-bgv")]
    | Annotated[OpenFheThresholdConfig, Tag("openfhe-threshold")]
    | Annotated[PreambleConfig, Tag("preamble")],
    Discriminator(protection_tag),
]
