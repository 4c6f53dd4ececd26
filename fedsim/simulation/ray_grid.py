"""The engine on Ray: long-lived workers on this machine or on a cluster."""

import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import ray
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.app.user_config import UserConfig
from flwr.clientapp import ClientApp
from ray.exceptions import GetTimeoutError, RayActorError

from fedsim.simulation.environment import worker_environment
from fedsim.simulation.grid import FaultCode, Reducer, SimulationGrid
from fedsim.simulation.pool import Job, WorkerPool
from fedsim.simulation.ray_session import RaySession, uninterrupted
from fedsim.simulation.ray_worker import Head, RayWorker, Result, Task
from fedsim.simulation.shares import WorkerKind
from fedsim.simulation.transit import Packed, own_content, pack, raw_data, record_bytes, unpack

# Below this a record travels inside the task: Ray would send a small object along with the call anyway.
BROADCAST_BYTES = 64 * 1024
JOBS_A_WORKER = 2


class RayGrid(SimulationGrid):
    """Runs clients in Ray actors that load the app once.

    Array records that several messages share travel once a round. Replies lie in the object store and are read from
    there without a copy; they stay there as long as the caller holds them.

    Args:
        client_app: See :class:`SimulationGrid`, as the next four. Workers must be able to import it.
        node_configs: One a client.
        run_config: The run's settings.
        seed: Of the run.
        threads: Torch threads of a worker.
        cohort: See :class:`SimulationGrid`.
        workers: Number of worker processes.
        worker_cpus: CPUs of one worker, may be a fraction.
        worker_gpus: GPUs of one worker, may be a fraction.
        kinds: Workers of unequal size, counts settled, instead of the three arguments before.
        client_kinds: For each client, by partition id, the kind that runs it; all the first if left out. A batch of
            clients of several kinds is cut, and folded here.
        address: Of a Ray cluster; default ``RAY_ADDRESS``, or a private Ray on this machine.
        store_bytes: Object store of a private Ray.
        start_timeout_s: Limit for the workers to load the app.

    Raises:
        ValueError: No workers, or more than the cluster has room for, or an object store that does not fit.
        RuntimeError: The workers do not start; with the original error of the app's import.
    """

    def __init__(
        self,
        client_app: ClientApp | str,
        *,
        node_configs: Sequence[UserConfig],
        run_config: UserConfig,
        seed: int,
        threads: int = 1,
        cohort: bool = False,
        workers: int = 2,
        worker_cpus: float = 1.0,
        worker_gpus: float = 0.0,
        kinds: Sequence[WorkerKind] = (),
        client_kinds: Sequence[int] = (),
        address: str | None = None,
        store_bytes: int | None = None,
        start_timeout_s: float = 300.0,
    ) -> None:
        if workers < 1 or worker_cpus <= 0 or worker_gpus < 0:
            raise ValueError(
                f"workers {workers}, CPUs {worker_cpus}, GPUs {worker_gpus} a worker: at least 1 worker with more than "
                "0 CPUs and no negative GPUs is needed; change them"
            )
        super().__init__(
            client_app, node_configs=node_configs, run_config=run_config, seed=seed, threads=threads, cohort=cohort
        )
        self._kinds = list(kinds) or [WorkerKind("", worker_cpus, worker_gpus, 0, workers)]
        self._count = sum(kind.count for kind in self._kinds)
        self._client_kinds = dict(zip(self._node_list, client_kinds or [0] * len(self._node_list), strict=True))
        self._states: dict[int, Packed] = {}
        self._busy: Counter[int] = Counter()
        self._broadcast = _Broadcast()
        self._backlog: deque[Job] = deque()
        self._pushed: deque[Job] = deque()
        self._replies: dict[str, Message] = {}
        self._client_bytes = 0.0
        self._limit_s: float | None = None
        self._pool: WorkerPool | None = None
        self._session: RaySession | None = None
        try:
            cpus = max(1, round(sum(kind.count * kind.cpus for kind in self._kinds) + 0.499))
            self._session = RaySession(cpus=cpus, threads=threads, address=address, store_bytes=store_bytes)
            self._store_bytes = int(self._check_room().get("object_store_memory", 0)) or 2**30
            spawns = [(n, self._spawner(kind)) for n, kind in enumerate(self._kinds) for _ in range(kind.count)]
            self._pool = WorkerPool(spawns, self)
            self._await_workers(start_timeout_s)
        except BaseException:
            self.close()
            raise

    # -- Starting --------------------------------------------------------------------------------------------------

    def _check_room(self) -> dict[str, float]:
        total: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        for name in ("CPU", "GPU", "memory"):
            wanted = sum(kind.count * kind.needs()[name] for kind in self._kinds)
            if wanted > total.get(name, 0.0) + 1e-9:
                each = wanted / self._count
                raise ValueError(
                    f"{self._count} workers of {each:g} {name}: the cluster has {total.get(name, 0.0):g} {name}; "
                    f"use at most {int(total.get(name, 0.0) / each)} workers or a smaller share each"
                )
        return total

    def _spawner(self, kind: WorkerKind) -> Any:
        assert self._session is not None
        options: dict[str, Any] = {
            "num_cpus": kind.cpus,
            "num_gpus": kind.gpus,
            **({"memory": kind.memory_bytes} if kind.memory_bytes else {}),
            "max_restarts": 0,
            "concurrency_groups": {"progress": 1},
        }
        if not self._session.private:
            options["runtime_env"] = {"env_vars": worker_environment(self._threads)}
        actor_class = ray.remote(**options)(RayWorker)
        app = self._app if isinstance(self._app, str) else ray.put(self._app)
        return lambda: actor_class.remote(app, self._run_config, self._seed, self._threads, self._cohort)

    def _await_workers(self, timeout_s: float) -> None:
        assert self._pool is not None
        try:
            ray.get([actor.ready.remote() for actor in self._pool.actors], timeout=timeout_s)
        except RayActorError as error:
            raise RuntimeError(f"client app {self._app!r} does not load in a worker; correct it: {error}") from error
        except GetTimeoutError as error:
            raise RuntimeError(
                f"{self._count} workers did not start within {timeout_s:g} s; is the cluster busy, or the app's import "
                "slow? Free CPUs or raise start_timeout_s"
            ) from error

    # -- Running ---------------------------------------------------------------------------------------------------

    def stream(
        self,
        batches: Iterable[Sequence[Message]],
        *,
        timeout: float | None = None,
        reducer: Reducer | None = None,
        max_ahead: int | None = None,
    ) -> Iterator[tuple[int, list[Message]]]:
        """See :meth:`SimulationGrid.stream`. At the deadline stuck workers are killed and replaced."""
        window = JOBS_A_WORKER * 2 * self._count if max_ahead is None else max_ahead
        if window < 1:
            raise ValueError(f"max_ahead {max_ahead}: at least 1 batch must be allowed to run; choose 1 or more")
        self._limit_s = timeout
        flow = _Flow(enumerate(batches), window, None if timeout is None else time.monotonic() + timeout)
        try:
            while job := self._next_job(flow, reducer):
                yield job.index, job.replies
                flow.yielded(job.index)
            yield from self._late_rest(flow, reducer)
        finally:
            self._broadcast.forget()

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Start the messages on the workers; see ``Grid.push_messages``."""
        admitted = self._admit(list(messages))
        for batch in self._auto_batches(admitted, []):
            self._backlog.append(Job(0, list(batch), None, self._pushed))
        self._advance()
        return [message.metadata.message_id for message in admitted]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies that are there, without waiting; see ``Grid.pull_messages``."""
        while self._running.wait(0):
            pass
        self._advance()
        while self._pushed:
            job = self._pushed.popleft()
            if job.error:
                raise job.error
            self._replies |= {reply.metadata.reply_to_message_id: reply for reply in job.replies}
        return [self._replies.pop(i) for i in message_ids if i in self._replies]

    def client_states(self) -> dict[int, RecordDict]:
        """See :meth:`SimulationGrid.client_states`."""
        places = {node: client for client, node in enumerate(self._node_list)}
        return {places[node]: unpack(state) for node, state in sorted(self._states.items())}

    def restore_client_states(self, states: Mapping[int, RecordDict]) -> None:
        """See :meth:`SimulationGrid.restore_client_states`."""
        for client, state in states.items():
            packed = pack(state)
            self._states[self._node_of(client)] = Packed(bytes(packed.meta), [bytes(b) for b in packed.buffers])

    def close(self) -> None:
        """See :meth:`SimulationGrid.close`; a private Ray ends with all its processes."""
        if self._closed:
            return
        with uninterrupted():
            self._release()
            if self._pool and ray.is_initialized():
                self._pool.close()
            self._pool = None
            self._broadcast.forget()
            self._replies.clear()
            if self._session:
                self._session.close()

    @property
    def _running(self) -> WorkerPool:
        if self._pool is None:
            raise RuntimeError("the grid is closed: no message can be sent; open a new one")
        return self._pool

    def _next_job(self, flow: "_Flow", reducer: Reducer | None) -> Job | None:
        """Return the next complete job; None when all are, or at the deadline."""
        while not flow.finished:
            self._fill(flow, reducer)
            if not flow.open and not flow.pending:
                return None
            left_s = None if flow.late_s is None else flow.late_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                if not flow.open:
                    return None
                flow.close()
                self._running.expire(flow.finished)
            else:
                self._running.wait(left_s)
        flow.open -= 1
        job = flow.finished.popleft()
        if job.error:
            raise job.error
        return job

    def _fill(self, flow: "_Flow", reducer: Reducer | None) -> None:
        """Start batches while workers and the window have room, and no client is in two of them at once."""
        pool = self._running
        while pool.load < JOBS_A_WORKER * self._count:
            if not flow.pending and flow.may_draw():
                flow.draw(lambda batch: self._admit(batch), reducer)
            if not flow.pending or self._held_up(flow.pending):
                return
            job, flow.pending = flow.pending, None
            flow.open += 1
            self._start(job)

    def _late_rest(self, flow: "_Flow", reducer: Reducer | None) -> Iterator[tuple[int, list[Message]]]:
        rest = [(flow.pending.index, flow.pending.messages)] if flow.pending else []
        for index, messages in rest:
            yield index, self._late_replies(messages, reducer)
        for index, batch in flow.batches:
            yield index, self._late_replies(self._admit(batch), reducer)

    def _late_replies(self, messages: list[Message], reducer: Reducer | None) -> list[Message]:
        replies = [self._fault(FaultCode.LATE, m, "the deadline had passed before its turn") for m in messages]
        return reducer(replies) if reducer else replies

    def _start(self, job: Job) -> None:
        self._busy.update({message.metadata.dst_node_id for message in job.messages})
        self._running.submit(job)

    def _held_up(self, job: Job) -> bool:
        return any(message.metadata.dst_node_id in self._busy for message in job.messages)

    def _advance(self) -> None:
        while self._backlog and not self._held_up(self._backlog[0]):
            self._start(self._backlog.popleft())

    # -- What the pool asks ----------------------------------------------------------------------------------------

    def encode(self, job: Job) -> tuple[Any, ...]:
        """See :class:`fedsim.simulation.pool.JobHandler`."""
        contents: dict[int, tuple[int, RecordDict]] = {}
        heads = []
        for message in job.messages:
            meta, content = message.metadata, message.content
            place, _ = contents.setdefault(id(content), (len(contents), content))
            node_id = meta.dst_node_id
            heads.append(Head(meta.__dict__, place, self.node_configs[node_id], self._states.get(node_id)))
        shared, refs = self._broadcast.share(job.messages)
        packed = [pack(content, shared) for _, content in contents.values()]
        return Task(job.number, self.run.run_id, packed, heads, job.reducer), *refs

    def decode(self, job: Job, result: Result) -> list[Message]:
        """See :class:`fedsim.simulation.pool.JobHandler`."""
        self._note_states(result)
        if not job.parent:
            self._learn(job.messages, result.elapsed_s)
            size = sum(packed.size_bytes for packed in result.replies) / len(job.messages)
            self._client_bytes = max(size, 0.5 * (self._client_bytes + size))
        return [unpack(packed) for packed in result.replies]

    def died(self, job: Job, cause: str) -> list[Message]:
        """See :class:`fedsim.simulation.pool.JobHandler`."""
        what = (
            f"its worker process ended while running it, also when it ran alone ({self._count} workers); "
            f"if memory ran out, use fewer workers or a smaller model. Ray says: {cause}"
        )
        return [self._fault(FaultCode.DIED, message, what) for message in job.messages]

    def kind(self, message: Message) -> int:
        """See :class:`fedsim.simulation.pool.JobHandler`."""
        return self._client_kinds[message.metadata.dst_node_id]

    def late(self, job: Job, partial: Result | None) -> list[Message]:
        """See :class:`fedsim.simulation.pool.JobHandler`."""
        if partial:
            self._note_states(partial)
        replies: list[Message] = [unpack(packed) for packed in partial.replies] if partial else []
        what = f"did not answer within {self._limit_s or 0.0:g} s; its worker was stopped"
        return replies + [self._fault(FaultCode.LATE, message, what) for message in job.messages[len(replies) :]]

    def done(self, job: Job) -> None:
        """See :class:`fedsim.simulation.pool.JobHandler`."""
        for node_id in {message.metadata.dst_node_id for message in job.messages}:
            self._busy[node_id] -= 1
            if not self._busy[node_id]:
                del self._busy[node_id]

    def _note_states(self, result: Result) -> None:
        for node_id, state in result.states.items():
            if state is None:
                self._states.pop(node_id, None)
            else:
                # Copied out of the object store, which a state would pin for the rest of the run.
                self._states[node_id] = Packed(bytes(state.meta), [bytes(buffer) for buffer in state.buffers])

    # -- Batches ---------------------------------------------------------------------------------------------------

    def _workers(self) -> int:
        return self._count

    def _batch_size(self, message_type: str, left: int) -> int:
        by_time = super()._batch_size(message_type, left)
        room = self._store_bytes / (4 * JOBS_A_WORKER * self._count)
        return max(1, min(by_time, int(room / max(self._client_bytes, 1.0))))

    def _keep(self, replies: list[Message], held_bytes: int) -> None:
        if held_bytes > self._store_bytes / 5:
            for reply in replies:
                own_content(reply)


