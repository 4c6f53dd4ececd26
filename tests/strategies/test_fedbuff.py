"""FedBuff by hand: who arrives when, how much stale changes count, and that its state is whole."""

import numpy as np
import pytest

from strategies.fedbuff import FedBuff, staleness_weight
from strategies.nodes import Node, Participation
from strategies.records import NamedArrays


def test_staleness_weights_by_hand():
    assert [staleness_weight(t, 0.5) for t in (0, 3, 8)] == [1.0, 0.5, pytest.approx(1 / 3)]
    assert staleness_weight(7, 0.0) == 1.0 and staleness_weight(1, 2.0) == 0.25


class Speeds:
    def __init__(self, *seconds):
        self.seconds, self.steps = seconds, []

    def turn_s(self, partition_id):
        return self.seconds[partition_id]

    def stepped(self, at_s):
        self.steps.append(at_s)


def strategy(pace, *, buffer_size=2, concurrency=3, clients=3, **more):
    made = FedBuff(buffer_size=buffer_size, pace=pace, participation=Participation(clients=concurrency), **more)
    made._nodes = [Node(100 + c, c) for c in range(clients)]
    made.state = NamedArrays({"w": np.zeros(1)})
    return made


def steps(made, number, change=lambda client: 1.0):
    """Play server steps; returns clients and staleness of each."""
    seen = []
    for server_round in range(1, number + 1):
        nodes = [n.partition_id for n in made.choose(server_round)]
        staleness = [server_round - 1 - made._began[p] for p in nodes]
        weights = [staleness_weight(s, made.exponent) * change(p) for p, s in zip(nodes, staleness, strict=True)]
        made.apply({"w": np.array([sum(weights) / len(weights)])}, server_round)
        seen.append((nodes, staleness))
    return seen


def test_arrivals_and_staleness_by_hand():
    """Clients of 1, 2 and 5 s, buffer of 2: ends at 1, 2 | 3, 4 | 4, 5 | ..."""
    pace = Speeds(1.0, 2.0, 5.0)
    seen = steps(strategy(pace), 4)
    # Step 1: 0 ends at 1 s, 1 at 2 s; 0 and 1 begin again at 2 s on version 1. Step 2: 0 at 3 s, 1 at 4 s.
    # Step 3: both begin at 4 s; 0 and 2 at 5 s, whose model is that of version 0: 2 steps old.
    assert seen[0] == ([0, 1], [0, 0]) and seen[1] == ([0, 1], [0, 0]) and seen[2] == ([0, 2], [0, 2])
    # Step 4: 0 and 2 begin at 5 s on version 3; 1 ends at 6 s (begun on version 2, 1 step old), as does 0.
    assert seen[3] == ([0, 1], [0, 1])
    assert pace.steps == [2.0, 4.0, 5.0, 6.0]


def test_the_model_moves_by_the_weighted_mean_by_hand():
    made = strategy(Speeds(1.0, 2.0, 5.0), server_lr=2.0)
    steps(made, 3)
    # 2 * 1 + 2 * 1 + 2 * (1 + 3^-1/2) / 2
    assert made.state.arrays["w"][0] == pytest.approx(4 + 1 + 3**-0.5)


def test_nobody_is_twice_in_a_buffer_and_idle_clients_come_in():
    made = strategy(Speeds(1.0, *[10.0] * 9), buffer_size=4, concurrency=4, clients=10)
    for nodes, _ in steps(made, 30):
        assert len(set(nodes)) == 4
    assert {n for nodes, _ in steps(made, 0) for n in nodes} == set()
    assert len(made.flying) >= 3


def test_models_are_kept_as_long_as_somebody_trains_on_them():
    made = strategy(Speeds(1.0, 1.0, 50.0))
    steps(made, 20)
    assert sorted(made.versions) == [0] or set(made.versions) <= {0, 19, 20}
    assert 0 in made.versions and len(made.versions) <= 2


def test_state_is_whole():
    pace = Speeds(1.0, 2.0, 5.0)
    whole = strategy(pace)
    expected = steps(whole, 6)
    half = strategy(Speeds(1.0, 2.0, 5.0))
    assert steps(half, 3) == expected[:3]
    again = strategy(Speeds(1.0, 2.0, 5.0))
    again.state = half.state
    again.load_state_dict(half.state_dict())
    seen = []
    for server_round in (4, 5, 6):
        nodes = [n.partition_id for n in again.choose(server_round)]
        staleness = [server_round - 1 - again._began[p] for p in nodes]
        again.apply({"w": np.array([np.mean([staleness_weight(s, 0.5) for s in staleness])])}, server_round)
        seen.append((nodes, staleness))
    assert seen == expected[3:] and again.state.arrays["w"] == whole.state.arrays["w"]


@pytest.mark.parametrize("options", [{"buffer_size": 0}, {"server_lr": 0.0}, {"staleness_exponent": -1.0}])
def test_values_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match="must be at least 1"):
        FedBuff(**options)
