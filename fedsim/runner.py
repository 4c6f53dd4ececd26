"""Launches a simulated federation: folder, engine, server, report."""

import errno
import logging
import os
import re
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import RecordDict
from flwr.app.user_config import UserConfig
from flwr.serverapp import Grid

from fedsim import errors, resources
from fedsim.checkpoint import weights_sha256
from fedsim.cohort import choose_cohort
from fedsim.config import RunConfig, load_config, to_run_config, with_values
from fedsim.estimate import batch_s, run_s
from fedsim.events import NullObserver, Observer
from fedsim.keystore import find_keys, has_keys, kept
from fedsim.loggers import logged
from fedsim.measure._files import atomic
from fedsim.measure.errors import MeasureError, RunFolderError
from fedsim.measure.runfolder import RunFolder, now
from fedsim.measure.runs import load_run
from fedsim.measure.summary import rows, summarize
from fedsim.protections import KeyRing, fresh_keys, with_interpreter
from fedsim.server_app import Outcome, folder_path, new_folder, serve_in
from fedsim.simulation.grid import SimulationGrid
from fedsim.site import Site, secure_plan, server_site_of, site_of
from fedsim.workers import kinds_of
from strategies.keyed import forget_keys
from strategies.records import NamedArrays, model_bytes, model_from_bytes

log = logging.getLogger(__name__)

#: Sustained operations per second of one core that the choice of an engine assumes, and the run that is worth Ray.
_CORE_FLOPS = 5e9
_WORTH_RAY_S = 120.0
#: The disk is full, the user's share of it is used up, a file is larger than allowed, or nothing may be written.
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
#: Names that are tried for a run without one, where other runs start in the same second.
_NAME_TRIES = 20


@dataclass(frozen=True)
class RunResult:
    """A finished run.

    Attributes:
        folder: where everything is.
        metrics: of the last round: ``server_accuracy``, ``server_loss``, ``train_loss``, ``client_*``.
        state: the final model, ``None`` where only clients can open it.
        weights_sha256: of the final model.
        engine: where the clients ran.
        report: ``report.html``, ``None`` if the settings want none.
    """

    folder: Path
    metrics: dict[str, float]
    state: NamedArrays | None
    weights_sha256: str
    engine: str
    report: Path | None


def simulate(config: RunConfig, observer: Observer | None = None, *, resume: bool = False) -> RunResult:
    """Run a simulated federation; see :func:`run`.

    Raises:
        TypeError: `config` is something else than settings.
    """
    if not isinstance(config, RunConfig):
        raise TypeError(f"config {config!r:.80} must be a RunConfig: make one with fedsim.config.load_config(path)")
    return run(config, observer or NullObserver(), resume=resume)


def run(config: RunConfig, observer: Observer, *, resume: bool = False) -> RunResult:
    """Run a simulated federation as the settings say.

    Args:
        config: the settings.
        observer: told of each round.
        resume: go on in the folder ``output.folder/output.name`` after its newest checkpoint.

    Returns:
        The result; everything measured is in its folder.

    Raises:
        FedsimError: (or a subclass) the run failed; the folder holds the last good model and says why.
        KeyboardInterrupt: the folder is consistent and says ``stopped``.
    """
    if resume:
        _check_resumable(config)
    located = with_interpreter(config)
    sizing = site_of(to_run_config(located))
    wanted = _check_room(sizing)
    # What only clients can open is lost with their keys, so these outlive a run that is cut off.
    keeps = sizing.protection.opened_by == "clients"
    with ExitStack() as stack:
        observer = stack.enter_context(logged(observer, config))
        if resume and keeps:
            keys = find_keys(folder_path(config))
        else:
            keys = stack.enter_context(fresh_keys(sizing.protection, secure_plan(sizing)))
        config, folder = _claim(config, resume)
        run_config = to_run_config(with_values(located, {"output.name": config.output.name}))
        try:
            if keeps:
                keys = stack.enter_context(kept(keys, folder.path))
            stack.callback(forget_keys, keys.server)
            stack.callback(forget_keys, keys.clients)
            engine = choose_engine(sizing)
            cohort, why = _cohort(sizing, folder, resume) if engine in ("inline", "ray") else (False, "")
            started, notes = time.monotonic(), {"engine": engine, "cohort": cohort, "estimated": wanted.figures()}
            folder.update_status("running", notes=notes)
            observer.started(config, folder.path)
            observer.note(f"engine {engine}: {_why(config, engine)}; the run takes {wanted}")
            if config.engine.shortage == "warn":
                for text in resources.shortages(wanted, resources.room(folder.path), folder.path):
                    observer.note(text)
            if config.engine.cohort != "off":
                observer.note(f"clients train {'together' if cohort else 'one by one'}: {why}")
            site = server_site_of(run_config, keys.server)
            outcome = _run_on(engine, folder, site, keys, observer, resume, cohort)
            if not resume:
                took = {"time_s": round(time.monotonic() - started, 1), "disk_bytes": _size_bytes(folder.path)}
                folder.update_status("finished", notes=notes | {"took": took})
            if outcome.sealed is not None:
                outcome = _open_as_client(folder, site_of(run_config, {"keys": keys.clients or ""}), outcome)
        except BaseException as error:
            _settle(folder, config, error)
            if isinstance(error, OSError) and error.errno in _UNWRITABLE:
                raise errors.FedsimError(
                    f"{error.filename or folder.path} cannot be written ({error.strerror}): the run has stopped after "
                    "its last checkpoint; make room and let it be written, then go on with "
                    f"`fedsim run --resume {folder.path}`"
                ) from error
            raise
    report = _report_of_finished(folder, config)
    result = RunResult(folder.path, outcome.metrics, outcome.state, outcome.weights_sha256, engine, report)
    observer.finished(_summary(result))
    return result


