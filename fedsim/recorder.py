"""Writes down what happens in a run: ledger, metrics, checkpoints; and tells whoever watches."""

import logging
import math
import time
from collections.abc import Mapping
from itertools import accumulate
from typing import Protocol, runtime_checkable

import numpy as np
from flwr.app import RecordDict
from numpy.typing import NDArray

from crypto.fixed_point import CLIPPING_WARNING_SHARE
from fedsim.checkpoint import Checkpoint, save_checkpoint, save_clients
from fedsim.events import Observer, RoundEnd
from fedsim.measure.ledger import HELPER, SERVER, ClientRound, Entry, Ledger, Row
from fedsim.measure.metrics import VIRTUAL_ROUND_S, Metrics
from fedsim.measure.runfolder import RunFolder
from fedsim.simulation.clock import Turn, VirtualClock
from fedsim.site import Site
from fedsim.tasks.heterogeneity import local_accuracy
from fedsim.tasks.training import evaluate
from strategies.fold import REJECTED, Delivered
from strategies.outcome import RoundRecord
from strategies.records import NamedArrays
from strategies.rounds import LATE
from strategies.sealed_state import SealedState
from strategies.state import load_state_arrays

log = logging.getLogger(__name__)

#: Metrics of a round that are not of the model.
_COUNTS = ("sampled", "accepted", "round_s", "clipped_share", "energy_j", VIRTUAL_ROUND_S)
#: Phases of a client's own clock, in order, as the client app names them.
_CLIENT_PHASES = ("download", "open", "evaluate", "train", "seal", "upload")

#: Rows of a round that are put into the ledger at once, and seconds that rows are held before they go to the disk.
_ROWS_AT_ONCE = 4096
_HOLD_S = 0.5


class Served(Protocol):
    """What the recorder reads of a strategy."""

    @property
    def state(self) -> NamedArrays | None:
        """The global model, as far as the server holds it."""
        ...

    @property
    def sealed(self) -> SealedState | None:
        """The last sealed total, where only clients can open it."""
        ...

    def state_dict(self) -> dict[str, NDArray[np.generic]]:
        """The strategy's own arrays."""
        ...


@runtime_checkable
class Remembering(Protocol):
    """A grid that holds what its clients keep between messages."""

    def client_states(self) -> dict[int, RecordDict]:
        """Return each client's own records, by partition id."""
        ...

    def restore_client_states(self, states: Mapping[int, RecordDict]) -> None:
        """Give clients the records of an earlier process."""
        ...


