"""Settings -> strategies: the one place where their names meet their classes."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from fedsim.config import FedLuarConfig, LeffConfig, OwnStrategyConfig, PartialConfig, RunConfig
from fedsim.own import own_thing
from fedsim.proxy import proxy_data
from fedsim.tasks.data import load_dataset
from fedsim.tasks.models import build_model
from fedsim.tasks.training import TrainConfig, learning_rate
from strategies.base import FederatedStrategy
from strategies.client import ClientHalf
from strategies.dictpfl import DictClient, DictPFL
from strategies.fedavg import FedAdam, FedAvg, FedAvgM, FedProx
from strategies.fedbuff import FedBuff
from strategies.fedluar import FedLUAR, LuarClient
from strategies.fedluar_sealed import SealedFedLUAR, SealedLuarClient
from strategies.fedml_he import FedMLHE, FedMLHEClient
from strategies.fedtop import FedTop, TopClient
from strategies.leff import LEFF, Capacity, Distillation, LeffClient
from strategies.partial import FedPartial, PartialClient, stem_of

#: Name -> server half; its constructor takes the options of the strategy's settings by name.
SERVER_HALVES: dict[str, type[FederatedStrategy]] = {
    s.name: s for s in (FedAvg, FedProx, FedAvgM, FedAdam, FedBuff, FedLUAR, DictPFL, FedTop, FedMLHE, LEFF, FedPartial)
}

#: Name -> client half, where it is not the one that trains the whole model.
_CLIENTS: tuple[type[ClientHalf], ...] = (LuarClient, DictClient, TopClient, FedMLHEClient, LeffClient, PartialClient)
CLIENT_HALVES: dict[str, type[ClientHalf]] = {half.name: half for half in _CLIENTS}


def server_half(config: RunConfig, **common: Any) -> FederatedStrategy:
    """Return the server half that the settings name.

    Args:
        config: the settings.
        common: arguments of :class:`~strategies.base.FederatedStrategy`.
    """
    if isinstance(config.strategy, OwnStrategyConfig):
        own: type[FederatedStrategy] = own_thing(config.strategy.name)
        return own.of(config.strategy.options, **common)
    half = SealedFedLUAR if _sealed_luar(config) else SERVER_HALVES[config.strategy.name]
    return half.of(_options(config), **common)


def client_half(config: RunConfig) -> ClientHalf:
    """Return the client half that the settings name; a strategy of one's own may have one as its ``client_half``."""
    if isinstance(config.strategy, OwnStrategyConfig):
        own = own_thing(config.strategy.name)
        half: type[ClientHalf] = getattr(own, "client_half", ClientHalf)
        return half.of(config.strategy.options)
    if _sealed_luar(config):
        return SealedLuarClient.of(_options(config) | {"seed": config.seed})
    return CLIENT_HALVES.get(config.strategy.name, ClientHalf).of(_options(config))


def _sealed_luar(config: RunConfig) -> bool:
    """Tell whether the clients run FedLUAR's step, because nobody else can open the sum."""
    return isinstance(config.strategy, FedLuarConfig) and config.protection.opened_by == "clients"


def _options(config: RunConfig) -> dict[str, Any]:
    options = config.strategy.model_dump(exclude={"name"})
    if isinstance(config.strategy, FedLuarConfig):
        options["learning_rate"] = _rate(config)
    if isinstance(config.strategy, LeffConfig):
        options = _leff(config, config.strategy)
    if isinstance(config.strategy, PartialConfig):
        options["stem"] = partial(_stem, config)
    return options


def train_config(config: RunConfig, rounds: int, proximal_mu: float = 0.0) -> TrainConfig:
    """Return the local training's settings.

    Args:
        config: the settings.
        rounds: rounds of the run; a schedule lasts as long where `training.schedule_rounds` is not set.
        proximal_mu: FedProx's mu, as the server says.
    """
    t = config.training
    return TrainConfig(
        epochs=t.epochs,
        batch_size=t.batch_size,
        optimizer=t.optimizer,
        lr=t.lr,
        momentum=t.momentum,
        weight_decay=t.weight_decay,
        nesterov=t.nesterov,
        schedule=t.schedule,
        schedule_rounds=(t.schedule_rounds or rounds) if t.schedule != "constant" else 0,
        clip_norm=t.clip_norm or 0.0,
        proximal_mu=proximal_mu,
        max_steps=t.max_steps or 0,
        precision=t.precision,
        compile=t.compile,
    )


def _leff(config: RunConfig, strategy: LeffConfig) -> dict[str, Any]:
    """Return LEFF's arguments; its model and proxy data are made when it first asks for them."""
    memory = tuple(1e6 * budget for budget in strategy.memory_mb)
    seed = config.seed if strategy.layer_seed is None else strategy.layer_seed
    return {
        "model": partial(_model, config),
        "proxy": partial(proxy_data, config),
        "capacity": Capacity(
            kind=strategy.capacity, tiers=strategy.tiers, memory_bytes=memory, redraw=strategy.redraw, seed=seed
        ),
        "selector": strategy.selector,
        "temperature": strategy.temperature,
        "per_layer": strategy.per_layer,
        "rate": strategy.rate,
        "distillation": Distillation(
            steps=strategy.distil_steps, lr=strategy.distil_lr, alpha=strategy.alpha, rms=strategy.rms
        ),
        "batch": strategy.proxy_batch,
        "batches": strategy.proxy_batches,
        "warm_start": strategy.warm_start,
        "min_layer_clients": strategy.min_layer_clients,
        "client_batch": config.training.batch_size,
        "layer_seed": strategy.layer_seed,
    }


def _model(config: RunConfig) -> nn.Module:
    """Return a new model as the settings describe it."""
    data = load_dataset(config.task.name, **config.task.options)
    return build_model(
        config.model.name,
        input_shape=data.input_shape,
        num_classes=data.num_classes,
        seed=config.seed,
        **config.model.options,
    )


def _stem(config: RunConfig) -> tuple[str, ...]:
    """Return the names of the model's embeddings.

    Raises:
        Incompatible: it is no stack of blocks.
    """
    return stem_of(_model(config))


def _rate(config: RunConfig) -> Callable[[int], float]:
    """Return the clients' learning rate by round."""
    return partial(learning_rate, train_config(config, config.federation.rounds))
