"""The strategies' settings: one class each, told apart by `strategy.name`."""

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag

from fedsim._config.base import (
    BelowOne,
    Count,
    CountOrZero,
    Fraction,
    FractionOrZero,
    Ints,
    NotNegative,
    Numbers,
    Options,
    Positive,
    Section,
    as_tuple,
)
from fedsim.own import is_own, own_thing

#: Flower's own strategies that average arrays -> the options of their own. What we set ourselves (fractions, minimum
#: numbers, record keys, metric functions) is not among them; tree boosting and the wrappers that need a second
#: strategy are left out. A test compares this table with the installed flwr.
FLWR_OPTIONS: dict[str, tuple[str, ...]] = {
    "Bulyan": ("num_malicious_nodes",),
    "FedAdagrad": ("eta", "eta_l", "tau"),
    "FedAdam": ("eta", "eta_l", "beta_1", "beta_2", "tau"),
    "FedAvg": (),
    "FedAvgM": ("server_learning_rate", "server_momentum"),
    "FedMedian": (),
    "FedProx": ("proximal_mu",),
    "FedTrimmedAvg": ("beta",),
    "FedYogi": ("eta", "eta_l", "beta_1", "beta_2", "tau"),
    "Krum": ("num_malicious_nodes",),
    "MultiKrum": ("num_malicious_nodes", "num_nodes_to_select"),
    "QFedAvg": ("client_learning_rate", "q", "train_loss_key"),
}


def _ranks(value: object) -> object:
    for entry in value if isinstance(value, list | tuple) else ():
        if not (isinstance(entry, str) and re.fullmatch(r"[A-Za-z0-9_.]+=[0-9]{1,9}", entry)):
            raise ValueError(f"entry {entry!r} must be LAYER=RANK, such as 'fc1=8'")
    return as_tuple(value)


Ranks = Annotated[tuple[str, ...], BeforeValidator(_ranks)]
_SNAPSHOT = "rounds after which a client's sealed state replaces older totals on the server; 0: it keeps every total"


class Strategy(Section):
    """What every strategy declares.

    Attributes:
        needs_opened_sum: the server must read the sum, to run an optimiser of its own on it.
        needs_each_update: the server must read each client's update, so nothing can be protected.
        clients_hold_model: the clients apply every sum, the server never has the model; so they must be able to open
            it, and each to the same bits.
        proxy_rows: training rows that the server keeps as proxy data where `data.proxy_examples` is not set.
        clips_changes: clients can clip the norm of their change (`federation.update_norm`).
    """

    needs_opened_sum: ClassVar[bool] = False
    needs_each_update: ClassVar[bool] = False
    clients_hold_model: ClassVar[bool] = False
    proxy_rows: ClassVar[int] = 0
    clips_changes: ClassVar[bool] = False


class FedAvgConfig(Strategy):
    """Weighted average of the clients' weights (McMahan et al. 2017)."""

    clips_changes = True

    name: Literal["fedavg"] = Field(default="fedavg", description="strategy")


class FedProxConfig(Strategy):
    """FedAvg with a proximal term in the client's loss (Li et al. 2020)."""

    clips_changes = True

    name: Literal["fedprox"] = Field(default="fedprox", description="strategy")
    mu: NotNegative = Field(default=0.01, description="weight of the proximal term; 0 is FedAvg")


class FedAvgMConfig(Strategy):
    """Momentum on the server (Hsu et al. 2019)."""

    needs_opened_sum = True
    clips_changes = True

    name: Literal["fedavgm"] = Field(default="fedavgm", description="strategy")
    server_lr: Positive = Field(default=1.0, description="server learning rate")
    server_momentum: BelowOne = Field(default=0.9, description="server momentum")


class FedAdamConfig(Strategy):
    """Adam on the server (Reddi et al. 2021)."""

    needs_opened_sum = True
    clips_changes = True

    name: Literal["fedadam"] = Field(default="fedadam", description="strategy")
    server_lr: Positive = Field(default=0.01, description="server learning rate")
    beta1: BelowOne = Field(default=0.9, description="decay of the first moment")
    beta2: BelowOne = Field(default=0.99, description="decay of the second moment")
    tau: Positive = Field(default=1e-3, description="added to the root of the second moment")