class Recorder:
    """A :class:`~strategies.base.RoundObserver` that fills a run's folder.

    Args:
        folder: the run's folder, made.
        site: evaluates the global model.
        watcher: told of each round.
        clock: gives virtual seconds; a resumed run's is set to where its records end.
        resumed_round: records of later rounds are forgotten first.
        clients: simulated clients, whose own records a checkpoint must have too; ``None`` where they run elsewhere.
    """

    def __init__(
        self,
        folder: RunFolder,
        site: Site,
        watcher: Observer,
        clock: VirtualClock,
        resumed_round: int | None = None,
        clients: Remembering | None = None,
    ) -> None:
        self._clients = clients
        self.folder, self.site, self.watcher, self.clock = folder, site, watcher, clock
        self.ledger = Ledger(folder.path, keep_rounds=resumed_round)
        self.metrics = Metrics(folder.path, keep_rounds=resumed_round)
        self.last_round = resumed_round or 0
        self.last = self._of_round(self.last_round)
        self._evaluate_s, self._flushed_s = 0.0, -math.inf
        self._virtual_s = math.nan
        self._fairness: dict[str, float] = {}
        if resumed_round:
            *_, clock.now_s = accumulate(self.metrics.series(VIRTUAL_ROUND_S, "server").values(), initial=0.0)

    def evaluate(self, server_round: int, state: NamedArrays) -> dict[str, float]:
        """Evaluate on the test set, if the settings want it."""
        if not self.site.config.federation.server_evaluation:
            return {}
        started = time.perf_counter()
        load_state_arrays(self.site.model, state.arrays)
        result = evaluate(self.site.model, *self.site.test_set)
        self._evaluate_s = time.perf_counter() - started
        tiers = [device.tier for device in self.clock.devices]
        self._fairness = local_accuracy(result, self.site.partition.label_histogram, tiers)
        return {"accuracy": result.accuracy, "loss": result.loss}

    def round_done(self, record: RoundRecord, strategy: Served) -> None:
        """Write a round down.

        Where rounds are short, the ledger's rows are held for up to half a second, but never beyond a checkpoint: a run
        that is killed has all that it needs to go on.
        """
        self._book(record)
        self._measure(record)
        self._checkpoint(record, strategy)
        self.watcher.round_end(self._event(record))

    def _of_round(self, number: int) -> dict[str, float]:
        """Return a round's metrics as they were written down, by the names that they have in a round's record."""
        found = {}
        for row in self.metrics.table().to_pylist():
            # How the model serves each kind of client is measured beside the round's metrics.
            beside = row["name"] in _COUNTS or row["name"].startswith("accuracy_")
            if row["round"] == number and not beside:
                prefix = "" if row["name"].startswith("train_") else f"{row['side']}_"
                found[prefix + row["name"]] = row["value"]
        return found

    def close(self) -> None:
        """Write the tables' final files."""
        self.ledger.write()
        self.metrics.write()

    def _book(self, record: RoundRecord) -> None:
        clock, committee_s = self.clock, 0.0
        add_s, rows = clock.add_s(), list[Row]()
        for at, (node, item) in enumerate(record.pairs()):
            rows += _entries(record, at, node.partition_id, item, clock.turns.get(node.partition_id), add_s)
            if len(rows) > _ROWS_AT_ONCE:
                self.ledger.add_rows(rows)
                rows = []
        self.ledger.add_rows(rows)
        for client, item in record.evaluated.items():
            flops = item.num_examples * self.site.evaluation_flops_per_example
            received, _ = record.evaluate_downloads.get(client, (0, 0))
            virtual = clock.evaluation(client, received, item.upload_bytes, flops)
            self.ledger.extend(_evaluation_entries(record, client, item, virtual))
        for client, item in record.committee.items():
            virtual = clock.partial(client, record.committee_download_bytes, item.upload_bytes)
            committee_s = max(committee_s, sum(virtual.values()))
            self.ledger.extend(_committee_entries(record, client, item, virtual))
        self.ledger.extend(_helper_entries(record))
        opened = Entry(
            round=record.round, client=SERVER, phase="open", measured_s=record.open_s, virtual_s=clock.open_s()
        )
        self.ledger.add(opened)
        if record.server_train_s:
            self.ledger.add(Entry(round=record.round, client=SERVER, phase="train", measured_s=record.server_train_s))
        energy_j, self._virtual_s = clock.energy_j(), clock.end_round(committee_s)
        self.metrics.add(record.round, "server", VIRTUAL_ROUND_S, self._virtual_s)
        if energy_j:
            self.metrics.add(record.round, "client", "energy_j", energy_j)
        if self._evaluate_s:
            self.ledger.add(Entry(round=record.round, client=SERVER, phase="evaluate", measured_s=self._evaluate_s))
            self._evaluate_s = 0.0
        for whole in _turns(record):
            self.ledger.add_client(whole)
        if record.round == record.rounds or time.monotonic() - self._flushed_s >= _HOLD_S:
            self._flush()

    def _flush(self) -> None:
        self.ledger.flush()
        self._flushed_s = time.monotonic()

    def _measure(self, record: RoundRecord) -> None:
        for side in ("server", "client"):
            prefix = f"{side}_"
            found = {k.removeprefix(prefix): v for k, v in record.metrics.items() if k.startswith(prefix)}
            if found:
                self.metrics.extend(record.round, "server" if side == "server" else "client", found)
        trained = {k: v for k, v in record.metrics.items() if k.startswith("train_")}
        self.metrics.extend(record.round, "client", trained)
        self.metrics.extend(record.round, "server", self._fairness)
        self._fairness = {}
        if self.site.protection.bounded:
            self._measure_clipping(record)
        counts = {"sampled": len(record.nodes), "accepted": record.accepted, "round_s": record.round_s}
        self.metrics.extend(record.round, "server", counts)
        self.metrics.flush()
        self.last, self.last_round = dict(record.metrics), record.round

    def _measure_clipping(self, record: RoundRecord) -> None:
        """Note which share of the coordinates was clipped before sealing, and say so where it harms."""
        share = clipped_share(record)
        if share is None:
            return
        self.metrics.extend(record.round, "client", {"clipped_share": share})
        if share > CLIPPING_WARNING_SHARE:
            key = "clip" if hasattr(self.site.config.protection, "clip") else "bound"
            self.watcher.note(
                f"round {record.round}: {share:.1%} of the coordinates lie outside the bound "
                f"{self.site.protection.bound:g} and were clipped: at most {CLIPPING_WARNING_SHARE:.0%} is harmless; "
                f"raise protection.{key}, or set training.clip_norm"
            )

    def _checkpoint(self, record: RoundRecord, strategy: Served) -> None:
        output = self.site.config.output
        due = record.round == record.rounds or (
            output.checkpoint_every > 0 and record.round % output.checkpoint_every == 0
        )
        # A round that costs privacy is never repeated, so a run that dies must not lose its model.
        if due or self.site.protection.spends:
            self.save(record.round, strategy)

    def save(self, at: int, strategy: Served) -> None:
        """Write a checkpoint of a round: the model or the sealed total, the strategy's state, and the clients'."""
        if strategy.state is None:
            return
        self._flush()
        keep = self.site.config.output.keep
        # First, so that a checkpoint is never without them.
        if states := self._client_states():
            save_clients(self.folder.clients, at, states, keep)
        point = Checkpoint(at, strategy.state, strategy.state_dict(), strategy.sealed)
        save_checkpoint(self.folder.checkpoints, point, keep)

    def _client_states(self) -> dict[int, RecordDict]:
        """Return what clients keep and cannot be sent again."""
        spare = self.site.half.replaceable
        found = {
            client: RecordDict({name: record for name, record in state.items() if name not in spare})
            for client, state in (self._clients.client_states() if self._clients else {}).items()
        }
        return {client: state for client, state in found.items() if state}

    def _event(self, record: RoundRecord) -> RoundEnd:
        return RoundEnd(
            round=record.round,
            rounds=record.rounds,
            metrics={k.removeprefix("server_"): v for k, v in record.metrics.items()},
            upload_bytes=self.ledger.upload_bytes(record.round),
            download_bytes=self.ledger.download_bytes(record.round),
            seconds=record.round_s,
            virtual_s=self._virtual_s,
            sampled=len(record.nodes),
            replied=record.accepted,
            failures=[line.partition(", ")[2] for line in record.failures],
        )


