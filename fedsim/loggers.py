"""The same metrics in other tools: one small hook, and an adapter each for TensorBoard, Weights & Biases and MLflow.

A sink takes numbers by round; :func:`logged` feeds it what a run tells its watchers. None of the tools is needed, and
none is imported unless ``output.loggers`` names it.
"""

import importlib
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

from fedsim.config import RunConfig, to_run_config
from fedsim.errors import FedsimError
from fedsim.events import Observer, RoundEnd

__all__ = ["SINKS", "LoggerMissing", "Sink", "logged"]


class LoggerMissing(FedsimError):
    """A tool that ``output.loggers`` names is not installed."""

    exit_code = 4


class Sink(Protocol):
    """Where numbers go."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Take one round's numbers."""
        ...

    def close(self) -> None:
        """The run is over, however it ended."""
        ...


class TensorBoard:
    """Event files in the run's folder, under ``tensorboard/``; by tensorboardX, which needs no TensorFlow."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self._writer = _load("tensorboardX", "tensorboard").SummaryWriter(str(folder / "tensorboard"))

    def log(self, values: Mapping[str, float], step: int) -> None:
        """See :class:`Sink`."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """See :class:`Sink`."""
        self._writer.close()


class Wandb:
    """A run of the project ``fedsim``, or of WANDB_PROJECT; WANDB_MODE=offline keeps it on this machine."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        wandb = _load("wandb", "wandb")
        import os

        project = os.environ.get("WANDB_PROJECT", "fedsim")
        self._run = wandb.init(project=project, name=folder.name, config=dict(config), dir=str(folder))

    def log(self, values: Mapping[str, float], step: int) -> None:
        """See :class:`Sink`."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """See :class:`Sink`."""
        self._run.finish()


class MLflow:
    """A run of the experiment ``fedsim``, or of MLFLOW_EXPERIMENT_NAME, at MLFLOW_TRACKING_URI."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self._mlflow = _load("mlflow", "mlflow")
        import os

        self._mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", "fedsim"))
        self._mlflow.start_run(run_name=folder.name)
        self._mlflow.log_params({key: str(value)[:500] for key, value in config.items()})

    def log(self, values: Mapping[str, float], step: int) -> None:
        """See :class:`Sink`."""
        self._mlflow.log_metrics(dict(values), step=step)

    def close(self) -> None:
        """See :class:`Sink`."""
        self._mlflow.end_run()


#: Name in the settings -> what makes the sink of a run's folder and settings.
SINKS: dict[str, Callable[[Path, Mapping[str, Any]], Sink]] = {
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "mlflow": MLflow,
}


def _load(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise LoggerMissing(
            f"output.loggers has {extra}: {module} is not installed ({error}); install 'fedsim[{extra}]', or drop it"
        ) from error


@contextmanager
def logged(observer: Observer, config: RunConfig) -> Iterator[Observer]:
    """Yield an observer that also feeds the sinks that the settings name; they are closed at the end.

    Raises:
        LoggerMissing: a tool is not installed; nothing was started.
    """
    if not config.output.loggers:
        yield observer
        return
    for name in config.output.loggers:
        _load({"tensorboard": "tensorboardX"}.get(name, name), name)
    with ExitStack() as stack:
        yield _Feeding(observer, config.output.loggers, stack)


class _Feeding:
    """Passes everything on, and numbers to the sinks."""

    def __init__(self, observer: Observer, names: tuple[str, ...], stack: ExitStack) -> None:
        self._observer, self._names, self._stack = observer, names, stack
        self._sinks: list[Sink] = []

    def started(self, config: RunConfig, folder: Path) -> None:
        """See :meth:`fedsim.events.Observer.started`."""
        flat = to_run_config(config)
        for name in self._names:
            sink = SINKS[name](folder, flat)
            self._stack.callback(sink.close)
            self._sinks.append(sink)
        self._observer.started(config, folder)

    def round_end(self, event: RoundEnd) -> None:
        """See :meth:`fedsim.events.Observer.round_end`."""
        values = {
            **event.metrics,
            "upload_bytes": event.upload_bytes,
            "download_bytes": event.download_bytes,
            "round_s": event.seconds,
            "virtual_round_s": event.virtual_s,
            "sampled": event.sampled,
            "replied": event.replied,
        }
        known = {name: float(value) for name, value in values.items() if math.isfinite(value)}
        for sink in self._sinks:
            sink.log(known, event.round)
        self._observer.round_end(event)

    def note(self, text: str) -> None:
        """See :meth:`fedsim.events.Observer.note`."""
        self._observer.note(text)

    def finished(self, summary: Mapping[str, Any]) -> None:
        """See :meth:`fedsim.events.Observer.finished`."""
        self._observer.finished(summary)