class FedBuffConfig(Strategy):
    """Waits for nobody: each full buffer of changes, stale ones counting less, is a step (Nguyen et al. 2022)."""

    needs_opened_sum = True

    name: Literal["fedbuff"] = Field(default="fedbuff", description="strategy")
    buffer_size: Count = Field(default=5, description="K: changes that make a step, which is a round here")
    server_lr: Positive = Field(default=1.0, description="server learning rate")
    staleness_exponent: NotNegative = Field(
        default=0.5, description="a change that is t steps old counts (1 + t)^-exponent; 0: like a fresh one"
    )


class FedLuarConfig(Strategy):
    """Recycled updates for layers that change little, which are not sent (Kim et al. 2025; weighting = "uniform")."""

    name: Literal["fedluar"] = Field(default="fedluar", description="strategy")
    delta: CountOrZero = Field(
        default=2, description="layers that are recycled in a round, fewer than the model has; 0 is FedAvg"
    )
    sampler: Literal["score", "uniform", "round_robin", "deterministic"] = Field(
        default="score", description="how they are drawn: score is the paper's, the others are controls"
    )
    drop: bool = Field(default=False, description="control: the drawn layers stand still instead")
    group: Literal["tensor", "module"] = Field(
        default="tensor", description="a layer is a kernel (the paper), or a kernel with its bias"
    )
    downlink: Literal["full", "delta"] = Field(
        default="full", description="delta: clients are not sent down either what they can make themselves"
    )
    max_staleness: Count | None = Field(
        default=None, description="rounds in a row that a layer may be recycled; not set: no limit, as in the paper"
    )
    refresh_on_lr_change: bool = Field(
        default=True, description="no update is recycled that was made at half or twice today's learning rate"
    )
    layer_seed: int | None = Field(
        default=None, ge=0, lt=2**63, description="seed of the draw of layers; not set: the run's"
    )
    mu: NotNegative = Field(default=0.0, description="weight of FedProx's proximal term")
    optimizer: Literal["average", "momentum", "adam"] = Field(
        default="average", description="what the server makes of the mean update"
    )
    server_lr: Positive = Field(default=1.0, description="server learning rate")
    server_momentum: BelowOne = Field(default=0.9, description="momentum: decay")
    beta1: BelowOne = Field(default=0.9, description="adam: decay of the first moment")
    beta2: BelowOne = Field(default=0.99, description="adam: decay of the second moment")
    tau: Positive = Field(default=1e-3, description="adam: added to the root of the second moment")
    recycle: Literal["gradient", "step"] = Field(
        default="gradient", description="what is applied again: the mean update, or the optimizer's step"
    )


class DictPflConfig(Strategy):
    """Small trained tables over frozen dictionaries, pruned by history (Xue et al. 2025; clients hold the model)."""

    clients_hold_model = True

    name: Literal["dictpfl"] = Field(default="dictpfl", description="strategy")
    rank: Count = Field(default=4, description="columns of each layer's dictionary")
    ranks: Ranks = Field(default=(), description="ranks of single layers, each as LAYER=RANK; 0 freezes a layer")
    dict_scale: Literal["us", "u"] = Field(
        default="us", description="dictionary: left singular vectors times singular values (the paper), or alone"
    )
    orient: Literal["literal", "auto"] = Field(
        default="literal", description="auto: a table has as many columns as its layer's shorter side"
    )
    train_head: bool = Field(default=True, description="the last linear layer trains as it is")
    train_bias: bool = Field(default=False, description="biases and norms train too")
    convolutions: bool = Field(default=False, description="convolutions are decomposed, not frozen")
    prune_share: BelowOne = Field(default=0.7, description="s: share of the coordinates that may be at rest; 0: all go")
    # Not a Count with another bound: of two bounds of a kind pydantic keeps one without a word.
    patience: Annotated[int, Field(ge=1, lt=2**16)] = Field(
        default=3, description="tau: rounds in a row at rest before a coordinate is left out"
    )
    beta: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=0.2, description="a reactivation's probability falls by this factor if in vain, else rises"
    )
    p_init: FractionOrZero | None = Field(default=None, description="first probability; not set: beta")
    population: Literal["all", "transmitted"] = Field(
        default="all", description="what prune_share is a share of: all coordinates, or those that were sent (harsher)"
    )
    hrc_update: Literal["reactivated", "every_round"] = Field(
        default="reactivated", description="when a probability moves"
    )
    noise_floor: NotNegative = Field(default=1e-7, description="mean updates up to this are at rest in any case")
    reactivation: bool = Field(default=True, description="left-out coordinates are tried again at random")
    residual: bool = Field(default=True, description="a client keeps what it could not send")
    snapshot_every: CountOrZero = Field(default=0, description=_SNAPSHOT)


