"""What one process needs to play clients or to evaluate: data, partition and one resident model, made once.

Clients of one process share a model object; each round loads the global weights into it, so nothing of one client
reaches another except through the server.
"""

import operator
import os
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from crypto import InputError
from crypto.base import Plan
from crypto.keys import CLIENTS, SERVER
from fedsim.config import RunConfig, from_run_config, load_config, to_run_config
from fedsim.protections import protection_of
from fedsim.proxy import proxy_examples, split_proxy
from fedsim.registry import client_half, server_half, train_config
from fedsim.tasks.cohort import obstacle
from fedsim.tasks.data import Dataset, load_dataset
from fedsim.tasks.errors import BadOption
from fedsim.tasks.flops import flops_per_example
from fedsim.tasks.models import build_model
from fedsim.tasks.partition import Partition, everything, partition, scheme_options
from fedsim.tasks.training import TrainConfig, as_inputs
from strategies.client import ClientHalf
from strategies.memory import training_bytes
from strategies.plan import BufferRule
from strategies.protection import Protection
from strategies.records import NamedArrays, model_from_bytes
from strategies.state import buffer_names, load_state_arrays, read_tensors

Scalar = bool | int | float | str
#: The data set that reads what is named, a file or a folder.
OWN_DATA = "files"
#: Clients whose tensors are kept between rounds, by bytes of input.
_CACHE_BYTES = 512 * 2**20


