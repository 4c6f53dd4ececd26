"""Sampling: who takes part, at a cost that the registered do not raise."""

from collections.abc import Iterator

import pytest

from strategies.nodes import Node, Participation


class Registered(list[Node]):
    """Nodes that count how often one is looked at, and cannot be gone through."""

    looked = 0

    def __getitem__(self, at: int) -> Node:  # type: ignore[override]
        self.looked += 1
        return super().__getitem__(at)

    def __iter__(self) -> Iterator[Node]:
        raise AssertionError("all registered nodes were gone through")


@pytest.mark.parametrize("available", [None, lambda server_round, ids: ids])
def test_a_sample_looks_at_the_sampled_alone(available) -> None:
    nodes = Registered(Node(i + 7, i) for i in range(100_000))
    chosen = Participation(clients=100, available=available).sample(nodes, seed=3, server_round=2)
    assert len({n.partition_id for n in chosen}) == 100
    assert nodes.looked == 100


def test_who_says_that_all_are_there_in_either_way_gets_the_same_sample() -> None:
    nodes = [Node(i + 7, i) for i in range(50)]
    ways = [None, lambda server_round, ids: ids, lambda server_round, ids: list(ids), lambda server_round, ids: ids[:]]
    samples = [Participation(clients=9, available=way).sample(nodes, 3, 2) for way in ways]
    assert samples[1:] == samples[:1] * 3
    some = Participation(clients=9, available=lambda server_round, ids: [i for i in ids if i % 2]).sample(nodes, 3, 2)
    assert len(some) == 9 and all(n.partition_id % 2 for n in some)
