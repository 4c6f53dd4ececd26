"""``fedsim privacy``: what a PREAMBLE round costs and promises, before anything runs."""

import importlib
import json
from collections.abc import Callable
from math import sqrt
from typing import TYPE_CHECKING, Annotated

import typer

from fedsim._cli.exits import exits
from fedsim.errors import ConfigError, Problem

if TYPE_CHECKING:
    from crypto.preamble.sizing import Choice

_DEFAULT_SHARE = 8
#: Option -> least, most, remedy; the bounds are those of the settings of protection.preamble.
_RANGES = {
    "--epsilon": (1e-3, 500.0, "1 to 10 is usual"),
    "--delta": (1e-30, 0.999, "far below one over the number of clients is usual"),
    "--clip-norm": (1e-30, 1e30, "give the norm that updates have about"),
}


def privacy(
    dimension: Annotated[
        int | None, typer.Option("--dimension", "-d", min=1, max=10**11, help="D, coordinates of an update.")
    ] = None,
    model: Annotated[str, typer.Option("--model", help="Count this model's parameters instead.")] = "",
    task: Annotated[str, typer.Option("--task", help="Task that the model is built for.")] = "digits",
    clients: Annotated[int, typer.Option("--clients", "-n", min=1, help="n, reports of a round.")] = 1000,
    epsilon: Annotated[float, typer.Option("--epsilon", help="Privacy loss over all rounds.")] = 1.0,
    delta: Annotated[float, typer.Option("--delta", help="Probability that epsilon is exceeded.")] = 1e-6,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="T, how often a client reports.")] = 1,
    byte_budget: Annotated[
        int | None, typer.Option("--bytes", min=1, help="Largest report; default: an eighth of a dense share.")
    ] = None,
    block_size: Annotated[int | None, typer.Option("--block-size", min=1, help="B; with --blocks.")] = None,
    blocks: Annotated[int | None, typer.Option("--blocks", min=1, help="k; with --block-size.")] = None,
    clip_norm: Annotated[float, typer.Option("--clip-norm", help="C, norm of an update.")] = 1.0,
    word_bits: Annotated[int, typer.Option("--word-bits", help="32 or 64.")] = 64,
    as_json: Annotated[bool, typer.Option("--json", help="JSON for programs, on standard output.")] = False,
) -> None:
    """Choose blocks and noise of PREAMBLE for a privacy target, and say what they cost."""
    with exits():
        _within({"--epsilon": epsilon, "--delta": delta, "--clip-norm": clip_norm}, word_bits)
        length = dimension if dimension is not None else _count(model, task)
        privacy_of = importlib.import_module("crypto.preamble.sizing")
        shaped = importlib.import_module("crypto.preamble.blocks").BlockShape
        common = {"word_bits": word_bits, "norm_bound": clip_norm}
        if (block_size is None) != (blocks is None):
            raise typer.BadParameter("give --block-size and --blocks together, or neither to have them chosen")
        if block_size is not None:
            shape = shaped(length=length, block_size=block_size, groups=blocks)
            choice = privacy_of.evaluate(shape, clients, epsilon, delta, rounds, **common)
        else:
            padded = importlib.import_module("crypto.preamble.rotation").padded_length(length)
            budget = byte_budget or padded * word_bits // 8 // _DEFAULT_SHARE
            choice = privacy_of.size(length, clients, epsilon, delta, rounds, budget, **common)
    values = facts(choice, clients, rounds, _round_epsilon(choice))
    if as_json:
        typer.echo(json.dumps(values))
        return
    width = max(map(len, values))
    for name, value in values.items():
        typer.echo(f"{name.replace('_', ' '):<{width}}  {_shown(value)}")


def _within(given: dict[str, float], word_bits: int) -> None:
    problems = [
        Problem(option, f"{value:g}", f"must be a number from {_RANGES[option][0]:g} to {_RANGES[option][1]:g}", remedy)
        for option, value in given.items()
        if not _RANGES[option][0] <= value <= _RANGES[option][1]
        for remedy in [_RANGES[option][2]]
    ]
    if word_bits not in (32, 64):
        problems.append(Problem("--word-bits", str(word_bits), "must be 32 or 64", "leave it out for 64"))
    if problems:
        raise ConfigError(problems)


def facts(choice: "Choice", clients: int, rounds: int, round_epsilon: float) -> dict[str, float]:
    """Return a sized round as named numbers, in the units of the updates."""
    shape = choice.shape
    return {
        "dimension": shape.length,
        "padded_dimension": shape.padded_length,
        "clients": clients,
        "rounds": rounds,
        "epsilon_all_rounds": choice.guarantee.epsilon,
        "epsilon_one_round": round_epsilon,
        "delta": choice.guarantee.delta,
        "block_size_B": shape.block_size,
        "blocks_k": shape.groups,
        "blocks_per_group_t": shape.blocks_per_group,
        "sensitivity": choice.sensitivity,
        "sigma_each_aggregator": choice.sigma,
        "sigma_dense_gaussian": choice.gaussian_sigma,
        "noise_ratio": choice.noise_ratio,
        "error_ratio": choice.error_ratio,
        "mean_error_per_coordinate": sqrt(choice.error.total / shape.spread_length) / clients,
        "report_bytes": choice.upload_bytes,
        "dense_share_bytes": choice.dense_bytes,
        "saving": choice.dense_bytes / choice.upload_bytes,
    }


def _round_epsilon(choice: "Choice") -> float:
    found = importlib.import_module("crypto.preamble.privacy")
    shape = choice.shape
    mechanism = found.Mechanism(
        ratio=choice.sigma / choice.sensitivity, blocks_per_group=shape.blocks_per_group, groups=shape.groups
    )
    return float(found.guarantee(mechanism, choice.guarantee.delta).epsilon)


def _count(model: str, task: str) -> int:
    if not model:
        raise typer.BadParameter("give --dimension, or --model to count its parameters")
    data = importlib.import_module("fedsim.tasks.data").load_dataset(task)
    build: Callable[..., object] = importlib.import_module("fedsim.tasks.models").build_model
    built = build(model, input_shape=data.input_shape, num_classes=data.num_classes, seed=0)
    arrays = importlib.import_module("strategies.state").state_arrays(built)
    return sum(a.size for a in arrays.values() if a.dtype.kind == "f")


def _shown(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.5g}"