def clipped_share(record: RoundRecord) -> float | None:
    """Return the share of coordinates that the accepted clients clipped, or ``None`` where none was counted."""
    phases = [item.phases for item in record.delivered if not item.error]
    coordinates = sum(each.get("coordinates", 0.0) for each in phases)
    return sum(each.get("clipped", 0.0) for each in phases) / coordinates if coordinates else None


def _entries(record: RoundRecord, at: int, client: int, item: Delivered, turn: Turn | None, add_s: float) -> list[Row]:
    """Return the phases of a training round of the client that was sampled at this place.

    A client whose reply came too late in virtual time did all its work: the turn knows of it, and its bytes count.
    """
    rows: list[Row] = []
    downloaded, logical = record.download(at)
    virtual = turn.seconds if turn else {}
    uploaded = item.upload_bytes or (turn.work.upload_bytes if turn else 0)
    for phase in _CLIENT_PHASES:
        sent = phase == "upload"
        received = phase == "download"
        seconds = item.phases.get(f"{phase}_s")
        if seconds is None and not (received or sent or virtual.get(phase)):
            continue
        counted = turn.work.flops if turn and phase == "train" else 0
        numbers = item.sealed_bytes if sent else logical if received else 0
        moved = uploaded if sent else downloaded if received else 0
        flops, peak = item.phases.get(f"{phase}_flops", counted), item.phases.get(f"{phase}_peak_bytes", 0)
        end = (outcome(item), item.error) if sent else ("ok", "")
        times = seconds or 0.0, virtual.get(phase, math.nan)
        rows.append((record.round, client, phase, numbers, moved, *times, int(flops), int(peak), *end))
    if item.add_s:
        rows.append((record.round, client, "add", 0, 0, item.add_s, add_s, 0, 0, "ok", ""))
    return rows