class _Flow:
    """Where a stream stands."""

    def __init__(self, batches: "Iterator[tuple[int, Sequence[Message]]]", window: int, late_s: float | None) -> None:
        self.batches = batches
        self.late_s = late_s
        self.finished: deque[Job] = deque()
        self.pending: Job | None = None
        self.open = 0
        self._window, self._drawn, self._oldest = window, 0, 0
        self._exhausted = False
        self._yielded: set[int] = set()

    def may_draw(self) -> bool:
        """Whether another batch may be drawn now."""
        return not self._exhausted and self._drawn < self._oldest + self._window

    def draw(self, admit: Any, reducer: Reducer | None) -> None:
        """Draw the next batch, if there is one."""
        found = next(self.batches, None)
        if found is None:
            self._exhausted = True
            return
        self._drawn += 1
        self.pending = Job(found[0], admit(found[1]), reducer, self.finished)

    def close(self) -> None:
        """Draw nothing more to run."""
        self._exhausted = True

    def yielded(self, index: int) -> None:
        """Note that the caller is through with a batch."""
        self._yielded.add(index)
        while self._oldest in self._yielded:
            self._yielded.remove(self._oldest)
            self._oldest += 1


class _Broadcast:
    """Array records in the object store, each once for all tasks of a stream."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], tuple[Any, ArrayRecord]] = {}

    def share(self, messages: Sequence[Message]) -> tuple[dict[int, int], list[Any]]:
        """Choose the records of a batch that travel apart.

        Returns:
            (``id`` of the record -> its number, the object references in the order of the numbers).
        """
        records = [r for m in messages for r in m.content.values() if isinstance(r, ArrayRecord)]
        uses = Counter(map(id, records))
        numbers: dict[int, int] = {}
        refs: list[Any] = []
        for record in records:
            if id(record) in numbers or record_bytes(record) < BROADCAST_BYTES:
                continue
            key = tuple((name, a.dtype, a.shape, a.stype, id(raw_data(a))) for name, a in record.items())
            if uses[id(record)] > 1 or len(messages) == 1 or key in self._known:
                numbers[id(record)] = len(refs)
                refs.append(self._ref(key, record))
        return numbers, refs

    def _ref(self, key: tuple[Any, ...], record: ArrayRecord) -> Any:
        if key not in self._known:
            # The copy keeps the data alive, and with it the identities in the key, whatever becomes of the record.
            self._known[key] = ray.put(pack(record)), record.copy()
        return self._known[key][0]

    def forget(self) -> None:
        """Let go of everything."""
        self._known.clear()
