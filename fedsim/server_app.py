"""The Flower ServerApp of every run: the same in simulation, under Flower's engine, and in deployment."""

import dataclasses
import logging
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from flwr.app import Context, RecordDict
from flwr.serverapp import Grid, ServerApp

from crypto.base import Budget
from fedsim import errors
from fedsim.checkpoint import Checkpoint, latest_checkpoint, load_clients, load_if_there, weights_sha256
from fedsim.clocks import DevicePace, clock_of
from fedsim.config import FedBuffConfig, RunConfig, to_toml
from fedsim.events import Observer
from fedsim.measure._files import atomic
from fedsim.measure.runfolder import RunFolder, environment, now
from fedsim.measure.runs import write_partition
from fedsim.progress import watching
from fedsim.recorder import Recorder, Remembering
from fedsim.registry import server_half
from fedsim.simulation.clock import VirtualClock
from fedsim.simulation.clocked_grid import ClockedGrid
from fedsim.simulation.devices import write_devices
from fedsim.simulation.duplicates import DuplicatingGrid
from fedsim.site import Site, buffer_rule, secure_plan, server_site_of
from fedsim.stock import run_stock
from fedsim.tasks.heterogeneity import jensen_shannon, label_emd
from strategies.base import FederatedStrategy
from strategies.errors import EmptyRound, StrategyError, TooFewReplies
from strategies.frozen import HELD
from strategies.nodes import Participation
from strategies.records import NamedArrays, model_bytes, model_record

log = logging.getLogger(__name__)

app = ServerApp()

#: A round's time limit where the settings give none; a lost worker must not stop a run for ever.
LONGEST_ROUND_S = 6 * 3600.0


