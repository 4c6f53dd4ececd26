"""The sections on unequal clients: what devices they are, and how long a round waits for them."""

from typing import Annotated, Any, Literal

from pydantic import Field

from fedsim._config.base import BelowOne, Fraction, Ints, NotNegative, Options, Positive, Section

AtLeastOne = Annotated[float, Field(ge=1)]
PresetName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._:-]*$")]


class DevicesConfig(Section):
    """What kind of devices the clients are; virtual time follows from it."""

    profile: Literal["uniform", "tiers", "log-normal", "zipf", "trace"] = Field(
        default="uniform",
        description="how devices are dealt to the clients: all alike, by tiers, by a law around preset, or from a file",
    )
    preset: PresetName = Field(
        default="laptop", description="uniform, log-normal, zipf: the device; `fedsim devices` lists all"
    )
    network: PresetName | None = Field(
        default=None, description="network of every device; not set: each preset has its own"
    )
    tiers: Options = Field(
        default={}, description="tiers: preset = share, such as phone-low = 0.5; shares are relative"
    )
    sigma: NotNegative = Field(
        default=0.5, description="log-normal: spread of the speed; a client is exp(sigma N(0, 1)) times the preset"
    )
    network_sigma: NotNegative = Field(default=0.5, description="log-normal: the same of both directions' bandwidth")
    exponent: NotNegative = Field(
        default=1.0, description="zipf: the client of rank r has 1/r^exponent of the preset's speed and bandwidth"
    )
    availability: Fraction = Field(
        default=1.0, description="share of the rounds in which a client can be asked, times its preset's own"
    )
    trace: str | None = Field(
        default=None,
        min_length=1,
        description="trace: CSV or Parquet file, one device a row; see docs/heterogeneity.md",
    )
    availability_trace: str | None = Field(
        default=None, min_length=1, description="CSV or Parquet file with the times at which each client is there"
    )


class ClockConfig(Section):
    """How long a round waits for its clients, in virtual time: counted work over the devices' speed."""

    policy: Literal["all", "deadline", "first-k"] = Field(
        default="all",
        description="a round ends when all have answered, at a deadline, or with the first replies of those asked",
    )
    deadline_s: Positive | None = Field(
        default=None, description="deadline: virtual seconds after which a round goes on without the others"
    )
    over_selection: AtLeastOne = Field(
        default=1.0,
        description="deadline, first-k: ask so many times the wanted clients; as many as wanted count, the first ones",
    )
    server: PresetName = Field(default="server", description="device of the server, which adds and opens")


class FaultsConfig(Section):
    """Drills: clients, by number, that fail on purpose."""

    rounds: Ints = Field(default=(), description="rounds in which the drills below happen; empty: all")
    dropout: BelowOne = Field(default=0.0, description="chance of each client in each round to be lost before training")
    drop_before: Ints = Field(default=(), description="clients that are lost before they train")
    drop_during: Ints = Field(default=(), description="clients whose connection breaks while they send")
    drop_after: Ints = Field(default=(), description="clients that are gone after their update was delivered")
    slow: Ints = Field(default=(), description="clients that train slow_factor times as long, in virtual time")
    slow_factor: Positive = Field(default=10.0, description="slow: by how much")
    duplicate: Ints = Field(default=(), description="clients whose reply arrives twice")
    stale: Ints = Field(default=(), description="clients that send the update of their last round again")
    corrupt: Ints = Field(default=(), description="clients one bit of whose update is flipped on its way")
    nan: Ints = Field(default=(), description="clients whose training ends in NaN")
    wrong_key: Ints = Field(default=(), description="clients that seal under a key of their own")
    lie: Ints = Field(default=(), description="clients that state lie_factor times the examples that they have")
    lie_factor: Positive = Field(default=10.0, description="lie: by how much")

    @property
    def clients(self) -> list[int]:
        """All clients with a drill, as often as they have one."""
        kinds = (name for name in type(self).model_fields if name not in ("rounds", "dropout", *_FACTORS))
        return [client for name in kinds for client in getattr(self, name)]


_FACTORS = ("slow_factor", "lie_factor")


def asked(sampled: int, num_clients: int, over_selection: float) -> int:
    """Return how many clients a round asks, given how many it wants."""
    # 1.1 * 10 is 11.000000000000002: without the rounding it would be 12.
    whole = -int(-round(min(over_selection * sampled, num_clients), 9) // 1)
    return min(num_clients, max(sampled, whole))


def bad_tiers(tiers: dict[str, Any], known: frozenset[str]) -> bool:
    """Return whether a table of tiers has an unknown preset, or a share that is no positive number."""
    return any(
        name not in known or isinstance(share, bool) or not isinstance(share, int | float) or not share > 0
        for name, share in tiers.items()
    )