def _size_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def _open_as_client(folder: RunFolder, site: Site, outcome: Outcome) -> Outcome:
    """Open the last total with the clients' key, as any client can; the model is put into ``clients/``."""
    assert outcome.sealed is not None
    received = site.half.receive(outcome.sealed, site.protection, site.initial, site.buffer_names, RecordDict())
    state = site.half.export(received)
    with atomic(folder.clients / "model.safetensors") as file:
        file.write(model_bytes(state))
    digest = weights_sha256(state)
    folder.update_status("finished", weights_sha256=digest)
    return Outcome(outcome.rounds, outcome.metrics, state, digest)


def _summary(result: RunResult) -> dict[str, Any]:
    """Return the run in a few lines, for those who watch."""
    lines = {label: values[0] for label, values in rows([summarize(load_run(result.folder))])}
    paths = {"folder": str(result.folder), "report": str(result.report or "none")}
    return {**lines, "engine": result.engine, "weights sha256": result.weights_sha256 or "held by the clients", **paths}


def _settle(folder: RunFolder, config: RunConfig, error: BaseException) -> None:
    """Leave a folder that says how the run ended, also where it ended before the server began."""
    try:
        if folder.record().status == "running":
            stopped = isinstance(error, KeyboardInterrupt)
            reason = "interrupted before the first round" if stopped else f"{type(error).__name__}: {error}"
            folder.update_status("stopped" if stopped else "failed", ended=now(), exit_reason=reason)
        _report(folder, config)
    except (MeasureError, OSError) as problem:
        log.warning("no report of the run that failed: %s", problem)


def _claim(config: RunConfig, resume: bool) -> tuple[RunConfig, RunFolder]:
    """Return the settings with a name, and the folder that this run has for itself."""
    if resume:
        return config, RunFolder.open(folder_path(config))
    if config.output.name is not None:
        return config, new_folder(config)
    for attempt in range(_NAME_TRIES):
        named = _named(config, attempt)
        try:
            return named, new_folder(named)
        except RunFolderError:
            if attempt == _NAME_TRIES - 1 or not os.path.exists(folder_path(named)):
                raise
    raise AssertionError("unreachable")


def _named(config: RunConfig, attempt: int) -> RunConfig:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    words = f"{stamp}-{config.task.name}-{config.strategy.name}-{config.protection.name}"
    name = re.sub(r"[^A-Za-z0-9._-]", "-", words)
    path = Path(config.output.folder)
    taken = attempt + (sum(1 for p in path.glob(f"{name}*")) if os.path.isdir(path) else 0)
    return with_values(config, {"output.name": f"{name}-{taken + 1}" if taken else name})


def _check_resumable(config: RunConfig) -> None:
    path = folder_path(config)
    if not (path / "config.toml").exists():
        raise errors.FedsimError(f"{path} holds no run to resume: set output.folder and output.name of an earlier run")
    if load_config(path / "config.toml") != config:
        raise errors.FedsimError(
            f"the settings differ from {path / 'config.toml'}: a run resumes with its own; use that file, or a new name"
        )
    # A run that was killed after its last round, before a client opened the model, has its keys still.
    if RunFolder.open(path).record().status == "finished" and not has_keys(path):
        raise errors.FedsimError(f"{path} is finished: there is nothing to resume; start a new run under another name")
    if config.strategy.name.startswith("flwr:"):
        raise errors.FedsimError(
            f"a run of {config.strategy.name} cannot resume: Flower's strategies do not save their state; start "
            "it anew under another name, or use a strategy of ours"
        )


def choose_engine(site: Site) -> str:
    """Return where clients run: as the settings say, or ``inline`` for small jobs and ``ray`` for others."""
    engine = site.config.engine
    if engine.name != "auto":
        return engine.name
    if engine.ray_address or (engine.workers or 1) > 1:
        return "ray"
    return "ray" if estimated_s(site) > _WORTH_RAY_S and (os.cpu_count() or 1) > 1 else "inline"


