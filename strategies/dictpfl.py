"""DictPFL: full protection of updates at a small part of its cost (Xue et al., NeurIPS 2025, arXiv 2510.21086).

Each weight becomes ``W0 + D T`` with a common frozen dictionary D, and only the small tables T (and the head) train
(DePE, :mod:`strategies._dict_layers`). Of these, the clients send what the history of the mean updates does not show to
be at rest (PrME, :mod:`strategies._prune_history`); all that is sent is encrypted, packed across tensors into
``ceil(active / slots)`` ciphertexts. Which coordinates these are no message says: every client derives it from the
totals that it opens, and the server, which holds neither key nor tables nor mask, learns their number, rounded up to
whole ciphertexts.

What is not sent stays in a client's residual and travels when its coordinate is next active. All clients share one key:
nothing protects them from one another, and nothing protects anyone if a client colludes with the server.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
from torch import nn

from crypto import LayoutMismatch
from strategies._dict_layers import DictOptions
from strategies._dict_model import DictModel
from strategies._prune_history import History, Mask, PruneOptions
from strategies.plan import RoundPlan
from strategies.records import NamedArrays
from strategies.replica import Arrays, Floats, state_digest
from strategies.replicated import ReplicatedHalf, ReplicatedStrategy
from strategies.state import buffer_names, state_arrays

_NONCE = "mask-nonce"


class DictPFL(ReplicatedStrategy):
    """Server half: adds ciphertexts and hands the sums on; what is decomposed and pruned is the clients' affair.

    Arguments as in :class:`~strategies.replicated.ReplicatedStrategy`.
    """

    name = "dictpfl"

    @classmethod
    def of(cls, options: Mapping[str, Any], **common: Any) -> "DictPFL":
        """Return the half for a strategy's settings; all but `snapshot_every` are the clients' affair."""
        return cls(snapshot_every=options["snapshot_every"], **common)

    def extras(self, server_round: int) -> dict[str, int | float | str | bool | bytes]:
        """Two runs under one key draw different coordinates: the run's seed is mixed in."""
        return {_NONCE: self.seed}


class DictClient(ReplicatedHalf):
    """Client half: shapes the model, derives what is sent, and keeps back the rest.

    Args:
        layers: how the model is decomposed.
        pruning: what is sent.
    """

    name = "dictpfl"

    def __init__(self, layers: DictOptions | None = None, pruning: PruneOptions | None = None) -> None:
        self.layers = layers or DictOptions()
        self.pruning = pruning or PruneOptions()
        self.names: tuple[str, ...] = ()
        self._shaped: DictModel | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "DictClient":
        """Return the half for a strategy's settings: the fields of both options by name."""
        return cls(DictOptions(**_fields(DictOptions, options)), PruneOptions(**_fields(PruneOptions, options)))

    # ----------------------------------------------------------------- the model

    def shape(self, model: nn.Module) -> None:
        """Decompose the model in place; what stays a parameter trains and travels.

        Raises:
            Incompatible: see :class:`~strategies._dict_model.DictModel`.
        """
        self._shaped = DictModel(model, self.layers)
        frozen = buffer_names(model)
        self.names = tuple(n for n in state_arrays(model) if n not in frozen)

    def digest(self, start: NamedArrays) -> bytes:
        """Return a hash of start weights, dictionaries and what trains; all of it follows from public weights."""
        frozen = self._shaped.digest if self._shaped else b""
        return frozen + state_digest({n: start.arrays[n] for n in self._trained(start)})

    def export(self, state: NamedArrays) -> NamedArrays:
        """Return the plain model's arrays, with ``W0 + D T`` as its weights."""
        if self._shaped is None:
            return state
        return NamedArrays(self._shaped.merged(state.arrays), state.dtypes)

    def model(self, state: Arrays, known: NamedArrays) -> NamedArrays:
        """See :meth:`~strategies.replica.ReplicatedHalf.model`."""
        arrays, at = dict(known.arrays), 0
        for name in self._trained(known):
            old = arrays[name]
            arrays[name] = state["values"][at : at + old.size].reshape(old.shape).astype(old.dtype)
            at += old.size
        return NamedArrays(arrays, known.dtypes)

    def _trained(self, known: NamedArrays) -> tuple[str, ...]:
        if not self.names:
            raise LayoutMismatch("the model was not shaped: call DictClient.shape(model) before its weights are read")
        return self.names

    # ----------------------------------------------------------------- the common state

    def first(self, known: NamedArrays) -> Arrays:
        """See :meth:`~strategies.replica.ReplicatedHalf.first`: all that trains as one vector, and an empty history."""
        values = np.concatenate([known.arrays[n].reshape(-1).astype(np.float64) for n in self._trained(known)])
        return {"values": values, **History.fresh(values.size, self.pruning).arrays()}

    def mask(self, state: Arrays, plan: RoundPlan, secret: bytes) -> Mask:
        """Return what all clients send in a round."""
        nonce = plan.extras.get(_NONCE, 0)
        return _history(state).mask(self.pruning, secret + str(nonce).encode(), plan.round)

    def advance(self, state: Arrays, means: list[Floats], plan: RoundPlan, secret: bytes) -> Arrays:
        """See :meth:`~strategies.replica.ReplicatedHalf.advance`.

        Raises:
            LayoutMismatch: the total is shorter than what this client would have sent.
        """
        mask = self.mask(state, plan, secret)
        index = mask.index
        if len(means[0]) < len(index):
            raise LayoutMismatch(
                f"round {plan.round}: a total of {len(means[0])} values, where {len(index)} were to be sent: "
                "this client holds another state than the rest"
            )
        delta = np.zeros(len(mask.active))
        delta[index] = means[0][: len(index)]
        moved = _history(state).after(delta, mask, self.pruning)
        return {"values": state["values"] + delta, **moved.arrays()}

    # ----------------------------------------------------------------- what is sent

    def vectors(self, state: Arrays, own: Arrays, change: NamedArrays, plan: RoundPlan, secret: bytes) -> list[Floats]:
        """See :meth:`~strategies.replica.ReplicatedHalf.vectors`: the active coordinates, with what they gathered."""
        gathered = np.concatenate([change.arrays[n].reshape(-1) for n in self.names])
        if "residual" in own:
            gathered = gathered + own["residual"]
        mask = self.mask(state, plan, secret)
        own["sent"] = np.where(mask.active, gathered, 0.0)
        own["residual"] = np.where(mask.active, 0.0, gathered if self.pruning.residual else 0.0)
        return [gathered[mask.index]]

    def returned(self, own: Arrays) -> None:
        """See :meth:`~strategies.replica.ReplicatedHalf.returned`."""
        sent = own.pop("sent", None)
        if sent is not None and self.pruning.residual:
            own["residual"] = own["residual"] + sent


def _history(state: Arrays) -> History:
    return History(state["quiet"], state["chance"])


def _fields(kind: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    return {f.name: options[f.name] for f in fields(kind) if f.name in options}


__all__ = ["DictClient", "DictPFL"]
