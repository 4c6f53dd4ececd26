"""Split a data set among clients, with a stated policy for clients that get too little. Always terminates."""

import heapq
import inspect
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedsim.tasks.errors import BadOption, InfeasiblePartition, UnknownName
from fedsim.tasks.schemes import SCHEMES, Table

__all__ = ["Partition", "Policy", "everything", "list_schemes", "partition", "scheme_options"]

Policy = Literal["steal", "resample", "allow-empty"]

#: How often `resample` draws before it gives up.
MAX_DRAWS = 100
#: First entry of the seed sequence, so that other users of the run's seed draw other numbers.
_SEED_DOMAIN = 0x70617274


@dataclass(frozen=True, eq=False)
class Partition:
    """Who owns which rows. Every row has exactly one owner.

    Attributes:
        indices: for each client its sorted row numbers, int64, read-only.
        label_histogram: shape ``(clients, classes)``, int64.
        moved: number of rows that the policy `steal` moved after the scheme's draw.
        draws: number of draws that were made; above 1 only under `resample`.
    """

    indices: list[NDArray[np.int64]]
    label_histogram: NDArray[np.int64]
    moved: int = 0
    draws: int = 1

    @property
    def num_clients(self) -> int:
        """Number of clients, those without rows included."""
        return len(self.indices)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Number of rows of each client, shape ``(clients,)``."""
        return np.array([len(rows) for rows in self.indices], np.int64)

    @property
    def empty(self) -> list[int]:
        """Numbers of the clients that own nothing; non-empty only under `allow-empty`."""
        return [client for client, rows in enumerate(self.indices) if not len(rows)]


def list_schemes() -> dict[str, str]:
    """Return each scheme's name with one line about it."""
    return {name: (inspect.getdoc(scheme) or "").splitlines()[0] for name, scheme in SCHEMES.items()}


def scheme_options(scheme: str) -> dict[str, Any]:
    """Return a scheme's options with their defaults; ``inspect.Parameter.empty`` marks a required one.

    Raises:
        UnknownName: no scheme has this name.
    """
    if scheme not in SCHEMES:
        raise UnknownName(f"partition scheme '{scheme}' does not exist: choose one of {', '.join(SCHEMES)}")
    parameters = inspect.signature(SCHEMES[scheme]).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def partition(
    labels: NDArray[np.int64],
    num_clients: int,
    scheme: str,
    *,
    seed: int,
    client_ids: NDArray[np.int64] | None = None,
    policy: Policy = "steal",
    min_size: int = 1,
    **options: Any,
) -> Partition:
    """Split rows among clients.

    Args:
        labels: shape ``(n,)``, integer class numbers from 0; not modified.
        num_clients: number of clients, at least 1.
        scheme: one of :func:`list_schemes`.
        seed: the same arguments and seed give the same partition.
        client_ids: shape ``(n,)``, natural client of each row, for scheme ``natural-id``.
        policy: what happens to clients with fewer than `min_size` rows. ``steal`` moves random rows to them, each from
            the client that is largest at that moment, whatever its label; ``resample`` draws anew, up to 100 times;
            ``allow-empty`` leaves them, and `min_size` plays no role.
        min_size: smallest number of rows of a client, at least 1.
        options: the scheme's own, such as ``alpha``.

    Returns:
        The partition; its sizes sum to n.

    Raises:
        InfeasiblePartition: there are fewer than ``num_clients * min_size`` rows, or no draw kept `min_size`.
        BadOption: an argument is of the wrong type or out of range.
        UnknownName: no scheme has this name.
    """
    table = _table(labels, client_ids)
    _check(num_clients, policy, min_size, seed)
    _check_options(scheme, options)
    floor = 0 if policy == "allow-empty" else min_size
    if num_clients * floor > len(table.labels):
        raise InfeasiblePartition(
            f"{num_clients} clients x min_size {min_size} need {num_clients * min_size} examples: there are "
            f"{len(table.labels)}; take fewer clients, a smaller min_size, or policy allow-empty"
        )
    rng = np.random.default_rng([_SEED_DOMAIN, seed])
    if policy == "resample":
        return _resample(table, num_clients, scheme, rng, floor, options)
    owner = SCHEMES[scheme](table, num_clients, rng, **options)
    moved = _steal(owner, num_clients, floor, rng)
    return _gather(table, owner, num_clients, moved=moved)


