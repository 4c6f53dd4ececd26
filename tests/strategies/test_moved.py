"""Of which round a strategy's model is, when a step is refused or interrupted: a checkpoint must not mistake it."""

import pytest

from strategies.fedavg import FedAvg


@pytest.mark.parametrize(("error", "moved"), [(None, 3), (ValueError, 2), (KeyboardInterrupt, 3)])
def test_a_refused_step_leaves_the_round_before_and_an_interrupted_one_may_not(monkeypatch, error, moved):
    def apply(self, mean, server_round):
        if error is not None:
            raise error

    monkeypatch.setattr(FedAvg, "apply", apply)
    made = FedAvg()
    assert made.moved_round == 0
    if error is None:
        made._advance({}, 3)
    else:
        with pytest.raises(error):
            made._advance({}, 3)
    assert made.moved_round == moved
