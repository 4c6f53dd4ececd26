"""The whole tree of settings, before its combinations are checked."""

from typing import Any

from pydantic import Field

from fedsim._config.base import Section
from fedsim._config.heterogeneity import ClockConfig, DevicesConfig, FaultsConfig, asked
from fedsim._config.protections import PROTECTIONS, PlainConfig, Protection, ProtectionConfig, protection_tag
from fedsim._config.sections import (
    DataConfig,
    EngineConfig,
    FederationConfig,
    ModelConfig,
    OutputConfig,
    TaskConfig,
    TrainingConfig,
)
from fedsim._config.strategies import STRATEGIES, FedAvgConfig, FedBuffConfig, Strategy, StrategyConfig, strategy_tag


class Settings(Section):
    """All settings of a run; each value is of the right kind, combinations are not checked yet."""

    seed: int = Field(default=1, ge=0, lt=2**63, description="everything random in a run follows from it, but keys")
    task: TaskConfig = Field(default=TaskConfig(), description="what is learned")
    model: ModelConfig = Field(default=ModelConfig(), description="what is trained")
    data: DataConfig = Field(default=DataConfig(), description="how the training set is dealt out to the clients")
    training: TrainingConfig = Field(default=TrainingConfig(), description="what one client does in one round")
    federation: FederationConfig = Field(
        default=FederationConfig(), description="who takes part, and how replies are averaged and evaluated"
    )
    strategy: StrategyConfig = Field(
        default=FedAvgConfig(), description="what travels, and what the server makes of it"
    )
    protection: ProtectionConfig = Field(default=PlainConfig(), description="how the sum of what travels is protected")
    engine: EngineConfig = Field(default=EngineConfig(), description="where the clients run")
    devices: DevicesConfig = Field(default=DevicesConfig(), description="what kind of devices the clients are")
    clock: ClockConfig = Field(default=ClockConfig(), description="how long a round waits, in virtual time")
    faults: FaultsConfig = Field(default=FaultsConfig(), description="drills: clients that fail on purpose")
    output: OutputConfig = Field(default=OutputConfig(), description="what a run leaves behind")

    @property
    def asked(self) -> int:
        """Number of clients that are asked in a round; more than count where the clock selects more than it wants."""
        return asked(self.federation.sampled, self.federation.num_clients, self.clock.over_selection)

    @property
    def needed_replies(self) -> int:
        """Number of usable replies without which a round fails; of a buffer's, where the server waits for nobody."""
        if isinstance(self.strategy, FedBuffConfig):
            return min(self.strategy.buffer_size, self.federation.needed_of(self.strategy.buffer_size))
        return self.federation.needed_replies


def federation_defaults(kind: type[Protection], strategy: type[Strategy]) -> dict[str, Any]:
    """Return those defaults of the section `federation` that depend on the protection and the strategy.

    Where only the clients have the model the server cannot evaluate, so all clients do; where the sensitivity is
    stated per client, every client counts the same.
    """
    blind = kind.opened_by == "clients" or strategy.clients_hold_model
    return {
        "server_evaluation": not blind,
        "client_evaluation_fraction": 1.0 if blind else 0.0,
        "weighting": "uniform" if kind.uniform_only else "examples",
    }


def implied(data: dict[str, Any]) -> dict[str, Any]:
    """Fill in the defaults that depend on protection and strategy; what was given stays.

    Args:
        data: settings as nested dicts; not modified.
    """
    kind = PROTECTIONS.get(protection_tag(data.get("protection", {})) or "")
    strategy = STRATEGIES.get(strategy_tag(data.get("strategy", {})) or "", Strategy)
    federation = data.get("federation", {})
    if kind is None or not isinstance(federation, dict):
        return data
    return data | {"federation": federation_defaults(kind, strategy) | federation}