def estimated_s(site: Site) -> float:
    """Return a rough guess of the seconds that one core needs to train the whole run, from counted operations."""
    federation, training = site.config.federation, site.config.training
    examples = float(site.partition.sizes.mean()) * training.epochs
    return site.flops_per_example * examples * federation.sampled * federation.rounds / _CORE_FLOPS


def _check_room(site: Site) -> resources.Need:
    """Refuse a run that memory or disk is too small for, before anything is made.

    Raises:
        BudgetExceeded: see :func:`fedsim.resources.check`.
    """
    engine, workers = choose_engine(site), resources.workers_of(site)
    wanted = resources.need(site, engine, workers, run_s(site, engine, workers, batch_s(site)))
    if site.config.engine.shortage == "refuse" and not site.config.engine.ray_address:
        resources.check(wanted, Path(site.config.output.folder))
    return wanted


def _why(config: RunConfig, engine: str) -> str:
    return "as set" if config.engine.name == engine else "chosen by the size of the job; set engine.name to change it"


def _cohort(site: Site, folder: RunFolder, resume: bool) -> tuple[bool, str]:
    """Return whether clients train together, and why; a resumed run does as it did."""
    earlier = folder.record().notes.get("cohort") if resume else None
    return choose_cohort(site) if earlier is None else (bool(earlier), "as before")


def _run_on(
    engine: str, folder: RunFolder, site: Site, keys: KeyRing, observer: Observer, resume: bool, cohort: bool
) -> Outcome:
    if engine == "flower":
        return _run_on_flower(folder, site, keys)
    with _grid(engine, site, keys, cohort) as grid:
        return serve_in(folder, _designated(grid, site, keys), site, observer, resume=resume)


def _designated(grid: SimulationGrid, site: Site, keys: KeyRing) -> Grid:
    """Return the grid with the node that relays to the helper, where the run has one."""
    if keys.helper is None:
        return grid
    from fedsim.simulation.relay_node import RelayNodeGrid

    return RelayNodeGrid(grid, "fedsim.client_app:app", keys.helper, to_run_config(site.config), site.config.seed)


def _grid(engine: str, site: Site, keys: KeyRing, cohort: bool) -> SimulationGrid:
    config = site.config
    own: UserConfig = {"keys": keys.clients} if keys.clients else {}
    configs = [dict(own) for _ in range(config.federation.num_clients)]
    run_config, threads = to_run_config(config), config.engine.threads_per_worker
    if engine == "inline":
        from fedsim.client_app import app
        from fedsim.simulation.inline import InlineGrid

        return InlineGrid(
            app, node_configs=configs, run_config=run_config, seed=config.seed, threads=threads, cohort=cohort
        )
    from fedsim.simulation.ray_grid import RayGrid

    address = config.engine.ray_address
    try:
        kinds, clients = kinds_of(config)
        return RayGrid(
            "fedsim.client_app:app",
            node_configs=configs,
            run_config=run_config,
            seed=config.seed,
            threads=threads,
            cohort=cohort,
            kinds=kinds,
            client_kinds=clients,
            address=address,
        )
    except Exception as error:
        where = f"engine.ray_address = {address}" if address else "Ray"
        raise errors.EngineError(
            f"{where}: the engine could not be started ({type(error).__name__}: {error}); "
            "see `fedsim doctor`, or set engine.name=inline"
        ) from error


def _run_on_flower(folder: RunFolder, site: Site, keys: KeyRing) -> Outcome:
    """Run under Flower's own engine, in processes of their own, and read the folder that they leave."""
    from fedsim.flower_engine import run_in_flower

    config = site.config
    run_in_flower(folder.path, config, keys)
    record = folder.record()
    if record.status != "finished":
        raise errors.FedsimError(f"the run under Flower's engine {record.status}: {record.exit_reason}")
    path = folder.path / "model.safetensors"
    state = model_from_bytes(path.read_bytes()) if path.exists() else None
    return Outcome(config.federation.rounds, _last_metrics(folder), state, record.weights_sha256)


def _last_metrics(folder: RunFolder) -> dict[str, float]:
    from fedsim.measure.metrics import Metrics

    found: dict[str, float] = {}
    for row in Metrics.read(folder.path).table().to_pylist():
        prefix = "" if row["name"].startswith("train_") else f"{row['side']}_"
        found[prefix + row["name"]] = row["value"]
    return found


def _report_of_finished(folder: RunFolder, config: RunConfig) -> Path | None:
    try:
        return _report(folder, config)
    except (MeasureError, OSError) as error:
        raise errors.FedsimError(
            f"the run is finished and saved in {folder.path}, but not its report ({error}); correct that, then call "
            f"`fedsim report {folder.path}`"
        ) from error


def _report(folder: RunFolder, config: RunConfig) -> Path | None:
    if not config.output.report:
        return None
    from fedsim.measure.report import write_report

    return write_report([folder.path], None)


__all__ = ["RunResult", "choose_engine", "estimated_s", "run", "simulate"]
