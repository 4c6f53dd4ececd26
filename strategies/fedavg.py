"""FedAvg and its server optimisers.

* FedAvg (McMahan et al., AISTATS 2017, algorithm 1): x <- sum_i w_i x_i / sum_i w_i.
* FedProx (Li et al., MLSys 2020, equation 2): the same server; clients add mu/2 ||x - x_t||^2 to their loss.
* FedAvgM (Hsu et al. 2019, section 4): v <- beta v + d, x <- x + eta v, with the pseudo-gradient d = mean_i(x_i) - x.
* FedAdam (Reddi et al., ICLR 2021, algorithm 2): m <- b1 m + (1-b1) d, u <- b2 u + (1-b2) d^2,
  x <- x + eta m / (sqrt(u) + tau).

Server optimisers move parameters only; untrained state follows the buffer rule and is averaged as in FedAvg.
"""

from abc import abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crypto.packing import cast
from strategies.base import FederatedStrategy
from strategies.errors import Diverged
from strategies.records import NamedArrays

Floats = dict[str, NDArray[np.float64]]


class FedAvg(FederatedStrategy):
    """Weighted mean of the clients' weights. Arguments as in :class:`~strategies.base.FederatedStrategy`."""

    name = "fedavg"

    def apply(self, mean: Floats, server_round: int) -> None:
        """Replace what travelled by its mean, in each array's own dtype."""
        replace(self, mean)


class FedProx(FedAvg):
    """FedAvg whose clients stay near the global model.

    Args:
        mu: weight of the proximal term, at least 0; 0 is FedAvg.
    """

    name = "fedprox"

    def __init__(self, *, mu: float = 0.01, **common: Any) -> None:
        if not mu >= 0:
            raise ValueError(f"mu {mu} must be at least 0; 0 is FedAvg")
        super().__init__(**common)
        self.mu = mu

    def extras(self, server_round: int) -> dict[str, int | float | str | bool | bytes]:
        """Tell the clients mu."""
        return {"proximal-mu": self.mu}


class ServerOptimiser(FederatedStrategy):
    """Treats the mean's distance from the model as a gradient (Reddi et al. 2021, algorithm 1).

    Args:
        server_lr: eta, positive.
    """

    needs_open_model = True

    def __init__(self, *, server_lr: float = 1.0, **common: Any) -> None:
        if not server_lr > 0:
            raise ValueError(f"server_lr {server_lr} must be positive")
        super().__init__(**common)
        self.server_lr = server_lr
        self.moments: dict[str, Floats] = {}

    def apply(self, mean: Floats, server_round: int) -> None:
        """Move parameters by :meth:`step`, average the rest."""
        if self.state is None:
            raise RuntimeError("begin() must come first")
        moved: Floats = {}
        for name, value in mean.items():
            current = self.state.arrays[name].astype(np.float64)
            trained = self.state.arrays[name].dtype.kind == "f" and name not in self.buffers.names
            moved[name] = current + self.step(name, value - current) if trained else value
        replace(self, moved)

    @abstractmethod
    def step(self, name: str, delta: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return how far to move one parameter, given its pseudo-gradient."""

    def moment(self, kind: str, name: str, shape: tuple[int, ...], start: float = 0.0) -> NDArray[np.float64]:
        """Return a moment's array, made on first use."""
        return self.moments.setdefault(kind, {}).setdefault(name, np.full(shape, start))

    def state_dict(self) -> dict[str, NDArray[np.generic]]:
        """Moments by ``kind/name``."""
        return {f"{kind}/{name}": array for kind, arrays in self.moments.items() for name, array in arrays.items()}

    def load_state_dict(self, state: dict[str, NDArray[np.generic]]) -> None:
        """See :meth:`~strategies.base.FederatedStrategy.load_state_dict`."""
        self.moments = {}
        for key, array in state.items():
            kind, _, name = key.partition("/")
            self.moments.setdefault(kind, {})[name] = array.astype(np.float64)


class FedAvgM(ServerOptimiser):
    """FedAvg with server momentum.

    Args:
        server_lr: eta.
        server_momentum: beta in [0, 1); 0 with ``server_lr=1`` is FedAvg.
    """

    name = "fedavgm"

    def __init__(self, *, server_lr: float = 1.0, server_momentum: float = 0.9, **common: Any) -> None:
        if not 0 <= server_momentum < 1:
            raise ValueError(f"server_momentum {server_momentum} must lie in [0, 1)")
        super().__init__(server_lr=server_lr, **common)
        self.server_momentum = server_momentum

    def step(self, name: str, delta: NDArray[np.float64]) -> NDArray[np.float64]:
        """v <- beta v + d; eta v."""
        velocity = self.moment("velocity", name, delta.shape)
        velocity *= self.server_momentum
        velocity += delta
        return self.server_lr * velocity


class FedAdam(ServerOptimiser):
    """Adaptive server step.

    Args:
        server_lr: eta.
        beta1: decay of the first moment, in [0, 1).
        beta2: decay of the second moment, in [0, 1).
        tau: degree of adaptivity, positive; the second moment starts at tau^2 (algorithm 2: v_{-1} >= tau^2). No bias
            correction, as in the paper.
    """

    name = "fedadam"

    def __init__(
        self, *, server_lr: float = 0.01, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3, **common: Any
    ) -> None:
        if not (0 <= beta1 < 1 and 0 <= beta2 < 1 and tau > 0):
            raise ValueError(f"beta1 {beta1}, beta2 {beta2} must lie in [0, 1), tau {tau} must be positive")
        super().__init__(server_lr=server_lr, **common)
        self.beta1, self.beta2, self.tau = beta1, beta2, tau

    def step(self, name: str, delta: NDArray[np.float64]) -> NDArray[np.float64]:
        """See the module docstring."""
        first = self.moment("first", name, delta.shape)
        second = self.moment("second", name, delta.shape, self.tau**2)
        first *= self.beta1
        first += (1 - self.beta1) * delta
        second *= self.beta2
        second += (1 - self.beta2) * delta**2
        return self.server_lr * first / (np.sqrt(second) + self.tau)


def replace(strategy: FederatedStrategy, values: Floats) -> None:
    """Put new values into a strategy's model, each in its array's own dtype; the old arrays are left as they were."""
    if strategy.state is None:
        raise RuntimeError("begin() must come first")
    strategy.state = with_values(strategy.state, values)


def with_values(state: NamedArrays, values: Floats) -> NamedArrays:
    """Return a state in which the arrays of these names have new values, cast to their recorded dtypes.

    Raises:
        Diverged: a value is NaN or infinite, or too large for its array's dtype.
    """
    arrays = dict(state.arrays)
    for name, value in values.items():
        arrays[name] = cast(value, state.dtypes.get(name, str(arrays[name].dtype.newbyteorder("=")))).reshape(
            arrays[name].shape
        )
        overflown = arrays[name].dtype.kind == "f" and not np.isfinite(arrays[name]).all()
        if overflown or not np.isfinite(value).all():
            raise Diverged(
                f"array {name!r} would hold NaN or infinity: the model must stay finite, and is left as the last round "
                "made it; lower training.lr or strategy.server_lr, or clip gradients (training.clip_norm)"
            )
    return NamedArrays(arrays, state.dtypes)


__all__ = ["FedAdam", "FedAvg", "FedAvgM", "FedProx", "Floats", "ServerOptimiser", "replace", "with_values"]