class FedTopConfig(Strategy):
    """FedAvg on the last layers alone (FedHE-Top2 of Xue et al. 2025, under an encrypted sum)."""

    name: Literal["fedtop"] = Field(default="fedtop", description="strategy")
    layers: Count = Field(default=2, description="number of last layers with weights that train and travel")


class FedMlHeConfig(Strategy):
    """The most sensitive coordinates under the protection, the rest in the clear (Jin et al. 2023)."""

    clients_hold_model = True

    name: Literal["fedml-he"] = Field(default="fedml-he", description="strategy")
    encrypted_share: FractionOrZero = Field(default=0.1, description="p: share of the coordinates that are protected")
    every: CountOrZero = Field(default=0, description="rounds between two scorings of the coordinates; 0 scores once")
    score_examples: CountOrZero = Field(default=0, description="examples that a client scores with; 0 for all")
    snapshot_every: CountOrZero = Field(default=0, description=_SNAPSHOT)


class PartialConfig(Strategy):
    """FedAvg of a part of a block model, the rest frozen: full fine-tuning, head-only, FedBitFit, FedLoRA."""

    name: Literal["partial"] = Field(default="partial", description="strategy")
    trained: Literal["blocks", "tail", "bias", "lora"] = Field(
        default="blocks",
        description="beside the tail: all blocks, nothing, the blocks' biases, or adapters (model.options.lora_rank)",
    )


class LeffConfig(Strategy):
    """A window of blocks for each client, the rest compressed by distillation (Shen et al. 2025)."""

    needs_opened_sum = True
    proxy_rows = 256

    name: Literal["leff"] = Field(default="leff", description="strategy")
    capacity: Literal["tiers", "memory", "half-normal"] = Field(
        default="tiers", description="how many blocks a client trains: by tiers, by memory_mb, or drawn"
    )
    tiers: Ints = Field(default=(1, 1, 2, 2, 3, 6), description="tiers: blocks, by the client's number in turn")
    memory_mb: Numbers = Field(default=(), description="memory: each client's budget in MB, in turn")
    redraw: bool = Field(default=False, description="capacities change from round to round")
    selector: Literal["importance", "raw", "random", "round_robin", "uniform", "gradient"] = Field(
        default="importance",
        description="how blocks are chosen: importance (normalised) and raw are the paper's, the others controls; "
        "uniform and gradient choose blocks that are no neighbours, and send the whole model",
    )
    temperature: Positive = Field(default=1.0, description="divides normalised importance; smaller is sharper")
    per_layer: bool = Field(default=False, description="divide a window's importance by its length")
    rate: Fraction = Field(default=0.5, description="share of the other blocks that their students have; 1: copies")
    distil_steps: CountOrZero = Field(default=20, description="steps of distillation a student and round")
    distil_lr: Positive = Field(default=1e-3, description="learning rate of distillation")
    alpha: FractionOrZero = Field(default=0.5, description="weight of the attention maps in distillation")
    rms: bool = Field(default=False, description="divide the hidden states' error by their root mean square")
    warm_start: bool = Field(default=True, description="a student goes on from the last one of the same segment")
    proxy_batch: Count = Field(default=64, description="proxy examples in a batch of importance and distillation")
    proxy_batches: Count = Field(default=4, description="such batches in a round")
    proxy_task: str | None = Field(
        default=None, min_length=1, description="data set of the proxy, unlabelled; not set: data.proxy_examples rows"
    )
    proxy_options: Options = Field(default={}, description="settings of that data set's loader")
    min_layer_clients: Count | None = Field(
        default=None,
        description="a block that fewer clients trained in a round is left as it was; not set: 1, or 2 if protected",
    )
    layer_seed: int | None = Field(
        default=None, ge=0, lt=2**63, description="seed of the draw of windows; not set: the run's"
    )