@dataclass(frozen=True)
class Outcome:
    """How a served run ended.

    Attributes:
        rounds: the last good round.
        metrics: of that round.
        state: the final model; ``None`` where only clients can open it.
        weights_sha256: of the final model, empty without one.
        sealed: what the server would send next, where only clients can open it.
    """

    rounds: int
    metrics: dict[str, float]
    state: NamedArrays | None
    weights_sha256: str
    sealed: RecordDict | None = None


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Serve a run under Flower's engine or in deployment; the run's folder is named by the settings.

    The run config's key ``resume`` names the folder of a run that was cut off; FEDSIM_RUNS, the place of all folders.
    """
    resume = str(context.run_config.get("resume", ""))
    places = {"output.name": resume} if resume else {}
    if runs := os.environ.get("FEDSIM_RUNS"):
        places["output.folder"] = runs
    site = server_site_of({**context.run_config, **places})
    if site.config.output.name is None:
        # `flwr run .` gives no name; the run's number makes one.
        site = server_site_of({**context.run_config, **places, "output.name": f"flower-{context.run_id}"})
        log.warning("output.name is not set: the run's folder is %s", folder_path(site.config).resolve())
    folder = RunFolder.open(folder_path(site.config)) if resume else open_folder(site.config)
    with watching(sys.stdout) as observer:
        observer.started(site.config, folder.path)
        try:
            serve_in(folder, grid, site, observer, resume=bool(resume))
        finally:
            if site.config.output.report:
                # Imported where it is needed: its plotting takes as long as a small run's first round.
                from fedsim.measure.report import write_report

                write_report([folder.path], None)


def folder_path(config: RunConfig) -> Path:
    """Return the folder of a run whose name is settled.

    Raises:
        FedsimError: the settings give no name.
    """
    if config.output.name is None:
        raise errors.FedsimError("output.name is not set: a served run needs one; set output.name=NAME")
    return Path(config.output.folder) / config.output.name


def open_folder(config: RunConfig) -> RunFolder:
    """Return the run's folder, made unless the launcher did so already.

    Raises:
        RunFolderError: another run has been there, or the folder cannot be made.
    """
    path = folder_path(config)
    if (path / "run.json").exists():
        folder = RunFolder.open(path)
        if folder.record().status == "running" and not any(folder.checkpoints.glob("*")):
            return folder
    return new_folder(config)


def new_folder(config: RunConfig) -> RunFolder:
    """Make the run's folder.

    Raises:
        RunFolderError: there is something at its place already, or it cannot be made.
    """
    path = folder_path(config)
    return RunFolder.create(path, to_toml(config), config.seed, environment(Path(__file__).parent), now())


def serve_in(folder: RunFolder, grid: Grid, site: Site, watcher: Observer, *, resume: bool = False) -> Outcome:
    """Run a federation and settle its folder's status, however it ends.

    Args:
        folder: the run's folder, made.
        grid: any Flower grid.
        site: the run's data and model.
        watcher: told of each round.
        resume: go on after the folder's newest checkpoint.

    Raises:
        TooFewReplies: of :mod:`fedsim.errors`; the last good model is saved.
        FedsimError: the strategy or the secure sum refused the plan, or the run failed.
        KeyboardInterrupt: as it came; the folder says ``stopped``.
    """
    try:
        outcome = serve(folder, grid, site, watcher, resume=resume)
    except KeyboardInterrupt:
        folder.update_status("stopped", ended=now(), exit_reason="interrupted; the last good model is in checkpoints/")
        raise
    except (TooFewReplies, EmptyRound) as error:
        folder.update_status("failed", ended=now(), exit_reason=str(error))
        raise errors.TooFewReplies(str(error)) from error
    except StrategyError as error:
        folder.update_status("failed", ended=now(), exit_reason=str(error))
        raise errors.FedsimError(str(error)) from error
    except BaseException as error:
        folder.update_status("failed", ended=now(), exit_reason=f"{type(error).__name__}: {error}")
        raise
    folder.update_status("finished", ended=now(), exit_reason="all rounds done", weights_sha256=outcome.weights_sha256)
    return outcome


def serve(folder: RunFolder, grid: Grid, site: Site, watcher: Observer, *, resume: bool = False) -> Outcome:
    """Run the rounds; see :func:`serve_in`."""
    config = site.config
    point = latest_checkpoint(folder.checkpoints) if resume else None
    # Without a checkpoint a resumed run begins anew, and so do its records.
    done = point.round if point else 0
    clock = clock_of(site)
    clients = grid if isinstance(grid, Remembering) else None
    if point is not None:
        kept = load_clients(folder.clients, done) if clients is not None else {}
        if clients is not None:
            clients.restore_client_states(kept)
        if not kept:
            # Clients that were not brought back from the disk hold nothing of what was sent to them once.
            point.strategy.pop(HELD, None)
    recorder = Recorder(folder, site, watcher, clock, resumed_round=done if resume else None, clients=clients)
    if config.faults.duplicate:
        grid = DuplicatingGrid(grid, config.faults.duplicate, config.faults.rounds)
    grid = ClockedGrid(grid, clock)
    _write_partition(folder, site)
    write_devices(clock.devices, folder.path / "devices.csv")
    try:
        if config.strategy.name.startswith("flwr:"):
            state = run_stock(grid, site, recorder)
            return finish(folder, state, config.federation.rounds, recorder.last)
        strategy = build_strategy(site, recorder, clock)
        return _run_ours(folder, grid, site, recorder, strategy, point)
    finally:
        recorder.close()


def _write_partition(folder: RunFolder, site: Site) -> None:
    part = site.partition
    if site.own_data:
        return
    classes = [str(label) for label in range(part.label_histogram.shape[1])]
    measures = {
        "label_emd": label_emd(part.label_histogram),
        "jensen_shannon": jensen_shannon(part.label_histogram),
    }
    write_partition(folder, part.sizes.tolist(), classes, part.label_histogram.tolist(), measures)


def build_strategy(site: Site, recorder: Recorder, clock: VirtualClock) -> FederatedStrategy:
    """Return the server half that the settings describe; it asks those clients that the clock says are there."""
    federation, asked = site.config.federation, site.config.asked
    more = {"pace": DevicePace(site, clock)} if isinstance(site.config.strategy, FedBuffConfig) else {}
    return server_half(
        site.config,
        participation=Participation(
            fraction=federation.participation,
            clients=federation.clients_per_round if asked == federation.sampled else asked,
            min_nodes=federation.num_clients,
            min_replies=site.config.needed_replies,
            deadline_s=federation.deadline_s,
            available=clock.ask,
        ),
        protection=site.protection.journaled(recorder.folder.path),
        weighting=federation.weighting,
        buffers=buffer_rule(site),
        seed=site.config.seed,
        evaluate_fraction=federation.client_evaluation_fraction,
        evaluate_every=federation.evaluate_every,
        chunk=site.config.engine.chunk,
        clip_norm=federation.update_norm,
        observer=recorder,
        **more,
    )


def _run_ours(
    folder: RunFolder,
    grid: Grid,
    site: Site,
    recorder: Recorder,
    strategy: FederatedStrategy,
    point: Checkpoint | None,
) -> Outcome:
    if point is not None:
        strategy.load_state_dict(point.strategy)
    initial = point.state if point else site.initial
    _note_budget(folder, site)
    first = _first_round(strategy, point, recorder)
    try:
        strategy.start(
            grid,
            model_record(initial),
            num_rounds=site.config.federation.rounds,
            timeout=LONGEST_ROUND_S,
            first_round=first,
            sealed=point.sealed if point else None,
            history=False,
        )
    except BaseException:
        _save_last_good(folder, strategy, recorder)
        raise
    rounds = site.config.federation.rounds
    if strategy.sealed is not None:
        return Outcome(rounds, recorder.last, None, "", strategy.message_content(rounds))
    return finish(folder, strategy.state, rounds, recorder.last)


def _first_round(strategy: FederatedStrategy, point: Checkpoint | None, recorder: Recorder) -> int:
    """Return the round to go on with: never one whose sum was opened, or it would spend its privacy twice."""
    done = point.round if point else 0
    opened = strategy.protection.last_opened()
    if opened > done:
        recorder.watcher.note(
            f"rounds {done + 1} to {opened} were opened, but their models are lost; they are not repeated, for each "
            "costs privacy: going on with the model before them"
        )
    return max(done, opened) + 1


def _save_last_good(folder: RunFolder, strategy: FederatedStrategy, recorder: Recorder) -> None:
    # The checkpoint that the round itself left is better: a failed step may have moved the strategy's own arrays since.
    if load_if_there(folder.checkpoints, recorder.last_round) is not None:
        return
    if strategy.moved_round > recorder.last_round:
        # Stopped between the step of a round and its end: what is there is of that round, which will be done again.
        return
    recorder.save(recorder.last_round, strategy)


def finish(folder: RunFolder, state: NamedArrays | None, rounds: int, metrics: dict[str, float]) -> Outcome:
    """Write the final model as ``model.safetensors``, where the server may hold it."""
    if state is None:
        return Outcome(rounds, metrics, None, "")
    with atomic(folder.path / "model.safetensors") as file:
        file.write(model_bytes(state))
    return Outcome(rounds, metrics, state, weights_sha256(state))


def _note_budget(folder: RunFolder, site: Site) -> None:
    """Write what the protection costs and guarantees, before round 1; refuses what does not fit."""
    federation = site.config.federation
    plan = secure_plan(site)
    budget: Budget = site.protection.secure_sum(plan).budget
    values = {k: v if v == v and abs(v) != float("inf") else str(v) for k, v in dataclasses.asdict(budget).items()}
    folder.update_status(
        "running",
        protection={"name": site.protection.name, "opened_by": site.protection.opened_by, **values}
        | site.protection.facts(plan),
        aggregation={
            "weighting": federation.weighting,
            "buffers": federation.buffers,
            "chunk": site.config.engine.chunk,
        },
    )