def _evaluation_entries(record: RoundRecord, client: int, item: Delivered, virtual: Mapping[str, float]) -> list[Entry]:
    received, logical = record.evaluate_downloads.get(client, (0, 0))
    entries = [
        Entry(
            round=record.round,
            client=client,
            phase=phase,
            logical_bytes=logical if phase == "download" else 0,
            wire_bytes=received if phase == "download" else 0,
            measured_s=item.phases.get(f"{phase}_s", 0.0),
            virtual_s=virtual[phase],
            outcome=outcome(item) if phase == "evaluate" else "ok",
            reason=item.error if phase == "evaluate" else "",
        )
        for phase in ("download", "open", "evaluate")
        if phase != "open" or "open_s" in item.phases
    ]
    upload = Entry(
        round=record.round,
        client=client,
        phase="upload",
        wire_bytes=item.upload_bytes,
        virtual_s=virtual["upload"],
    )
    return [*entries, upload]


def _committee_entries(record: RoundRecord, client: int, item: Delivered, virtual: Mapping[str, float]) -> list[Entry]:
    """Return a committee member's work on opening the total."""
    at, seconds = record.round, item.phases
    received, sent = record.committee_download_bytes, item.upload_bytes
    return [
        Entry(
            round=at,
            client=client,
            phase="download",
            wire_bytes=received,
            measured_s=seconds.get("download_s", 0.0),
            virtual_s=virtual["download"],
        ),
        Entry(
            round=at,
            client=client,
            phase="open",
            measured_s=seconds.get("open_s", 0.0),
            virtual_s=virtual["open"],
            outcome=outcome(item),
            reason=item.error,
        ),
        Entry(
            round=at,
            client=client,
            phase="upload",
            logical_bytes=item.sealed_bytes,
            wire_bytes=sent,
            measured_s=seconds.get("upload_s", 0.0),
            virtual_s=virtual["upload"],
        ),
    ]


def _helper_entries(record: RoundRecord) -> list[Entry]:
    """Return the second aggregator's work: what the leader relayed to it, its sum, and what it answered."""
    costs = record.helper
    if costs is None:
        return []
    return [
        Entry(round=record.round, client=HELPER, phase="download", wire_bytes=costs.received_bytes),
        Entry(round=record.round, client=HELPER, phase="add", measured_s=costs.busy_s),
        Entry(round=record.round, client=HELPER, phase="upload", wire_bytes=costs.sent_bytes),
    ]


def _turns(record: RoundRecord) -> list[ClientRound]:
    """Return each client's whole turn, training and evaluation together."""
    turns = []
    pending = dict(record.evaluated)
    for node, item in record.pairs():
        also = pending.pop(node.partition_id, None), record.committee.get(node.partition_id)
        seconds = sum(i.phases.get("round_s", 0.0) for i in (item, *also) if i is not None)
        turns.append(
            ClientRound(record.round, node.partition_id, seconds, item.num_examples, outcome(item), item.error)
        )
    for client, item in pending.items():
        seconds = item.phases.get("round_s", 0.0)
        turns.append(ClientRound(record.round, client, seconds, item.num_examples, outcome(item), item.error))
    return turns


def outcome(item: Delivered) -> str:
    """Return the ledger's word for how a client's turn ended."""
    if not item.error:
        return "ok"
    return {LATE: "late", REJECTED: "rejected"}.get(item.error_code, "dropped")


__all__ = ["Recorder", "Remembering", "clipped_share", "outcome"]