def everything(labels: NDArray[np.int64], num_clients: int, num_classes: int) -> Partition:
    """Return the partition that gives every client all rows, as a process does that knows one client's data alone."""
    rows = np.arange(len(labels), dtype=np.int64)
    rows.flags.writeable = False
    histogram = np.bincount(labels, minlength=num_classes).astype(np.int64)
    return Partition([rows] * num_clients, np.tile(histogram, (num_clients, 1)))


def _resample(
    table: Table, num_clients: int, scheme: str, rng: np.random.Generator, floor: int, options: dict[str, Any]
) -> Partition:
    smallest: list[int] = []
    for draw in range(1, MAX_DRAWS + 1):
        owner = SCHEMES[scheme](table, num_clients, rng, **options)
        smallest.append(int(np.bincount(owner, minlength=num_clients).min()))
        if smallest[-1] >= floor:
            return _gather(table, owner, num_clients, draws=draw)
    raise InfeasiblePartition(
        f"the smallest client had at most {max(smallest)} examples in {MAX_DRAWS} draws of '{scheme}' with {options}: "
        f"min_size is {floor} for {num_clients} clients and {len(table.labels)} examples; use policy steal or "
        "allow-empty, fewer clients, or a smaller min_size"
    )


def _steal(owner: NDArray[np.int64], num_clients: int, floor: int, rng: np.random.Generator) -> int:
    """Fill clients up to `floor` rows in place, each row from the largest client; return how many rows moved.

    A donor has more than `floor` rows as long as a client has fewer, since the rows suffice for all.
    """
    sizes = np.bincount(owner, minlength=num_clients)
    needy = [client for client in range(num_clients) if sizes[client] < floor]
    if not needy:
        return 0
    donors = [(-int(sizes[client]), client) for client in range(num_clients) if sizes[client] > floor]
    heapq.heapify(donors)
    receivers = [client for client in needy for _ in range(floor - int(sizes[client]))]
    gifts: list[list[int]] = [[] for _ in range(num_clients)]
    for receiver in receivers:
        size, donor = heapq.heappop(donors)
        gifts[donor].append(receiver)
        heapq.heappush(donors, (size + 1, donor))
    for donor, receivers_of in enumerate(gifts):
        if receivers_of:
            owner[rng.choice(np.flatnonzero(owner == donor), len(receivers_of), replace=False)] = receivers_of
    return len(receivers)


def _gather(table: Table, owner: NDArray[np.int64], num_clients: int, *, moved: int = 0, draws: int = 1) -> Partition:
    order = np.argsort(owner, kind="stable").astype(np.int64)
    cuts = np.cumsum(np.bincount(owner, minlength=num_clients))[:-1]
    indices = np.split(order, cuts)
    for rows in indices:
        rows.flags.writeable = False
    cells = np.bincount(owner * table.num_classes + table.labels, minlength=num_clients * table.num_classes)
    return Partition(indices, cells.reshape(num_clients, table.num_classes).astype(np.int64), moved, draws)


def _table(labels: NDArray[np.int64], client_ids: NDArray[np.int64] | None) -> Table:
    labels = np.asarray(labels)
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or not labels.size:
        raise BadOption(f"labels of shape {labels.shape}, {labels.dtype}: must be a non-empty vector of whole numbers")
    if labels.min() < 0:
        raise BadOption(f"label {labels.min()} is negative: classes are numbered from 0; map them first")
    if client_ids is not None and np.shape(client_ids) != labels.shape:
        raise BadOption(f"client_ids of shape {np.shape(client_ids)}: must be one for each of the {len(labels)} labels")
    ids = None if client_ids is None else np.asarray(client_ids)
    return Table(labels.astype(np.int64), int(labels.max()) + 1, ids)


def _check(num_clients: int, policy: str, min_size: int, seed: int) -> None:
    for name, value, least in (("num_clients", num_clients, 1), ("min_size", min_size, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise BadOption(f"{name} {value!r} must be a whole number of at least {least}")
    if policy not in get_args(Policy):
        raise BadOption(f"policy '{policy}' is unknown: choose one of {', '.join(get_args(Policy))}")


def _check_options(scheme: str, options: dict[str, Any]) -> None:
    known = scheme_options(scheme)
    for name in sorted(options):
        if name not in known:
            raise BadOption(f"scheme '{scheme}' has no option '{name}': it takes {', '.join(known) or 'none'}")
    for name, default in known.items():
        if default is inspect.Parameter.empty and name not in options:
            raise BadOption(f"scheme '{scheme}' needs the option '{name}': give it a value")