@dataclass(frozen=True)
class Site:
    """Everything that follows from the settings; heavy parts are made on first use.

    Attributes:
        config: the settings.
        keys: folder of this party's keys, where the protection has any.
        role: ``clients`` or ``server``.
        data: a client's own file or folder, for the task ``files``.
    """

    config: RunConfig
    keys: str | None = None
    role: str = CLIENTS
    data: str = ""

    @property
    def own_data(self) -> bool:
        """Whether each client has data of its own, of which no other process knows."""
        return self.config.task.name == OWN_DATA and not self.config.task.options.get("path")

    @cached_property
    def dataset(self) -> Dataset:
        """The task's data; where clients have data of their own, this client's, and none on the server."""
        if self.data and not self.own_data:
            raise InputError(
                f"data {self.data}: task.name is '{self.config.task.name}', which brings its own data; set task.name = "
                f"{OWN_DATA} without options.path, or leave data out of node.toml"
            )
        own = {"path": self.data} if self.data else {}
        return load_dataset(self.config.task.name, **(self.config.task.options | own))

    @cached_property
    def partition(self) -> Partition:
        """Which training rows each client holds; the same in every process. The server's proxy rows are nobody's.

        Where clients have data of their own every client of this process holds all rows of it.
        """
        if self.own_data:
            return everything(self.dataset.train_y, self.config.federation.num_clients, self.dataset.num_classes)
        return _DEALT.of(self.config, self.dataset)

    @cached_property
    def model(self) -> nn.Module:
        """The resident model; its weights are whatever was loaded last."""
        model = build_model(
            self.config.model.name,
            input_shape=self.dataset.input_shape,
            num_classes=self.dataset.num_classes,
            seed=self.config.seed,
            **self.config.model.options,
        )
        if self.config.model.weights is not None:
            start_from(model, Path(self.config.model.weights))
        self.half.shape(model)
        self.__dict__["initial"] = read_state(model)
        return model

    @cached_property
    def initial(self) -> NamedArrays:
        """The weights of round 0, which follow from the seed."""
        _ = self.model
        state = self.__dict__["initial"]
        assert isinstance(state, NamedArrays)
        return state

    @cached_property
    def _start(self) -> "list[tuple[list[NDArray[np.generic]], dict[str, Tensor]]]":
        return []

    def tensors_of(self, state: NamedArrays) -> Mapping[str, Tensor]:
        """Return a state's parameters that train as tensors, not to be changed; made once for each round's state.

        Raises:
            StateMismatch: the state is not the model's.
        """
        arrays = list(state.arrays.values())
        known = self._start[0] if self._start else None
        if known is None or len(known[0]) != len(arrays) or any(map(operator.is_not, known[0], arrays)):
            load_state_arrays(self.model, state.arrays)
            start = {name: p.detach().clone() for name, p in self.model.named_parameters() if p.requires_grad}
            known = arrays, start
            self._start[:] = [known]
        return known[1]

    @cached_property
    def buffer_names(self) -> frozenset[str]:
        """Untrained state (BatchNorm's statistics)."""
        return buffer_names(self.model)

    @cached_property
    def protection(self) -> Protection:
        """The run's secure sum, as the strategies see it."""
        return protection_of(self.config, self.keys, self.role)

    @cached_property
    def half(self) -> ClientHalf:
        """The client half of the run's strategy."""
        return client_half(self.config)

    @cached_property
    def why_alone(self) -> str | None:
        """Why clients train one by one whatever ``engine.cohort`` says; ``None`` if they may train together."""
        if not self.shapes_alike:
            return f"{self.config.strategy.name} shapes the model for each client"
        if self.config.training.precision != "float32" or self.config.training.compile:
            return "training.precision and training.compile are of the model as each client trains it"
        return obstacle(self.model)

    @cached_property
    def flops_per_example(self) -> int:
        """Forward and backward operations for one example of the model as built."""
        return self.flops_of(self.model)

    @cached_property
    def _flops(self) -> "dict[tuple[object, ...], int]":
        return {}

    @cached_property
    def shapes_alike(self) -> bool:
        """Whether all clients of all rounds train the resident model as it was built."""
        half = type(self.half)
        return half.prepare is ClientHalf.prepare and half.own_model is ClientHalf.own_model

    @cached_property
    def examines(self) -> bool:
        """Whether clients look at their data before they train."""
        return type(self.half).examine is not ClientHalf.examine

    @cached_property
    def _rates(self) -> "dict[tuple[int, float], TrainConfig]":
        return {}

    def train_config(self, rounds: int, proximal_mu: float) -> TrainConfig:
        """Return the local training's settings, see :func:`fedsim.registry.train_config`; made once."""
        key = rounds, proximal_mu
        if key not in self._rates:
            self._rates[key] = train_config(self.config, rounds, proximal_mu)
        return self._rates[key]

    def flops_of(self, model: nn.Module) -> int:
        """The same for any model of this task; counted once for each set of shapes and of what trains."""
        key = () if self.shapes_alike and model is self.model else _work(model)
        if key not in self._flops:
            self._flops[key] = flops_per_example(model, self.dataset.input_shape)
        return self._flops[key]

    @cached_property
    def _memory(self) -> "dict[tuple[object, ...], int]":
        return {}

    def training_bytes(self, model: nn.Module, x: Tensor) -> int:
        """Memory that training a model on these examples needs, as :func:`strategies.memory.training_bytes` counts."""
        training = self.config.training
        batch = min(training.batch_size, len(x))
        key = (batch, *(() if self.shapes_alike and model is self.model else _work(model)))
        if key not in self._memory:
            moments = 2 if training.optimizer == "adamw" else int(training.momentum > 0)
            self._memory[key] = training_bytes(model, x[:1], batch, moments)
        return self._memory[key]

    @cached_property
    def evaluation_flops_per_example(self) -> int:
        """Forward operations for one example."""
        return flops_per_example(self.model, self.dataset.input_shape, backward=False)

    @cached_property
    def _clients(self) -> "_Held":
        return _Held(_CACHE_BYTES)

    def train_data(self, client: int) -> tuple[Tensor, Tensor]:
        """Return a client's training examples and labels as tensors, kept between rounds while they fit."""
        held = self._clients.find(client)
        if held is not None:
            return held
        rows = self.partition.indices[client]
        labels = torch.from_numpy(self.dataset.train_y[rows].astype(np.int64))
        return self._clients.keep(client, (as_inputs(self.dataset.train_x[rows]), labels))

    def test_data(self, client: int) -> tuple[Tensor, Tensor]:
        """Return a client's share of the test set: every num_clients-th row from its own number.

        The shares of all clients make up the test set exactly, so their weighted mean is the test set's accuracy. Where
        clients have data of their own, all of the client's test rows.
        """
        step = self.config.federation.num_clients
        if self.own_data:
            step, client = 1, 0
        return as_inputs(self.dataset.test_x[client::step]), torch.tensor(self.dataset.test_y[client::step])

    @cached_property
    def test_set(self) -> tuple[Tensor, Tensor]:
        """The whole test set."""
        return as_inputs(np.array(self.dataset.test_x)), torch.tensor(self.dataset.test_y)


