"""Runs the trials of a sweep in parallel on Ray Tune; those that are finished are not run again."""

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from experiments.sweeps.spec import Spec, Trial
from experiments.sweeps.trials import run_trial, state_of
from fedsim.config import load_config, to_toml
from fedsim.errors import FedsimError
from fedsim.simulation.ray_session import RaySession

__all__ = ["TuneMissing", "estimate_s", "pending", "run_sweep"]

log = logging.getLogger(__name__)

#: Start of a trial: its process is there, but data and model are read anew.
_START_S = 1.0


class TuneMissing(FedsimError):
    """Ray Tune, or what it needs, is not installed."""

    exit_code = 4


def pending(spec: Spec) -> list[Trial]:
    """Return the trials that are not finished."""
    return [t for t in spec.runnable if t.config is not None and state_of(t.config).status != "finished"]


def estimate_s(trial: Trial) -> float:
    """Return a rough guess of a trial's seconds on one core: training by counted operations, and cryptography."""
    from fedsim.clocks import clock_of
    from fedsim.config import to_run_config
    from fedsim.runner import estimated_s
    from fedsim.site import site_of

    assert trial.config is not None
    site = site_of(to_run_config(trial.config))
    costs, rounds = clock_of(site).costs, trial.config.federation.rounds
    sealed_s = (costs.seal_s + costs.add_s + costs.open_s) * trial.config.asked + costs.server_open_s
    return _START_S + estimated_s(site) + rounds * sealed_s


def concurrency(spec: Spec, cores: int) -> int:
    """Return how many trials run at once on so many cores."""
    return max(1, int(cores / spec.cpus)) if spec.cpus > 0 else cores


def run_sweep(spec: Spec, trials: Sequence[Trial], folder: Path, say: Callable[[str], object]) -> dict[str, str]:
    """Run trials, as many at once as their shares of cores, GPUs and memory allow.

    Args:
        spec: the sweep.
        trials: those to run.
        folder: the sweep's; Tune keeps its own files in ``tune/`` there.
        say: told of each trial's end.

    Returns:
        Trial's name -> why it failed, of those that did.

    Raises:
        TuneMissing: see there.
    """
    try:
        from ray import tune
    except ImportError as error:
        raise TuneMissing(
            f"Ray Tune does not load here ({error.__cause__ or error}): sweeps need it; install 'fedsim[sweep]'"
        ) from error
    if not trials:
        return {}
    # A trial travels as text, so that every worker checks its settings as a run does.
    texts = {trial.name: to_toml(trial.config) for trial in trials if trial.config is not None}
    failed: dict[str, str] = {}
    resources: dict[str, float] = {"cpu": spec.cpus, "gpu": spec.gpus}
    if spec.memory_mb:
        resources["memory"] = spec.memory_mb * 2**20
    done = _Progress(len(texts), say, failed)
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    # It misses, at each start and end, files that trials here do not write.
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
    # Paths in the settings are relative to where the sweep was started; Tune would take each trial to a folder of its
    # own, below Ray's, which goes with the session.
    os.environ["RAY_CHDIR_TO_TRIAL_DIR"] = "0"
    session = RaySession(cpus=os.cpu_count() or 1, threads=1)
    try:
        tuner = tune.Tuner(
            tune.with_resources(_trainable(texts), resources),
            param_space={"trial": tune.grid_search(list(texts))},
            tune_config=tune.TuneConfig(metric="finished", mode="max", reuse_actors=True),
            run_config=tune.RunConfig(
                name="tune",
                storage_path=str(folder.resolve()),
                failure_config=tune.FailureConfig(max_failures=spec.retries),
                callbacks=[done.callback(tune)],
                verbose=0,
            ),
        )
        tuner.fit()
    finally:
        session.close()
    return failed | {name: "it left no run behind" for name in texts if name not in failed and _lost(trials, name)}


def _lost(trials: Sequence[Trial], name: str) -> bool:
    """Tell whether a trial that did not fail has no finished run where the report looks for it."""
    config = next(trial.config for trial in trials if trial.name == name)
    return config is not None and state_of(config).status != "finished"


def _trainable(texts: dict[str, str]) -> Callable[[dict[str, Any]], None]:
    def trial(params: dict[str, Any]) -> None:
        import tempfile

        from ray import tune

        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write(texts[params["trial"]])
            file.flush()
            config = load_config(file.name)
        result = run_trial(config)
        tune.report({"finished": int(result["status"] == "finished"), "reason": result["reason"]})

    return trial


class _Progress:
    """Counts ends of trials."""

    def __init__(self, total: int, say: Callable[[str], object], failed: dict[str, str]) -> None:
        self._total, self._say, self._failed, self._done = total, say, failed, 0

    def ended(self, name: str, reason: str) -> None:
        """One trial is over."""
        self._done += 1
        if reason:
            self._failed[name] = reason
        self._say(f"{self._done}/{self._total}  {name}  {reason.splitlines()[0] if reason else 'finished'}")

    def callback(self, tune: Any) -> Any:
        """Return Tune's callback."""
        progress = self

        class Ends(tune.Callback):  # type: ignore[misc, name-defined]
            def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
                progress.ended(trial.config["trial"], str(trial.last_result.get("reason", "")))

            def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
                text = trial.get_error() if hasattr(trial, "get_error") else ""
                progress.ended(trial.config["trial"], str(text) or "its process ended; see the sweep's tune/ folder")

        return Ends()
