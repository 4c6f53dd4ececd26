"""Clients that meet: order, generators, errors."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from flwr.app import Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedsim.simulation.together import meet, meeting, run_batch, together

SERVED: list[list[int]] = []


@dataclass
class Double:
    draws_afterwards: ClassVar[bool] = True
    value: int

    @classmethod
    def serve(cls, requests: "Sequence[Double]") -> list[int]:
        SERVED.append([one.value for one in requests])
        return [2 * one.value for one in requests]


@dataclass
class Refuse:
    draws_afterwards: ClassVar[bool] = True

    @classmethod
    def serve(cls, requests: "Sequence[Refuse]") -> list[int]:
        raise ValueError(f"{len(requests)} requests")


@pytest.fixture(autouse=True)
def nothing_served() -> None:
    SERVED.clear()


def asker(value: int, times: int = 1) -> int:
    for _ in range(times):
        value = meet(Double(value))
    return value


def test_all_requests_are_served_at_once_and_answers_keep_their_order() -> None:
    assert together([lambda v=v: asker(v) for v in (3, 1, 2)]) == [6, 2, 4]  # type: ignore[misc]
    assert SERVED == [[3, 1, 2]]


def test_those_who_ask_more_often_meet_those_who_are_left() -> None:
    assert together([lambda: asker(1, 3), lambda: asker(5), lambda: 7, lambda: asker(2, 2)]) == [8, 10, 7, 8]
    assert SERVED == [[1, 5, 2], [2, 4], [4]]


def test_no_jobs_no_results() -> None:
    assert together([]) == []


def test_an_error_of_serving_reaches_each_who_asked_and_no_other() -> None:
    def asks() -> str:
        try:
            meet(Refuse())
        except ValueError as error:
            return str(error)
        return "no error"

    assert together([asks, lambda: str(asker(4)), asks]) == ["2 requests", "8", "2 requests"]


def test_an_error_of_a_job_is_raised() -> None:
    def fails() -> int:
        raise KeyError("x")

    with pytest.raises(KeyError):
        together([lambda: asker(1), fails])


def test_outside_there_is_nobody_to_meet() -> None:
    assert not meeting()
    with pytest.raises(RuntimeError, match="outside of together"):
        meet(Double(1))


def test_generators_and_identity_go_on_where_each_client_left_them() -> None:
    def draws(seed: int, with_others: bool) -> list[float]:
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        TaskIdentity.node_id = seed
        found = [random.random(), float(np.random.random()), float(torch.rand(()))]
        if with_others:
            meet(Double(seed))
        found += [random.random(), float(np.random.random()), float(torch.rand(())), TaskIdentity.node_id]
        return found

    alone = [draws(seed, False) for seed in (1, 2, 3)]
    assert together([lambda s=s: draws(s, True) for s in (1, 2, 3)]) == alone  # type: ignore[misc]


def message(node: int) -> Message:
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    return Message(RecordDict(), node, "train")


def test_a_batch_with_two_messages_to_one_client_runs_in_turn() -> None:
    jobs = [lambda: int(meeting()) for _ in range(2)]
    assert run_batch(jobs, [message(4), message(5)], cohort=True) == [1, 1]
    assert run_batch(jobs, [message(4), message(4)], cohort=True) == [0, 0]
    assert run_batch(jobs, [message(4), message(5)], cohort=False) == [0, 0]
