"""Rebuild training images from what each method lets the server see; a table and a picture.

``python -m experiments.privacy --out experiments/results`` takes single-example gradients of a small perceptron on the
packaged digits and attacks the visible coordinates: all of them under plain FedAvg; all but the share with the highest
FedML-HE scores, or all but a random share; none under FedHE-Full and DictPFL, where the server gets ciphertexts alone
and an attack has nothing to match, so that what it "finds" is its first guess. The server is granted the model and the
label, more than it has.
"""

import argparse
import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from experiments.privacy.attacks import cosine, dense_recovery, gradients, invert, ssim
from fedsim.tasks.data import load_dataset
from strategies.fedml_he import sensitivity, top

Image = NDArray[np.floating]
_SHARES = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
_SHOWN = ("plain FedAvg", "FedML-HE 10 %", "FedML-HE 50 %", "FedML-HE 70 %", "FedML-HE 90 %", "FedHE-Full, DictPFL")


@dataclass(frozen=True)
class Outcome:
    """What the attacks found of one image under one method.

    Attributes:
        visible: share of the coordinates that the server sees.
        pixels: share of the input that dense recovery gives exactly.
        found: the most alike of what the attacks give, clipped to [0, 1]; chosen with the original in hand.
        ssim, cosine: of it and the original.
    """

    visible: float
    pixels: float
    found: Image
    ssim: float
    cosine: float


def perceptron(inputs: int, classes: int) -> nn.Module:
    """Return the attacked model: one hidden layer of smooth units, as inversion needs second derivatives."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 48), nn.Tanh(), nn.Linear(48, classes))


def masks(scores: NDArray[np.float64], rng: np.random.Generator) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Yield each method with the coordinates that stay visible."""
    count = scores.size
    yield "plain FedAvg", np.ones(count, np.bool_)
    for share in _SHARES:
        yield f"FedML-HE {share:.0%}".replace("%", " %"), ~top(scores, share)
    for share in _SHARES:
        hidden = np.zeros(count, np.bool_)
        hidden[rng.permutation(count)[: int(np.ceil(share * count))]] = True
        yield f"random {share:.0%}".replace("%", " %"), ~hidden
    yield "FedHE-Full, DictPFL", np.zeros(count, np.bool_)


def by_name(flat: NDArray[np.bool_], model: nn.Module) -> dict[str, Tensor]:
    """Cut a flat mask into one for each parameter."""
    out, at = {}, 0
    for name, parameter in model.named_parameters():
        out[name] = torch.from_numpy(flat[at : at + parameter.numel()]).reshape(parameter.shape)
        at += parameter.numel()
    return out


def attack(model: nn.Module, image: Image, label: int, visible: NDArray[np.bool_], guess: Tensor) -> Outcome:
    """Attack one example's gradient."""
    x, y = torch.from_numpy(image.astype(np.float32)).reshape(-1), torch.tensor(label)
    target, seen = gradients(model, x, y), by_name(visible, model)
    exact, known = dense_recovery(target["0.weight"], target["0.bias"], seen["0.weight"], seen["0.bias"])
    start = torch.where(known, exact, guess)
    candidates = [start, invert(model, target, seen, y, start), invert(model, target, seen, y, guess)]
    images = [np.clip(c.numpy().reshape(image.shape), 0, 1) for c in candidates]
    best = max(images, key=lambda found: ssim(found, image))
    return Outcome(float(visible.mean()), float(known.float().mean()), best, ssim(best, image), cosine(best, image))


def examples(count: int) -> tuple[Image, NDArray[np.int64], Image, NDArray[np.int64]]:
    """Return attacked images and labels, values in [0, 1], and others that scores are made from."""
    data = load_dataset("digits")
    x, y = np.asarray(data.train_x, np.float32), np.asarray(data.train_y).astype(np.int64)
    chosen = [int(np.flatnonzero(y == digit)[0]) for digit in range(count)]
    return x[chosen, 0], y[chosen], x[200:300].copy(), y[200:300].copy()


def run(count: int = 8) -> dict[str, list[Outcome]]:
    """Attack `count` images, one of each digit, under every method."""
    torch.set_num_threads(1)
    images, labels, others, their = examples(count)
    model = perceptron(images[0].size, 10)
    names = tuple(n for n, _ in model.named_parameters())
    scores = sensitivity(model, torch.from_numpy(others.reshape(len(others), -1)), torch.from_numpy(their), names)
    rng = np.random.default_rng(0)
    guesses = [torch.rand(images[0].size, generator=torch.Generator().manual_seed(i)) for i in range(count)]
    return {
        method: [attack(model, image, int(y), visible, g) for image, y, g in zip(images, labels, guesses, strict=True)]
        for method, visible in masks(scores, rng)
    }


def rows(found: dict[str, list[Outcome]]) -> list[dict[str, str | float]]:
    """Return means over the images, one row a method."""
    return [
        {
            "method": method,
            "visible_share": round(outcomes[0].visible, 4),
            "recovered_pixels": round(float(np.mean([o.pixels for o in outcomes])), 4),
            "ssim": round(float(np.mean([o.ssim for o in outcomes])), 4),
            "cosine": round(float(np.mean([o.cosine for o in outcomes])), 4),
        }
        for method, outcomes in found.items()
    ]


def picture(found: dict[str, list[Outcome]], originals: Image, path: Path) -> None:
    """Draw the originals above what was found under some of the methods."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    lines: list[tuple[str, list[Image]]] = [("original", list(originals))]
    lines += [(f"{m}\nSSIM {np.mean([o.ssim for o in found[m]]):.2f}", [o.found for o in found[m]]) for m in _SHOWN]
    figure, axes = pyplot.subplots(len(lines), len(originals), figsize=(1 + 0.62 * len(originals), 0.72 * len(lines)))
    for (title, images), across in zip(lines, axes, strict=True):
        for image, axis in zip(images, across, strict=True):
            axis.imshow(image, cmap="gray_r", vmin=0, vmax=1)
            axis.set_xticks([])
            axis.set_yticks([])
        across[0].set_ylabel(title, rotation=0, ha="right", va="center", fontsize=7)
    figure.tight_layout(pad=0.3)
    figure.savefig(path, dpi=90)
    pyplot.close(figure)


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(prog="experiments.privacy", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--images", type=int, default=8)
    args = parser.parse_args()
    found = run(args.images)
    table = rows(found)
    args.out.mkdir(parents=True, exist_ok=True)
    with (args.out / "privacy.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(table[0]))
        writer.writeheader()
        writer.writerows(table)
    picture(found, examples(args.images)[0], args.out / "privacy.png")
    for row in table:
        print(*row.values())


if __name__ == "__main__":
    main()
