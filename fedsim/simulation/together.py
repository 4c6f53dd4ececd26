"""Running several clients of one process so that they can meet: what each would do alone is done for all at once.

A client's handler runs as it is, in a greenlet of its own. Where it comes to work that others share, it calls
:func:`meet` with a request; once every handler has come so far or has ended, the requests are served together, and each
handler goes on with its own answer. One handler runs at a time, always in the same order, in the same thread.
"""

import random
import sys
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
from flwr.app import Message
from flwr.supercore.task_identity import TaskIdentity
from greenlet import getcurrent, greenlet

T = TypeVar("T")


class Request(Protocol):
    """What a handler wants done together with others' requests of the same type.

    Attributes:
        draws_afterwards: whether the handler may draw from the process's generators once it has its answer; if not,
            they are not its own any more, which saves what it costs to put them back.
    """

    draws_afterwards: ClassVar[bool] = True

    @classmethod
    def serve(cls, requests: Sequence[Any]) -> list[Any]:
        """Return the answers, in the order of the requests."""
        ...


class _Client(greenlet):  # type: ignore[misc]
    """A handler that may wait; ``request`` is what it waits for."""

    request: Request | None = None


def meeting() -> bool:
    """Return whether the caller runs in :func:`together` and may call :func:`meet`."""
    return isinstance(getcurrent(), _Client)


def meet(request: Request) -> Any:
    """Wait until the others have come so far, and return the answer to the request.

    The process's generators and Flower's task identity are the caller's own again afterwards.

    Raises:
        RuntimeError: outside of :func:`together`.
        Exception: whatever serving raised; each of those who waited gets it.
    """
    own = getcurrent()
    if not isinstance(own, _Client) or own.parent is None:
        raise RuntimeError("meet() outside of together(): nobody to meet; ask meeting() first")
    own.request = request
    before = _globals(request.draws_afterwards)
    answer, error = own.parent.switch()
    _restore(before)
    if error is not None:
        raise error
    return answer


def together(jobs: Sequence[Callable[[], T]]) -> list[T]:
    """Run jobs that may meet, and return their results in their order.

    Raises:
        BaseException: what a job raised; the others are given up.
    """
    results: dict[int, T] = {}
    clients = [_Client(job) for job in jobs]
    answers: list[tuple[Any, BaseException | None] | None] = [None] * len(clients)
    open_ = list(range(len(clients)))
    while open_:
        waiting = []
        for i in open_:
            client, answer = clients[i], answers[i]
            client.request = None
            returned = client.switch() if answer is None else client.switch(*answer)
            if client.dead:
                results[i] = returned
            else:
                waiting.append(i)
        _serve([clients[i] for i in waiting], answers, waiting)
        open_ = waiting
    return [results[i] for i in range(len(clients))]


def run_batch(jobs: Sequence[Callable[[], T]], messages: Sequence[Message], cohort: bool) -> list[T]:
    """Run a batch's jobs, one a message: together if they may meet, else one after another.

    A client with two messages in the batch sees in the second what the first left; such a batch runs in turn.
    """
    distinct = len({message.metadata.dst_node_id for message in messages}) == len(messages)
    return together(jobs) if cohort and distinct else [job() for job in jobs]


def _serve(clients: list[_Client], answers: list[tuple[Any, BaseException | None] | None], places: list[int]) -> None:
    """Serve the requests of each type together."""
    groups: dict[type, list[int]] = {}
    for n, client in enumerate(clients):
        groups.setdefault(type(client.request), []).append(n)
    for kind, members in groups.items():
        outcomes: list[tuple[Any, BaseException | None]]
        try:
            found = kind.serve([clients[n].request for n in members])  # type: ignore[attr-defined]
            outcomes = [(answer, None) for answer in found]
        except Exception as error:  # noqa: BLE001 - raised in each of those who asked
            outcomes = [(None, error)] * len(members)
        for n, outcome in zip(members, outcomes, strict=True):
            answers[places[n]] = outcome


def _globals(generators: bool) -> tuple[Any, ...]:
    """Return the state of what a client takes for its own: identity and, if wanted, generators."""
    identity = TaskIdentity._run_id, TaskIdentity._node_id, TaskIdentity._task_id
    if not generators:
        return (identity,)
    torch: Any = sys.modules.get("torch")
    state = torch.default_generator.get_state() if torch else None
    return identity, random.getstate(), np.random.get_state(), state  # noqa: NPY002


def _restore(before: tuple[Any, ...]) -> None:
    TaskIdentity._run_id, TaskIdentity._node_id, TaskIdentity._task_id = before[0]
    if len(before) == 1:
        return
    torch: Any = sys.modules.get("torch")
    random.setstate(before[1])
    np.random.set_state(before[2])  # noqa: NPY002
    if before[3] is not None:
        torch.default_generator.set_state(before[3])


__all__ = ["Request", "meet", "meeting", "run_batch", "together"]
