"""How examples are dealt to clients: each scheme turns a table of labels into one owner per row.

A scheme is a function ``(table, num_clients, rng, **options) -> owner`` with owner int64 of shape ``(n,)`` in
``[0, num_clients)``. Every row gets an owner; sizes are whatever the law of the scheme gives.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedsim.tasks.errors import BadOption, InfeasiblePartition

Indices = NDArray[np.int64]
_INNER_PASSES = 8


@dataclass(frozen=True, eq=False)
class Table:
    """The (index, label) table that is dealt out; examples themselves are never touched.

    Attributes:
        labels: shape ``(n,)``, int64, in ``[0, num_classes)``.
        num_classes: number of classes.
        client_ids: shape ``(n,)``, natural client of each row, or ``None``.
    """

    labels: Indices
    num_classes: int
    client_ids: Indices | None = None


def iid(table: Table, num_clients: int, rng: np.random.Generator) -> Indices:
    """Deal rows at random; sizes differ by at most one."""
    return rng.permutation(np.arange(len(table.labels), dtype=np.int64) % num_clients)


def dirichlet(table: Table, num_clients: int, rng: np.random.Generator, *, alpha: float) -> Indices:
    """Deal each class in shares drawn from Dir(alpha) over the clients (Yurochkin et al. 2019, sec. 4.1).

    Small alpha: few clients own a class, and sizes differ much. Large alpha: near IID.
    """
    _positive("alpha", alpha)
    owner = np.empty(len(table.labels), np.int64)
    for label in range(table.num_classes):
        rows = rng.permutation(np.flatnonzero(table.labels == label))
        shares = _dirichlet_law(rng, alpha, num_clients)
        owner[rows] = _deal_by_share(len(rows), shares)
    return owner


def inner_dirichlet(table: Table, num_clients: int, rng: np.random.Generator, *, alpha: float) -> Indices:
    """Deal equal sizes; each client draws its classes from its own Dir(alpha) law until a class runs out.

    After Acar et al. 2021 (FedDyn, sec. 4). Clients draw in turns of an eighth of their size, in random order, so that
    no client is left with only what the others did not want. A client whose classes are gone draws from what is left.
    """
    _positive("alpha", alpha)
    n = len(table.labels)
    stock = np.bincount(table.labels, minlength=table.num_classes).astype(np.int64)
    want = np.bincount(iid(table, num_clients, rng), minlength=num_clients)
    laws = np.stack([_dirichlet_law(rng, alpha, table.num_classes) for _ in range(num_clients)])
    counts = np.zeros((num_clients, table.num_classes), np.int64)
    turn = -(-n // (num_clients * _INNER_PASSES))
    while stock.any():
        for client in rng.permutation(num_clients):
            size = min(turn, int(want[client] - counts[client].sum()))
            taken = _draw_from_stock(rng, laws[client], stock, size)
            counts[client] += taken
            stock -= taken
    return _owners_of_counts(table, counts, rng)


def shard(table: Table, num_clients: int, rng: np.random.Generator, *, shards_per_client: int = 2) -> Indices:
    """Sort rows by label, cut them into equal shards, deal each client the same number (McMahan et al. 2017)."""
    _whole("shards_per_client", shards_per_client)
    n, shards = len(table.labels), num_clients * shards_per_client
    if shards > n:
        raise InfeasiblePartition(
            f"{num_clients} clients x {shards_per_client} shards need {shards} examples: there are {n}; "
            "lower shards_per_client or the number of clients"
        )
    shuffled = rng.permutation(n)
    by_label = shuffled[np.argsort(table.labels[shuffled], kind="stable")]
    owner_of_shard = rng.permutation(shards) // shards_per_client
    owner = np.empty(n, np.int64)
    owner[by_label] = owner_of_shard[np.arange(n) * shards // n]
    return owner


def pathological(table: Table, num_clients: int, rng: np.random.Generator, *, classes_per_client: int = 2) -> Indices:
    """Give each client a fixed number of classes; the owners of a class share it equally.

    Classes are dealt so that their numbers of owners differ by at most one.
    """
    _whole("classes_per_client", classes_per_client)
    present = np.unique(table.labels)
    if not len(present) / num_clients <= classes_per_client <= len(present):
        raise InfeasiblePartition(
            f"{num_clients} clients x {classes_per_client} classes: each must have 1 to {len(present)} classes, "
            f"and all {len(present)} must have an owner; change classes_per_client or the number of clients"
        )
    holds = np.zeros((num_clients, len(present)), bool)
    for client in range(num_clients):
        fewest_first = np.lexsort((rng.random(len(present)), holds.sum(axis=0)))
        holds[client, fewest_first[:classes_per_client]] = True
    owner = np.empty(len(table.labels), np.int64)
    for column, label in enumerate(present):
        owners = rng.permutation(np.flatnonzero(holds[:, column]))
        rows = rng.permutation(np.flatnonzero(table.labels == label))
        owner[rows] = owners[np.arange(len(rows)) % len(owners)]
    return owner


def natural_id(table: Table, num_clients: int, rng: np.random.Generator) -> Indices:
    """Keep each natural client's rows together; if there are more than clients, each gets several whole ones."""
    if table.client_ids is None:
        raise BadOption("scheme 'natural-id' needs client_ids: this data set has none; choose another scheme")
    ids, number = np.unique(table.client_ids, return_inverse=True)
    owner_of_id = np.arange(len(ids)) % num_clients
    if len(ids) > num_clients:
        owner_of_id = rng.permutation(owner_of_id)
    return owner_of_id[number].astype(np.int64)