class _Held:
    """The tensors of the clients that were asked for last, as many as fit.

    Args:
        most_bytes: of their examples; the newest client's are kept whatever their size.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most, self._bytes = most_bytes, 0
        self._pairs: OrderedDict[int, tuple[Tensor, Tensor]] = OrderedDict()

    def find(self, client: int) -> tuple[Tensor, Tensor] | None:
        """Return a client's pair if it is held."""
        if client in self._pairs:
            self._pairs.move_to_end(client)
        return self._pairs.get(client)

    def keep(self, client: int, pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Hold a pair that was not, give up the oldest ones, and return it."""
        self._pairs[client] = pair
        # Counted as it changes: a sum over all that is held would make a round's cost grow with registered clients.
        self._bytes += pair[0].nbytes
        while len(self._pairs) > 1 and self._bytes > self._most:
            _, (x, _) = self._pairs.popitem(last=False)
            self._bytes -= x.nbytes
        return pair


class _Dealt:
    """The last partition of this process: a run's sites (clients', server's) have the same data, and deal them once."""

    def __init__(self) -> None:
        self._last: tuple[Dataset, str, Partition] | None = None

    def of(self, config: RunConfig, dataset: Dataset) -> Partition:
        """Return which rows each client holds."""
        settings = f"{config.data!r} {config.federation.num_clients} {config.seed} {proxy_examples(config)}"
        last = self._last
        if last is None or last[0] is not dataset or last[1] != settings:
            last = self._last = dataset, settings, _deal(config, dataset)
        return last[2]


_DEALT = _Dealt()


def _deal(config: RunConfig, dataset: Dataset) -> Partition:
    data = config.data
    options = {k: getattr(data, k) for k in scheme_options(data.scheme) if hasattr(data, k)}
    labels, ids = dataset.train_y, dataset.client_ids
    shared, kept = split_proxy(labels, proxy_examples(config), config.seed)
    dealt = partition(
        labels[shared],
        config.federation.num_clients,
        data.scheme,
        seed=config.seed,
        client_ids=None if ids is None else ids[shared],
        policy=data.policy,
        min_size=data.min_size,
        **options,
    )
    return replace(dealt, indices=[shared[rows] for rows in dealt.indices]) if len(kept) else dealt


def _work(model: nn.Module) -> tuple[object, ...]:
    """Return what decides a model's work: its parameters' shapes, and which of them train."""
    return tuple((name, tuple(p.shape), p.requires_grad) for name, p in model.named_parameters())


def read_state(model: nn.Module) -> NamedArrays:
    """Return a model's state, with the dtypes that numpy cannot say."""
    return NamedArrays(*read_tensors(model))


def start_from(model: nn.Module, path: Path) -> None:
    """Load start weights into a model: arrays of the same name and shape, the others stay (a head for other labels).

    Raises:
        BadOption: the file cannot be read, or nothing in it fits.
    """
    try:
        found = model_from_bytes(path.read_bytes()).arrays
    except (OSError, ValueError) as error:
        raise BadOption(
            f"model.weights = {path}: cannot be read ({error}); give a model.safetensors of a run"
        ) from error
    state = read_state(model).arrays
    fitting = {n: a for n, a in found.items() if n in state and a.shape == state[n].shape}
    if not fitting:
        raise BadOption(f"model.weights = {path}: none of its {len(found)} arrays fits this model; give the same model")
    load_state_arrays(model, state | fitting)


def secure_plan(site: Site) -> Plan:
    """Return what the run will ask of its secure sum, known before round 1."""
    layout, federation = site.initial.layout, site.config.federation
    if not site.config.strategy.name.startswith("flwr:"):
        strategy = server_half(
            site.config, protection=site.protection, buffers=buffer_rule(site), weighting=federation.weighting
        )
        layout = strategy.longest(layout)
    return Plan(length=layout.length, clients=site.config.asked, bound=site.protection.bound)


def buffer_rule(site: Site) -> BufferRule:
    """Return the run's rule for untrained state."""
    return BufferRule(mode=site.config.federation.buffers, names=site.buffer_names)


def site_of(run_config: Mapping[str, Scalar], node_config: Mapping[str, Scalar] | None = None) -> Site:
    """Return the process's site for a client; the last few are kept.

    Args:
        run_config: as :func:`fedsim.config.to_run_config` makes it.
        node_config: a client's own; ``keys`` names the folder of its keys, otherwise FEDSIM_KEYS does, and
            ``settings`` the file of the settings that it agreed to, ``data`` a file or folder of its own.

    Raises:
        InputError: the server's settings are not those that the client agreed to.
    """
    node = node_config or {}
    own = (node.get("keys") or os.environ.get("FEDSIM_KEYS"), node.get("settings"), str(node.get("data", "")))
    return _RECENT.find(run_config, own) or _RECENT.keep(run_config, own, _site_for(run_config, *own))


def _site_for(run_config: Mapping[str, Scalar], keys: Scalar | None, settings: Scalar | None, data: str) -> Site:
    items = tuple(sorted(_without_launch(run_config).items()))
    if settings:
        _check_agreed(items, str(settings))
    return _site(items, str(keys) if keys else None, CLIENTS, data)


class _Recent:
    """The site of the last message: a process's clients mostly have the same, and to sort settings takes longer."""

    def __init__(self) -> None:
        self._last: tuple[Mapping[str, Scalar], tuple[object, ...], Site] | None = None

    def find(self, run_config: Mapping[str, Scalar], own: tuple[object, ...]) -> Site | None:
        """Return the site if it was made from the same."""
        last = self._last
        return last[2] if last is not None and last[1] == own and last[0] == run_config else None

    def keep(self, run_config: Mapping[str, Scalar], own: tuple[object, ...], site: Site) -> Site:
        """Note a site and return it."""
        self._last = dict(run_config), own, site
        return site


_RECENT = _Recent()


def _without_launch(run_config: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return the settings alone, without what says how a run is started."""
    return {key: value for key, value in run_config.items() if key != "resume"}


@lru_cache(maxsize=4)
def _check_agreed(items: tuple[tuple[str, Scalar], ...], path: str) -> None:
    """Compare the server's settings with a client's own, but for where files lie and which engine runs."""
    theirs, ours = (to_run_config(config) for config in (from_run_config(dict(items)), load_config(path)))
    differ = [
        f"{key} is {theirs.get(key, 'not set')!r}, agreed was {ours.get(key, 'not set')!r}"
        for key in sorted({*theirs, *ours})
        if theirs.get(key) != ours.get(key) and key.split(".")[0] not in ("output", "engine")
    ]
    if differ:
        raise InputError(
            f"{len(differ)} settings of the server are not those that this client agreed to in {Path(path).name}: "
            f"{'; '.join(differ[:3])}; a client trains under its own settings only, give both sides the same file"
        )


def server_site_of(run_config: Mapping[str, Scalar], keys: str | None = None) -> Site:
    """Return the process's site for the server; `keys`, else FEDSIM_SERVER_KEYS, names its folder of public keys."""
    keys = keys or os.environ.get("FEDSIM_SERVER_KEYS")
    # Without keys the two sides see the same, and one model serves both.
    return _site(tuple(sorted(_without_launch(run_config).items())), keys, SERVER if keys else CLIENTS)


@lru_cache(maxsize=4)
def _site(items: tuple[tuple[str, Scalar], ...], keys: str | None, role: str, data: str = "") -> Site:
    return Site(from_run_config(dict(items)), keys, role, data)
