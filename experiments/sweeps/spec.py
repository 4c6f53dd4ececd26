"""One TOML file -> the list of trials: a grid or random draws, times arms, times seeds.

::

    [sweep]
    name = "skew"                 # of the folder
    seeds = [1, 2, 3]
    target = 0.7                  # accuracy of the "to reach" tables; left out: the largest 5 % that all reached
    baseline = "plain"            # an arm: ratios are over it
    refused = "skip"              # combinations that make no sense: "error" or "skip" (then listed)
    heat = ["data.alpha", "federation.participation"]
    cpus = 1.0                    # of one trial; also gpus, memory_mb
    retries = 1                   # of a trial that died, not of one that was refused
    samples = 8                   # draws, where there is a [random] table

    [settings]                    # of every run, the same tree as a run's file
    [settings.task]
    name = "digits"

    [grid]                        # every combination
    "data.alpha" = [0.1, 100.0]

    [random]                      # drawn from the sweep's seed
    "training.lr" = { low = 0.01, high = 0.3, log = true }

    [[arms]]                      # settings that go together
    name = "fedprox"
    set = { "strategy.name" = "fedprox", "strategy.mu" = 0.1 }
"""

import hashlib
import itertools as it
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from experiments.sweeps.checks import check
from fedsim.config import ConfigError, RunConfig, config_from_dict, with_values
from fedsim.errors import Problem
from fedsim.toml import text_of, toml_of

__all__ = ["Spec", "Trial", "read_spec"]


@dataclass(frozen=True)
class Trial:
    """One run of a sweep.

    Attributes:
        name: of its folder; equal settings have equal names.
        arm: name of its arm, empty without arms.
        seed: its seed.
        values: what the sweep varies, by dotted key, without the seed.
        config: its settings; None where the combination is refused.
        refused: why.
    """

    name: str
    arm: str
    seed: int
    values: dict[str, Any]
    config: RunConfig | None
    refused: str = ""


@dataclass(frozen=True, kw_only=True)
class Spec:
    """A sweep; see the module for the keys.

    Attributes:
        text: the file as it is.
        trials: in order, refused ones included.
    """

    name: str
    text: str
    trials: list[Trial]
    seeds: list[int]
    target: float | None = None
    baseline: str | None = None
    heat: tuple[str, ...] = ()
    cpus: float = 1.0
    gpus: float = 0.0
    memory_mb: int = 0
    retries: int = 1
    varied: list[str] = field(default_factory=list)

    @property
    def runnable(self) -> list[Trial]:
        """Trials that make sense."""
        return [trial for trial in self.trials if trial.config is not None]


def read_spec(path: Path, folder: Path) -> Spec:
    """Read a sweep's file.

    Args:
        path: the TOML file.
        folder: under which the sweep gets its folder; runs go to ``folder/name/runs``.

    Raises:
        ConfigError: the file cannot be read, a key is unknown or of the wrong type, or a combination is refused and the
            sweep does not skip such; all problems together.
    """
    try:
        text = text_of(path)
        data = toml_of(text)
    except (OSError, ValueError) as error:
        raise ConfigError(
            [Problem("sweep", str(path), f"is no sweep ({error})", "see docs/heterogeneity.md")]
        ) from None
    check(data)
    head = data["sweep"]
    runs = folder / head["name"] / "runs"
    base = _base(data.get("settings", {}), runs)
    trials = list(_trials(data, base))
    wrong = [t for t in trials if t.refused]
    if wrong and head.get("refused", "error") == "error":
        problems = [
            Problem(t.name, "trial", t.refused, 'correct it, or set refused = "skip" in [sweep]') for t in wrong
        ]
        raise ConfigError(problems[:10])
    options = {k: v for k, v in head.items() if k in ("target", "baseline", "cpus", "gpus", "memory_mb", "retries")}
    varied = list(dict.fromkeys(key for trial in trials for key in trial.values))
    return Spec(
        text=text,
        trials=trials,
        name=head["name"],
        seeds=list(head.get("seeds", [1])),
        heat=tuple(head.get("heat", ())),
        varied=varied,
        **options,
    )


def _base(settings: Mapping[str, Any], runs: Path) -> RunConfig:
    data = {key: value for key, value in settings.items()}
    # A trial is one process of many: Ray inside would compete with the sweep for the same cores.
    engine = {"name": "inline"} | dict(data.get("engine", {}))
    output = {"report": False, "checkpoint_every": 5} | dict(data.get("output", {})) | {"folder": str(runs)}
    return config_from_dict(data | {"engine": engine, "output": output})


def _trials(data: Mapping[str, Any], base: RunConfig) -> Iterator[Trial]:
    head = data["sweep"]
    arms = data.get("arms", []) or [{"name": "", "set": {}}]
    grid = {str(key): list(values) for key, values in data.get("grid", {}).items()}
    points = [dict(zip(grid, values, strict=True)) for values in it.product(*grid.values())]
    draws = _draws(data.get("random", {}), head.get("samples", 1), head.get("seed", 0))
    for arm, point, draw in it.product(arms, points, draws):
        values, told = {**arm["set"], **point, **draw}, [*point, *draw]
        for seed in head.get("seeds", [1]):
            yield _trial(arm["name"], seed, values, told, base)


def _draws(laws: Mapping[str, Any], samples: int, seed: int) -> list[dict[str, Any]]:
    if not laws:
        return [{}]
    rng = np.random.default_rng([0x73776570, seed])
    return [{key: _draw(law, rng) for key, law in laws.items()} for _ in range(samples)]


def _draw(law: Any, rng: np.random.Generator) -> Any:
    if isinstance(law, list):
        return law[int(rng.integers(len(law)))]
    low, high = law["low"], law["high"]
    if law.get("log"):
        return float(f"{math.exp(rng.uniform(math.log(low), math.log(high))):.4g}")
    if isinstance(low, int) and isinstance(high, int):
        return int(rng.integers(low, high + 1))
    return float(f"{rng.uniform(low, high):.4g}")


def _trial(arm: str, seed: int, values: dict[str, Any], told: list[str], base: RunConfig) -> Trial:
    """Return a trial; its name tells the arm and the values of the keys `told`."""
    # Settings that stand at their defaults do not count, so that a newer program with more of them finds its trials.
    own = base.model_dump(mode="json", exclude_defaults=True)
    digest = hashlib.sha256(json.dumps([arm, values, own], sort_keys=True).encode()).hexdigest()
    words = ([arm] if arm else []) + [f"{key.split('.')[-1]}-{values[key]}".removeprefix("name-") for key in told]
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", "-".join(words))[:60].strip("-_.") or "run"
    name = f"{name}-{digest[:6]}-s{seed}"
    try:
        config = with_values(base, values | {"seed": seed, "output.name": name})
    except ConfigError as error:
        return Trial(name, arm, seed, values, None, "; ".join(str(problem) for problem in error.problems))
    return Trial(name, arm, seed, values, config)