def quantity_skew(
    table: Table, num_clients: int, rng: np.random.Generator, *, law: str = "dirichlet", alpha: float = 0.5
) -> Indices:
    """Deal random rows in unequal sizes (Li et al. 2022, sec. 4.3).

    With law ``dirichlet`` the sizes follow Dir(alpha); with ``lognormal`` they are proportional to exp(N(0, alpha^2)).
    """
    _positive("alpha", alpha)
    if law == "dirichlet":
        shares = _dirichlet_law(rng, alpha, num_clients)
    elif law == "lognormal":
        logs = alpha * rng.standard_normal(num_clients)
        weights = np.exp(logs - logs.max())
        shares = weights / weights.sum()
    else:
        raise BadOption(f"law '{law}' is unknown: choose dirichlet or lognormal")
    owner = np.empty(len(table.labels), np.int64)
    owner[rng.permutation(len(owner))] = _deal_by_share(len(owner), shares)
    return owner


SCHEMES: dict[str, Callable[..., Indices]] = {
    "iid": iid,
    "dirichlet": dirichlet,
    "inner-dirichlet": inner_dirichlet,
    "shard": shard,
    "pathological": pathological,
    "natural-id": natural_id,
    "quantity-skew": quantity_skew,
}


def _positive(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not (np.isfinite(value) and value > 0):
        raise BadOption(f"{name} {value!r} must be a finite number above 0; 0.3 is strong skew, 100 nearly none")


def _whole(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise BadOption(f"{name} {value!r} must be a whole number of at least 1")


def _dirichlet_law(rng: np.random.Generator, alpha: float, size: int) -> NDArray[np.float64]:
    """Draw from Dir(alpha); in log space, because plain gamma variates underflow to 0/0 at small alpha.

    Gamma(a) is distributed as Gamma(a + 1) * U^(1/a) (Marsaglia and Tsang 2000, sec. 6).
    """
    logs = np.log(rng.standard_gamma(alpha + 1, size)) + np.log1p(-rng.random(size)) / alpha
    weights = np.exp(logs - logs.max())
    law: NDArray[np.float64] = weights / weights.sum()
    return law


def _deal_by_share(n: int, shares: NDArray[np.float64]) -> Indices:
    """Return owners of n rows in blocks whose sizes are the shares of n, rounded along the cumulative sum."""
    cuts = np.minimum(np.floor(np.cumsum(shares) * n + 0.5), n).astype(np.int64)
    cuts[-1] = n
    return np.repeat(np.arange(len(shares), dtype=np.int64), np.diff(cuts, prepend=0))


def _draw_from_stock(rng: np.random.Generator, law: NDArray[np.float64], stock: Indices, size: int) -> Indices:
    """Draw `size` rows by class law from what is left; each pass ends or exhausts a class, so it terminates."""
    taken = np.zeros_like(stock)
    while size > 0:
        left = stock - taken
        weights = np.where(left > 0, law, 0.0)
        total = weights.sum()
        weights = weights / total if total > 1e-12 else left / left.sum()
        draw = np.minimum(rng.multinomial(size, weights), left)
        taken += draw
        size -= int(draw.sum())
    return taken


def _owners_of_counts(table: Table, counts: Indices, rng: np.random.Generator) -> Indices:
    """Return owners such that client k owns ``counts[k, c]`` random rows of class c."""
    owner = np.empty(len(table.labels), np.int64)
    for label in range(table.num_classes):
        rows = rng.permutation(np.flatnonzero(table.labels == label))
        owner[rows] = np.repeat(np.arange(len(counts)), counts[:, label])
    return owner
