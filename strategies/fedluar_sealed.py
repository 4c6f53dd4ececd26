"""FedLUAR under sums that only the clients open (see :mod:`strategies.fedluar` for the method).

Every client holds the model, the scores and the last updates, the same bits at all of them, and runs the step that the
server runs elsewhere; the server adds what it cannot read (:mod:`strategies.replicated`). The draw's seed is made from
the clients' key, so the server knows neither scores nor layers: it sees how long a round's vector is, in whole
ciphertexts. Recycled layers cost no ciphertext on the way up, and none on the way down, as the total is as short.

This needs decryptions that give every client the same bits. Scores are kept as float32, so that another order of
additions in a norm does not make another score; should states differ all the same, the clients' agreement shows it and
the run stops before anything wrong is added.
"""

import hashlib
import hmac
import inspect
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import Grid
from torch import nn

from crypto.packing import Layout
from strategies._luar_state import LuarState, luar_state
from strategies.errors import Incompatible
from strategies.plan import RoundPlan, Weighting
from strategies.records import NamedArrays
from strategies.replica import Arrays, Floats, ReplicatedHalf, state_digest
from strategies.replicated import ReplicatedStrategy
from strategies.state import buffer_names

#: The method's options: what clients need to run its step.
_METHOD = frozenset(inspect.signature(luar_state).parameters)
_MODEL = "model/"
_LAYERS = b"fedsim-luar-layers-v1"


class SealedFedLUAR(ReplicatedStrategy):
    """Server half.

    Args:
        mu: see :class:`~strategies.fedluar.FedLUAR`.
        weighting: the same.
        options: its other options, of the method; checked here, used by the clients. `downlink` has no meaning, as
            what goes down is the total of what travelled.

    Raises:
        Incompatible: the protection's totals cannot be opened by all clients to the same bits, or untrained state
            would have to travel.
    """

    name = "fedluar"

    def __init__(self, *, mu: float = 0.0, weighting: Weighting = "uniform", **options: Any) -> None:
        if not mu >= 0:
            raise ValueError(f"mu {mu} must be at least 0")
        method = {key: options.pop(key) for key in _METHOD & options.keys()}
        options.pop("downlink", None)
        super().__init__(weighting=weighting, **options)
        self.mu = mu
        self._luar = luar_state(**method)
        if self.buffers.names and self.buffers.mode != "local":
            raise Incompatible(
                f"buffers '{self.buffers.mode}' with strategy 'fedluar' and protection '{self.protection.name}': "
                f"untrained state such as '{min(self.buffers.names)}' does not travel under sums that clients open; "
                "set federation.buffers = local, or take a model without such state (model.options.norm = group)"
            )

    def begin(self, grid: Grid, initial_arrays: ArrayRecord) -> None:
        """See :meth:`~strategies.replicated.ReplicatedStrategy.begin`.

        Raises:
            Incompatible: the model has no more than `delta` layers, or trains arrays of bfloat16.
        """
        super().begin(grid, initial_arrays)
        assert self.state is not None
        if self.state.dtypes:
            raise Incompatible(
                f"array '{min(self.state.dtypes)}' is {min(self.state.dtypes.values())}: clients keep a model of "
                "numpy's float types between rounds; cast the model to float32"
            )
        self._luar.begin(self.state, self.buffers.names)

    def longest(self, layout: Layout) -> Layout:
        """A round without recycled layers.

        Raises:
            Incompatible: the model has no more than `delta` layers.
        """
        self._luar.fits(layout, self.buffers.names)
        return super().longest(layout)

    def extras(self, server_round: int) -> dict[str, int | float | str | bool | bytes]:
        """Tell the clients mu."""
        return {"proximal-mu": self.mu} if self.mu else {}


class SealedLuarClient(ReplicatedHalf):
    """Client half: holds the method's state and decides with the others what travels.

    Args:
        options: the method's and the run's `seed`, the same at all clients; see :class:`~strategies.fedluar.FedLUAR`.
            What concerns the server alone is ignored.
        buffers: names of untrained state, where :meth:`shape` is not called.
    """

    name = "fedluar"

    def __init__(self, options: Mapping[str, Any], buffers: Collection[str] = ()) -> None:
        self._method = {key: value for key, value in options.items() if key in _METHOD}
        layer_seed = options.get("layer_seed")
        self._seed = int(options.get("seed", 0) if layer_seed is None else layer_seed)
        self._buffers = frozenset(buffers)

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "SealedLuarClient":
        """See :meth:`~strategies.client.ClientHalf.of`."""
        return cls(options)

    def shape(self, model: nn.Module) -> None:
        """Take note of what does not train; the model stays as it is."""
        self._buffers = buffer_names(model)

    def digest(self, start: NamedArrays) -> bytes:
        """Return a hash of weights and options; each client may have untrained state of its own."""
        options = sorted((k, v) for k, v in self._method.items() if not callable(v))
        return hashlib.sha256(state_digest(self.first(start)) + repr((options, self._seed)).encode()).digest()

    def first(self, known: NamedArrays) -> Arrays:
        """See :meth:`~strategies.replica.ReplicatedHalf.first`: what trains."""
        trained = {n: a for n, a in known.arrays.items() if a.dtype.kind == "f" and n not in self._buffers}
        return {f"{_MODEL}{n}": a for n, a in trained.items()}

    def advance(self, state: Arrays, means: list[Floats], plan: RoundPlan, secret: bytes) -> Arrays:
        """See :meth:`~strategies.replica.ReplicatedHalf.advance`: the method's step."""
        luar, before = self._recalled(state, plan, secret)
        mean, at = {}, 0
        for name in _travelling(luar, before):
            old = before.arrays[name]
            mean[name] = old.astype(np.float64) + means[0][at : at + old.size].reshape(old.shape)
            at += old.size
        after = luar.step(mean, before, plan.round)
        return {f"{_MODEL}{n}": a for n, a in after.arrays.items()} | luar.state_dict()

    def model(self, state: Arrays, known: NamedArrays) -> NamedArrays:
        """See :meth:`~strategies.replica.ReplicatedHalf.model`."""
        return NamedArrays({n: state.get(f"{_MODEL}{n}", a) for n, a in known.arrays.items()}, known.dtypes)

    def vectors(self, state: Arrays, own: Arrays, change: NamedArrays, plan: RoundPlan, secret: bytes) -> list[Floats]:
        """See :meth:`~strategies.replica.ReplicatedHalf.vectors`: the change of all layers but the recycled ones."""
        luar, before = self._recalled(state, plan, secret)
        return [np.concatenate([change.arrays[n].ravel() for n in _travelling(luar, before)])]

    def _recalled(self, state: Arrays, plan: RoundPlan, secret: bytes) -> tuple[LuarState, NamedArrays]:
        model = NamedArrays({k.removeprefix(_MODEL): a for k, a in state.items() if k.startswith(_MODEL)})
        drawn = hmac.new(secret, _LAYERS + self._seed.to_bytes(8, "little"), hashlib.sha256).digest()
        luar = luar_state(**self._method | {"layer_seed": int.from_bytes(drawn, "little")})
        if "luar/rounds" in state:
            luar.load_state_dict(state)
        luar.begin(model, (), warn=False)
        return luar, model


def _travelling(luar: LuarState, model: NamedArrays) -> list[str]:
    return [n for n in model.arrays if n not in luar.left_out]


__all__ = ["SealedFedLUAR", "SealedLuarClient"]
