"""Workers that may die or hang, and the jobs they run.

The pool keeps the order of jobs of each worker (Ray runs an actor's calls in turn), so that after a death it knows the
job that was running: only that one is suspect, the others are sent again as they are.
"""

import itertools as it
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import ray
from flwr.app import Message
from ray.exceptions import (
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayTaskError,
    WorkerCrashedError,
)

from fedsim.simulation.grid import Reducer
from fedsim.simulation.ray_worker import Result

_log = logging.getLogger(__name__)

_DEATHS = (NodeDiedError, ObjectLostError, OutOfMemoryError, RayActorError, WorkerCrashedError)
# A worker that is asked what it has so far answers at once, unless native code holds the interpreter.
PROBE_S = 2.0
_ALONE_TRIES = 2


@dataclass(eq=False, slots=True)
class Job:
    """A batch on its way.

    Attributes:
        index: Its number in its stream.
        messages: The batch.
        reducer: Folds the replies, in the worker or, after a fault, here.
        finished: Where it goes when it has its replies, or an error of the program.
        parent: The job that this one retries a single client of, and the client's place there.
        deaths: Workers that died while this one was thought to run alone.
    """

    index: int
    messages: list[Message]
    reducer: Reducer | None
    finished: "deque[Job]"
    replies: list[Message] = field(default_factory=list)
    error: BaseException | None = None
    number: int = 0
    parent: "tuple[Job, int] | None" = None
    parts: dict[int, Message] = field(default_factory=dict)
    deaths: int = 0


class JobHandler(Protocol):
    """What the pool asks its owner."""

    def encode(self, job: Job) -> tuple[Any, ...]:
        """Return the arguments of the worker's ``run``."""

    def decode(self, job: Job, result: Result) -> list[Message]:
        """Return the replies of a result and note the states in it."""

    def died(self, job: Job, cause: str) -> list[Message]:
        """Return the replies of a single client whose worker died twice."""

    def kind(self, message: Message) -> int:
        """Return the number of the kind of workers that runs a message's client."""

    def late(self, job: Job, partial: Result | None) -> list[Message]:
        """Return the replies of a job at the deadline, given what is known of it."""

    def done(self, job: Job) -> None:
        """Take note that the job is complete."""


@dataclass(eq=False, slots=True)
class _Worker:
    """A worker; `starting` is what it answers once it runs, ``None`` afterwards.

    One that replaces a dead one may find no room: where its machine is gone, until another joins the cluster.
    """

    actor: Any
    kind: int
    spawn: Callable[[], Any]
    jobs: "dict[Any, Job]" = field(default_factory=dict)
    starting: Any = None


