"""Partitions: every row has one owner, limits are kept, everything terminates."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.tasks.errors import BadOption, InfeasiblePartition, UnknownName
from fedsim.tasks.partition import Partition, list_schemes, partition, scheme_options

OPTIONS = {"dirichlet": {"alpha": 0.3}, "inner-dirichlet": {"alpha": 0.3}}
FREE_SCHEMES = ["iid", "dirichlet", "inner-dirichlet", "quantity-skew", "natural-id"]
BALANCED = np.repeat(np.arange(10), 600)


def _check(result: Partition, labels: np.ndarray, num_clients: int) -> None:
    """The slow obvious reference: owners cover all rows once, and the histogram counts them."""
    assert result.num_clients == num_clients and result.sizes.sum() == len(labels)
    assert sorted(row for rows in result.indices for row in rows) == list(range(len(labels)))
    for client, rows in enumerate(result.indices):
        assert rows.dtype == np.int64 and list(rows) == sorted(rows)
        for label in range(labels.max() + 1):
            assert result.label_histogram[client, label] == sum(labels[rows] == label)
    assert result.empty == [client for client in range(num_clients) if not len(result.indices[client])]


@settings(max_examples=80, deadline=None)
@given(data=st.data(), scheme=st.sampled_from(FREE_SCHEMES), policy=st.sampled_from(["steal", "allow-empty"]))
def test_every_row_has_one_owner(data: st.DataObject, scheme: str, policy: str) -> None:
    labels = np.array(data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=40)))
    num_clients = data.draw(st.integers(1, len(labels)))
    ids = np.arange(len(labels)) // 3
    result = partition(labels, num_clients, scheme, seed=3, client_ids=ids, policy=policy, **OPTIONS.get(scheme, {}))
    _check(result, labels, num_clients)
    assert policy == "allow-empty" or not result.empty


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.integers(1, 5), st.integers(1, 5), st.integers(0, 60))
def test_shard_and_pathological_cover_all_or_say_why(clients: int, classes: int, per_client: int, extra: int) -> None:
    labels = np.arange(classes + extra) % classes
    for scheme, option in (("shard", "shards_per_client"), ("pathological", "classes_per_client")):
        try:
            result = partition(labels, clients, scheme, seed=0, policy="allow-empty", **{option: per_client})
        except InfeasiblePartition as error:
            assert str(clients) in str(error) and str(per_client) in str(error)
            continue
        _check(result, labels, clients)
        if scheme == "pathological":
            assert ((result.label_histogram > 0).sum(axis=1) <= per_client).all()


@pytest.mark.parametrize("scheme", list_schemes())
def test_a_seed_decides_everything_and_numpys_global_state_nothing(scheme: str) -> None:
    ids = np.arange(len(BALANCED)) // 100
    results = []
    for seed in (5, 5, 6):
        np.random.seed(len(results))
        results.append(partition(BALANCED, 20, scheme, seed=seed, client_ids=ids, **OPTIONS.get(scheme, {})))
    first, again, other = (np.concatenate(r.indices) for r in results)
    assert np.array_equal(first, again) and not np.array_equal(first, other)


def test_iid_sizes_differ_by_at_most_one() -> None:
    sizes = partition(np.zeros(1003, np.int64), 10, "iid", seed=0).sizes
    assert sizes.min() == 100 and sizes.max() == 101


def test_thousand_clients_at_tiny_alpha_end_soon_and_none_is_empty() -> None:
    labels = np.random.default_rng(0).integers(0, 10, 60_000)
    start = time.process_time()
    result = partition(labels, 1000, "dirichlet", alpha=0.01, seed=0, min_size=10)
    assert time.process_time() - start < 5
    assert result.sizes.min() >= 10 and result.sizes.sum() == 60_000 and result.moved > 0


@pytest.mark.report("U72", "ends soon, or `InfeasiblePartition` names the limits")
def test_500_clients_on_100_classes_end_soon() -> None:
    labels = np.repeat(np.arange(100), 500)
    start = time.process_time()
    for scheme in ("dirichlet", "inner-dirichlet"):
        result = partition(labels, 500, scheme, alpha=0.3, seed=1, min_size=10)
        assert result.sizes.min() >= 10 and result.sizes.sum() == len(labels)
    try:
        partition(labels, 500, "dirichlet", alpha=0.3, seed=1, min_size=10, policy="resample")
    except InfeasiblePartition as error:
        assert "min_size is 10 for 500 clients and 50000 examples" in str(error)
    assert time.process_time() - start < 15


@pytest.mark.report("U73", "three stated policies; sizes sum to n; empty clients are listed")
def test_the_three_policies_at_alpha_001() -> None:
    options = {"alpha": 0.01, "seed": 42}
    empty = partition(BALANCED, 100, "dirichlet", policy="allow-empty", **options)
    assert empty.empty and empty.sizes.sum() == len(BALANCED) and empty.moved == 0
    filled = partition(BALANCED, 100, "dirichlet", policy="steal", min_size=10, **options)
    assert filled.empty == [] and filled.sizes.min() == 10
    assert filled.moved == np.maximum(10 - empty.sizes, 0).sum()
    with pytest.raises(InfeasiblePartition, match=r"at most \d examples in 100 draws.*use policy steal"):
        partition(BALANCED, 100, "dirichlet", policy="resample", min_size=10, **options)


def test_resample_draws_until_the_limit_holds() -> None:
    result = partition(BALANCED, 20, "dirichlet", alpha=0.3, seed=0, policy="resample", min_size=150)
    assert result.draws > 1 and result.sizes.min() >= 150 and result.moved == 0


@pytest.mark.parametrize("alpha", [1e-6, 1e-3, 0.1, 1e6])
def test_no_alpha_gives_nan(alpha: float) -> None:
    for scheme in ("dirichlet", "inner-dirichlet", "quantity-skew"):
        assert partition(BALANCED, 10, scheme, alpha=alpha, seed=0).sizes.sum() == len(BALANCED)


def test_dirichlet_shares_have_the_laws_mean_and_variance() -> None:
    shares = np.concatenate(
        [partition(BALANCED, 5, "dirichlet", alpha=0.5, seed=s).label_histogram.T / 600 for s in range(200)]
    )
    assert shares.mean(axis=0) == pytest.approx(np.full(5, 0.2), abs=0.03)
    # Var of Dir(alpha) over K clients: (K - 1) / (K^2 (K alpha + 1)).
    assert shares.var(axis=0).mean() == pytest.approx(4 / (25 * 3.5), rel=0.06)


def test_inner_dirichlet_keeps_equal_sizes_and_skews_labels() -> None:
    result = partition(BALANCED, 60, "inner-dirichlet", alpha=0.1, seed=0)
    assert set(result.sizes) == {100}
    assert (result.label_histogram.max(axis=1) / 100).mean() > 0.6


def test_shards_hold_few_labels_and_equal_sizes() -> None:
    result = partition(BALANCED, 100, "shard", shards_per_client=2, seed=0)
    assert set(result.sizes) == {60}
    assert (result.label_histogram > 0).sum(axis=1).max() <= 4


def test_pathological_gives_exactly_the_classes_and_shares_owners_evenly() -> None:
    result = partition(BALANCED, 25, "pathological", classes_per_client=3, seed=0)
    owners = (result.label_histogram > 0).sum(axis=0)
    assert set((result.label_histogram > 0).sum(axis=1)) == {3} and owners.max() - owners.min() <= 1


def test_pathological_refuses_when_a_class_would_have_no_owner() -> None:
    with pytest.raises(InfeasiblePartition, match="4 clients x 2 classes.*all 10 must have an owner"):
        partition(BALANCED, 4, "pathological", classes_per_client=2, seed=0)


def test_shard_refuses_more_shards_than_examples() -> None:
    with pytest.raises(InfeasiblePartition, match="3 clients x 2 shards need 6 examples: there are 5"):
        partition(np.zeros(5, np.int64), 3, "shard", seed=0)


def test_natural_clients_stay_whole() -> None:
    ids = np.repeat([7, 3, 9, 4], [10, 20, 30, 40])
    labels = np.zeros(100, np.int64)
    exact = partition(labels, 4, "natural-id", seed=0, client_ids=ids)
    assert exact.sizes.tolist() == [20, 40, 10, 30]
    grouped = partition(labels, 2, "natural-id", seed=0, client_ids=ids)
    homes = [{int(i) for i in ids[rows]} for rows in grouped.indices]
    assert homes[0] | homes[1] == {3, 4, 7, 9} and not homes[0] & homes[1] and len(homes[0]) == 2


def test_natural_id_without_ids_is_refused() -> None:
    with pytest.raises(BadOption, match="needs client_ids"):
        partition(BALANCED, 4, "natural-id", seed=0)


@pytest.mark.parametrize("law", ["dirichlet", "lognormal"])
def test_quantity_skew_skews_sizes_not_labels(law: str) -> None:
    result = partition(BALANCED, 10, "quantity-skew", law=law, alpha=1.0, seed=0)
    assert result.sizes.max() > 3 * result.sizes.min()
    biggest = result.label_histogram[result.sizes.argmax()]
    assert biggest.max() < 1.4 * biggest.min()


def test_refuses_more_clients_than_rows_naming_the_limits() -> None:
    with pytest.raises(InfeasiblePartition, match="5 clients x min_size 3 need 15 examples: there are 14"):
        partition(np.zeros(14, np.int64), 5, "iid", seed=0, min_size=3)
    assert partition(np.zeros(2, np.int64), 5, "iid", seed=0, policy="allow-empty").empty


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scheme": "dirichle"}, "partition scheme 'dirichle' does not exist: choose one of iid"),
        ({"scheme": "dirichlet"}, "needs the option 'alpha'"),
        ({"scheme": "dirichlet", "alpha": 0.0}, "alpha 0.0 must be a finite number above 0"),
        ({"scheme": "dirichlet", "alpha": float("nan")}, "alpha nan"),
        ({"scheme": "iid", "alpha": 1.0}, "scheme 'iid' has no option 'alpha': it takes none"),
        ({"scheme": "shard", "shards_per_client": 0}, "shards_per_client 0"),
        ({"scheme": "quantity-skew", "law": "zipf"}, "law 'zipf' is unknown"),
        ({"num_clients": 0}, "num_clients 0"),
        ({"min_size": 0}, "min_size 0"),
        ({"seed": -1}, "seed -1"),
        ({"policy": "drop"}, "policy 'drop' is unknown"),
        ({"labels": np.array([0.5])}, "must be a non-empty vector of whole numbers"),
        ({"labels": np.array([], np.int64)}, "non-empty"),
        ({"labels": np.array([-1, 2])}, "label -1 is negative"),
        ({"client_ids": np.zeros(3)}, "one for each of the 6000 labels"),
    ],
)
def test_refuses_bad_arguments(change: dict[str, object], message: str) -> None:
    arguments = {"labels": BALANCED, "num_clients": 4, "scheme": "iid", "seed": 0, **change}
    with pytest.raises((BadOption, UnknownName), match=message):
        partition(**arguments)  # type: ignore[arg-type]


def test_schemes_are_listed_with_their_options() -> None:
    assert len(list_schemes()) == 7 and all(list_schemes().values())
    assert scheme_options("shard") == {"shards_per_client": 2}


@pytest.mark.parametrize("alpha", [0.1, 1.0])
def test_dirichlet_agrees_with_flwr_datasets_in_law(alpha: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    reason = "flwr-datasets is an optional extra: pip install fedsim[datasets]"
    partitioners = pytest.importorskip("flwr_datasets.partitioner", reason=reason)
    datasets = pytest.importorskip("datasets", reason=reason)
    table = datasets.Dataset.from_dict({"label": BALANCED.tolist()})
    theirs, ours = [], []
    for seed in range(4):
        other = partitioners.DirichletPartitioner(20, "label", alpha, 0, False, seed=seed)
        other.dataset = table
        sizes = [np.bincount(other.load_partition(k)["label"], minlength=10) for k in range(20)]
        theirs.append(np.stack(sizes))
        ours.append(partition(BALANCED, 20, "dirichlet", alpha=alpha, seed=seed, policy="allow-empty").label_histogram)
    assert np.std(ours) == pytest.approx(np.std(theirs), rel=0.1)
    for share in (0.25, 0.5, 0.75, 0.9):
        assert np.quantile(ours, share) == pytest.approx(np.quantile(theirs, share), rel=0.25, abs=3)