class FlwrStrategyConfig(Strategy):
    """A strategy that comes with Flower, by the name of its class."""

    needs_opened_sum = True
    needs_each_update = True

    name: Annotated[str, Field(pattern=f"^flwr:({'|'.join(FLWR_OPTIONS)})$")] = Field(
        default="flwr:FedAvg", description="a class of flwr.serverapp.strategy, as flwr:<ClassName>"
    )
    options: Options = Field(default={}, description="arguments of that class's constructor")

    @property
    def class_name(self) -> str:
        """Name of the class in ``flwr.serverapp.strategy``."""
        return self.name.removeprefix("flwr:")

    @property
    def option_names(self) -> str:
        """The options that this class takes, in words."""
        return ", ".join(FLWR_OPTIONS[self.class_name]) or "none"


def _strategy_class(name: str) -> str:
    """Refuse a name that leads to no strategy."""
    found = own_thing(name)
    if not (isinstance(found, type) and hasattr(found, "apply") and hasattr(found, "needs_open_model")):
        raise ValueError("must be a class on strategies.base.FederatedStrategy, such as a subclass of FedAvg")
    return name


class OwnStrategyConfig(Strategy):
    """A strategy of your own, by the module and the name of its class; it may be a file in the current folder."""

    name: Annotated[str, AfterValidator(_strategy_class)] = Field(
        default="<module>:<Class>",
        validate_default=False,
        description="a subclass of strategies.base.FederatedStrategy, as <module>:<Class>",
    )
    options: Options = Field(default={}, description="arguments of that class's constructor")

    @property
    def reads_sum(self) -> bool:
        """Whether its server half must see the sum: it says so, or does more with the mean than FedAvg.

        Where only clients can open the sum no server's ``apply`` is called, so that such a step would be left out.
        """
        from strategies.fedavg import FedAvg

        kind = own_thing(self.name)
        return bool(kind.needs_open_model) or (kind.apply is not FedAvg.apply and not hasattr(kind, "client_half"))


#: Families of strategies: tag -> how their members are named.
FAMILIES = {"flwr": "flwr:<ClassName>", "own": "<module>:<Class>"}

#: Tag -> class; a new strategy is a class above and a row here.
STRATEGIES: dict[str, type[Strategy]] = {
    "fedavg": FedAvgConfig,
    "fedprox": FedProxConfig,
    "fedavgm": FedAvgMConfig,
    "fedadam": FedAdamConfig,
    "fedbuff": FedBuffConfig,
    "fedluar": FedLuarConfig,
    "dictpfl": DictPflConfig,
    "fedtop": FedTopConfig,
    "fedml-he": FedMlHeConfig,
    "leff": LeffConfig,
    "partial": PartialConfig,
    "flwr": FlwrStrategyConfig,
    "own": OwnStrategyConfig,
}


def strategy_tag(value: Any) -> str | None:
    """Tell which class a strategy's settings belong to, or None where the name is no text."""
    name = value.get("name", "fedavg") if isinstance(value, dict) else getattr(value, "name", None)
    if not isinstance(name, str):
        return None
    return "flwr" if name.startswith("flwr:") else "own" if is_own(name) else name


StrategyConfig = Annotated[
    Annotated[FedAvgConfig, Tag("fedavg")]
    | Annotated[FedProxConfig, Tag("fedprox")]
    | Annotated[FedAvgMConfig, Tag("fedavgm")]
    | Annotated[FedAdamConfig, Tag("fedadam")]
    | Annotated[FedBuffConfig, Tag("fedbuff")]
    | Annotated[FedLuarConfig, Tag("fedluar")]
    | Annotated[DictPflConfig, Tag("dictpfl")]
    | Annotated[FedTopConfig, Tag("fedtop")]
    | Annotated[FedMlHeConfig, Tag("fedml-he")]
    | Annotated[LeffConfig, Tag("leff")]
    | Annotated[PartialConfig, Tag("partial")]
    | Annotated[FlwrStrategyConfig, Tag("flwr")]
    | Annotated[OwnStrategyConfig, Tag("own")],
    Discriminator(strategy_tag),
]