class WorkerPool:
    """A fixed number of workers; dead ones are replaced.

    Args:
        spawns: For each worker the number of its kind, and what starts it and returns its actor handle at once.
        handler: The owner.
    """

    def __init__(self, spawns: Sequence[tuple[int, Callable[[], Any]]], handler: JobHandler) -> None:
        self._handler = handler
        self._workers = [_Worker(spawn(), kind, spawn) for kind, spawn in spawns]
        self._numbers = it.count(1)

    @property
    def actors(self) -> list[Any]:
        """The workers' actor handles."""
        return [worker.actor for worker in self._workers]

    @property
    def load(self) -> int:
        """Jobs that workers run or hold."""
        return sum(len(worker.jobs) for worker in self._workers)

    def submit(self, job: Job) -> None:
        """Give the job to the worker with the fewest of its clients' kind; one of several kinds is cut."""
        kinds = {self._handler.kind(message) for message in job.messages}
        if len(kinds) > 1:
            self._split(job)
            return
        able = [w for w in self._workers if w.kind in kinds]
        worker = min([w for w in able if w.starting is None] or able, key=lambda w: len(w.jobs))
        job.number = next(self._numbers)
        worker.jobs[worker.actor.run.remote(*self._handler.encode(job))] = job

    def wait(self, timeout_s: float | None) -> bool:
        """Complete at least one job, or return False after the time-out. Without jobs returns False at once."""
        late_s = None if timeout_s is None else time.monotonic() + timeout_s
        while owners := {ref: worker for worker in self._workers for ref in worker.jobs}:
            starts = {worker.starting: worker for worker in self._workers if worker.starting is not None}
            left_s = None if late_s is None else max(0.0, late_s - time.monotonic())
            ready, _ = ray.wait([*owners, *starts], num_returns=1, timeout=left_s)
            done = [ref for ref in ready if ref in owners]
            for ref in done:
                self._collect(owners[ref], ref)
            for ref in ready:
                if ref in starts:
                    self._started(starts[ref], ref)
            if done or not ready:
                return bool(done)
        return False

    def expire(self, finished: "deque[Job]") -> None:
        """Complete all jobs of one owner now: what workers have so far counts, the rest is late; they are replaced."""
        hit = [w for w in self._workers if any(job.finished is finished for job in w.jobs.values())]
        partial = self._probe(hit)
        for worker in hit:
            jobs = list(worker.jobs.values())
            self._replace(worker)
            for job in jobs:
                if job.finished is finished:
                    self._complete(job, self._handler.late(job, partial.get(job.number)))
                else:
                    self.submit(job)

    def close(self) -> None:
        """Kill the workers."""
        for worker in self._workers:
            ray.kill(worker.actor)
            worker.jobs.clear()

    def _started(self, worker: _Worker, ref: Any) -> None:
        """Take note that a worker that replaces another runs, or replace it too."""
        try:
            ray.get(ref)
        except _DEATHS as error:
            self._bury(worker, str(error))
        else:
            worker.starting = None

    def _collect(self, worker: _Worker, ref: Any) -> None:
        try:
            result = ray.get(ref)
        except _DEATHS as error:
            self._bury(worker, str(error))
        except RayTaskError as error:
            job = worker.jobs.pop(ref)
            job.error = error
            self._complete(job, [])
        else:
            job = worker.jobs.pop(ref)
            self._complete(job, self._handler.decode(job, result), reduced=True)

    def _bury(self, worker: _Worker, cause: str) -> None:
        """Replace a dead worker and send its jobs again; the oldest, which was running, client by client."""
        _log.warning("a worker died and is replaced: %s", cause.splitlines()[0] if cause else "no reason given")
        lost: list[Job] = []
        results: list[tuple[Job, Result]] = []
        for ref, job in worker.jobs.items():
            try:
                results.append((job, ray.get(ref, timeout=0)))
            except (*_DEATHS, RayTaskError, TimeoutError):
                lost.append(job)
        self._replace(worker)
        for job, result in results:
            self._complete(job, self._handler.decode(job, result), reduced=True)
        for place, job in enumerate(lost):
            if place > 0:
                self.submit(job)
            elif job.parent:
                # A reply that had just been sent can be lost with the worker: one such death may be another client's.
                job.deaths += 1
                if job.deaths < _ALONE_TRIES:
                    self.submit(job)
                else:
                    self._complete(job, self._handler.died(job, cause))
            else:
                self._split(job)

    def _split(self, job: Job) -> None:
        for place, message in enumerate(job.messages):
            self.submit(Job(job.index, [message], None, job.finished, parent=(job, place)))

    def _complete(self, job: Job, replies: list[Message], reduced: bool = False) -> None:
        if job.parent:
            whole, place = job.parent
            whole.error = whole.error or job.error
            whole.parts[place] = replies[0] if replies else whole.messages[place]
            if len(whole.parts) == len(whole.messages):
                self._complete(whole, [whole.parts[i] for i in range(len(whole.messages))])
            return
        if job.reducer and not reduced and not job.error:
            try:
                replies = job.reducer(replies)
            except Exception as error:  # noqa: BLE001 - raised to the caller of the stream, as a worker's is
                job.error = error
        job.replies = replies
        self._handler.done(job)
        job.finished.append(job)

    def _probe(self, workers: list[_Worker]) -> dict[int, Result]:
        probes = [worker.actor.progress.remote() for worker in workers]
        ready, _ = ray.wait(probes, num_returns=len(probes), timeout=PROBE_S) if probes else ([], [])
        found: dict[int, Result] = {}
        for probe in ready:
            try:
                answer = ray.get(probe)
            except _DEATHS:
                continue
            if answer:
                found[answer[0]] = answer[1]
        return found

    def _replace(self, worker: _Worker) -> None:
        ray.kill(worker.actor)
        worker.actor, worker.jobs = worker.spawn(), {}
        worker.starting = worker.actor.ready.remote()
