"""How faithful is what LEFF's clients train in? Students against the blocks that they stand for, and gradients.

``python -m experiments.leff.fidelity experiments/configs/papers/leff_word_order.toml`` trains the file's model for some
steps, so that its blocks matter to its loss, then compresses around every window of one block. For each rate and number
of distillation steps it prints the students' mean mismatch on the proxy data; and, on a client's data, how far the
hybrid's logits are from the full model's, and the cosine between the window's gradients in the two.
"""

import argparse
import copy
import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsim.config import RunConfig, load_config
from fedsim.proxy import proxy_data
from fedsim.site import Site
from fedsim.tasks.training import TrainConfig, as_inputs, train
from strategies._leff_blocks import Parts, joined, parts_of, picked, stack_of, train_only
from strategies._leff_server import Assignment, Compressor, hybrid
from strategies._leff_students import mismatch, student_sizes, trace
from strategies.leff import Distillation
from strategies.records import NamedArrays
from strategies.state import load_state_arrays, state_arrays

__all__ = ["Fidelity", "main", "measure"]


@dataclass(frozen=True)
class Fidelity:
    """Means over all windows of one block.

    Attributes:
        rate, steps: of compression.
        hidden, maps: the students' mean squared error of hidden states and divergence of attention maps, proxy data.
        logits: root mean square of the logits' difference over that of the full model's, client's data.
        cosine, least_cosine: of the window's gradient with the full model's; mean, and smallest over windows.
        norm: the window's gradient norm over the full model's.
    """

    rate: float
    steps: int
    hidden: float
    maps: float
    logits: float
    cosine: float
    least_cosine: float
    norm: float


def assignment(start: int, layers: int, rate: float) -> Assignment:
    """Return that of a window of one block."""
    below, above = student_sizes(start, layers - 1 - start, rate)
    return Assignment(layers, below + 1 + above, (start,), (below,))


def stack(model: nn.Module, parts: Parts, own: Assignment, compressor: Compressor) -> nn.Module:
    """Return what a client of this assignment is sent, as a model that trains its block."""
    state = NamedArrays(state_arrays(model))
    sent = stack_of(model, own.count)
    load_state_arrays(sent, joined(picked(state, parts.stem), hybrid(state, parts, own, compressor)).arrays)
    sent_parts = parts_of(sent.state_dict(), cast(Sequence[str], model.stem))
    train_only(sent, sent_parts.blocks[own.trained[0]])
    return sent.eval()


def gradient(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the loss's gradient by what trains, flat."""
    trained = [p for p in model.parameters() if p.requires_grad]
    found = torch.autograd.grad(functional.cross_entropy(model(x), y), trained)
    return torch.cat([each.flatten() for each in found]).double()


def measure(
    model: nn.Module, inputs: Sequence[Tensor], data: tuple[Tensor, Tensor], rate: float, how: Distillation
) -> Fidelity:
    """Compress around each window of one block and compare.

    Args:
        model: a block model in evaluation mode; not changed.
        inputs: batches of proxy inputs.
        data: a client's examples and labels.
        rate: r of the compression.
        how: the distillation.
    """
    parts = parts_of(model.state_dict(), cast(Sequence[str], model.stem))
    layers, (x, y) = len(parts.blocks), data
    own = [assignment(start, layers, rate) for start in range(layers)]
    compressor = Compressor(how, warm_start=False)
    compressor.make(model, own, inputs)
    traces = trace(model, inputs)
    misses = [mismatch(compressor.students[s], s[0], s[1], traces) for s in {s for each in own for s in each.segments}]
    with torch.no_grad():
        logits = model(x)
    off, cosines, norms = [], [], []
    for each in own:
        sent, whole = stack(model, parts, each, compressor), copy.deepcopy(model)
        with torch.no_grad():
            off.append(float((sent(x) - logits).square().mean().sqrt() / logits.square().mean().sqrt()))
        train_only(whole, parts.blocks[each.blocks[0]])
        ours, true = gradient(sent, x, y), gradient(whole, x, y)
        cosines.append(float(functional.cosine_similarity(ours, true, dim=0)))
        norms.append(float(ours.norm() / true.norm()))
    hidden, maps = np.mean(misses, axis=0) if misses else (0.0, 0.0)
    means = (float(hidden), float(maps), float(np.mean(off)), float(np.mean(cosines)))
    return Fidelity(rate, how.steps, *means, min(cosines), float(np.mean(norms)))


def prepared(config: RunConfig, steps: int, lr: float) -> tuple[nn.Module, list[Tensor], tuple[Tensor, Tensor]]:
    """Return the model after some steps on the other clients' data, batches of proxy inputs, and client 0's data."""
    site = Site(config)
    x, y = as_inputs(site.dataset.train_x), torch.from_numpy(site.dataset.train_y.copy())
    held, *others = site.partition.indices
    model = site.model
    train_only(model, parts_of(model.state_dict(), cast(Sequence[str], model.stem)).trained)
    if steps:
        rows = np.concatenate(others)
        settings = TrainConfig(epochs=steps, max_steps=steps, batch_size=16, optimizer="adamw", lr=lr)
        train(model, x[rows], y[rows], settings, seed=config.seed, round=1)
    own, _ = proxy_data(config)
    return model.eval(), list(own.split(64)), (x[held[:_HELD]], y[held[:_HELD]])


#: Most examples on which logits and gradients are compared.
_HELD = 96


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--rates", type=float, nargs="*", default=[0.2, 0.5, 0.8])
    parser.add_argument("--distil-steps", type=int, nargs="*", default=[0, 4, 30])
    parser.add_argument("--distil-lr", type=float, default=1e-4)
    parser.add_argument("--steps", type=int, default=20, help="of training before the comparison")
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path, default=Path("leff_fidelity.csv"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    model, inputs, data = prepared(load_config(args.config, args.set), args.steps, args.lr)
    with args.out.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(Fidelity.__dataclass_fields__))
        writer.writeheader()
        for rate in args.rates:
            for steps in args.distil_steps:
                found = measure(model, inputs, data, rate, Distillation(steps=steps, lr=args.distil_lr))
                row = {name: round(value, 4) for name, value in asdict(found).items()}
                writer.writerow(row)
                file.flush()
                print(row, flush=True)


if __name__ == "__main__":
    main()
