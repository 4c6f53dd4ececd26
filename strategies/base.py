"""What all strategies share on the server: layout -> seal -> sum -> apply.

A strategy is a Flower `Strategy` that owns its round loop: it streams replies into a running sealed total, so that
memory is O(model) however many clients take part. Subclasses say which arrays travel and what to do with their mean.
"""

from collections.abc import Callable, Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from strategies._hooks import RoundObserver
from strategies._loop import RoundLoop
from strategies.fold import delivered
from strategies.nodes import Participation
from strategies.outcome import RoundRecord, means
from strategies.records import array_record
from strategies.rounds import chunk_size, chunked
from strategies.sealed_state import SealedState


class FederatedStrategy(RoundLoop):
    """Server half of a strategy.

    Args:
        participation: who takes part.
        protection: the secure sum.
        weighting: ``examples`` weights clients by their number of samples, ``uniform`` alike.
        buffers: rule for untrained state.
        seed: of the sampling.
        evaluate_fraction: share of the nodes that evaluates the global model after each round; 0 for none.
        evaluate_every: rounds between evaluations; the last round is always evaluated.
        weight_scale: divides numbers of examples; ``None`` asks the clients for theirs where a bound needs it.
        chunk: clients whose vectors are summed as one, see :mod:`strategies.rounds`; ``None`` chooses by their number.
        clip_norm: bound of a client's change, see :mod:`strategies.clipping`; ``None`` for none.
        observer: see :class:`RoundObserver`.

    Raises:
        Incompatible: the strategy needs the opened model on the server and the protection keeps it from there, or the
            protection counts all clients alike and the weighting does not.
    """

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
        first_round: int = 1,
        sealed: SealedState | None = None,
        history: bool = True,
    ) -> Result:
        """Run the federation.

        Args:
            grid: any Flower grid.
            initial_arrays: the model of round 0, an ordinary record or :func:`~strategies.records.model_record`.
            num_rounds: last round.
            timeout: a round's time limit in seconds where the participation sets none.
            train_config: scalars for the client app, sent with each plan.
            evaluate_config: the same for evaluation.
            evaluate_fn: Flower's server-side evaluation; not called while only clients can open the model.
            first_round: 1, or one past a checkpoint's round.
            sealed: a checkpoint's sealed total, where only clients can open the model.
            history: whether the result has each round's metrics; an observer who writes them down needs no second copy,
                which grows with the rounds.

        Returns:
            Flower's `Result`; its `arrays` are empty while only clients can open the model.

        Raises:
            TooFewReplies, EmptyRound: a round failed; :attr:`state` is that of the last good round.
            NoSuchNodes: too few nodes are connected.
            BudgetExceeded: the plan does not fit the protection.
        """
        result = Result()
        self.begin(grid, initial_arrays)
        self.sealed = sealed
        for server_round in range(first_round, num_rounds + 1):
            record = self._round(grid, server_round, num_rounds, timeout, train_config)
            if server_round % self.evaluate_every == 0 or server_round == num_rounds:
                self._evaluate(grid, record, timeout, evaluate_config, evaluate_fn, result)
            self.observer.round_done(record, self)
            result.train_metrics_clientapp[server_round] = MetricRecord(
                {k: v for k, v in record.metrics.items() if k.startswith("train_")}
            )
            if not history:
                result = Result()
        if self.state is not None and self.sealed is None:
            result.arrays = array_record(self.state)
        return result

    # ----------------------------------------------------------------- Flower's own interface

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """See `flwr.serverapp.strategy.Strategy`; for loops other than :meth:`start`."""
        if self.state is None:
            self.begin(grid, arrays)
        self._pending = RoundRecord(round=server_round, rounds=server_round)
        self._pending.nodes = self.choose(server_round)
        plan, layout = self._plan(server_round, server_round, self._pending.nodes)
        self._pending_plan = plan, layout
        return self._training_messages(self._training_content(plan, config), self._pending)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """See `flwr.serverapp.strategy.Strategy`."""
        record, (plan, layout) = self._pending, self._pending_plan
        by_node = {r.metadata.src_node_id: r for r in replies}
        record.nodes = [n for n in record.nodes if n.node_id in by_node]
        ordered = [by_node[n.node_id] for n in record.nodes]
        fold = self._new_fold(plan.tag(layout.length))
        nodes = iter(record.nodes)
        for chunk in chunked(ordered, self.chunk or chunk_size(len(ordered))):
            replies = fold.reducer(list(chunk)) if fold.reducer else list(chunk)
            self._take(fold, replies, nodes, record)
        record.require(self.participation.min_replies)
        self._settle(fold, plan, layout, record)
        arrays = array_record(self.state) if self.state is not None and self.sealed is None else None
        return arrays, MetricRecord(dict(record.metrics))

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """See `flwr.serverapp.strategy.Strategy`."""
        if self.evaluate_fraction == 0:
            return []
        nodes = Participation(fraction=self.evaluate_fraction).sample(self._nodes, self.seed + 1, server_round)
        plan, _ = self._plan(server_round, server_round, nodes)
        return self._evaluation_messages(nodes, plan, config, RoundRecord(round=server_round, rounds=server_round))

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """See `flwr.serverapp.strategy.Strategy`."""
        items = [delivered(r, r.metadata.src_node_id) for r in replies]
        self.answered([d.node_id for d in items if not d.error])
        return MetricRecord(dict(means([d for d in items if not d.error], ""))) if items else None


__all__ = ["FederatedStrategy", "RoundObserver"]
